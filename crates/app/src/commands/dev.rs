//! `dev`: runs everything on this machine, to try the service out.
//!
//! It starts private servers and, in one process, the service with its HTTP API and console; users are
//! documents in the service's own schema. It sends a sample intent, prints the published entries, and adds
//! some failures to look at. At the end everything is stopped and removed.

use std::time::Duration;

use ambient::RandomTokens;
use anyhow::Context;
use http_server::tokens::{Grant, Role, new_token};
use local_servers::{Postgres, PostgresOptions, Redis, RedisOptions};
use outbox::{Administration, ChannelName, TableName};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use serde_json::json;
use state::{Key, PostgresStore};
use store_postgres::PgStore;
use store_redis::RedisClient;
use tempfile::NamedTempFile;
use user_directory::USERS_PREFIX;

mod samples;
mod watch;

use watch::Watch;

use super::{Failure, Vars, load, serve};
use crate::config::Config;
use crate::{migrations, shutdown, wiring};

const DATABASE: &str = "galaxy";
const ROLE: &str = "notificationservice";
const SCHEMA: &str = "notification";
/// The channel that announces inserts into the outbox.
const OUTBOX_CHANNEL: &str = "outbox";
/// The time limit of one statement that prepares the database.
const PREPARATION_TIMEOUT: Duration = Duration::from_secs(10);
/// The producer of the sample and of the intents in the invitation.
const PRODUCER: &str = "game_master";
/// The users of the sample: one has French as language, which is not configured.
const USERS: [(&str, &str); 2] = [("u-1", "en"), ("u-2", "fr")];
/// The user in the invitation.
const USER: &str = r#"{"user_id":"u-3","email":"ada@example.com","preferred_language":"en"}"#;

/// Runs until Ctrl-C.
pub async fn run(vars: Vars) -> Result<(), Failure> {
    let stop = shutdown::listen().context("could not listen for signals")?;
    println!("Starting a private PostgreSQL and a private Redis …");
    let machine = Machine::start().await?;
    machine.create_outbox().await?;
    machine.import_users().await?;
    samples::record_failures(&PgStore::new(machine.pool()?)).await?;
    let config = machine.config(vars)?;
    let redis = RedisClient::new(wiring::redis_settings(&config.redis)).context("Redis cannot be used")?;
    let watch = Watch {
        streams: [config.outbound.gateway.key.clone(), config.outbound.mail.key.clone()],
        stop: stop.clone(),
        invitation: machine.invitation(),
    };
    let intents = config.intents.stream.clone();

    let service = tokio::spawn(serve::run_service(config, stop.clone()));
    let shown = tokio::spawn(watch.show(redis.clone(), intents));
    let outcome = service.await.context("the service panicked")?;
    stop.cancel();
    // The task ends when the token is cancelled and has no result.
    drop(shown.await);
    drop(machine);
    println!("Stopped. Nothing is left running.");
    outcome
}

/// The private servers; they stop when this is dropped.
struct Machine {
    postgres: Postgres,
    redis: Redis,
    api: DevApi,
}

/// The API of the service, with a token for a producer and one for an operator.
struct DevApi {
    addr: String,
    /// Removed when this is dropped.
    tokens_file: NamedTempFile,
    producer: String,
    operator: String,
}

impl DevApi {
    /// Picks a free port and makes two new tokens.
    fn new() -> anyhow::Result<Self> {
        let make = |name: &str, grant: &Grant| {
            let made = new_token(name, grant, &RandomTokens);
            made.map_err(|reason| anyhow::anyhow!("could not make a token: {reason}"))
        };
        let producer = make("dev-producer", &Grant::Producer(PRODUCER.to_owned()))?;
        let operator = make("dev-operator", &Grant::Role(Role::Operator))?;
        let tokens_file = NamedTempFile::with_prefix("notification-tokens-")
            .and_then(|file| std::fs::write(&file, producer.entry + &operator.entry).map(|()| file))
            .context("could not write a tokens file")?;
        let addr = format!("127.0.0.1:{}", local_servers::free_port()?);
        Ok(Self { addr, tokens_file, producer: producer.token, operator: operator.token })
    }
}

