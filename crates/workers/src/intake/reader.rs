//! The reader reads entries from Redis, as many at once as memory allows, and decodes them.

use std::time::Duration;

use ambient::Clock;
use domain::accept;
use domain::checkpoint::LARGE_COPY_INTERVAL;
use domain::entry::{EntryId, LargeEntry, RawEntry};
use domain::policy::Policy;
use domain::ports::{IntentStream, ReadLimit, StoreError, StreamRead};
use tokio::time::{Instant, sleep_until};

use super::{Intake, IntakeSettings, UnprocessedEntry};
use crate::accept::MAX_BATCH_COST;
use crate::ports::Ports;

/// The number of entries that are requested before their size is known, and the most of one request. The next
/// entries may be a thousand times as large as the last ones.
const FIRST_COUNT: usize = 16;
const LARGEST_COUNT: usize = 256;
/// The target cost of one read: half of its maximum.
const READ_COST: usize = 2 * 1024 * 1024;
/// The most bytes that a read of several entries may return. Small fields take up to thirteen times as much
/// memory as bytes, so this limit also bounds the memory of a read.
const MAX_READ_BYTES: usize = 4 * 1024 * 1024;
/// The most bytes that a read of one entry may return.
pub(super) const MAX_ENTRY_BYTES: usize = 64 * 1024 * 1024;
/// The number of consecutive empty reads of a stream that has an entry, after which the connection is
/// replaced. One is not enough: the entry may have arrived just after the read.
const MAX_MISSES: u32 = 2;

/// Reads entries in stream order.
pub(super) struct EntryReader<'a, P: Ports> {
    intents: &'a P::Intents,
    clock: &'a P::Clock,
    policy: &'a Policy,
    settings: &'a IntakeSettings,
    window: ReadWindow,
    misses: u32,
    /// The start of the last look at a large entry, if that look did not determine the outcome.
    looked_at: Option<Instant>,
}

impl<'a, P: Ports> EntryReader<'a, P> {
    pub(super) fn new(intake: &'a Intake<P>) -> Self {
        Self {
            intents: &intake.intents,
            clock: &intake.clock,
            policy: &intake.policy,
            settings: &intake.settings,
            window: ReadWindow::new(),
            misses: 0,
            looked_at: None,
        }
    }

    /// Returns the entries after `after` in stream order. Waits up to `block` for the first, and returns none
    /// if none arrives in time.
    pub(super) async fn read(
        &mut self,
        after: EntryId,
        block: Duration,
    ) -> Result<Vec<UnprocessedEntry>, StoreError> {
        match self.read_whole(after, block).await {
            Ok(Some(entries)) => Ok(entries),
            Ok(None) => Ok(self.look_at_large(after).await?.into_iter().collect()),
            Err(error) => Ok(vec![self.look_after_failure(after, error).await?]),
        }
    }

    /// Returns the next entry if reading it alone failed with `error` because it is too large: Redis
    /// responds, but cannot copy the entry in time. Redis copies the entry for this look, too.
    async fn look_after_failure(
        &mut self,
        after: EntryId,
        error: StoreError,
    ) -> Result<UnprocessedEntry, StoreError> {
        let may_look = self.looked_at.is_none_or(|at| at.elapsed() >= LARGE_COPY_INTERVAL);
        if !self.window.is_narrow() || !may_look || self.intents.server().await.is_err() {
            return Err(error);
        }
        self.looked_at = Some(Instant::now());
        match self.intents.look_at_large(after).await? {
            Some(entry) if entry.bytes > MAX_ENTRY_BYTES as u64 => {
                self.looked_at = None;
                Ok(self.decode_large(&entry))
            }
            _ => Err(error),
        }
    }

    /// Same as [`Self::read`], but returns `None` if the next entry is larger than [`MAX_ENTRY_BYTES`].
    async fn read_whole(
        &mut self,
        after: EntryId,
        block: Duration,
    ) -> Result<Option<Vec<UnprocessedEntry>>, StoreError> {
        loop {
            match self.intents.read(after, self.window.limit(), block).await? {
                StreamRead::Entries(entries) => {
                    if !entries.is_empty() {
                        self.misses = 0;
                    }
                    self.window.brought(&entries);
                    let read_at = Instant::now();
                    let decode = |entry| self.decode(entry, read_at);
                    return Ok(Some(entries.into_iter().map(decode).collect()));
                }
                StreamRead::TooLarge if self.window.narrow() => {}
                StreamRead::TooLarge => return Ok(None),
            }
        }
    }

    /// Returns the next entry, which alone is larger than [`MAX_ENTRY_BYTES`], so that its outcome depends on
    /// its size alone. Redis copies the entry for this, so a failed look is repeated only after
    /// [`LARGE_COPY_INTERVAL`].
    async fn look_at_large(&mut self, after: EntryId) -> Result<Option<UnprocessedEntry>, StoreError> {
        if let Some(at) = self.looked_at {
            sleep_until(at + LARGE_COPY_INTERVAL).await;
        }
        self.looked_at = Some(Instant::now());
        let found = self.look_after(after).await?;
        self.looked_at = None;
        Ok(found)
    }

    /// Returns the next entry, decoded by its size alone.
    pub(super) async fn look_after(&self, after: EntryId) -> Result<Option<UnprocessedEntry>, StoreError> {
        let found = self.intents.look_at_large(after).await?;
        Ok(found.map(|entry| self.decode_large(&entry)))
    }

