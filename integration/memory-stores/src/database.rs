//! Records, routes, malformed intents, stored responses and durable checkpoints.
//!
//! One store, because a transaction covers all of them: each call takes effect as a whole or not at all. The
//! database uses the caller's clock, so both measure the same ages.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::Timestamp;
use domain::accept::{Known, Probe, ProcessedTrace};
use domain::checkpoint::{Checkpoint, Fence, FenceWrite, Witness};
use domain::entry::EntryId;
use domain::hold::HoldKey;
use domain::malformed_intent::{MalformedIntent, MalformedKey};
use domain::outcome::{Acceptance, Outcome};
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, CheckpointMove, CheckpointStore, Completion, Fate, SavedStream,
    ServerId, StoreError, Swap,
};
use domain::record::{IdempotencyKey, NotificationId, Record};
use domain::route::{Channel, LiveRoute, NewRoute, RouteKey, RouteStatus, SkipReason, Start, Version};

use super::clock::ServerClock;
use super::lock;
use super::rows::{KeyRow, RecordedAction};

/// A database. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryDatabase(pub(super) Arc<Mutex<ServiceTables>>);

#[derive(Clone, Debug, Default)]
pub(super) struct ServiceTables {
    pub(super) records: BTreeMap<NotificationId, Record>,
    pub(super) by_key: HashMap<IdempotencyKey, NotificationId>,
    pub(super) routes: BTreeMap<RouteKey, Row>,
    pub(super) dead_letters: BTreeMap<RouteKey, DeadLetterColumns>,
    pub(super) malformed: HashMap<MalformedKey, MalformedIntent>,
    pub(super) checkpoints: HashMap<String, Checkpoint>,
    pub(super) witnesses: HashMap<String, Witness>,
    pub(super) keys: HashMap<IdempotencyKey, KeyRow>,
    pub(super) locked: HashSet<RouteKey>,
    /// The holds; true if they were released.
    pub(super) holds: BTreeMap<HoldKey, bool>,
    /// The holds of held routes, with the times at which the routes were due.
    pub(super) held: BTreeMap<RouteKey, (HoldKey, Timestamp)>,
    /// Routes with an unreadable value.
    pub(super) corrupt: HashSet<RouteKey>,
    pub(super) outbound_streams: BTreeMap<String, SavedStream>,
    pub(super) outbound_names: BTreeMap<(Channel, String), Timestamp>,
    /// The database's own clock; without one, its time stays at the epoch.
    pub(super) clock: Option<ServerClock>,
    pub(super) actions: Vec<RecordedAction>,
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The columns that publishing needs; the row's version is `updated_at`.
    pub(super) route: LiveRoute,
    pub(super) status: RouteStatus,
    pub(super) published_entry_id: String,
    pub(super) published_at: Option<Timestamp>,
    pub(super) last_error_classification: &'static str,
}

/// The columns of a dead letter that the row of its route lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeadLetterColumns {
    pub(super) created_at: Timestamp,
    pub(super) is_discarded: bool,
}

impl Row {
    /// Raises the version, even if the clock has not advanced.
    pub(super) fn touch(&mut self, now: Timestamp) {
        let least = self.route.version.updated_at() + Duration::from_micros(1);
        self.route.version = Version::read(now.max(least));
    }
}

impl ServiceTables {
    /// The time by the database's own clock.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.as_ref().map_or(Timestamp::UNIX_EPOCH, |clock| clock.now())
    }
}

/// Another transaction that has locked a route. It ends when this value is dropped.
#[derive(Debug)]
pub struct RowLock {
    database: MemoryDatabase,
    key: RouteKey,
}

impl Drop for RowLock {
    fn drop(&mut self) {
        lock(&self.database.0).locked.remove(&self.key);
    }
}

impl MemoryDatabase {
    /// Locks a route as another transaction.
    pub fn lock_route(&self, key: &RouteKey) -> RowLock {
        lock(&self.0).locked.insert(key.clone());
        RowLock { database: self.clone(), key: key.clone() }
    }

    /// Ends all other transactions, as a restart does.
    pub fn unlock_routes(&self) {
        lock(&self.0).locked.clear();
    }

    /// The ids of all records, sorted.
    pub fn records(&self) -> Vec<NotificationId> {
        lock(&self.0).records.keys().cloned().collect()
    }

    /// The idempotency keys of all records, with the ids of the records.
    pub fn accepted_keys(&self) -> BTreeMap<IdempotencyKey, NotificationId> {
        lock(&self.0).by_key.iter().map(|(key, id)| (key.clone(), id.clone())).collect()
    }

    /// The keys of all routes with their status, sorted.
    pub fn routes(&self) -> Vec<(RouteKey, RouteStatus)> {
        lock(&self.0).routes.iter().map(|(key, row)| (key.clone(), row.status)).collect()
    }

    /// The keys of all dead letters, sorted.
    pub fn dead_letters(&self) -> Vec<RouteKey> {
        lock(&self.0).dead_letters.keys().cloned().collect()
    }