impl Machine {
    async fn start() -> anyhow::Result<Self> {
        let postgres =
            Postgres::start(PostgresOptions { durable: true, ..PostgresOptions::default() }).await?;
        postgres.create_role_and_schema(DATABASE, ROLE, SCHEMA).await?;
        let redis = Redis::start(RedisOptions {
            appendonly: true,
            arguments: ["--proto-max-bulk-len", "16mb"].map(str::to_owned).into(),
            ..RedisOptions::default()
        })
        .await?;
        Ok(Self { postgres, redis, api: DevApi::new()? })
    }

    fn dsn(&self) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/{DATABASE}?search_path={SCHEMA}", self.postgres.port())
    }

    fn pool(&self) -> anyhow::Result<PgPool> {
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: PREPARATION_TIMEOUT,
            session: SessionSettings::default(),
        };
        let dsn = Dsn::parse(&self.dsn()).context("the database cannot be reached")?;
        PgPool::new(&dsn, settings).context("the database cannot be reached")
    }

    /// Creates an outbox beside the tables of the service, for the relay inside it.
    async fn create_outbox(&self) -> anyhow::Result<()> {
        let channel = ChannelName::parse(OUTBOX_CHANNEL)?;
        let administration = Administration::new(self.pool()?, TableName::default());
        administration.migrate(Some(&channel)).await.context("the outbox could not be created")
    }

    /// Imports the users of the sample into the tables of the service.
    async fn import_users(&self) -> anyhow::Result<()> {
        let dsn = Dsn::parse(&self.dsn()).context("the database cannot be reached")?;
        migrations::migrate(&dsn).await.context("the database could not be migrated")?;
        let user = |(id, language): (&str, &str)| {
            let text = json!({ "email": format!("{id}@example.com"), "preferred_language": language });
            Ok((Key::new(&format!("{USERS_PREFIX}{id}"))?, state::Value::parse(text.to_string())?))
        };
        let users = USERS.into_iter().map(user).collect::<anyhow::Result<Vec<_>>>()?;
        let store = PostgresStore::new(self.pool()?, state::TableName::default());
        store.put_many(&users).await.context("the users of the sample could not be stored")
    }

    /// Merges the caller's variables with the addresses of the private servers.
    fn config(&self, vars: Vars) -> Result<Config, Failure> {
        let own = [
            ("NOTIFICATION_POSTGRES_PRIMARY_DSN", self.dsn()),
            ("NOTIFICATION_OUTBOX_DSN", self.dsn()),
            ("NOTIFICATION_OUTBOX_TABLE", String::new()),
            ("NOTIFICATION_OUTBOX_MODE", String::new()),
            ("NOTIFICATION_OUTBOX_PRODUCER", PRODUCER.to_owned()),
            ("NOTIFICATION_OUTBOX_TYPES", String::new()),
            ("NOTIFICATION_OUTBOX_LISTEN_CHANNEL", OUTBOX_CHANNEL.to_owned()),
            ("NOTIFICATION_REDIS_MASTER_ADDR", self.redis.addr()),
            ("NOTIFICATION_REDIS_SENTINEL_ADDRS", String::new()),
            ("NOTIFICATION_REDIS_SENTINEL_MASTER", String::new()),
            ("NOTIFICATION_REDIS_SENTINEL_PASSWORD", String::new()),
            ("NOTIFICATION_REDIS_CLUSTER_ADDRS", String::new()),
            ("NOTIFICATION_REDIS_REPLICA_ADDRS", String::new()),
            ("NOTIFICATION_USER_DIRECTORY", "state".to_owned()),
            ("NOTIFICATION_USER_SERVICE_BASE_URL", String::new()),
            ("NOTIFICATION_REDIS_PASSWORD", String::new()),
            ("NOTIFICATION_API_HTTP_ADDR", self.api.addr.clone()),
            ("NOTIFICATION_API_TOKENS_FILE", self.api.tokens_file.path().display().to_string()),
            ("NOTIFICATION_CONSOLE", "on".to_owned()),
            ("NOTIFICATION_API_TLS_CERT_FILE", String::new()),
            ("NOTIFICATION_API_TLS_KEY_FILE", String::new()),
        ];
        // Defaults that the caller may override: any port, and only log lines that a person must see.
        let defaults = [
            ("NOTIFICATION_INTERNAL_HTTP_ADDR", "127.0.0.1:0".to_owned()),
            ("NOTIFICATION_LOG_LEVEL", "warn".to_owned()),
            ("NOTIFICATION_LOG_FORMAT", "text".to_owned()),
        ];
        let given = |name: &str| vars.iter().any(|(given, value)| given == name && !value.is_empty());
        let added = own.iter().chain(defaults.iter().filter(|(name, _)| !given(name)));
        let added = added.map(|(name, value)| ((*name).to_owned(), value.clone()));
        let replaced = |name: &str| {
            let variable = name.strip_suffix("_FILE").unwrap_or(name);
            own.iter().any(|(owned, _)| *owned == variable)
        };
        let others = vars.iter().filter(|(name, value)| !replaced(name) && !value.is_empty()).cloned();
        Ok(load(others.chain(added).collect())?)
    }

    /// Text that shows how to send further intents and how to read their outcomes.
    fn invitation(&self) -> String {
        let program = std::env::current_exe()
            .map_or_else(|_| "notification".to_owned(), |path| path.display().to_string());
        let (dsn, redis_addr) = (self.dsn(), self.redis.addr());
        let DevApi { addr, producer, operator, .. } = &self.api;
        let intent =
            |turn: u32| format!(r#"{{"game_id":"game-123","game_name":"Nova","turn_number":{turn}}}"#);
        let (by_stream, by_http, by_outbox) = (intent(55), intent(56), intent(57));
        let postgres = format!("postgres://{ROLE}@127.0.0.1:{}/{DATABASE}", self.postgres.port());
        format!(
            "Import a user from a second terminal:

  export NOTIFICATION_POSTGRES_PRIMARY_DSN='{dsn}' NOTIFICATION_REDIS_MASTER_ADDR={redis_addr}
  echo '{USER}' > users.jsonl
  {program} users import users.jsonl

Send an intent to this user, through Redis:

  {program} send --type game.turn.ready --producer {PRODUCER} --user u-3 --key game-123:turn-55 \\
    --payload '{by_stream}'

Or through the HTTP API, with the token of a producer:

  curl http://{addr}/v1/intents -H 'Authorization: Bearer {producer}' \\
        -H 'Idempotency-Key: game-123:turn-56' -H 'Content-Type: application/json' \\
    -d '{{\"notification_type\":\"game.turn.ready\",\"audience_kind\":\"user\",\"recipient_user_ids\":[\"u-3\"],
         \"occurred_at_ms\":1775121700000,\"payload\":{by_http}}}'

Or as a row of an outbox, which a relay in the service moves to the stream:

  psql {postgres} -c 'INSERT INTO {SCHEMA}.openoutbox_events (event_id, event_type, payload) VALUES (gen_random_uuid(),
    $$game.turn.ready$$, convert_to($${{\"audience_kind\":\"user\",\"recipient_user_ids\":[\"u-3\"],\"payload\":{by_outbox}}}$$, $$UTF8$$))'

Read what became of them, with the token of an operator:

  curl http://{addr}/v1/notifications -H 'Authorization: Bearer {operator}'

Look at all of it in the console, and sign in with the token of an operator; there are dead letters and a malformed intent:

  http://{addr}/console/
  {operator}

Users that were not imported do not exist. Ctrl-C ends it all and leaves nothing running.
"
        )
    }
}
