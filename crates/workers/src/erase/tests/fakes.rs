//! Tables, streams and leases in memory, of which one call fails before or after its effect.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use ambient::ManualClock;
use domain::checkpoint::Checkpoint;
use domain::malformed_intent::MalformedKey;
use domain::operations::OperatorActionId;
use domain::ports::{
    AuditedPage, ChildTable, EntryDeletion, ErasedChunk, FoundAction, FoundMalformed, Leasable, LeaseOutcome,
    LeaseStore, LeaseToken, OrphanPage, OutboundState, ReadLimit, ServerId, StreamEntry,
};
use domain::query::{MalformedPlace, Page};
use domain::record::{NotificationId, RecordCursor};
use domain::route::RouteKey;

use memory_stores::MemoryPublishing;
use serde_json::Value;

use super::*;
use crate::erase::records::CHUNK_RECORDS;

pub(super) const INTENTS: &str = "intents";
pub(super) const PUSH: &str = "push";

/// Everything that the stores hold.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Contents {
    /// The recipients of records.
    pub(super) records: BTreeMap<NotificationId, BTreeSet<String>>,
    /// True for a live route.
    pub(super) routes: BTreeMap<(NotificationId, String), bool>,
    /// The records that another transaction has locked.
    pub(super) locked: BTreeSet<NotificationId>,
    /// The raw fields of malformed intents, by entry id.
    pub(super) malformed: BTreeMap<String, String>,
    pub(super) actions: BTreeMap<i64, Value>,
    pub(super) has_document: bool,
    /// The records whose payload mentions the user.
    pub(super) mentions: Vec<NotificationId>,
    pub(super) checkpoint: EntryId,
    pub(super) streams: BTreeMap<String, BTreeMap<EntryId, RawFields>>,
}

#[derive(Default)]
struct Calls {
    count: usize,
    /// The call that fails, and whether its effect happens.
    failing: Option<(usize, bool)>,
}

pub(super) struct Fakes {
    contents: Mutex<Contents>,
    calls: Mutex<Calls>,
    pub(super) leases: MemoryPublishing,
}

impl Fakes {
    pub(super) fn new(contents: Contents, clock: &Arc<ManualClock>) -> Self {
        let leases = MemoryPublishing::new(Arc::clone(clock));
        Self { contents: Mutex::new(contents), calls: Mutex::default(), leases }
    }

    pub(super) fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect("no test panics while it holds the contents")
    }

    /// Makes a call fail, counted from here.
    pub(super) fn fail_at(&self, failing: Option<(usize, bool)>) {
        *self.calls.lock().expect("no test panics while it holds the calls") = Calls { count: 0, failing };
    }

    /// True if the call fails now: before its effect, or after it.
    fn fails(&self, after: bool) -> Result<(), StoreError> {
        let mut calls = self.calls.lock().expect("no test panics while it holds the calls");
        let is_now = calls.failing == Some((calls.count, after));
        calls.count += usize::from(after);
        if is_now { Err(crate::fixtures::down("call a store")) } else { Ok(()) }
    }

    fn call<T>(&self, effect: impl FnOnce(&mut Contents) -> T) -> Result<T, StoreError> {
        self.fails(false)?;
        let done = effect(&mut self.contents());
        self.fails(true)?;
        Ok(done)
    }
}

impl ErasureStore for &Fakes {
    async fn erasure_key(&self, _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.call(|_| Some(b"installation".to_vec()))
    }

    async fn list_records_naming(
        &self,
        user: &ErasedUser,
        except: &[NotificationId],
        limit: usize,
    ) -> Result<Vec<NotificationId>, StoreError> {
        self.call(|contents| {
            let naming = contents.records.iter().filter(|(_, users)| users.contains(user.id()));
            naming.map(|(id, _)| id).filter(|id| !except.contains(id)).take(limit).cloned().collect()
        })
    }

