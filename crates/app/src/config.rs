//! The configuration: environment variables, read once into types that hold only valid values.
//!
//! All errors are reported at once, and nothing starts before they are fixed. Only [`environment`] reads the
//! environment; everything else takes variables as an argument. There is no configuration file except the
//! catalogue, and nothing is read again while the service runs.

use std::io::{self, Read};
use std::time::Duration;

pub mod duration;
pub mod environment_file;
pub mod knob;
pub mod knobs;
pub mod reference;

mod api;
mod audience;
mod health;
mod http;
mod minimums;
mod postgres;
mod problem;
mod publish;
mod reader;
mod redis;
mod relay;
mod replica;
mod retention;
mod routes;
mod secret;
mod state;
mod streams;
mod telemetry;
mod user_directory;

pub use api::{Api, ApiLimits, known_producers};
pub use audience::AudienceRules;
pub use health::HealthTarget;
pub use http::{Http, HttpAddr};
pub use postgres::Postgres;
pub use problem::{ConfigErrors, Problem};
pub use publish::Publish;
pub use redis::{Redis, RedisAddr};
pub use relay::{OutboxConfig, OutboxTable, RelayConfig, RelayMode, RelayProcessConfig};
pub use replica::ReplicaId;
pub(crate) use replica::host_name;
pub use retention::Retention;
pub use routes::Routes;
pub use secret::Secret;
pub use state::{StateConfig, StateHttp, StateSocket};
pub use streams::{Intents, Outbound, OutboundStream};
pub use telemetry::{Collector, Log, LogFormat, Protocol, Sampler, TelemetryConfig};
pub use user_directory::UserDirectory;

use ambient::Tokens;
use domain::catalog::Catalog;
use domain::operations::Budgets;
use knobs::NOTIFICATION_SHUTDOWN_TIMEOUT;
use reader::Reader;
use std::sync::Arc;

/// The largest file that is read, in bytes: more than any catalogue or intent needs.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A valid configuration, and its warnings.
#[derive(Debug)]
pub struct Loaded<C> {
    /// What was asked for.
    pub config: C,
    /// Variables that have no effect, a sentence each.
    pub warnings: Vec<String>,
    /// Name and value of every variable that was read, defaults filled in and secrets masked, in the order of
    /// docs/config.md.
    pub effective: Vec<(String, String)>,
}

/// What `serve` needs: everything.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where Redis is.
    pub redis: Redis,
    /// Where PostgreSQL is.
    pub postgres: Postgres,
    /// Where the probes are served.
    pub http: Http,
    /// The HTTP API, if it is on.
    pub api: Option<Api>,
    /// The stream that is read.
    pub intents: Intents,
    /// The streams that are written.
    pub outbound: Outbound,
    /// How often and how soon a route is tried.
    pub routes: Routes,
    /// How routes are taken up.
    pub publish: Publish,
    /// How long things are kept.
    pub retention: Retention,
    /// Where the user directory is.
    pub user_directory: UserDirectory,
    /// Notification types, administrators and languages.
    pub audience: AudienceRules,
    /// The relay of an outbox inside the service, if it is on.
    pub relay: Option<RelayConfig>,
    /// The name of this replica, if it was given one.
    pub replica_id: Option<ReplicaId>,
    /// How long a stop may take.
    pub shutdown_timeout: Duration,
    /// What the process tells about itself.
    pub telemetry: TelemetryConfig,
}

/// What `migrate` needs.
#[derive(Debug, Clone)]
pub struct MigrateConfig {
    /// Where PostgreSQL is.
    pub postgres: Postgres,
}

/// What the commands of operators need that read the tables.
#[derive(Debug, Clone)]
pub struct OperatorConfig {
    /// Where PostgreSQL is.
    pub postgres: Postgres,
    /// The key of the stream that the service reads.
    pub intents_stream: String,
}

/// What the commands of operators need that ask the stream as well.
#[derive(Debug, Clone)]
pub struct OperatorStreamConfig {
    /// Where the tables are.
    pub tables: OperatorConfig,
    /// Where Redis is.
    pub redis: Redis,
}

/// What the commands need that replay dead letters.
#[derive(Debug, Clone)]
pub struct ReplayConfig {
    /// Where the tables are.
    pub tables: OperatorConfig,
    /// The retry budgets that replayed routes get.
    pub budgets: Budgets,
}

/// What `audit` needs.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    /// Where the tables are.
    pub tables: OperatorConfig,
    /// Where Redis is.
    pub redis: Redis,
    /// The streams that are written.
    pub outbound: Outbound,
    /// How long things are kept.
    pub retention: Retention,
    /// By which entries are decoded.
    pub catalog: Arc<Catalog>,
}

/// What `send` needs.
#[derive(Debug, Clone)]
pub struct SendConfig {
    /// Where Redis is.
    pub redis: Redis,
    /// The key of the stream that intents are appended to.
    pub intents_stream: String,
    /// What an intent must satisfy.
    pub catalog: Arc<Catalog>,
}

