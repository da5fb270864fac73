//! Each discrepancy is looked for again, on stores whose contents change between two reads.

use std::sync::atomic::{AtomicUsize, Ordering};

use ambient::ManualClock;
use domain::audit::{AuditedRecord, DiscrepancyKind, EntryTrace, FoundOutcome, RouteState};
use domain::catalog::AudienceKind;
use domain::checkpoint::{CachedCheckpoint, Checkpoint};
use domain::entry::{EntryId, RawFields};
use domain::outbound::OutboundEntry;
use domain::ports::{
    Append, AuditedPage, ChildTable, FoundEntries, Leasable, ObservedStream, OrphanPage, OutboundState,
    RecordCursor, StreamEntry, Swap,
};
use domain::query::LeaderTerm;
use domain::record::NotificationId;
use domain::route::RouteKey;

use super::*;

/// The number of reads of each kind that return a discrepancy before a read returns none.
#[derive(Default)]
struct Stores {
    records: usize,
    outcomes: usize,
    /// The number of calls that fail first because the tables are unavailable.
    outages: usize,
    /// The entries before the last one of the intents stream.
    more_entries: u64,
    entry_reads: AtomicUsize,
    record_reads: AtomicUsize,
    outcome_reads: AtomicUsize,
    calls: AtomicUsize,
}

/// A record without routes.
fn broken() -> AuditedPage {
    let record = AuditedRecord {
        notification_id: NotificationId::from("5-0".to_owned()),
        accepted_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
        audience: AudienceKind::AdminEmail,
        recipient_user_ids: Vec::new(),
        routes: Vec::new(),
    };
    AuditedPage { records: vec![record], ..AuditedPage::default() }
}

impl Stores {
    /// Returns the record, or none once it is deleted.
    fn record(&self) -> AuditedPage {
        let read = self.record_reads.fetch_add(1, Ordering::Relaxed);
        if read < self.records { broken() } else { AuditedPage::default() }
    }
}

impl AuditStore for &Stores {
    async fn audited_checkpoint(&self, _: &str) -> Result<Option<Checkpoint>, StoreError> {
        if self.calls.fetch_add(1, Ordering::Relaxed) < self.outages {
            return Err(StoreError::Unavailable { operation: "load", source: "it restarts".into() });
        }
        Ok(Some(Checkpoint { fence: 1, last_entry_id: EntryId::new(TODAY, 0) }))
    }

    async fn list_audited_records(&self, _: &RecordCursor, _: Timestamp) -> Result<AuditedPage, StoreError> {
        Ok(self.record())
    }

    async fn get_audited_records(&self, ids: &[&NotificationId]) -> Result<AuditedPage, StoreError> {
        assert_eq!(ids, [&NotificationId::from("5-0".to_owned())]);
        Ok(self.record())
    }

    async fn find_outcomes(&self, _: &str, traces: &[EntryTrace]) -> Result<Vec<FoundOutcome>, StoreError> {
        let read = self.outcome_reads.fetch_add(1, Ordering::Relaxed);
        let row = |trace: &EntryTrace| domain::audit::MalformedTrace {
            fields_fingerprint: trace.fields_fingerprint.clone().unwrap_or_default(),
            failure_code: "unknown_field".into(),
        };
        let found = |trace: &EntryTrace| match read < self.outcomes {
            true => FoundOutcome::default(),
            false => FoundOutcome { malformed: vec![row(trace)], ..FoundOutcome::default() },
        };
        Ok(traces.iter().map(found).collect())
    }

    async fn find_routes(&self, _: &[&RouteKey]) -> Result<Vec<Option<RouteState>>, StoreError> {
        Ok(Vec::new())
    }

    async fn list_audited_names(&self, _: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        Ok(Vec::new())
    }

    async fn list_orphans(&self, _: ChildTable, _: Option<&RouteKey>) -> Result<OrphanPage, StoreError> {
        Ok(OrphanPage::default())
    }
}

/// The first read of the intents stream returns all its entries, and later ones return one each; the outbound
/// streams are absent.
impl StreamReader for &Stores {
    async fn list_entries(
        &self,
        _: &str,
        after: EntryId,
        _: EntryId,
        _: ReadLimit,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        let most = if self.entry_reads.fetch_add(1, Ordering::Relaxed) == 0 { usize::MAX } else { 1 };
        let ids = (TODAY - self.more_entries..=TODAY).map(|millis| EntryId::new(millis, 0));
        let entry = |id| StreamEntry { id, fields: Ok(RawFields::from_iter([("x", "y")])) };
        Ok(ids.filter(|id| *id > after).take(most).map(entry).collect())
    }

    async fn inspect_stream(&self, stream: &str) -> Result<Option<OutboundState>, StoreError> {
        let id = EntryId::new(TODAY, 0);
        let state = OutboundState { first: Some(id), last_generated: id, ..OutboundState::default() };
        Ok((stream == "intents").then_some(state))
    }

