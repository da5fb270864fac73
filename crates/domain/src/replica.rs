//! Reports of replicas about themselves and their workers.

use std::ops::AddAssign;

use ambient::Timestamp;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::entry::EntryId;
use crate::route::{Channel, RouteKey};

/// The name of the worker that moves the events of an outbox, in reports.
pub const OUTBOX_RELAY: &str = "outbox_relay";

/// The report of a replica about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaReport {
    /// Name of the replica.
    pub replica: String,
    /// Version of the service that it runs.
    pub version: String,
    /// Start time, by its own clock.
    pub started_at: Timestamp,
    /// Workers that run on one replica at a time, currently on this one.
    pub leader_of: Vec<String>,
    /// All workers of the replica.
    pub workers: Vec<WorkerReport>,
    /// True in the last report of a replica, which it writes when it stops in order.
    pub stopped: bool,
}

/// The state of a worker of a replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Worker")]
pub struct WorkerReport {
    /// Name of the worker.
    #[serde(skip)]
    pub worker: String,
    /// End of its last pass.
    pub last_pass_at: Timestamp,
    /// The reason why the worker is blocked, if it is.
    pub blocked: Option<BlockedReport>,
    /// Last entry with an outcome, for the intake of the leader.
    #[serde(skip)]
    pub position: Option<EntryId>,
    /// Completions that cannot be committed for now, for a publisher; `null` if there is none.
    #[serde(rename = "deferred_completions")]
    pub deferred: Option<DeferredReport>,
    /// Attempts of the last minute, for a publisher that made any; else `null`.
    pub attempts: Option<AttemptsReport>,
}

/// The deferred completions of a publisher: their entries are in the stream, or their attempts have failed,
/// and PostgreSQL cannot record that yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeferredCompletions")]
pub struct DeferredReport {
    /// Number of them.
    pub completions: u64,
    /// Time at which the first of them was deferred.
    pub since: Timestamp,
    /// Route of the first of them.
    #[serde(flatten, serialize_with = "FirstRoute::serialize")]
    #[schemars(with = "FirstRoute<'_>")]
    pub first: RouteKey,
    /// True if the entry of the first is in the outbound stream; false if its attempt failed.
    pub is_published: bool,
    /// Reason for deferring the first.
    pub cause: String,
    /// Session that has locked the row of the first; `null` if there is none, or the service's role cannot
    /// see it.
    pub held_by: Option<LockHolder>,
}

#[derive(Serialize, JsonSchema)]
struct FirstRoute<'a> {
    /// Notification of the first route.
    notification_id: &'a str,
    /// Its id, without the address of an administrator.
    route_id: &'a str,
}

impl FirstRoute<'_> {
    fn serialize<S: Serializer>(key: &RouteKey, serializer: S) -> Result<S::Ok, S::Error> {
        let form =
            FirstRoute { notification_id: key.notification_id.as_str(), route_id: key.loggable_route_id() };
        Serialize::serialize(&form, serializer)
    }
}

/// A session of PostgreSQL that holds a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct LockHolder {
    /// Process id of the session.
    pub pid: i32,
    /// Its `application_name`.
    pub application: String,
    /// Beginning of its transaction; `null` if the service's role may not see it.
    pub since: Option<Timestamp>,
}

/// The attempts of a publisher in the last minute.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Attempts")]
pub struct AttemptsReport {
    /// Attempts that appended an entry.
    pub succeeded: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Time since which fewer than one attempt in ten has succeeded; `null` while more do.
    pub failing_since: Option<Timestamp>,
    /// Message of the last failure; empty if there was none.
    pub cause: String,
}

/// True if attempts fail and fewer than one in ten succeeds.
pub fn is_failing(succeeded: u64, failed: u64) -> bool {
    failed > 0 && succeeded.saturating_mul(10) < succeeded.saturating_add(failed)
}

