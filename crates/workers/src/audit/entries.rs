//! The intents stream, entry by entry.

use ambient::{Clock, Timestamp};
use domain::audit::{
    Checkpoints, Discrepancy, EntryContext, EntryOutcome, EntryTrace, FoundOutcome, Subject, judge_entry,
};
use domain::checkpoint::{StreamCheck, StreamState, check_stream};
use domain::entry::{EntryId, Unread};
use domain::ports::{
    AuditStore, CheckpointCache, LeaderLookup, OutboundInspection, StoreError, StreamEntry, StreamReader,
};

use super::{Audit, AuditReport, LOOK_INTERVAL, MAX_LOOKS, READ_LIMIT, retry, still_found};

/// The last possible id before the time `at`: a read after it starts at `at`, and a read up to it ends before
/// `at`.
pub(super) fn before(at: Timestamp) -> EntryId {
    // Ids have whole milliseconds: the first id that is not before `at` may be after it.
    let first = u64::try_from(at.as_micros()).unwrap_or(0).div_ceil(1_000);
    match first {
        0 => EntryId::ZERO,
        millis => EntryId::new(millis - 1, u64::MAX),
    }
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
    /// Checks the entries up to the last one that existed at the start of the audit.
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

    /// The last entry to read. A producer may choose an id that is later than any clock, so without `--until`
    /// every entry is read.
    pub(super) fn last_of(&self, last_generated: EntryId) -> EntryId {
        self.settings.until.map_or(last_generated, |until| before(until).min(last_generated))
    }

    async fn judge_page(
        &mut self,
        page: Vec<StreamEntry>,
        context: &EntryContext<'_>,
    ) -> Result<Vec<Discrepancy>, StoreError> {
        let mut wrong = Vec::new();
        for (_, outcome) in self.judge(&self.stores.tables, page, context).await? {
            match outcome {
                Ok(outcome) => self.figures.entries.add(outcome),
                Err(discrepancy) => wrong.push(discrepancy),
            }
        }
        Ok(wrong)
    }

    async fn judge(
        &self,
        tables: &S,
        page: Vec<StreamEntry>,
        context: &EntryContext<'_>,
    ) -> Result<Vec<JudgedEntry>, StoreError> {
        let catalog = &self.settings.catalog;
        // Entries that are not processed yet need no decoding.
        let traces: Vec<EntryTrace> = page
            .into_iter()
            .map(|entry| match entry.id > context.processed {
                true => EntryTrace::new(entry.id, Err(Unread::TooLarge), catalog),
                false => EntryTrace::new(entry.id, entry.fields.as_ref().map_err(|why| *why), catalog),
            })
            .collect();
        let found = retry(async || tables.find_outcomes(context.stream, &traces).await).await?;
        // The cutoffs are computed again: rows that were deleted before the outcomes were read have expired
        // by now.
        let context = EntryContext { cutoffs: self.cutoffs(), ..*context };
        let judged =
            |(trace, found): (&EntryTrace, &FoundOutcome)| (trace.id, judge_entry(trace, found, &context));
        Ok(traces.iter().zip(&found).map(judged).collect())
    }

    /// Reads the page, the checkpoint and the outcomes again, and returns the discrepancies that are found
    /// each time. Counts the outcomes of entries whose discrepancy is gone.
    async fn look_again(
        &mut self,
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
            let mut again = Vec::new();
            for (id, outcome) in self.judge_range(stream, after, last).await? {
                match outcome {
                    Ok(outcome) if is_suspected(&wrong, id) => self.figures.entries.add(outcome),
                    Ok(_) => {}
                    Err(discrepancy) => again.push(discrepancy),
                }
            }
            wrong = still_found(&wrong, again);
        }
        Ok(wrong)
    }

    /// Judges the entries up to `last`, in as many reads as necessary: one read may return less than the read
    /// that first found them.
    async fn judge_range(
        &self,
        stream: &str,
        mut after: EntryId,
        last: EntryId,
    ) -> Result<Vec<JudgedEntry>, StoreError> {
        let tables = &self.stores.current;
        let durable = retry(async || tables.audited_checkpoint(stream).await).await?;
        let processed = durable.map_or(EntryId::ZERO, |durable| durable.last_entry_id);
        let state = retry(async || self.stores.streams.inspect_stream(stream).await).await?;
        let state = state.map(StreamState::from);
        let is_stream_behind = check_stream(processed, state) == StreamCheck::EndsBefore;
        let context = EntryContext { stream, processed, is_stream_behind, cutoffs: self.cutoffs() };
        let mut judged = Vec::new();
        while after < last {
            let page =
                retry(async || self.stores.streams.list_entries(stream, after, last, READ_LIMIT).await)
                    .await?;
            let Some(read) = page.last().map(|last| last.id) else { break };
            judged.extend(self.judge(tables, page, &context).await?);
            after = read;
        }
        Ok(judged)
    }
}

/// An entry, with its outcome or its discrepancy.
type JudgedEntry = (EntryId, Result<EntryOutcome, Discrepancy>);

/// True if a discrepancy is about this entry.
pub(super) fn is_suspected(wrong: &[Discrepancy], entry: EntryId) -> bool {
    wrong.iter().any(|found| matches!(&found.subject, Subject::Entry { id, .. } if *id == entry))
}
