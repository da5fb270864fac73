//! Running replicas and their activity.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::ports::{Activity, ActivityQueries, ReplicaReport, ReplicaStore, StepDownStore, StoreError};
use domain::query::{ActivityHistory, ActivityPeriod, REPLICA_FRESH_FOR};
use domain::replica::{ActivityPart, PartActivity};
use domain::step_down::{StepDown, StepDownState};

use super::clock::ServerClock;
use super::lock;
use super::rows::RecordedAction;

/// The replicas and their activity, with the time of the clock. Clones share them.
#[derive(Clone, Debug)]
pub struct MemoryReplicas {
    clock: ServerClock,
    tables: Arc<Mutex<ReplicaTables>>,
}

#[derive(Debug, Default)]
struct ReplicaTables {
    /// The time at which each was last seen, and its report then.
    replicas: BTreeMap<String, (Timestamp, ReplicaReport)>,
    /// The activity by minute and replica.
    activity: BTreeMap<(Timestamp, String), Activity>,
    /// The activity by minute, replica and part.
    parts: BTreeMap<(Timestamp, String, ActivityPart), PartActivity>,
    /// The time of the last request to each to step down.
    step_downs: BTreeMap<String, Timestamp>,
    actions: Vec<RecordedAction>,
}

impl MemoryReplicas {
    /// A store without replicas.
    pub fn new(clock: Arc<impl Clock + 'static>) -> Self {
        Self { clock: ServerClock::new(clock), tables: Arc::default() }
    }

    /// The last report of each replica, by name.
    pub fn replicas(&self) -> Vec<ReplicaReport> {
        lock(&self.tables).replicas.values().map(|(_, report)| report.clone()).collect()
    }

    /// The actions of operators, in order.
    pub fn actions(&self) -> Vec<RecordedAction> {
        lock(&self.tables).actions.clone()
    }

    /// The total activity of each replica, by name.
    pub fn activity(&self) -> BTreeMap<String, Activity> {
        let mut sums: BTreeMap<String, Activity> = BTreeMap::new();
        for ((_, replica), activity) in &lock(&self.tables).activity {
            *sums.entry(replica.clone()).or_default() += *activity;
        }
        sums
    }

    /// The total activity of each part.
    pub fn parts(&self) -> BTreeMap<ActivityPart, PartActivity> {
        let mut sums: BTreeMap<ActivityPart, PartActivity> = BTreeMap::new();
        for ((.., part), activity) in &lock(&self.tables).parts {
            *sums.entry(part.clone()).or_default() += *activity;
        }
        sums
    }
}

/// The start of the minute of `at`.
fn minute(at: Timestamp) -> Timestamp {
    let rest = at.as_micros().rem_euclid(60_000_000);
    at - Duration::from_micros(rest.unsigned_abs())
}

/// Removes at most `limit` rows with keys that `is_old` selects.
fn remove<K: Ord + Clone, V>(
    rows: &mut BTreeMap<K, V>,
    limit: usize,
    is_old: impl Fn(&K, &V) -> bool,
) -> u64 {
    let old = rows.iter().filter(|(key, value)| is_old(key, value)).take(limit);
    let keys: Vec<K> = old.map(|(key, _)| key.clone()).collect();
    for key in &keys {
        rows.remove(key);
    }
    keys.len() as u64
}

impl ReplicaStore for MemoryReplicas {
    async fn save_replica(&self, report: &ReplicaReport) -> Result<(), StoreError> {
        let row = (self.clock.now(), report.clone());
        lock(&self.tables).replicas.insert(report.replica.clone(), row);
        Ok(())
    }

    async fn add_activity(&self, replica: &str, activity: &Activity) -> Result<(), StoreError> {
        let key = (minute(self.clock.now()), replica.to_owned());
        *lock(&self.tables).activity.entry(key).or_default() += *activity;
        Ok(())
    }

    async fn add_part_activity(
        &self,
        replica: &str,
        parts: &BTreeMap<ActivityPart, PartActivity>,
    ) -> Result<(), StoreError> {
        let minute = minute(self.clock.now());
        let mut tables = lock(&self.tables);
        for (part, activity) in parts {
            *tables.parts.entry((minute, replica.to_owned(), part.clone())).or_default() += *activity;
        }
        Ok(())
    }

    async fn delete_replicas(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let before = self.clock.now() - age;
        Ok(remove(&mut lock(&self.tables).replicas, limit, |_, (seen_at, _)| *seen_at < before))
    }

    async fn delete_activity(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        let before = self.clock.now() - age;
        let mut tables = lock(&self.tables);
        let rows = remove(&mut tables.activity, limit, |(minute, _), _| *minute < before);
        Ok(rows + remove(&mut tables.parts, limit, |(minute, ..), _| *minute < before))
    }
}

impl StepDownStore for MemoryReplicas {
    async fn request_step_down(&self, request: &StepDown) -> Result<bool, StoreError> {
        let mut tables = lock(&self.tables);
        if !tables.replicas.contains_key(&request.replica) {
            return Ok(false);
        }
        tables.step_downs.insert(request.replica.clone(), self.clock.now());
        tables.actions.push(RecordedAction {
            actor: request.actor.clone(),
            action: StepDown::ACTION.to_owned(),
            arguments: request.arguments(),
            affected: 1,
            request_id: request.request_id.clone(),
        });
        Ok(true)
    }

    async fn get_step_down(&self, replica: &str) -> Result<StepDownState, StoreError> {
        let (tables, now) = (lock(&self.tables), self.clock.now());
        let requested = tables.step_downs.get(replica).filter(|_| tables.replicas.contains_key(replica));
        let others = tables.replicas.iter().filter(|(name, _)| *name != replica);
        Ok(StepDownState {
            requested_ago: requested.map(|at| now.saturating_since(*at)),
            other_replica: others
                .into_iter()
                .any(|(_, (seen_at, _))| now.saturating_since(*seen_at) <= REPLICA_FRESH_FOR),
        })
    }
}

impl ActivityQueries for MemoryReplicas {
    async fn activity(&self, period: ActivityPeriod) -> Result<ActivityHistory, StoreError> {
        let (tables, present) = (lock(&self.tables), self.clock.now());
        let total =
            |((minute, _), activity): (&(Timestamp, _), &Activity)| (period.step_of(*minute), *activity);
        let totals = tables.activity.iter().map(total).collect();
        let parts = tables
            .parts
            .iter()
            .map(|((minute, _, part), activity)| (period.step_of(*minute), (part.clone(), *activity)));
        Ok(ActivityHistory::new(period, present, totals, parts.collect()))
    }
}