    async fn key_type(&self, _: &str) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

impl OutboundInspection for &Stores {
    async fn observe(&self, _: Channel) -> Result<ObservedStream, StoreError> {
        unreachable!("an audit does not ask for it")
    }

    async fn find_entries(&self, _: Channel, _: &[(&RouteKey, EntryId)]) -> Result<FoundEntries, StoreError> {
        unreachable!("there is no published route")
    }

    async fn find_entries_in(&self, _: &str, _: &[(&RouteKey, EntryId)]) -> Result<FoundEntries, StoreError> {
        unreachable!("there is no published route")
    }

    async fn append_again<R: Leasable>(
        &self,
        _: Channel,
        _: &[(&R, &OutboundEntry<'_>)],
        _: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        unreachable!("an audit does not write")
    }
}

impl CheckpointCache for &Stores {
    async fn load(&self, _: &str) -> Result<CachedCheckpoint, StoreError> {
        Ok(CachedCheckpoint::Missing)
    }

    async fn save(&self, _: &str, _: Checkpoint) -> Result<Swap, StoreError> {
        unreachable!("an audit does not write")
    }

    async fn reset(&self, _: &str, _: Checkpoint) -> Result<Swap, StoreError> {
        unreachable!("an audit does not write")
    }
}

impl LeaderLookup for &Stores {
    async fn leader(&self) -> Result<Option<LeaderTerm>, StoreError> {
        Ok(None)
    }

    async fn last_term_end(&self) -> Result<Option<Timestamp>, StoreError> {
        unreachable!("an audit does not ask since when no replica leads")
    }
}

/// 2026-04-02, in milliseconds.
const TODAY: u64 = 1_775_121_700_000;

#[derive(Default)]
struct Found(Vec<DiscrepancyKind>);

impl AuditReport for Found {
    fn found(&mut self, discrepancy: &Discrepancy) {
        self.0.push(discrepancy.kind);
    }

    fn stuck(&mut self, _: &RouteKey, _: Timestamp) {}

    fn progress(&mut self, _: &Figures) {}
}

async fn audit(stores: &Stores) -> Result<Vec<DiscrepancyKind>, StoreError> {
    let settings = AuditSettings {
        intents_stream: "intents".into(),
        outbound_streams: [(Channel::Push, "push".into()), (Channel::Email, "email".into())],
        catalog: Arc::new(Catalog::built_in()),
        record_retention: Duration::from_secs(3_600),
        malformed_retention: Duration::from_secs(3_600),
        since: None,
        until: None,
    };
    let ports = AuditStores {
        tables: stores,
        current: stores,
        streams: stores,
        outbound: stores,
        cache: stores,
        leader: stores,
    };
    let clock = ManualClock::new(Timestamp::from_millis(1_775_121_700_000).expect("in range"));
    let (figures, found) = Audit::new(ports, settings, clock, Found::default()).run().await?;
    assert_eq!(figures.discrepancies, found.0.len() as u64);
    let wrong = found.0.iter().filter(|kind| **kind == DiscrepancyKind::EntryWithoutOutcome).count();
    assert_eq!(figures.entries.sum() + wrong as u64, stores.more_entries + 1, "what was cleared is counted");
    Ok(found.0)
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_when_it_is_looked_for_again_is_not_reported() {
    for looks in 1..MAX_LOOKS {
        let stores = Stores { records: looks, outcomes: looks, ..Stores::default() };
        assert_eq!(audit(&stores).await.ok(), Some(vec![]), "contradicted {looks} times");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_found_each_time_is_reported_once() {
    let stores = Stores { records: MAX_LOOKS, outcomes: MAX_LOOKS, ..Stores::default() };
    let expected = vec![DiscrepancyKind::EntryWithoutOutcome, DiscrepancyKind::RecordWithoutRoutes];
    assert_eq!(audit(&stores).await.ok(), Some(expected));
}

#[tokio::test(start_paused = true)]
async fn what_is_found_again_in_several_short_reads_is_reported_whole() {
    let stores = Stores { outcomes: usize::MAX, more_entries: 2, ..Stores::default() };
    assert_eq!(audit(&stores).await.ok(), Some(vec![DiscrepancyKind::EntryWithoutOutcome; 3]));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_restarts_is_waited_for_and_one_that_stays_away_ends_the_audit() {
    let restarts = Stores { outages: 20, ..Stores::default() };
    assert_eq!(audit(&restarts).await.ok(), Some(vec![]));
    let stays_away = Stores { outages: usize::MAX, ..Stores::default() };
    assert!(matches!(audit(&stays_away).await, Err(StoreError::Unavailable { .. })));
}
