//! The state of the service as a whole.

use std::collections::BTreeMap;

use ambient::Timestamp;
use domain::query::{CauseCounts, ChannelStatus, IntakeStatus, Leader, ReplicaStatus, Status, Waiting};
use domain::route::Channel;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{capped, is_false};

/// The state of the service. Counts stop at 10,000; a member `…_capped` says that there may be more.
#[derive(Serialize, JsonSchema)]
pub struct ServiceStatus<'a> {
    /// The replica that reads the intents stream; `null` if none does.
    leader: Option<&'a Leader>,
    intake: Intake<'a>,
    #[schemars(schema_with = "channels_schema")]
    channels: BTreeMap<&'static str, ChannelState<'a>>,
    dead_letters: DeadLetterCounts<'a>,
    malformed_intents: MalformedIntentCounts<'a>,
    /// The replicas of the last hour, by name.
    replicas: &'a [ReplicaStatus],
    /// The version of the replica that answers.
    version: &'a str,
}

/// How far the intents stream is read.
#[derive(Serialize, JsonSchema)]
struct Intake<'a> {
    stream: &'a str,
    /// The last entry that has an outcome; `null` before the first one.
    checkpoint: Option<String>,
    /// The last entry of the stream; `null` if the stream is absent or Redis could not be asked.
    last_entry_id: Option<String>,
    /// Entries after the checkpoint; `null` if Redis could not be asked.
    entries_behind: Option<u64>,
    /// There may be more than `entries_behind`.
    #[serde(skip_serializing_if = "is_false")]
    entries_behind_capped: bool,
    /// The age of the first entry after the checkpoint; `null` if there is none.
    oldest_age_ms: Option<u64>,
    /// The cause for which intake waits; `null` if it does not wait.
    waiting: Option<WaitingFor<'a>>,
}

/// The routes of one channel.
#[derive(Serialize, JsonSchema)]
struct ChannelState<'a> {
    /// Routes that are due.
    due: u64,
    /// There may be more than `due`.
    #[serde(skip_serializing_if = "is_false")]
    due_capped: bool,
    /// How long the first of them has been due; `null` if none is.
    oldest_due_ms: Option<u64>,
    /// Routes that have failed and will be tried again.
    failing: u64,
    /// There may be more than `failing`.
    #[serde(skip_serializing_if = "is_false")]
    failing_capped: bool,
    /// The cause for which the publisher waits; `null` if it does not wait.
    waiting: Option<WaitingFor<'a>>,
}

/// The obstacle of a worker.
#[derive(Serialize, JsonSchema)]
struct WaitingFor<'a> {
    /// The stream entry that waits, where it is one.
    entry_id: Option<String>,
    cause: &'a str,
    age_ms: u64,
}

/// Dead letters of the last 24 hours that no operator has replayed or discarded.
#[derive(Serialize, JsonSchema)]
struct DeadLetterCounts<'a> {
    /// The most frequent first.
    last_day: Vec<ClassificationCount<'a>>,
    /// There may be more.
    #[serde(skip_serializing_if = "is_false")]
    last_day_capped: bool,
}

#[derive(Serialize, JsonSchema)]
struct ClassificationCount<'a> {
    classification: &'a str,
    count: u64,
}

/// Malformed intents of the last 24 hours.
#[derive(Serialize, JsonSchema)]
struct MalformedIntentCounts<'a> {
    /// The most frequent first.
    last_day: Vec<CodeCount<'a>>,
    /// There may be more.
    #[serde(skip_serializing_if = "is_false")]
    last_day_capped: bool,
}

#[derive(Serialize, JsonSchema)]
struct CodeCount<'a> {
    code: &'a str,
    count: u64,
}

fn channels_schema(generator: &mut SchemaGenerator) -> Schema {
    let state = generator.subschema_for::<ChannelState<'_>>().to_value();
    let names = Channel::ALL.map(Channel::as_str);
    let states: Map<String, Value> = names.map(|name| (name.to_owned(), state.clone())).into_iter().collect();
    json_schema!({"type": "object", "properties": states, "required": names})
}

impl<'a> ServiceStatus<'a> {
    /// Renders the `status` of the stream `stream`; `version` is that of this replica.
    pub fn new(status: &'a Status, stream: &'a str, version: &'a str) -> Self {
        let now = status.store.at;
        let channels = status.store.channels.iter().map(|channel| {
            let waiting = status.publishers.iter().find(|(of, _)| *of == channel.channel);
            let waiting = waiting.and_then(|(_, waiting)| waiting.as_ref());
            (channel.channel.as_str(), ChannelState::new(channel, waiting, now))
        });
        Self {
            leader: status.leader.as_ref(),
            intake: Intake::new(&status.intake, stream, now),
            channels: channels.collect(),
            dead_letters: DeadLetterCounts::new(&status.store.dead_letters),
            malformed_intents: MalformedIntentCounts::new(&status.store.malformed_intents),
            replicas: &status.store.replicas,
            version,
        }
    }
}

impl<'a> Intake<'a> {
    fn new(intake: &'a IntakeStatus, stream: &'a str, now: Timestamp) -> Self {
        let last = intake.backlog.and_then(|backlog| backlog.last_entry_id);
        let behind = intake.backlog.map(|backlog| capped(backlog.entries));
        Self {
            stream,
            checkpoint: intake.checkpoint.map(|id| id.to_string()),
            last_entry_id: last.map(|id| id.to_string()),
            entries_behind: behind.map(|(entries, _)| entries),
            entries_behind_capped: behind.is_some_and(|(_, capped)| capped),
            oldest_age_ms: intake.oldest.map(|at| age_ms(at, now)),
            waiting: intake.waiting.as_ref().map(|waiting| WaitingFor::new(waiting, now)),
        }
    }
}

impl<'a> ChannelState<'a> {
    fn new(channel: &ChannelStatus, waiting: Option<&'a Waiting>, now: Timestamp) -> Self {
        let (due, due_capped) = capped(channel.due);
        let (failing, failing_capped) = capped(channel.failing);
        Self {
            due,
            due_capped,
            oldest_due_ms: channel.oldest_due.map(|at| age_ms(at, now)),
            failing,
            failing_capped,
            waiting: waiting.map(|waiting| WaitingFor::new(waiting, now)),
        }
    }
}

impl<'a> WaitingFor<'a> {
    fn new(waiting: &'a Waiting, now: Timestamp) -> Self {
        let entry_id = waiting.entry_id.map(|id| id.to_string());
        Self { entry_id, cause: &waiting.cause, age_ms: age_ms(waiting.since, now) }
    }
}

impl<'a> DeadLetterCounts<'a> {
    fn new(causes: &'a CauseCounts) -> Self {
        let count = |(classification, count): &'a (String, u64)| ClassificationCount {
            classification: classification.as_str(),
            count: *count,
        };
        Self { last_day: causes.counts.iter().map(count).collect(), last_day_capped: causes.capped }
    }
}

impl<'a> MalformedIntentCounts<'a> {
    fn new(causes: &'a CauseCounts) -> Self {
        let count = |(code, count): &'a (String, u64)| CodeCount { code: code.as_str(), count: *count };
        Self { last_day: causes.counts.iter().map(count).collect(), last_day_capped: causes.capped }
    }
}

fn age_ms(since: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.saturating_since(since).as_millis()).unwrap_or(u64::MAX)
}
