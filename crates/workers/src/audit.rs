//! The audit reads everything once, page by page beside the traffic, and compares it (ADR 0038).
//!
//! It never writes. PostgreSQL and Redis cannot be read at the same moment, and traffic continues between two
//! reads. So a discrepancy is reported only if it is found again each time that both sides are read again.
//! Memory is bounded by the size of a page, regardless of the amount of data and of discrepancies.

mod entries;
mod outbound;
mod records;
mod retry;

use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::audit::{
    Checkpoints, Discrepancy, DiscrepancyKind, Figures, RetentionCutoffs, Subject, judge_checkpoints,
};
use domain::catalog::Catalog;
use domain::checkpoint::StreamState;
use domain::ports::{
    AuditStore, CheckpointCache, LeaderLookup, OutboundInspection, ReadLimit, StoreError, StreamReader,
};
use domain::route::{Channel, RouteKey};

use retry::retry;

/// The number of times that a discrepancy is looked for, the first time included.
const MAX_LOOKS: usize = 3;
/// The pause before a discrepancy is looked for again.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);
/// The longest time between recording the name of an outbound stream and its last entry.
const NAME_MARGIN: Duration = Duration::from_secs(120);
/// The time by which the clock of the audit may lag the clock of a replica that deletes.
const RETENTION_MARGIN: Duration = Duration::from_secs(300);
/// The limits of one read of a stream.
const READ_LIMIT: ReadLimit = ReadLimit { entries: MAX_READ_ENTRIES, bytes: MAX_READ_BYTES };
/// The most entries in one read of a stream.
const MAX_READ_ENTRIES: usize = 512;
/// The most bytes in one read of a stream. A larger entry is compared by its id alone.
const MAX_READ_BYTES: usize = 2 * 1024 * 1024;

/// The stores that an audit reads.
#[derive(Clone, Debug)]
pub struct AuditStores<S, R, O, C, L> {
    /// The tables, or a replica of them whose rows may be a little old.
    pub tables: S,
    /// The tables as they are now, in which a discrepancy is looked for again.
    pub current: S,
    /// The streams, entry by entry.
    pub streams: R,
    /// The outbound streams, read by entry ids.
    pub outbound: O,
    /// The cached checkpoint.
    pub cache: C,
    /// The lookup of the leader.
    pub leader: L,
}

/// The settings of an audit.
#[derive(Clone, Debug)]
pub struct AuditSettings {
    /// The key of the intents stream.
    pub intents_stream: String,
    /// The keys of the outbound streams.
    pub outbound_streams: [(Channel, String); 2],
    /// The catalogue for decoding entries.
    pub catalog: Arc<Catalog>,
    /// The retention of records.
    pub record_retention: Duration,
    /// The retention of malformed intents.
    pub malformed_retention: Duration,
    /// The start of the audited period: entries and records that were appended or accepted at this time or
    /// later; `None` for the beginning.
    pub since: Option<Timestamp>,
    /// The end of the audited period: entries and records that were appended or accepted before this time;
    /// `None` for now.
    pub until: Option<Timestamp>,
}

/// Receives the results of an audit.
pub trait AuditReport {
    /// Receives a discrepancy that was found each time.
    fn found(&mut self, discrepancy: &Discrepancy);
    /// Receives a live route that was due long ago. This is not a discrepancy: the route waits for something.
    fn stuck(&mut self, route: &RouteKey, due: Timestamp);
    /// Receives the figures so far, after each page.
    fn progress(&mut self, figures: &Figures);
}

/// One run of an audit.
#[derive(Debug)]
pub struct Audit<S, R, O, C, L, K, P> {
    stores: AuditStores<S, R, O, C, L>,
    settings: AuditSettings,
    clock: K,
    report: P,
    figures: Figures,
    /// Streams that routes of a channel were published to under a former name.
    other_streams: Vec<(Channel, String)>,
    since: Timestamp,
    until: Timestamp,
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
    /// Creates an audit as of now.
    pub fn new(stores: AuditStores<S, R, O, C, L>, settings: AuditSettings, clock: K, report: P) -> Self {
        let now = clock.now();
        Self {
            since: settings.since.unwrap_or(Timestamp::MIN),
            until: settings.until.unwrap_or(now).min(now),
            stores,
            settings,
            clock,
            report,
            figures: Figures::default(),
            other_streams: Vec::new(),
        }
    }