impl Config {
    /// Reads and checks everything.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, Self::read)
    }

    /// The name of this replica: the one it was given, else one of its own.
    pub fn replica(&self, tokens: &impl Tokens) -> ReplicaId {
        self.replica_id.clone().unwrap_or_else(|| ReplicaId::of_this_host(tokens))
    }

    fn read(reader: &mut Reader) -> Option<Self> {
        let redis = Redis::read(reader);
        let postgres = Postgres::read(reader);
        let http = Http::read(reader);
        let intents = Intents::read(reader);
        let outbound = Outbound::read(reader);
        let routes = Routes::read(reader);
        let publish = Publish::read(reader);
        let retention = Retention::read(reader);
        let user_directory = UserDirectory::read(reader);
        let audience = AudienceRules::read(reader);
        let catalog = audience.as_ref().map(|audience| &*audience.catalog);
        let api = Api::read(reader, http.as_ref(), catalog);
        let beside = relay::Beside {
            catalog: audience.as_ref().map(|audience| Arc::clone(&audience.catalog)),
            intents_stream: intents.as_ref().map(|intents| intents.stream.clone()),
            dedupe_ttl: publish.as_ref().map(|publish| publish.dedupe_ttl),
            republish_window: publish.as_ref().map(|publish| publish.republish_window),
            operation_timeout: postgres.as_ref().map(|postgres| postgres.operation_timeout),
        };
        let relay = RelayConfig::read_optional(reader, beside);
        let replica_id = ReplicaId::read(reader);
        let shutdown_timeout = reader.duration(&NOTIFICATION_SHUTDOWN_TIMEOUT);
        let telemetry = TelemetryConfig::read(reader);
        streams::check_distinct(reader, intents.as_ref(), outbound.as_ref());
        Some(Self {
            redis: redis?,
            postgres: postgres?,
            http: http?,
            api: api?,
            intents: intents?,
            outbound: outbound?,
            routes: routes?,
            publish: publish?,
            retention: retention?,
            user_directory: user_directory?,
            audience: audience?,
            relay: relay?,
            replica_id: replica_id?,
            shutdown_timeout: shutdown_timeout?,
            telemetry: telemetry?,
        })
    }
}

impl MigrateConfig {
    /// Reads and checks what concerns PostgreSQL; other known variables may be missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, |reader| Postgres::read(reader).map(|postgres| Self { postgres }))
    }
}

impl OperatorConfig {
    /// Reads and checks what concerns PostgreSQL and the name of the stream; other known variables may be
    /// missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, Self::read)
    }

    fn read(reader: &mut Reader) -> Option<Self> {
        let postgres = Postgres::read(reader);
        let intents_stream = streams::read_intents_stream(reader);
        Some(Self { postgres: postgres?, intents_stream: intents_stream? })
    }
}

impl OperatorStreamConfig {
    /// Reads and checks what concerns PostgreSQL, Redis and the name of the stream; other known variables may
    /// be missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, Self::read)
    }

    /// The same, and the catalogue, by which entries of the stream are read.
    pub fn load_with_catalog(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded<(Self, Arc<Catalog>)>, ConfigErrors> {
        load(vars, |reader| {
            let config = Self::read(reader);
            let catalog = audience::read_catalog(reader);
            Some((config?, catalog?))
        })
    }

    fn read(reader: &mut Reader) -> Option<Self> {
        let tables = OperatorConfig::read(reader);
        let redis = Redis::read(reader);
        Some(Self { tables: tables?, redis: redis? })
    }
}

impl ReplayConfig {
    /// Reads and checks what concerns PostgreSQL, the name of the stream and the budgets; other known
    /// variables may be missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, |reader| {
            let tables = OperatorConfig::read(reader);
            let budgets = routes::read_budgets(reader);
            Some(Self { tables: tables?, budgets: budgets? })
        })
    }
}

impl AuditConfig {
    /// Reads and checks what concerns PostgreSQL, Redis, the streams, retention and the catalogue; other
    /// known variables may be missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, |reader| {
            let tables = OperatorConfig::read(reader);
            let redis = Redis::read(reader);
            let outbound = Outbound::read(reader);
            let retention = Retention::read(reader);
            let catalog = audience::read_catalog(reader);
            Some(Self {
                tables: tables?,
                redis: redis?,
                outbound: outbound?,
                retention: retention?,
                catalog: catalog?,
            })
        })
    }
}

impl SendConfig {
    /// Reads and checks what concerns Redis, the stream and the catalogue; other known variables may be
    /// missing or wrong.
    pub fn load(vars: impl IntoIterator<Item = (String, String)>) -> Result<Loaded<Self>, ConfigErrors> {
        load(vars, |reader| {
            let redis = Redis::read(reader);
            let intents_stream = streams::read_intents_stream(reader);
            let catalog = audience::read_catalog(reader);
            Some(Self { redis: redis?, intents_stream: intents_stream?, catalog: catalog? })
        })
    }
}

fn load<C>(
    vars: impl IntoIterator<Item = (String, String)>,
    read: impl FnOnce(&mut Reader) -> Option<C>,
) -> Result<Loaded<C>, ConfigErrors> {
    let mut reader = Reader::new(vars);
    let config = read(&mut reader);
    let notes = reader.finish()?;
    // Cannot fail: every None was noted as a problem, and there is none.
    let config = config.expect("what is not there was noted as a problem");
    Ok(Loaded { config, warnings: notes.warnings, effective: notes.effective })
}

/// The variables of this process. What is not UTF-8 holds replacement characters, by which it is recognised
/// and refused.
pub fn environment() -> Vec<(String, String)> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

/// The whole text of a file, unless it is larger than [`MAX_FILE_BYTES`].
pub(crate) fn read_bounded(file: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// The items between commas, trimmed, empty ones left out.
fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests;