/// The reason why a worker is blocked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Blocked")]
pub struct BlockedReport {
    /// Stream entry that waits, if there is one.
    pub entry_id: Option<EntryId>,
    /// Awaited event, or failure.
    pub cause: String,
    /// Beginning of the block.
    pub since: Timestamp,
}

/// The activity of a replica in a period: entries by outcome and attempts by result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ActivityCounts")]
pub struct Activity {
    /// Accepted intents.
    pub accepted: u64,
    /// Intents that had been accepted before.
    pub duplicates: u64,
    /// Intents whose key belongs to another intent.
    pub conflicts: u64,
    /// Malformed intents.
    pub malformed: u64,
    /// Published routes.
    pub published: u64,
    /// Failed attempts that are followed by another attempt.
    pub failed: u64,
    /// Routes that became dead letters.
    pub dead_lettered: u64,
}

impl AddAssign for Activity {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
        self.malformed += other.malformed;
        self.published += other.published;
        self.failed += other.failed;
        self.dead_lettered += other.dead_lettered;
    }
}

/// A part of the activity that is counted by itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ActivityPart {
    /// The routes of a notification type on a channel.
    Routes {
        /// The channel.
        channel: Channel,
        /// The notification type.
        notification_type: String,
    },
    /// The intents of a producer; of all further ones if the name is empty.
    Producer(String),
}

/// The upper bounds of the delays that [`Delays`] distinguishes, in milliseconds. Longer ones are counted
/// apart.
pub const DELAY_BOUNDS_MS: [u64; 11] = [10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000, 60_000, 600_000];

/// The number of counts of [`Delays`].
pub const DELAY_COUNTS: usize = DELAY_BOUNDS_MS.len() + 1;

/// The number of published routes by their delay from acceptance to publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delays(pub [u64; DELAY_COUNTS]);

impl Delays {
    /// Counts one delay.
    pub fn add(&mut self, delay: std::time::Duration) {
        let bucket = DELAY_BOUNDS_MS.partition_point(|bound| u128::from(*bound) < delay.as_millis());
        self.0[bucket] += 1;
    }

    /// The bound in milliseconds that this share of the delays does not exceed; `None` if nothing was
    /// counted, or if the delay is longer than the last bound.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let total: u64 = self.0.iter().sum();
        let wanted = (u128::from(total) * u128::from(percent)).div_ceil(100);
        let mut seen = 0_u128;
        let bucket = self.0.iter().position(|count| {
            seen += u128::from(*count);
            seen >= wanted
        });
        DELAY_BOUNDS_MS.get(bucket.filter(|_| total > 0)?).copied()
    }
}

impl AddAssign for Delays {
    fn add_assign(&mut self, other: Self) {
        for (count, added) in self.0.iter_mut().zip(other.0) {
            *count += added;
        }
    }
}

/// The activity of one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PartActivity {
    /// The counts.
    pub activity: Activity,
    /// The delays of what was published.
    pub delays: Delays,
}

impl AddAssign for PartActivity {
    fn add_assign(&mut self, other: Self) {
        self.activity += other.activity;
        self.delays += other.delays;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_percentile_is_the_bound_that_the_share_does_not_exceed() {
        let mut delays = Delays::default();
        assert_eq!(delays.percentile(50), None);
        for _ in 0..99 {
            delays.add(Duration::from_millis(10));
        }
        delays.add(Duration::from_millis(11));
        assert_eq!(
            (delays.percentile(50), delays.percentile(99), delays.percentile(100)),
            (Some(10), Some(10), Some(25))
        );
        delays.add(Duration::from_secs(6_000));
        assert_eq!(delays.percentile(100), None, "it is longer than the last bound");
    }

    #[test]
    fn attempts_fail_if_fewer_than_one_in_ten_succeeds() {
        for (succeeded, failed, expected) in
            [(0, 0, false), (5, 0, false), (0, 1, true), (1, 9, false), (1, 10, true), (9, 82, true)]
        {
            assert_eq!(is_failing(succeeded, failed), expected, "{succeeded} of {failed}");
        }
    }
}