    async fn erase_from_records(
        &self,
        user: &ErasedUser,
        records: &[NotificationId],
        leased: &HashSet<RouteKey>,
        _: HoldActor<'_>,
    ) -> Result<ErasedChunk, StoreError> {
        assert!(records.len() <= CHUNK_RECORDS, "{}", records.len());
        self.call(|contents| {
            let mut chunk = ErasedChunk::default();
            let is_live = |key: &RouteKey| {
                contents.routes.get(&(key.notification_id.clone(), key.route_id.clone())) == Some(&true)
            };
            let others: HashSet<_> =
                leased.iter().filter(|key| is_live(key)).map(|key| key.notification_id.clone()).collect();
            let is_free = |id: &&NotificationId| !contents.locked.contains(*id) && !others.contains(*id);
            let free: Vec<_> = records.iter().filter(is_free).collect();
            for id in free {
                let Some(mut users) = contents.records.remove(id) else { continue };
                assert!(users.remove(user.id()));
                for key in user.routes(id) {
                    let route = contents.routes.remove(&(key.notification_id.clone(), key.route_id.clone()));
                    chunk.rows.routes += u64::from(route.is_some());
                }
                if users.is_empty() {
                    chunk.rows.records_deleted += 1;
                } else {
                    contents.records.insert(id.clone(), users);
                    chunk.rows.records_changed += 1;
                }
                chunk.erased.insert(id.clone());
            }
            chunk
        })
    }

    async fn list_malformed_containing(
        &self,
        _: &ErasedUser,
        _: Option<&MalformedPlace>,
    ) -> Result<Page<FoundMalformed, MalformedPlace>, StoreError> {
        self.call(|contents| {
            let found = contents.malformed.iter().map(|(entry_id, raw_fields)| FoundMalformed {
                key: MalformedKey {
                    stream: INTENTS.to_owned(),
                    entry_id: entry_id.clone(),
                    fields_fingerprint: String::new(),
                },
                raw_fields: raw_fields.clone(),
            });
            Page { items: found.collect(), next: None }
        })
    }

    async fn erase_malformed(
        &self,
        _: &ErasedUser,
        keys: &[MalformedKey],
        _: HoldActor<'_>,
    ) -> Result<u64, StoreError> {
        self.call(|contents| {
            for key in keys {
                contents.malformed.insert(key.entry_id.clone(), "[]".to_owned());
            }
            keys.len() as u64
        })
    }

    async fn list_actions_containing(
        &self,
        _: &ErasedUser,
        _: Option<OperatorActionId>,
    ) -> Result<Page<FoundAction, OperatorActionId>, StoreError> {
        self.call(|contents| {
            let found = contents.actions.iter();
            let found = found.map(|(id, arguments)| FoundAction {
                id: OperatorActionId(*id),
                arguments: arguments.clone(),
            });
            Page { items: found.collect(), next: None }
        })
    }

    async fn replace_arguments(
        &self,
        _: &ErasedUser,
        actions: &[FoundAction],
        _: HoldActor<'_>,
    ) -> Result<u64, StoreError> {
        self.call(|contents| {
            for action in actions {
                contents.actions.insert(action.id.0, action.arguments.clone());
            }
            actions.len() as u64
        })
    }

    async fn list_records_containing(
        &self,
        _: &ErasedUser,
        _: Option<&RecordCursor>,
    ) -> Result<Page<NotificationId, RecordCursor>, StoreError> {
        self.call(|contents| Page { items: contents.mentions.clone(), next: None })
    }

    async fn record_stream_entries(
        &self,
        _: &ErasedUser,
        entries: u64,
        _: HoldActor<'_>,
    ) -> Result<(), StoreError> {
        assert!(entries > 0);
        self.call(|_| ())
    }

    async fn has_user_document(&self, _: &str) -> Result<bool, StoreError> {
        self.call(|contents| contents.has_document)
    }

    async fn delete_user_document(
        &self,
        _: &ErasedUser,
        document: &str,
        _: HoldActor<'_>,
    ) -> Result<bool, StoreError> {
        assert_eq!(document, "users/u-1");
        self.call(|contents| std::mem::take(&mut contents.has_document))
    }
}

