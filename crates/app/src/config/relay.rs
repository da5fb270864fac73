//! The relay of an outbox: as a process, inside the service, and what the commands of operators need of it.

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

/// A relay that is configured.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The table that it empties.
    pub outbox: OutboxTable,
    /// The deadline of one statement or transaction.
    pub operation_timeout: Duration,
    /// What becomes of an event.
    pub mode: RelayMode,
    /// Its name, if it was given one.
    pub relay_id: Option<RelayId>,
    /// The most events of one claim.
    pub batch_size: u32,
    /// The pause between two looks at an outbox in which nothing is due.
    pub poll_interval: Duration,
    /// How long a claim lasts.
    pub lease_timeout: Duration,
    /// How often and how far apart an event is tried.
    pub retry: RetryPolicy,
    /// The channel that wakes it.
    pub listen_channel: Option<ChannelName>,
    /// How long the receipt of an event lasts at least.
    pub dedupe_ttl: Duration,
    /// How long before a loss in Redis events that are DELIVERED are compared with what it holds; zero for
    /// never.
    pub republish_window: Duration,
}

/// Where an outbox is.
#[derive(Debug, Clone)]
pub struct OutboxTable {
    /// How to connect to its database.
    pub dsn: Dsn,
    /// Its name there.
    pub table: TableName,
}

/// What becomes of an event.
#[derive(Debug, Clone)]
pub enum RelayMode {
    /// An intent.
    Intents {
        /// Who it comes from.
        producer: String,
        /// The key of the stream that it is appended to.
        stream: String,
        /// What it must satisfy.
        catalog: Arc<Catalog>,
        /// Which events the relay carries.
        types: EventTypes,
    },
    /// An entry of the stream that its type names, which is one of these.
    Streams(Vec<String>),
}

/// What `relay` needs.
#[derive(Debug, Clone)]
pub struct RelayProcessConfig {
    /// The relay itself.
    pub relay: RelayConfig,
    /// Where Redis is.
    pub redis: Redis,
    /// Where the probes are served.
    pub http: Http,
    /// How long a stop may take.
    pub shutdown_timeout: Duration,
    /// What the process tells about itself.
    pub telemetry: TelemetryConfig,
}

/// What `outbox` needs.
#[derive(Debug, Clone)]
pub struct OutboxConfig {
    /// The table.
    pub outbox: OutboxTable,
}

impl RelayProcessConfig {
    /// Reads and checks what concerns the relay; other known variables may be missing or wrong.
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
    /// Reads and checks where the table is; other known variables may be missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, |reader| {
            let (dsn, table) = (read_dsn(reader), read_table(reader));
            let dsn = required(reader, &NOTIFICATION_OUTBOX_DSN, dsn);
            Some(Self { outbox: OutboxTable { dsn: dsn?, table: table? } })
        })
    }

    /// Reads and checks the name of the table alone.
    pub fn load_table(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded<TableName>, ConfigErrors> {
        load(vars, read_table)
    }
}

impl RelayConfig {
    /// `None` inside if no relay runs inside the service.
    pub(super) fn read_optional(reader: &mut Reader, beside: Beside) -> Option<Option<Self>> {
        let settings = Settings::read(reader);
        if settings.is_off() {
            // Each must have a value that it could have, and they need not fit together.
            reader.ignore_durations(&[
                &NOTIFICATION_OUTBOX_LEASE_TIMEOUT,
                &NOTIFICATION_OUTBOX_RETRY_BASE_DELAY,
                &NOTIFICATION_OUTBOX_RETRY_MAX_DELAY,
            ]);
            return Some(None);
        }
        settings.check(reader, beside).map(Some)
    }

    /// The name of the relay: the one that it was given, else one of its own.
    pub fn relay_id(&self, tokens: &impl ambient::Tokens) -> RelayId {
        self.relay_id.clone().unwrap_or_else(|| {
            // Cannot fail: the name of a replica has the same form.
            RelayId::parse(ReplicaId::of_this_host(tokens).as_str()).expect("both have the same form")
        })
    }
}

#[cfg(test)]
mod tests;