    /// All malformed intents, by entry id.
    pub fn malformed(&self) -> Vec<MalformedIntent> {
        let mut rows: Vec<MalformedIntent> = lock(&self.0).malformed.values().cloned().collect();
        rows.sort_by_key(|row| row.entry_id);
        rows
    }
}

impl ServiceTables {
    /// Returns true if the checkpoint has the value that `to` expects.
    fn admits(&self, to: &CheckpointMove<'_>) -> bool {
        match (self.checkpoints.get(to.stream), to.expected) {
            (None, None) => true,
            (Some(stored), Some(expected)) => stored.fence <= to.fence && stored.last_entry_id == expected,
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    /// Moves the checkpoint and its witness.
    fn move_checkpoint(&mut self, to: &CheckpointMove<'_>) {
        let CheckpointMove { stream, fence, last_entry_id, fingerprint, .. } = *to;
        self.checkpoints.insert(stream.to_owned(), Checkpoint { fence, last_entry_id });
        let witness = self.witnesses.entry(stream.to_owned()).or_default();
        witness.fingerprint = Some((last_entry_id, fingerprint.to_owned()));
    }

    /// Returns true if no record has one of these keys or ids, and none of them is repeated.
    fn are_new(&self, acceptances: &[&Acceptance]) -> bool {
        let (mut keys, mut ids) = (HashSet::new(), HashSet::new());
        acceptances.iter().all(|Acceptance { record, .. }| {
            !self.by_key.contains_key(&record.idempotency_key)
                && !self.records.contains_key(&record.notification_id)
                && keys.insert(&record.idempotency_key)
                && ids.insert(&record.notification_id)
        })
    }

    fn insert(&mut self, acceptance: &Acceptance) {
        let record = &acceptance.record;
        self.by_key.insert(record.idempotency_key.clone(), record.notification_id.clone());
        self.records.insert(record.notification_id.clone(), record.clone());
        for route in acceptance.live_routes() {
            self.insert_route(route, RouteStatus::Pending, "");
        }
        for skipped in acceptance.routes.iter().filter_map(|route| skipped(route, record)) {
            let (route, reason) = skipped;
            self.insert_route(route, RouteStatus::Skipped, reason.as_str());
        }
    }

    fn insert_route(&mut self, route: LiveRoute, status: RouteStatus, classification: &'static str) {
        let row = Row {
            route,
            status,
            published_entry_id: String::new(),
            published_at: None,
            last_error_classification: classification,
        };
        self.routes.insert(row.route.key.clone(), row);
    }

    /// Applies `change` to the row of `key` and raises its version, if the row is live at `version`.
    pub(super) fn complete(
        &mut self,
        (key, version): (&RouteKey, Version),
        now: Timestamp,
        is_intended: impl FnOnce(&Row) -> bool,
        change: impl FnOnce(&mut Row),
    ) -> Completion {
        let locked = self.locked.contains(key);
        let Some(row) = self.routes.get_mut(key) else { return Completion::Conflict };
        if row.status.is_live() && row.route.version == version {
            if locked {
                return Completion::Locked;
            }
            change(row);
            row.touch(now);
            return Completion::Applied;
        }
        if is_intended(row) { Completion::Applied } else { Completion::Conflict }
    }

    pub(super) fn routes_of(&self, id: &NotificationId) -> impl Iterator<Item = &Row> {
        self.routes.values().filter(move |row| row.route.key.notification_id == *id)
    }

    /// Removes a record and everything that belongs to it.
    pub(super) fn remove(&mut self, id: &NotificationId) {
        if let Some(record) = self.records.remove(id) {
            self.by_key.remove(&record.idempotency_key);
        }
        self.routes.retain(|key, _| key.notification_id != *id);
        self.dead_letters.retain(|key, _| key.notification_id != *id);
    }

    pub(super) fn due(&self, now: Timestamp) -> impl Iterator<Item = &LiveRoute> {
        self.live().filter(move |route| route.next_attempt_at <= now)
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &LiveRoute> {
        self.routes.values().filter(|row| row.status.is_live()).map(|row| &row.route)
    }
}

/// The row of a skipped route, and the reason. It is never due.
fn skipped(route: &NewRoute, record: &Record) -> Option<(LiveRoute, SkipReason)> {
    let Start::Skipped(reason) = route.start else { return None };
    let row = LiveRoute {
        replaces: None,
        key: route.key.clone(),
        version: Version::read(record.content.accepted_at),
        channel: route.channel,
        recipient_ref: route.recipient_ref.clone(),
        resolved_email: route.resolved_email.clone(),
        resolved_locale: route.resolved_locale.clone(),
        attempt_count: 0,
        max_attempts: route.max_attempts,
        next_attempt_at: Timestamp::MAX,
        content: Arc::clone(&record.content),
    };
    Some((row, reason))
}

fn malformed_key(row: &MalformedIntent) -> MalformedKey {
    MalformedKey {
        stream: row.stream.clone(),
        entry_id: row.entry_id.to_string(),
        fields_fingerprint: row.fields_fingerprint.clone(),
    }
}

impl AcceptanceStore for MemoryDatabase {
    async fn find_known(&self, intents: &[(IdempotencyKey, EntryId)]) -> Result<Known, StoreError> {
        let tables = lock(&self.0);
        let mut known = Known::default();
        for (key, id) in intents {
            if let Some(found) = tables.by_key.get(key) {
                let fingerprint = tables.records[found].fingerprint.clone();
                known.fingerprints.insert(key.clone(), fingerprint);
            } else if tables.records.contains_key(&NotificationId::of(*id, 0)) {
                let free = (1..).find(|n| !tables.records.contains_key(&NotificationId::of(*id, *n)));
                known.taken_ids.extend(free.map(|free| (*id, free)));
            }
        }
        Ok(known)
    }

    async fn accept(&self, batch: AcceptanceBatch<'_>) -> Result<Fate, StoreError> {
        let mut tables = lock(&self.0);
        if !tables.may_store_responses(&batch.responses) {
            return Ok(Fate::KeyTaken);
        }
        if batch.checkpoint.as_ref().is_some_and(|to| !tables.admits(to)) {
            return Ok(Fate::CheckpointMoved);
        }
        let acceptances: Vec<&Acceptance> =
            batch.outcomes.iter().filter_map(|outcome| outcome.acceptance()).collect();
        if !tables.are_new(&acceptances) {
            return Ok(Fate::WriteConflict);
        }
        for acceptance in acceptances {
            tables.insert(acceptance);
        }
        tables.store_responses(&batch.responses);
        for row in batch.outcomes.iter().copied().filter_map(Outcome::malformed_row) {
            tables.malformed.entry(malformed_key(row)).or_insert_with(|| row.clone());
        }
        if let Some(to) = &batch.checkpoint {
            tables.move_checkpoint(to);
        }
        Ok(Fate::Committed)
    }

    async fn probe(&self, _: &Probe) -> Result<(), StoreError> {
        Ok(())
    }
}

impl CheckpointStore for MemoryDatabase {
    async fn find_last_processed(
        &self,
        stream: &str,
        entries: &[ProcessedTrace],
    ) -> Result<Option<EntryId>, StoreError> {
        let tables = lock(&self.0);
        let accepted = |entry: &ProcessedTrace| {
            let (key, fingerprint) = entry.request.as_ref()?;
            let record = &tables.records[tables.by_key.get(key)?];
            let id = record.notification_id.as_str().split('~').next();
            (record.fingerprint == *fingerprint && id == Some(&entry.entry_id.to_string())).then_some(())
        };
        let malformed = |entry: &ProcessedTrace| {
            tables.malformed.contains_key(&MalformedKey {
                stream: stream.to_owned(),
                entry_id: entry.entry_id.to_string(),
                fields_fingerprint: entry.fields_fingerprint.clone(),
            })
        };
        let processed = entries.iter().filter(|entry| accepted(entry).is_some() || malformed(entry));
        Ok(processed.map(|entry| entry.entry_id).max())
    }

    async fn write_fence(&self, stream: &str, fence: Fence, begins: bool) -> Result<FenceWrite, StoreError> {
        let mut tables = lock(&self.0);
        Ok(match tables.checkpoints.get_mut(stream) {
            None => FenceWrite::NoCheckpoint,
            Some(stored) if stored.fence > fence || (begins && stored.fence == fence) => {
                FenceWrite::Superseded(stored.fence)
            }
            Some(stored) => {
                stored.fence = fence;
                FenceWrite::At(stored.last_entry_id)
            }
        })
    }

    async fn load_checkpoint(&self, stream: &str) -> Result<Option<Checkpoint>, StoreError> {
        Ok(lock(&self.0).checkpoints.get(stream).copied())
    }

    async fn load_witness(&self, stream: &str) -> Result<Witness, StoreError> {
        Ok(lock(&self.0).witnesses.get(stream).cloned().unwrap_or_default())
    }

    async fn move_checkpoint_back(
        &self,
        to: CheckpointMove<'_>,
        server: &ServerId,
    ) -> Result<Swap, StoreError> {
        let mut tables = lock(&self.0);
        if to.expected.is_none() || !tables.admits(&to) {
            return Ok(Swap::Conflict);
        }
        tables.move_checkpoint(&to);
        tables.witnesses.entry(to.stream.to_owned()).or_default().server = Some(server.clone());
        Ok(Swap::Applied)
    }

    async fn save_intents_server(&self, stream: &str, server: &ServerId) -> Result<(), StoreError> {
        let mut tables = lock(&self.0);
        if tables.checkpoints.contains_key(stream) {
            tables.witnesses.entry(stream.to_owned()).or_default().server = Some(server.clone());
        }
        Ok(())
    }
}
