//! The relay of an outbox, as a process and inside the service, and the operators' commands for it.

use std::sync::Arc;
use std::time::Duration;

use domain::catalog::Catalog;
use outbox::{ChannelName, EventTypes, RelayId, RetryPolicy, TableName};
use pg::Dsn;

use super::ReplicaId;
use super::http::Http;
use super::knobs::*;
use super::reader::Reader;
use super::reader::Section;
use super::redis::Redis;
use super::section::section;
use super::telemetry::TelemetryConfig;
use super::value::Word;

section! {
    /// The configuration of a relay.
    #[derive(Debug, Clone)]
    pub struct RelayConfig {
        /// The table from which it publishes.
        pub outbox: OutboxTable,
        /// The deadline of a statement or a transaction.
        pub operation_timeout: Duration = NOTIFICATION_POSTGRES_OPERATION_TIMEOUT,
        /// The mode: the kind of entry that an event becomes.
        pub mode: RelayMode,
        /// The name of the relay, if it is configured.
        pub relay_id: Option<RelayId> = NOTIFICATION_OUTBOX_RELAY_ID,
        /// The maximum number of events in one claim.
        pub batch_size: u32 = NOTIFICATION_OUTBOX_BATCH_SIZE,
        /// The pause between two scans of an outbox in which nothing is due.
        pub poll_interval: Duration = NOTIFICATION_OUTBOX_POLL_INTERVAL,
        /// The lifetime of a claim.
        pub lease_timeout: Duration = NOTIFICATION_OUTBOX_LEASE_TIMEOUT,
        /// The number of attempts for an event, and the delays between them.
        pub retry: RetryPolicy,
        /// The channel whose notifications wake the relay.
        pub listen_channel: Option<ChannelName> = NOTIFICATION_OUTBOX_LISTEN_CHANNEL,
        /// The minimum lifetime of the published marker of an event.
        pub dedupe_ttl: Duration = NOTIFICATION_PUBLISH_DEDUPE_TTL,
        /// The period before a data loss in Redis whose DELIVERED events are compared with the content of
        /// Redis; zero for never.
        pub republish_window: Duration = NOTIFICATION_REPUBLISH_WINDOW,
    }
}

/// The location of an outbox.
#[derive(Debug, Clone)]
pub struct OutboxTable {
    /// The connection string of its database.
    pub dsn: Dsn,
    /// The name of the table.
    pub table: TableName,
}

/// The kind of entry that an event becomes.
#[derive(Debug, Clone)]
pub enum RelayMode {
    /// An entry of the intents stream.
    Intents {
        /// The producer of the intents.
        producer: String,
        /// The key of the stream to which intents are appended.
        stream: String,
        /// The catalogue against which an intent is checked.
        catalog: Arc<Catalog>,
        /// The event types that the relay publishes.
        types: EventTypes,
    },
    /// An entry of the stream that the type of the event names. The stream must be one of these.
    Streams(Vec<String>),
}

section! {
    /// The configuration of `relay`.
    #[derive(Debug, Clone)]
    pub struct RelayProcessConfig {
        /// The relay itself.
        pub relay: RelayConfig,
        /// The Redis connection.
        pub redis: Redis,
        /// The listener of the probes.
        pub http: Http,
        /// The maximum duration of a stop.
        pub shutdown_timeout: Duration = NOTIFICATION_SHUTDOWN_TIMEOUT,
        /// Logs, traces and metrics of the process.
        pub telemetry: TelemetryConfig,
    }
}

/// The relay inside the service, which the location of an outbox turns on.
impl Section for Option<RelayConfig> {
    fn read(reader: &mut Reader) -> Option<Self> {
        reader.get_switched(&NOTIFICATION_OUTBOX_DSN)
    }
}

impl RelayConfig {
    /// The configured name of the relay, else a generated one.
    pub fn relay_id(&self, tokens: &impl ambient::Tokens) -> RelayId {
        self.relay_id.clone().unwrap_or_else(|| {
            // Cannot fail: the name of a replica has the same form.
            RelayId::parse(ReplicaId::of_this_host(tokens).as_str()).expect("both have the same form")
        })
    }
}

