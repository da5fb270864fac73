//! The audit: everything is read once, page by page beside the traffic, and compared (ADR 0038).
//!
//! It reads and never writes. PostgreSQL and Redis are not read at one moment, and traffic continues between
//! two reads. So a discrepancy is reported only if it is found again each time that both sides are read
//! again. Memory is bounded by the pages, whatever there is and whatever is wrong.

mod entries;
mod outbound;
mod records;
mod retry;

use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::audit::{Checkpoints, Discrepancy, Figures, RetentionCutoffs, judge_checkpoints};
use domain::catalog::Catalog;
use domain::checkpoint::StreamState;
use domain::ports::{
    AuditStore, CheckpointCache, LeaderLookup, OutboundInspection, ReadLimit, StoreError, StreamReader,
};
use domain::route::{Channel, RouteKey};

use retry::retry;

/// How often a discrepancy is looked for, the first time included.
const MAX_LOOKS: usize = 3;
/// The pause before what was found is looked for again.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);
/// How long before its last entry the name of an outbound stream may have been recorded.
const NAME_MARGIN: Duration = Duration::from_secs(120);
/// How far the clock of the audit may lag that of a replica that deletes.
const RETENTION_MARGIN: Duration = Duration::from_secs(300);
/// What one read of a stream may return.
const READ_LIMIT: ReadLimit = ReadLimit { entries: MAX_READ_ENTRIES, bytes: MAX_READ_BYTES };
/// The most entries of one read of a stream.
const MAX_READ_ENTRIES: usize = 512;
/// The most bytes of one read of a stream: an entry that is larger is compared by its id alone.
const MAX_READ_BYTES: usize = 2 * 1024 * 1024;

/// What an audit reads.
#[derive(Clone, Debug)]
pub struct AuditStores<S, R, O, C, L> {
    /// The tables.
    pub tables: S,
    /// The streams, entry by entry.
    pub streams: R,
    /// The outbound streams, by the ids of entries.
    pub outbound: O,
    /// The cached checkpoint.
    pub cache: C,
    /// Who leads.
    pub leader: L,
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct AuditSettings {
    /// The key of the intents stream.
    pub intents_stream: String,
    /// The keys of the outbound streams.
    pub outbound_streams: [(Channel, String); 2],
    /// By which entries are decoded.
    pub catalog: Arc<Catalog>,
    /// How long a record is kept.
    pub record_retention: Duration,
    /// How long a malformed intent is kept.
    pub malformed_retention: Duration,
    /// Only what was accepted, or appended, at this time or later; `None` is from the beginning.
    pub since: Option<Timestamp>,
    /// Only what was accepted, or appended, before then; `None` is until now.
    pub until: Option<Timestamp>,
}

/// Where an audit reports to.
pub trait AuditReport {
    /// A discrepancy that was found each time.
    fn found(&mut self, discrepancy: &Discrepancy);
    /// A live route that was due long ago. It is no discrepancy: it waits for something.
    fn stuck(&mut self, route: &RouteKey, due: Timestamp);
    /// What was examined so far, after each page.
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
    /// Streams that the routes of a channel were published to under another name than the present one.
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
    /// An audit as of now.
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

    /// From when, `None` for the beginning, and before when it compares.
    pub fn range(&self) -> (Option<Timestamp>, Timestamp) {
        (self.settings.since, self.until)
    }

    /// Compares everything, and returns what was examined with where it was reported. `Err` if a store could
    /// not be read for a while.
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
        self.report_all(&wrong);
        Ok(found)
    }

    /// The order is that of [`Checkpoints`].
    async fn read_checkpoints(&self) -> Result<Checkpoints, StoreError> {
        let stream = &*self.settings.intents_stream;
        let stores = &self.stores;
        let cached = retry(async || stores.cache.load(stream).await).await?;
        let durable = retry(async || stores.tables.audited_checkpoint(stream).await).await?;
        let state = retry(async || stores.streams.inspect_stream(stream).await).await?;
        let leader = retry(async || stores.leader.leader().await).await?;
        let stream = state.map(StreamState::from);
        Ok(Checkpoints { cached, durable, stream, leader: leader.map(|term| term.fence) })
    }

    /// What retention may have deleted by now. Retention continues while the audit runs.
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

/// Those of `before` that were found again, as they were found now.
fn still_found(before: &[Discrepancy], now: Vec<Discrepancy>) -> Vec<Discrepancy> {
    now.into_iter().filter(|found| before.iter().any(|former| former.is_same(found))).collect()
}

#[cfg(test)]
mod tests;
