//! The configuration: environment variables, read once into types that hold only valid values.
//!
//! All errors are reported at once, and nothing starts before they are fixed. Only [`environment`] reads the
//! environment; everything else receives variables as an argument. The only files are those that variables
//! name: the catalogue, secrets, tokens and certificates. The configuration is read once; only token files
//! and the API's certificate are reloaded while a process runs.

use std::collections::HashSet;
use std::io::{self, Read};
use std::time::Duration;

pub mod duration;
pub mod environment_file;
pub mod knob;
pub mod knobs;
pub mod reference;

mod api;
mod audience;
mod checks;
mod health;
mod http;
mod http_addr;
mod minimums;
mod problem;
mod reader;
mod redis;
mod redis_addr;
mod relay;
mod replica;
mod secret;
mod section;
mod service;
mod state;
mod streams;
mod telemetry;
mod user_directory;
mod value;

pub use api::{Api, ApiLimits, known_producers};
pub use audience::AudienceRules;
pub use health::{HealthTarget, ServiceHealth, StateHealth};
pub use http::Http;
pub use http_addr::HttpAddr;
pub use problem::{ConfigErrors, Problem};
pub use reader::Section;
pub use redis::Redis;
pub use redis_addr::RedisAddr;
pub use relay::{OutboxTable, RelayConfig, RelayMode, RelayProcessConfig};
pub use replica::ReplicaId;
pub(crate) use replica::host_name;
pub use secret::Secret;
pub use service::{Postgres, Publish, Retention, Routes};
pub use state::{StateConfig, StateHttp, StateSocket, StateStore};
pub use streams::{Intents, Outbound, OutboundStream};
pub use telemetry::{Collector, Log, LogFormat, Protocol, Sampler, TelemetryConfig};
pub use user_directory::UserDirectory;

use ambient::Tokens;
use domain::catalog::Catalog;
use reader::Reader;
use section::section;
use std::sync::Arc;

/// The size limit of a file that is read, in bytes. No catalogue or intent needs more.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A valid configuration, its warnings, and the effective values.
#[derive(Debug)]
pub struct Loaded<C> {
    /// The configuration.
    pub config: C,
    /// One sentence for each variable that has no effect.
    pub warnings: Vec<String>,
    /// Name and value of every variable that was read, with defaults filled in and secrets masked, in the
    /// order of docs/config.md.
    pub effective: Vec<(String, String)>,
    /// The names of the variables whose value differs from the default.
    pub changed: HashSet<String>,
}

/// The default of a variable; `None` if it has none.
pub fn default_of(name: &str) -> Option<&'static str> {
    let knob = knobs::KNOBS.iter().find(|knob| knob.name == name && !knob.required);
    knob.map(|knob| knob.default).filter(|default| !default.is_empty())
}

section! {
    /// The configuration of `serve`: everything.
    #[derive(Debug, Clone)]
    pub struct Config {
        /// The Redis connection.
        pub redis: Redis,
        /// The PostgreSQL connection.
        pub postgres: Postgres,
        /// The listener of the probes.
        pub http: Http,
        /// The HTTP API, if it is enabled.
        pub api: Option<Api>,
        /// The intents stream, which the service reads.
        pub intents: Intents,
        /// The outbound streams, which the service writes.
        pub outbound: Outbound,
        /// The retries of routes, and the TTL of their leases.
        pub routes: Routes,
        /// The settings of the publishers.
        pub publish: Publish,
        /// The retention of rows.
        pub retention: Retention,
        /// The user directory.
        pub user_directory: UserDirectory,
        /// Notification types, administrators and languages.
        pub audience: AudienceRules,
        /// The relay of an outbox inside the service, if it is enabled.
        pub relay: Option<RelayConfig>,
        /// The name of this replica, if it is configured.
        pub replica_id: Option<ReplicaId> = NOTIFICATION_REPLICA_ID,
        /// The maximum duration of a stop.
        pub shutdown_timeout: Duration = NOTIFICATION_SHUTDOWN_TIMEOUT,
        /// Logs, traces and metrics of the process.
        pub telemetry: TelemetryConfig,
    } then streams::check_distinct
}

section! {
    /// The configuration of the operators' commands that read the tables.
    #[derive(Debug, Clone)]
    pub struct OperatorConfig {
        /// The PostgreSQL connection.
        pub postgres: Postgres,
        /// The key of the stream that the service reads.
        pub intents_stream: String = NOTIFICATION_INTENTS_STREAM,
    }
}

section! {
    /// The configuration of `audit`.
    #[derive(Debug, Clone)]
    pub struct AuditConfig {
        /// The tables and the name of the stream.
        pub tables: OperatorConfig,
        /// The Redis connection.
        pub redis: Redis,
        /// The outbound streams, which the service writes.
        pub outbound: Outbound,
        /// The retention of rows.
        pub retention: Retention,
        /// The catalogue with which entries are decoded.
        pub catalog: Arc<Catalog>,
    }
}

section! {
    /// The configuration of `erase`.
    #[derive(Debug, Clone)]
    pub struct EraseConfig {
        /// The tables and the name of the stream.
        pub tables: OperatorConfig,
        /// The Redis connection.
        pub redis: Redis,
        /// The outbound streams, which the service writes.
        pub outbound: Outbound,
        /// The settings of the publishers.
        pub publish: Publish,
        /// The user directory.
        pub user_directory: UserDirectory,
    }
}

section! {
    /// The configuration of `explain`.
    #[derive(Debug, Clone)]
    pub struct FindConfig {
        /// The tables and the name of the stream.
        pub tables: OperatorConfig,
        /// The Redis connection.
        pub redis: Redis,
        /// The outbound streams, in which ids of entries are looked up.
        pub outbound: Outbound,
        /// The catalogue with which entries are decoded.
        pub catalog: Arc<Catalog>,
    }
}

section! {
    /// The configuration of `send`.
    #[derive(Debug, Clone)]
    pub struct SendConfig {
        /// The Redis connection.
        pub redis: Redis,
        /// The key of the stream to which intents are appended.
        pub intents_stream: String = NOTIFICATION_INTENTS_STREAM,
        /// The catalogue against which an intent is checked.
        pub catalog: Arc<Catalog>,
    }
}

impl Config {
    /// The configured name of this replica, else a generated one.
    pub fn replica(&self, tokens: &impl Tokens) -> ReplicaId {
        self.replica_id.clone().unwrap_or_else(|| ReplicaId::of_this_host(tokens))
    }
}

/// Reads and checks the variables of one or more sections. Other known variables may be missing or wrong.
pub fn load<C: Section>(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<C>, ConfigErrors> {
    let mut reader = Reader::new(vars);
    let config = C::read(&mut reader);
    reader.finish(config)
}

/// The variables of this process. Text that is not UTF-8 contains replacement characters, which mark it as
/// invalid and cause it to be rejected.
pub fn environment() -> Vec<(String, String)> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

/// Reads the whole text of a file. Fails if the file is larger than [`MAX_FILE_BYTES`].
pub(crate) fn read_bounded(file: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// The items between commas, trimmed. Empty items are left out.
fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests;