impl Section for OutboxTable {
    fn read(reader: &mut Reader) -> Option<Self> {
        let dsn = reader.get(&NOTIFICATION_OUTBOX_DSN);
        let table = TableName::read(reader);
        let dsn = reader.required(&NOTIFICATION_OUTBOX_DSN, dsn?);
        Some(Self { dsn: dsn?, table: table? })
    }
}

/// Only the name of the table, for a command that prints statements.
impl Section for TableName {
    fn read(reader: &mut Reader) -> Option<Self> {
        reader.get(&NOTIFICATION_OUTBOX_TABLE)
    }
}

section! {
    impl RetryPolicy {
        max_attempts = NOTIFICATION_OUTBOX_RETRY_MAX_ATTEMPTS,
        base_delay = NOTIFICATION_OUTBOX_RETRY_BASE_DELAY,
        max_delay = NOTIFICATION_OUTBOX_RETRY_MAX_DELAY,
        jitter = NOTIFICATION_OUTBOX_RETRY_JITTER,
    }
}

impl Section for RelayMode {
    fn read(reader: &mut Reader) -> Option<Self> {
        let mode = reader.get::<Word>(&NOTIFICATION_OUTBOX_MODE);
        let producer = reader.get::<Option<String>>(&NOTIFICATION_OUTBOX_PRODUCER);
        let types = reader.get::<Vec<String>>(&NOTIFICATION_OUTBOX_TYPES);
        let streams = reader.get::<Vec<String>>(&NOTIFICATION_OUTBOX_STREAMS);
        let stream = reader.get::<String>(&NOTIFICATION_INTENTS_STREAM);
        let catalog = Arc::<Catalog>::read(reader);
        if mode?.is("streams") {
            return check_streams(reader, streams?, types?);
        }
        let producer = reader.required(&NOTIFICATION_OUTBOX_PRODUCER, producer?);
        let (producer, catalog) = (producer?, catalog?);
        let types = check_types(reader, &producer, types?, &catalog)?;
        Some(Self::Intents { producer, stream: stream?, catalog, types })
    }
}

fn check_streams(reader: &mut Reader, streams: Vec<String>, types: Vec<String>) -> Option<RelayMode> {
    if !types.is_empty() {
        let text = "is set, and NOTIFICATION_OUTBOX_MODE is streams: an event's type is its stream there, so set NOTIFICATION_OUTBOX_STREAMS alone";
        reader.problem(NOTIFICATION_OUTBOX_TYPES.name, text);
    }
    if streams.is_empty() {
        reader.missing(&NOTIFICATION_OUTBOX_STREAMS);
    }
    (types.is_empty() && !streams.is_empty()).then_some(RelayMode::Streams(streams))
}

/// Returns the event types of the relay if the catalogue allows the `producer` to send them.
fn check_types(
    reader: &mut Reader,
    producer: &str,
    types: Vec<String>,
    catalog: &Catalog,
) -> Option<EventTypes> {
    if !catalog.types().any(|known| known.allows_producer(producer)) {
        let text = format!("is {producer:?}: no type of the catalogue allows this producer");
        reader.problem(NOTIFICATION_OUTBOX_PRODUCER.name, text);
        return None;
    }
    let wrong = types.iter().filter_map(|name| match catalog.get(name) {
        None => Some(format!("{name:?} is not a type of the catalogue")),
        Some(known) if !known.allows_producer(producer) => {
            Some(format!("{name:?} does not allow the producer {producer:?}"))
        }
        Some(_) => None,
    });
    let wrong: Vec<String> = wrong.collect();
    if !wrong.is_empty() {
        reader.problem(NOTIFICATION_OUTBOX_TYPES.name, format!("cannot be used: {}", wrong.join("; ")));
        return None;
    }
    Some(if types.is_empty() { EventTypes::All } else { EventTypes::Only(types) })
}

#[cfg(test)]
mod tests;