    fn decode_large(&self, entry: &LargeEntry) -> UnprocessedEntry {
        let read_at = Instant::now();
        let decoded = accept::decode_large(&self.settings.stream, entry, self.clock.now());
        UnprocessedEntry { decoded, read_at }
    }

    /// Returns the entries that are already in the stream after `after`, up to a full transaction or to an
    /// entry that is too large to read. Returns none if `after` is `None`, or if the last read showed that
    /// there are no more.
    pub(super) async fn read_ahead(
        &mut self,
        after: Option<EntryId>,
    ) -> Result<Vec<UnprocessedEntry>, StoreError> {
        let mut ahead: Vec<UnprocessedEntry> = Vec::new();
        let Some(mut after) = after else { return Ok(ahead) };
        let mut cost = 0;
        while self.window.more && ahead.len() < self.settings.batch_size && cost < MAX_BATCH_COST {
            let Some(entries) = self.read_whole(after, Duration::ZERO).await? else { break };
            after = entries.last().map_or(after, |last| last.decoded.id);
            cost += entries.iter().map(|entry| entry.decoded.cost).sum::<usize>();
            ahead.extend(entries);
        }
        Ok(ahead)
    }

    /// Narrows the next read, because the failed one may have been too large.
    pub(super) fn failed(&mut self) {
        self.window.count = 1;
    }

    /// Records that a read returned nothing. Returns the entry that it should have returned, if the stream
    /// `has_more` and this has happened several times in a row. In that case it also closes the connection,
    /// which may lead to a server that is no longer the primary.
    pub(super) async fn missed_after(
        &mut self,
        after: EntryId,
        has_more: bool,
    ) -> Result<Option<EntryId>, StoreError> {
        let next = if has_more { self.next_after(after).await? } else { None };
        let Some(entry_id) = next else {
            self.misses = 0;
            return Ok(None);
        };
        self.misses += 1;
        if self.misses < MAX_MISSES {
            return Ok(None);
        }
        self.intents.reconnect().await;
        Ok(Some(entry_id))
    }

    /// Returns the id of the next entry.
    pub(super) async fn next_after(&self, after: EntryId) -> Result<Option<EntryId>, StoreError> {
        self.intents.first_after(after).await
    }

    /// Decodes an entry by the rules of the envelope.
    pub(super) fn decode(&self, entry: RawEntry, read_at: Instant) -> UnprocessedEntry {
        let decoded = accept::decode(&self.settings.stream, entry, self.policy, self.clock.now());
        UnprocessedEntry { decoded, read_at }
    }
}

/// The number of entries to read at once, by the size of the last ones.
#[derive(Debug)]
struct ReadWindow {
    /// The number of entries that the next read requests.
    count: usize,
    /// True if the last read returned as many entries as it requested, so that there is more to read.
    more: bool,
}

impl ReadWindow {
    fn new() -> Self {
        Self { count: FIRST_COUNT, more: false }
    }

    fn limit(&self) -> ReadLimit {
        let bytes = if self.count == 1 { MAX_ENTRY_BYTES } else { MAX_READ_BYTES };
        ReadLimit { entries: self.count, bytes }
    }

    /// Requests as many entries next time as fit into [`READ_COST`] at the same average size. A read without
    /// entries shows nothing about the next entries.
    fn brought(&mut self, entries: &[RawEntry]) {
        self.more = entries.len() == self.count;
        if entries.is_empty() {
            return;
        }
        let average = entries.iter().map(|entry| entry.fields.cost()).sum::<usize>() / entries.len();
        self.count = (READ_COST / average.max(1)).min(self.count * 4).clamp(1, LARGEST_COUNT);
    }

    /// True if the next read requests one entry.
    fn is_narrow(&self) -> bool {
        self.count == 1
    }

    /// Requests one entry next time. Returns false if the last read already requested one.
    fn narrow(&mut self) -> bool {
        self.more = true;
        std::mem::replace(&mut self.count, 1) > 1
    }
}

#[cfg(test)]
mod tests {
    use domain::entry::RawFields;

    use super::*;

    #[test]
    fn a_read_requests_as_many_entries_as_fit_by_the_size_of_the_last_ones() {
        let entry = |bytes: usize| RawEntry {
            id: EntryId::new(1, 0),
            fields: RawFields::from_iter([("f", "x".repeat(bytes.saturating_sub(1)))]),
        };
        for (asked, got, bytes, next) in [
            (16, 16, 500, 64),
            (64, 64, 500, 256),
            (256, 256, 500, 256),
            (256, 256, 256 * 1024, 7),
            (16, 1, 64 * 1024 * 1024, 1),
            (1, 1, 500, 4),
            (16, 0, 0, 16),
            (1, 0, 0, 1),
        ] {
            let mut window = ReadWindow { count: asked, more: false };
            window.brought(&vec![entry(bytes); got]);
            assert_eq!((window.count, window.more), (next, got == asked), "{asked}: {got} of {bytes} bytes");
        }
    }

    #[test]
    fn many_empty_fields_narrow_the_next_read() {
        let fields = RawFields(vec![Default::default(); 100_000]);
        let mut window = ReadWindow { count: 16, more: false };
        window.brought(&[RawEntry { id: EntryId::new(1, 0), fields }]);
        assert_eq!(window.limit(), ReadLimit { entries: 1, bytes: MAX_ENTRY_BYTES });
    }
}
