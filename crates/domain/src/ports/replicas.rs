//! The replicas as a whole: which of them run, the status of their workers, and their activity.

use std::time::Duration;

use crate::ports::StoreError;
use crate::query::ActivityHistory;
pub use crate::replica::{Activity, BlockedReport, ReplicaReport, WorkerReport};

/// The tables `replicas` and `activity`. All times in them but `started_at` and those of a worker are the
/// store's own, so that rows of different replicas can be compared.
pub trait ReplicaStore: Send + Sync {
    /// Writes the row of a replica, seen now.
    fn save_replica(&self, report: &ReplicaReport) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Adds counts to the current minute of the replica. If the reply is lost, it is unknown whether they
    /// were added.
    fn add_activity(
        &self,
        replica: &str,
        activity: &Activity,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes at most `limit` replicas that have not been seen for `age`, and returns how many.
    fn delete_replicas(
        &self,
        age: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Deletes at most `limit` rows of activity that are older than `age`, and returns how many.
    fn delete_activity(
        &self,
        age: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// What all replicas did together.
pub trait ActivityQueries: Send + Sync {
    /// The sums of the last [`ACTIVITY_MINUTES`](crate::query::ACTIVITY_MINUTES), the present one included.
    fn activity(&self) -> impl Future<Output = Result<ActivityHistory, StoreError>> + Send;
}
