//! The intents stream, entry by entry.

use ambient::{Clock, Timestamp};
use domain::audit::{Checkpoints, Discrepancy, EntryContext, EntryOutcome, EntryTrace, judge_entry};
use domain::checkpoint::{StreamCheck, StreamState, check_stream};
use domain::entry::EntryId;
use domain::ports::{
    AuditStore, CheckpointCache, LeaderLookup, OutboundInspection, StoreError, StreamEntry, StreamReader,
    Unread,
};

use super::{Audit, AuditReport, LOOK_INTERVAL, MAX_LOOKS, READ_LIMIT, retry, still_found};

/// The last id before `since`: a stream is read after it.
pub(super) fn before(since: Timestamp) -> EntryId {
    match u64::try_from(since.as_millis()).unwrap_or(0) {
        0 => EntryId::ZERO,
        millis => EntryId::new(millis - 1, u64::MAX),
    }
}

/// The last id that can have been given by `until`.
pub(super) fn by(until: Timestamp) -> EntryId {
    EntryId::new(u64::try_from(until.as_millis()).unwrap_or(0), u64::MAX)
}

impl<S, R, O, C, L, K, P> Audit<S, R, O, C, L, K, P>
where
    S: AuditStore,
    R: StreamReader,
    O: OutboundInspection,
    C: CheckpointCache,
    L: LeaderLookup,
    K: Clock,
    P: AuditReport,
{
    /// Up to the last entry that there was at the beginning.
    pub(super) async fn check_entries(&mut self, checkpoints: &Checkpoints) -> Result<(), StoreError> {
        let Some(state) = checkpoints.stream else { return Ok(()) };
        let stream = self.settings.intents_stream.clone();
        let context = EntryContext {
            stream: &stream,
            processed: checkpoints.processed(),
            is_stream_behind: checkpoints.is_stream_behind(),
            cutoffs: self.cutoffs(),
        };
        let (mut after, until) = (before(self.since), self.last_of(state.last_generated));
        loop {
            let page =
                retry(async || self.stores.streams.list_entries(&stream, after, until, READ_LIMIT).await)
                    .await?;
            let Some(last) = page.last().map(|last| last.id) else { return Ok(()) };
            let wrong = self.judge_page(page, &context).await?;
            let wrong = self.look_again(wrong, &stream, after, last).await?;
            self.report_all(&wrong);
            self.page_done();
            after = last;
        }
    }

    /// An id that producers chose may be later than any clock: without `--until`, all are read.
    pub(super) fn last_of(&self, last_generated: EntryId) -> EntryId {
        self.settings.until.map_or(last_generated, |until| by(until).min(last_generated))
    }

    async fn judge_page(
        &mut self,
        page: Vec<StreamEntry>,
        context: &EntryContext<'_>,
    ) -> Result<Vec<Discrepancy>, StoreError> {
        let mut wrong = Vec::new();
        for outcome in self.judge(page, context).await? {
            match outcome {
                Ok(outcome) => self.figures.entries.add(outcome),
                Err(discrepancy) => wrong.push(discrepancy),
            }
        }
        Ok(wrong)
    }

    async fn judge(
        &self,
        page: Vec<StreamEntry>,
        context: &EntryContext<'_>,
    ) -> Result<Vec<Result<EntryOutcome, Discrepancy>>, StoreError> {
        let catalog = &self.settings.catalog;
        // What is not read yet need not be decoded.
        let traces: Vec<EntryTrace> = page
            .into_iter()
            .map(|entry| match entry.id > context.processed {
                true => EntryTrace::new(entry.id, Err(Unread::TooLarge), catalog),
                false => EntryTrace::new(entry.id, entry.fields.as_ref().map_err(|why| *why), catalog),
            })
            .collect();
        let found = retry(async || self.stores.tables.find_outcomes(context.stream, &traces).await).await?;
        // Only now: what was deleted before the outcomes were read has expired by this time.
        let context = EntryContext { cutoffs: self.cutoffs(), ..*context };
        Ok(traces.iter().zip(&found).map(|(trace, found)| judge_entry(trace, found, &context)).collect())
    }

    /// What is found each time that the page, the checkpoint and the outcomes are read again.
    async fn look_again(
        &self,
        mut wrong: Vec<Discrepancy>,
        stream: &str,
        after: EntryId,
        last: EntryId,
    ) -> Result<Vec<Discrepancy>, StoreError> {
        for _ in 1..MAX_LOOKS {
            if wrong.is_empty() {
                break;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
            let durable = retry(async || self.stores.tables.audited_checkpoint(stream).await).await?;
            let processed = durable.map_or(EntryId::ZERO, |durable| durable.last_entry_id);
            let state = retry(async || self.stores.streams.inspect_stream(stream).await).await?;
            let state =
                state.map(|state| StreamState { first: state.first, last_generated: state.last_generated });
            let is_stream_behind = check_stream(processed, state) == StreamCheck::EndsBefore;
            let context = EntryContext { stream, processed, is_stream_behind, cutoffs: self.cutoffs() };
            let page =
                retry(async || self.stores.streams.list_entries(stream, after, last, READ_LIMIT).await)
                    .await?;
            let again = self.judge(page, &context).await?.into_iter().filter_map(Result::err);
            wrong = still_found(&wrong, again.collect());
        }
        Ok(wrong)
    }
}
