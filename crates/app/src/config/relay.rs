//! The relay of an outbox, as a process and inside the service, and the operators' commands for it.

use std::sync::Arc;
use std::time::Duration;

use domain::catalog::Catalog;
use outbox::{ChannelName, EventTypes, RelayId, RetryPolicy, TableName};
use pg::Dsn;

mod settings;

use super::audience::read_catalog;
use super::http::Http;
use super::knobs::{
    NOTIFICATION_OUTBOX_DSN, NOTIFICATION_OUTBOX_LEASE_TIMEOUT, NOTIFICATION_OUTBOX_RETRY_BASE_DELAY,
    NOTIFICATION_OUTBOX_RETRY_MAX_DELAY, NOTIFICATION_POSTGRES_OPERATION_TIMEOUT,
    NOTIFICATION_PUBLISH_DEDUPE_TTL, NOTIFICATION_REPUBLISH_WINDOW, NOTIFICATION_SHUTDOWN_TIMEOUT,
};
use super::reader::Reader;
use super::redis::Redis;
use super::streams::read_intents_stream;
use super::telemetry::TelemetryConfig;
use super::{ConfigErrors, Loaded, ReplicaId, load};
pub(super) use settings::Beside;
use settings::{Settings, read_dsn, read_table, required};

/// The configuration of a relay.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The table from which it publishes.
    pub outbox: OutboxTable,
    /// The deadline of a statement or a transaction.
    pub operation_timeout: Duration,
    /// The mode: the kind of entry that an event becomes.
    pub mode: RelayMode,
    /// The name of the relay, if it is configured.
    pub relay_id: Option<RelayId>,
    /// The maximum number of events in one claim.
    pub batch_size: u32,
    /// The pause between two scans of an outbox in which nothing is due.
    pub poll_interval: Duration,
    /// The lifetime of a claim.
    pub lease_timeout: Duration,
    /// The number of attempts for an event, and the delays between them.
    pub retry: RetryPolicy,
    /// The channel whose notifications wake the relay.
    pub listen_channel: Option<ChannelName>,
    /// The minimum lifetime of the published marker of an event.
    pub dedupe_ttl: Duration,
    /// The period before a data loss in Redis whose DELIVERED events are compared with the content of Redis;
    /// zero for never.
    pub republish_window: Duration,
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
    pub shutdown_timeout: Duration,
    /// Logs, traces and metrics of the process.
    pub telemetry: TelemetryConfig,
}

/// The configuration of `outbox`.
#[derive(Debug, Clone)]
pub struct OutboxConfig {
    /// The table of the outbox.
    pub outbox: OutboxTable,
}

impl RelayProcessConfig {
    /// Reads and checks the variables of the relay. Other known variables may be missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, |reader| {
            let redis = Redis::read(reader);
            let http = Http::read(reader);
            let beside = Beside {
                operation_timeout: reader.duration(&NOTIFICATION_POSTGRES_OPERATION_TIMEOUT),
                intents_stream: read_intents_stream(reader),
                dedupe_ttl: reader.duration(&NOTIFICATION_PUBLISH_DEDUPE_TTL),
                republish_window: reader.duration(&NOTIFICATION_REPUBLISH_WINDOW),
                catalog: read_catalog(reader),
            };
            let relay = Settings::read(reader).check(reader, beside);
            let shutdown_timeout = reader.duration(&NOTIFICATION_SHUTDOWN_TIMEOUT);
            let telemetry = TelemetryConfig::read(reader);
            Some(Self {
                relay: relay?,
                redis: redis?,
                http: http?,
                shutdown_timeout: shutdown_timeout?,
                telemetry: telemetry?,
            })
        })
    }
}

impl OutboxConfig {
    /// Reads and checks the location of the table. Other known variables may be missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, |reader| {
            let (dsn, table) = (read_dsn(reader), read_table(reader));
            let dsn = required(reader, &NOTIFICATION_OUTBOX_DSN, dsn);
            Some(Self { outbox: OutboxTable { dsn: dsn?, table: table? } })
        })
    }

    /// Reads and checks only the name of the table.
    pub fn load_table(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded<TableName>, ConfigErrors> {
        load(vars, read_table)
    }
}

impl RelayConfig {
    /// Returns `Some(None)` if no relay runs inside the service.
    pub(super) fn read_optional(reader: &mut Reader, beside: Beside) -> Option<Option<Self>> {
        let settings = Settings::read(reader);
        if settings.is_off() {
            // The values must be valid, but they need not fit together.
            reader.ignore_durations(&[
                &NOTIFICATION_OUTBOX_LEASE_TIMEOUT,
                &NOTIFICATION_OUTBOX_RETRY_BASE_DELAY,
                &NOTIFICATION_OUTBOX_RETRY_MAX_DELAY,
            ]);
            return Some(None);
        }
        settings.check(reader, beside).map(Some)
    }

    /// The configured name of the relay, else a generated one.
    pub fn relay_id(&self, tokens: &impl ambient::Tokens) -> RelayId {
        self.relay_id.clone().unwrap_or_else(|| {
            // Cannot fail: the name of a replica has the same form.
            RelayId::parse(ReplicaId::of_this_host(tokens).as_str()).expect("both have the same form")
        })
    }
}

#[cfg(test)]
mod tests;
