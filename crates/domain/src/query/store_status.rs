//! The part of the status that comes from the database: channels, causes, replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::checkpoint::Checkpoint;
use crate::document::{Age, Counted, counted_form};
use crate::entry::EntryId;
use crate::hold::Hold;
use crate::replica::{ReplicaReport, WorkerReport};
use crate::route::Channel;

/// The time after its last report for which a replica counts as running: it reports every 10 s.
pub const REPLICA_FRESH_FOR: Duration = Duration::from_secs(30);
/// The name of the worker that reads the intents stream, in reports and leaderships.
pub const INTAKE: &str = "intake";

/// The routes of one channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChannelState")]
pub struct ChannelStatus {
    /// The channel.
    #[serde(skip)]
    pub channel: Channel,
    /// Number of due routes.
    #[serde(flatten, serialize_with = "DueCount::serialize")]
    #[schemars(with = "DueCount")]
    pub due: Counted,
    /// The time for which the first of them has been due; `null` if none is.
    #[serde(rename = "oldest_due_ms")]
    pub oldest_due: Option<Age>,
    /// Number of routes that failed and will be tried again.
    #[serde(flatten, serialize_with = "FailingCount::serialize")]
    #[schemars(with = "FailingCount")]
    pub failing: Counted,
    /// The obstacle of the publisher; `null` if it does not wait.
    pub waiting: Option<Waiting>,
}

counted_form!(DueCount, "Routes that are due.", due, due_capped, "There may be more than `due`.");
counted_form!(
    FailingCount,
    "Routes that have failed and will be tried again.",
    failing,
    failing_capped,
    "There may be more than `failing`."
);

/// The frequency of each cause. The newest rows are counted, until the sum reaches [`super::COUNT_CAP`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CauseCounts {
    /// Cause and count, the most frequent first.
    pub counts: Vec<(String, u64)>,
    /// True if there may be more.
    pub capped: bool,
}

/// Defines the form of [`CauseCounts`] whose causes have the name `$cause`.
macro_rules! cause_form {
    ($form:ident, $description:literal, $item:ident, $cause:ident) => {
        #[doc = $description]
        #[derive(Serialize, JsonSchema)]
        struct $form<'a> {
            /// The most frequent first.
            last_day: Vec<$item<'a>>,
            /// There may be more.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            last_day_capped: bool,
        }

        #[derive(Serialize, JsonSchema)]
        struct $item<'a> {
            $cause: &'a str,
            count: u64,
        }

        impl $form<'_> {
            fn serialize<S: Serializer>(causes: &CauseCounts, serializer: S) -> Result<S::Ok, S::Error> {
                let counts = causes.counts.iter();
                let last_day = counts.map(|(cause, count)| $item { $cause: cause, count: *count }).collect();
                Serialize::serialize(&$form { last_day, last_day_capped: causes.capped }, serializer)
            }
        }
    };
}

cause_form!(
    DeadLetterCounts,
    "Dead letters of the last 24 hours that no operator has replayed or discarded.",
    ClassificationCount,
    classification
);
cause_form!(MalformedIntentCounts, "Malformed intents of the last 24 hours.", CodeCount, code);
cause_form!(
    ReceiptCounts,
    "Receipts of the last 24 hours that report a bounce or a complaint.",
    ReceiptStatusCount,
    status
);

/// A replica as it last reported itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Replica")]
pub struct ReplicaStatus {
    /// Name of the replica.
    pub replica: String,
    /// Version of the service that it runs.
    pub version: String,
    /// Start time, by its own clock.
    pub started_at: Timestamp,
    /// Time of the report, by the database's clock.
    pub seen_at: Timestamp,
    /// Time at which it stopped in order; `null` while it runs, and after a crash.
    pub stopped_at: Option<Timestamp>,
    /// The workers that run on one replica at a time and run on this one; none if it has stopped or is gone.
    pub leader_of: Vec<String>,
    /// True if its last report says that it leads intake. The lock decides whether it does.
    #[serde(skip)]
    pub claims_intake: bool,
    /// All its workers, by name.
    #[serde(serialize_with = "by_name")]
    #[schemars(with = "BTreeMap<String, WorkerReport>")]
    pub workers: Vec<WorkerReport>,
}

impl ReplicaStatus {
    /// The replica that sent `report` at `seen_at`.
    pub fn new(report: ReplicaReport, seen_at: Timestamp) -> Self {
        let ReplicaReport { replica, version, started_at, leader_of, workers, stopped } = report;
        let stopped_at = stopped.then_some(seen_at);
        let claims_intake = leader_of.iter().any(|worker| worker == INTAKE);
        Self { replica, version, started_at, seen_at, stopped_at, leader_of, claims_intake, workers }
    }

    /// True if it has reported itself lately enough to count as running.
    pub fn is_running(&self, now: Timestamp) -> bool {
        self.stopped_at.is_none() && now.saturating_since(self.seen_at) <= REPLICA_FRESH_FOR
    }