impl EntryDeletion for &Fakes {
    async fn delete_entries(&self, stream: &str, ids: &[EntryId]) -> Result<u64, StoreError> {
        self.call(|contents| {
            let entries = contents.streams.entry(stream.to_owned()).or_default();
            ids.iter().filter(|id| entries.remove(id).is_some()).count() as u64
        })
    }
}

impl StreamReader for &Fakes {
    async fn list_entries(
        &self,
        stream: &str,
        after: EntryId,
        until: EntryId,
        _: ReadLimit,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        self.call(|contents| {
            let entries = contents.streams.get(stream).into_iter().flatten();
            let range = entries.filter(|(id, _)| **id > after && **id <= until).take(2);
            range.map(|(id, fields)| StreamEntry { id: *id, fields: Ok(fields.clone()) }).collect()
        })
    }

    async fn inspect_stream(&self, stream: &str) -> Result<Option<OutboundState>, StoreError> {
        let last_generated = EntryId::new(u64::MAX, 0);
        let state = OutboundState { last_generated, ..OutboundState::default() };
        self.call(|contents| contents.streams.contains_key(stream).then_some(state))
    }

    async fn key_type(&self, _: &str) -> Result<Option<String>, StoreError> {
        unreachable!("an erasure does not audit")
    }
}

impl AuditStore for &Fakes {
    async fn audited_checkpoint(&self, _: &str) -> Result<Option<Checkpoint>, StoreError> {
        self.call(|contents| Some(Checkpoint { fence: 1, last_entry_id: contents.checkpoint }))
    }

    async fn list_audited_names(&self, _: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        self.call(|_| vec![(Channel::Push, PUSH.to_owned())])
    }

    async fn list_audited_records(&self, _: &RecordCursor, _: Timestamp) -> Result<AuditedPage, StoreError> {
        unreachable!("an erasure does not audit")
    }

    async fn get_audited_records(&self, _: &[&NotificationId]) -> Result<AuditedPage, StoreError> {
        unreachable!("an erasure does not audit")
    }

    async fn find_outcomes(
        &self,
        _: &str,
        _: &[domain::audit::EntryTrace],
    ) -> Result<Vec<domain::audit::FoundOutcome>, StoreError> {
        unreachable!("an erasure does not audit")
    }

    async fn find_routes(
        &self,
        _: &[&RouteKey],
    ) -> Result<Vec<Option<domain::audit::RouteState>>, StoreError> {
        unreachable!("an erasure does not audit")
    }

    async fn list_orphans(&self, _: ChildTable, _: Option<&RouteKey>) -> Result<OrphanPage, StoreError> {
        unreachable!("an erasure does not audit")
    }
}

impl LeaseStore for &Fakes {
    async fn grant_permit(&self, _: Channel, _: &LeaseToken, _: Duration) -> Result<(), StoreError> {
        unreachable!("an erasure publishes nothing")
    }

    async fn acquire_leases<R: Leasable>(
        &self,
        routes: &[&R],
        token: &LeaseToken,
        ttl: Duration,
    ) -> Result<Vec<LeaseOutcome>, StoreError> {
        self.call(|_| ())?;
        self.leases.acquire_leases(routes, token, ttl).await
    }

    async fn release_leases(&self, _: &[&RouteKey], _: &LeaseToken) -> Result<(), StoreError> {
        unreachable!("an erasure lets its leases expire")
    }

    async fn acquire_scan_lock(&self, _: Channel, _: &LeaseToken, _: Duration) -> Result<bool, StoreError> {
        unreachable!("an erasure does not scan")
    }

    async fn release_scan_lock(&self, _: Channel, _: &LeaseToken) -> Result<(), StoreError> {
        unreachable!("an erasure does not scan")
    }

    async fn extend_markers(
        &self,
        _: &ServerId,
        _: &[(&RouteKey, &str)],
        _: Duration,
    ) -> Result<bool, StoreError> {
        unreachable!("an erasure publishes nothing")
    }
}