    /// Returns the compared period: its start, `None` for the beginning, and its exclusive end.
    pub fn range(&self) -> (Option<Timestamp>, Timestamp) {
        (self.settings.since, self.until)
    }

    /// Compares everything, and returns the figures and the report. Returns `Err` if a store could not be
    /// read for a while.
    pub async fn run(mut self) -> Result<(Figures, P), StoreError> {
        let checkpoints = self.check_checkpoints().await?;
        self.check_entries(&checkpoints).await?;
        self.check_records().await?;
        self.check_orphans().await?;
        self.check_outbound().await?;
        Ok((self.figures, self.report))
    }

    async fn check_checkpoints(&mut self) -> Result<Checkpoints, StoreError> {
        let stream = self.settings.intents_stream.clone();
        let mut found = self.read_checkpoints().await?;
        let mut wrong = judge_checkpoints(&stream, &found);
        for _ in 1..MAX_LOOKS {
            if wrong.is_empty() {
                break;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
            found = self.read_checkpoints().await?;
            let again = judge_checkpoints(&stream, &found);
            wrong = still_found(&wrong, again);
        }
        let wrong = self.with_types(wrong).await?;
        self.report_all(&wrong);
        Ok(found)
    }

    /// Distinguishes streams that do not exist from keys that hold something else.
    async fn with_types(&self, mut wrong: Vec<Discrepancy>) -> Result<Vec<Discrepancy>, StoreError> {
        const ABSENT: [DiscrepancyKind; 2] =
            [DiscrepancyKind::IntentsStreamAbsent, DiscrepancyKind::OutboundStreamAbsent];
        for found in wrong.iter_mut().filter(|found| ABSENT.contains(&found.kind)) {
            let Subject::Stream(stream) = &found.subject else { continue };
            if let Some(kind) = retry(async || self.stores.streams.key_type(stream).await).await? {
                *found = Discrepancy::new(
                    DiscrepancyKind::StreamOfWrongType,
                    found.subject.clone(),
                    format!("the key is not a stream: its type is {kind}"),
                );
            }
        }
        Ok(wrong)
    }

    /// Reads the checkpoints in the order that [`Checkpoints`] requires.
    async fn read_checkpoints(&self) -> Result<Checkpoints, StoreError> {
        let stream = &*self.settings.intents_stream;
        let stores = &self.stores;
        let cached = retry(async || stores.cache.load(stream).await).await?;
        let durable = retry(async || stores.current.audited_checkpoint(stream).await).await?;
        let state = retry(async || stores.streams.inspect_stream(stream).await).await?;
        let leader = retry(async || stores.leader.leader().await).await?;
        let stream = state.map(StreamState::from);
        Ok(Checkpoints { cached, durable, stream, leader: leader.map(|term| term.fence) })
    }

    /// The times before which retention may have deleted rows by now. Retention continues while the audit
    /// runs.
    fn cutoffs(&self) -> RetentionCutoffs {
        let now = self.clock.now() + RETENTION_MARGIN;
        RetentionCutoffs {
            records: now - self.settings.record_retention,
            malformed_intents: now - self.settings.malformed_retention,
        }
    }

    fn report_all(&mut self, wrong: &[Discrepancy]) {
        for discrepancy in wrong {
            self.figures.discrepancies += 1;
            self.report.found(discrepancy);
        }
    }

    fn page_done(&mut self) {
        self.report.progress(&self.figures);
    }
}

/// Returns the discrepancies of `now` that were also found `before`.
fn still_found(before: &[Discrepancy], now: Vec<Discrepancy>) -> Vec<Discrepancy> {
    now.into_iter().filter(|found| before.iter().any(|former| former.is_same(found))).collect()
}

#[cfg(test)]
mod tests;