    /// The names of its workers that are blocked.
    pub fn blocked(&self) -> Vec<&str> {
        let blocked = self.workers.iter().filter(|worker| worker.blocked.is_some());
        blocked.map(|worker| worker.worker.as_str()).collect()
    }
}

fn by_name<S: Serializer>(workers: &[WorkerReport], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(workers.iter().map(|worker| (&worker.worker, worker)))
}

/// The part of the status that comes from the database.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct StoreStatus {
    /// Time of reading, by the database's clock.
    #[serde(skip)]
    pub at: Timestamp,
    /// Name of the intents stream.
    #[serde(skip)]
    pub stream: String,
    /// The durable checkpoint of the stream.
    #[serde(skip)]
    pub checkpoint: Option<Checkpoint>,
    /// The channels.
    #[serde(serialize_with = "by_channel")]
    #[schemars(schema_with = "channels_schema")]
    pub channels: Vec<ChannelStatus>,
    /// Dead letters of the last 24 hours that no operator has discarded or replayed, by classification.
    #[serde(serialize_with = "DeadLetterCounts::serialize")]
    #[schemars(with = "DeadLetterCounts<'_>")]
    pub dead_letters: CauseCounts,
    /// Malformed intents of the last 24 hours, by failure code.
    #[serde(serialize_with = "MalformedIntentCounts::serialize")]
    #[schemars(with = "MalformedIntentCounts<'_>")]
    pub malformed_intents: CauseCounts,
    /// Failures of the last [`super::RECENT`].
    #[serde(skip)]
    pub recent: RecentFailures,
    /// Receipts of the last 24 hours that report a bounce or a complaint, by status. The time is that of the
    /// report, according to the consumer.
    #[serde(serialize_with = "ReceiptCounts::serialize")]
    #[schemars(with = "ReceiptCounts<'_>")]
    pub receipts: CauseCounts,
    /// The holds of operators, the oldest first.
    pub holds: Vec<Hold>,
    /// The replicas of the last hour, by name.
    pub replicas: Vec<ReplicaStatus>,
}

fn by_channel<S: Serializer>(channels: &[ChannelStatus], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(channels.iter().map(|status| (status.channel, status)))
}

fn channels_schema(generator: &mut SchemaGenerator) -> Schema {
    let state = generator.subschema_for::<ChannelStatus>().to_value();
    let names = Channel::ALL.map(Channel::as_str);
    let states: Map<String, Value> = names.map(|name| (name.to_owned(), state.clone())).into_iter().collect();
    json_schema!({"type": "object", "properties": states, "required": names})
}

impl StoreStatus {
    /// The entry up to which every entry has its outcome; before the first batch zero, so the stream counts
    /// from its beginning.
    pub fn processed_up_to(&self) -> EntryId {
        self.checkpoint.map_or(EntryId::ZERO, |checkpoint| checkpoint.last_entry_id)
    }
}

impl Waiting {
    /// The cause, after its meaning if the error code is known.
    pub fn meaning(&self) -> String {
        match meaning(&self.cause) {
            Some(meaning) => format!("{meaning}: {}", self.cause),
            None => self.cause.clone(),
        }
    }
}

/// The error codes of Redis that concern all workers, and their meanings.
const CAUSES: [(&str, &str); 7] = [
    ("OOM", "Redis is full"),
    ("READONLY", "Redis is a replica and accepts no writes"),
    ("MISCONF", "Redis cannot save its data and accepts no writes"),
    ("NOREPLICAS", "Redis has too few replicas and accepts no writes"),
    ("LOADING", "Redis is loading its data"),
    ("NOAUTH", "Redis requires a password"),
    ("WRONGPASS", "Redis refuses the password"),
];

/// The meaning of an error of Redis that concerns all workers.
pub(in crate::query) fn meaning(cause: &str) -> Option<&'static str> {
    let mut words = cause.split(|of: char| !of.is_ascii_uppercase());
    words.find_map(|word| CAUSES.iter().find(|(code, _)| *code == word)).map(|(_, meaning)| *meaning)
}

/// Failures of the last minutes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecentFailures {
    /// New dead letters by channel.
    pub dead_letters: Vec<RecentFailure>,
    /// Malformed intents of producers that sent only malformed ones.
    pub producers: Vec<RecentFailure>,
}

/// Failures of one channel or producer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecentFailure {
    /// The channel or the producer.
    pub name: String,
    /// The number of failures.
    pub count: Counted,
    /// The time of the first of them.
    pub since: Timestamp,
    /// The message of the last of them.
    pub cause: String,
}

/// The obstacle of a worker, on the replica on which it has been blocked for longest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "WaitingFor")]
pub struct Waiting {
    /// The replica of the worker.
    #[serde(skip)]
    pub replica: String,
    /// The stream entry that waits, if there is one.
    pub entry_id: Option<EntryId>,
    /// The awaited event, or the failure.
    pub cause: String,
    /// The time for which it has waited.
    #[serde(rename = "age_ms")]
    pub age: Age,
}
