//! The replicas as a whole: the running ones, the status of their workers, and their activity.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ports::StoreError;
use crate::query::{ActivityHistory, ActivityPeriod};
pub use crate::replica::{Activity, BlockedReport, ReplicaReport, WorkerReport};
use crate::replica::{ActivityPart, PartActivity};

/// Writes the tables `replicas` and `activity`. All times in them except `started_at` and those of a worker
/// are by the store's clock, so that rows of different replicas can be compared.
pub trait ReplicaStore: Send + Sync {
    /// Writes the row of a replica with the present time as its last-seen time.
    fn save_replica(&self, report: &ReplicaReport) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Adds counts to the current minute of the replica. If the reply is lost, the counts may or may not have
    /// been added.
    fn add_activity(
        &self,
        replica: &str,
        activity: &Activity,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Adds counts of parts to the current minute of the replica, all of them or none. If the reply is lost,
    /// they may or may not have been added.
    fn add_part_activity(
        &self,
        replica: &str,
        parts: &BTreeMap<ActivityPart, PartActivity>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes at most `limit` replicas that have not been seen for `age`, and returns the number deleted.
    fn delete_replicas(
        &self,
        age: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Deletes at most `limit` rows of activity that are older than `age`, and as many of the activity of
    /// parts. Returns the number deleted.
    fn delete_activity(
        &self,
        age: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Reads the combined activity of all replicas.
pub trait ActivityQueries: Send + Sync {
    /// Returns the activity of the period that ends at present.
    fn activity(
        &self,
        period: ActivityPeriod,
    ) -> impl Future<Output = Result<ActivityHistory, StoreError>> + Send;
}
