//! Resumes in an intents stream that lost its newest entries or was recreated, after the last entry that has
//! an outcome.

use ambient::Clock;
use domain::entry::EntryId;
use domain::ports::{CheckpointMove, CheckpointStore, IntentStream, ReadLimit, ServerId, StoreError, Swap};
use tokio::time::Instant;

use super::CheckpointKeeper;
use crate::intake::reader::{EntryReader, MAX_ENTRY_BYTES};
use crate::ports::Ports;

/// The limits of one page of the search for the last entry with an outcome.
const WITNESS_PAGE: ReadLimit = ReadLimit { entries: MAX_WITNESS_ENTRIES, bytes: MAX_WITNESS_BYTES };
/// The limits of a read of one entry that is larger than a page. A still larger entry is read by its size
/// alone and is not recognised.
const LARGE_WITNESS: ReadLimit = ReadLimit { entries: 1, bytes: MAX_ENTRY_BYTES };
/// The most entries in a page of the search.
const MAX_WITNESS_ENTRIES: usize = 100;
/// The most bytes that Redis may send for a page of the search.
const MAX_WITNESS_BYTES: usize = 4 * 1024 * 1024;
/// The most pages of the search. If none of their entries has an outcome, the stream is read from the
/// retention of records on, which only leads to duplicates.
const MAX_WITNESS_PAGES: usize = 100;

impl<P: Ports> CheckpointKeeper<'_, P> {
    /// Returns the last entry up to `last` that has an outcome with the same content, with the fingerprint of
    /// its fields; `None` if there is none within [`MAX_WITNESS_PAGES`].
    async fn last_known(
        &self,
        last: EntryId,
        reader: &EntryReader<'_, P>,
    ) -> Result<Option<(EntryId, String)>, StoreError> {
        let mut last = last;
        for _ in 0..MAX_WITNESS_PAGES {
            let read_at = Instant::now();
            let (mut entries, mut is_all) = self.intents.list_newest(last, WITNESS_PAGE).await?;
            if entries.is_empty() && !is_all {
                (entries, is_all) = self.intents.list_newest(last, LARGE_WITNESS).await?;
            }
            let Some(oldest) = entries.last().map(|entry| entry.id) else { return Ok(None) };
            let traces: Vec<_> =
                entries.into_iter().map(|entry| reader.decode(entry, read_at).decoded.trace()).collect();
            let known = self.store.find_last_processed(&self.settings.stream, &traces).await?;
            if let Some(known) = known {
                let mut found = traces.into_iter().filter(|trace| trace.entry_id == known);
                return Ok(found.next().map(|trace| (known, trace.fields_fingerprint)));
            }
            if is_all {
                return Ok(None);
            }
            let Some(before) = oldest.before() else { return Ok(None) };
            last = before;
        }
        Ok(None)
    }

    /// Returns the fingerprint of the entry with this id; `None` if the entry is not in the stream.
    pub(super) async fn fingerprint_of(
        &self,
        id: EntryId,
        reader: &EntryReader<'_, P>,
    ) -> Result<Option<String>, StoreError> {
        let (entries, is_all) = self.intents.list_newest(id, LARGE_WITNESS).await?;
        let found = match entries.into_iter().next() {
            Some(entry) => Some(reader.decode(entry, Instant::now())),
            None if is_all => None,
            None => reader.look_after(id.before().unwrap_or(EntryId::ZERO)).await?,
        };
        Ok(found.filter(|entry| entry.decoded.id == id).map(|entry| entry.decoded.fields_fingerprint()))
    }

    /// Determines where to resume in a stream that lost its newest entries, the processed one among them, or
    /// was recreated: after the last entry up to `last` that has an outcome. Entries older than the oldest
    /// record are skipped, because retention may have deleted their outcomes, unless the stream has no other
    /// entries.
    pub(super) async fn after_loss(
        &mut self,
        processed: EntryId,
        last: EntryId,
        reader: &EntryReader<'_, P>,
    ) -> Result<AfterLoss, StoreError> {
        let known = self.last_known(last, reader).await?;
        let next = self.intents.first_after(processed).await?;
        let oldest = (self.clock.now() - self.settings.record_retention).as_millis();
        let oldest = EntryId::new(u64::try_from(oldest).unwrap_or(0), 0);
        let is_recent = next.unwrap_or(last) > oldest;
        let known_id = known.as_ref().map(|(id, _)| *id);
        let resume_after =
            known_id.unwrap_or(EntryId::ZERO).max(if is_recent { oldest } else { EntryId::ZERO });
        let loss = CheckpointLoss { processed, last, resume_after };
        if self.reported_loss.replace(loss) != Some(loss) {
            self.report_loss(loss, known_id);
        }
        Ok(AfterLoss { resume_after, witness: known.filter(|(id, _)| *id == resume_after) })
    }

    /// Reports the range that may be lost. It has no end: the clock of the new server may be behind, so that
    /// lost entries have higher ids than new ones.
    fn report_loss(&self, loss: CheckpointLoss, known: Option<EntryId>) {
        let stream = self.settings.stream.as_str();
        let CheckpointLoss { processed, last, resume_after } = loss;
        match known {
            Some(_) => tracing::warn!(stream, %resume_after, after = %processed,
                "the stream was cut short: Redis lost its newest entries; those up to the checkpoint have their outcomes; entries \
                 that producers added after it and that were not read, if there were any, are lost"),
            None => tracing::warn!(stream, checkpoint = %processed, last_generated = %last, %resume_after,
                "the stream was recreated; reading it from the beginning"),
        }
    }

    /// Moves the durable checkpoint back to the entry after which intake resumes. Readers of the checkpoint
    /// then see that no entry before it waits, even if no new one arrives. Returns a conflict if the
    /// checkpoint is not `durable` any more.
    pub(super) async fn move_back(
        &self,
        durable: EntryId,
        to: &(EntryId, String),
        server: &ServerId,
    ) -> Result<Swap, StoreError> {
        let (last_entry_id, fingerprint) = to;
        let to = CheckpointMove {
            stream: &self.settings.stream,
            fence: self.fence,
            expected: Some(durable),
            last_entry_id: *last_entry_id,
            fingerprint,
        };
        self.store.move_checkpoint_back(to, server).await
    }
}

/// The position to resume at after a loss.
#[derive(Debug)]
pub(super) struct AfterLoss {
    /// The entry after which intake reads.
    pub(super) resume_after: EntryId,
    /// The same entry and the fingerprint of its fields, if the entry is in the stream and has an outcome.
    pub(super) witness: Option<(EntryId, String)>,
}

/// A reported loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CheckpointLoss {
    processed: EntryId,
    last: EntryId,
    resume_after: EntryId,
}
