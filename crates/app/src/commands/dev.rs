//! `dev`: everything on this machine, to try the service out.
//!
//! Private servers, a stand-in user directory and the service with its HTTP API in one process. It sends a sample intent and prints
//! the published entries. At the end everything is stopped and removed.

use std::time::Duration;

use ambient::{Clock, RandomTokens, SystemClock};
use anyhow::Context;
use domain::intent::{IntentDraft, Recipients};
use domain::ports::{IntentProducer, StoreError};
use http_server::tokens::{Grant, new_token};
use local_servers::{Postgres, PostgresOptions, Redis, RedisOptions, StandInDirectory};
use outbox::{Administration, ChannelName, TableName};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};
use redis::Value;
use store_redis::{RedisClient, RedisIntentProducer};
use tempfile::NamedTempFile;
use tokio_util::sync::CancellationToken;

use super::{Failure, Vars, print_warnings, serve};
use crate::config::Config;
use crate::{shutdown, wiring};

const DATABASE: &str = "galaxy";
const ROLE: &str = "notificationservice";
const SCHEMA: &str = "notification";
/// The channel on which inserts into the outbox are announced.
const OUTBOX_CHANNEL: &str = "outbox";
/// How long creating the outbox may take.
const OUTBOX_TIMEOUT: Duration = Duration::from_secs(10);
/// Who sends the sample and the intents of the invitation.
const PRODUCER: &str = "game_master";
/// The pause between two reads of the outbound streams.
const OUTBOUND_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The most entries of one stream that one read shows; the next one shows the rest.
const MAX_ENTRIES_PER_READ: u32 = 100;
/// The users of the sample: one reads French, which is not configured.
const USERS: [(&str, &str); 2] = [("u-1", "en"), ("u-2", "fr")];

/// Runs until Ctrl-C.
pub async fn run(vars: Vars) -> Result<(), Failure> {
    let stop = shutdown::listen().context("could not listen for signals")?;
    println!("Starting a private PostgreSQL, a private Redis and a stand-in user directory …");
    let machine = Machine::start().await?;
    machine.create_outbox().await?;
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
    // The task ends by the token and has no result.
    drop(shown.await);
    drop(machine);
    println!("Stopped. Nothing is left running.");
    outcome
}

/// The servers; they stop when this is dropped.
struct Machine {
    postgres: Postgres,
    redis: Redis,
    directory: StandInDirectory,
    api: DevApi,
}

/// The API of the service, and who may use it.
struct DevApi {
    addr: String,
    /// Removed when this is dropped.
    tokens_file: NamedTempFile,
    producer: String,
    operator: String,
}

impl DevApi {
    /// On a free port, with two new tokens.
    fn new() -> anyhow::Result<Self> {
        let make = |name: &str, grant: &Grant| {
            let made = new_token(name, grant, &RandomTokens);
            made.map_err(|reason| anyhow::anyhow!("could not make a token: {reason}"))
        };
        let producer = make("dev-producer", &Grant::Producer(PRODUCER.to_owned()))?;
        let operator = make("dev-operator", &Grant::Operator)?;
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
        let directory = StandInDirectory::start().await?;
        for (id, language) in USERS {
            directory.set_user(id, &format!("{id}@example.com"), language);
        }
        Ok(Self { postgres, redis, directory, api: DevApi::new()? })
    }

    fn dsn(&self) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/{DATABASE}?search_path={SCHEMA}", self.postgres.port())
    }

    /// An outbox beside the tables of the service, for the relay inside it.
    async fn create_outbox(&self) -> anyhow::Result<()> {
        let dsn = Dsn::parse(&self.dsn()).context("the outbox cannot be reached")?;
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: OUTBOX_TIMEOUT,
            session: SessionSettings::default(),
        };
        let pool = PgPool::new(&dsn, settings).context("the outbox cannot be reached")?;
        let channel = ChannelName::parse(OUTBOX_CHANNEL)?;
        let administration = Administration::new(pool, TableName::default());
        administration.migrate(Some(&channel)).await.context("the outbox could not be created")
    }

    /// The caller's variables, and the addresses of the servers.
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
            ("NOTIFICATION_USER_SERVICE_BASE_URL", self.directory.base_url()),
            ("NOTIFICATION_REDIS_PASSWORD", String::new()),
            ("NOTIFICATION_API_HTTP_ADDR", self.api.addr.clone()),
            ("NOTIFICATION_API_TOKENS_FILE", self.api.tokens_file.path().display().to_string()),
            ("NOTIFICATION_API_TLS_CERT_FILE", String::new()),
            ("NOTIFICATION_API_TLS_KEY_FILE", String::new()),
        ];
        // Unless the caller wants it otherwise: any port, and of the log what a person must see.
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
        let loaded = Config::load(others.chain(added).collect::<Vars>())?;
        print_warnings(&loaded.warnings);
        Ok(loaded.config)
    }

    /// How to send further intents, and how to read what became of them.
    fn invitation(&self) -> String {
        let program = std::env::current_exe()
            .map_or_else(|_| "notification".to_owned(), |path| path.display().to_string());
        let redis_addr = self.redis.addr();
        let DevApi { addr, producer, operator, .. } = &self.api;
        let intent =
            |turn: u32| format!(r#"{{"game_id":"game-123","game_name":"Nova","turn_number":{turn}}}"#);
        let (by_stream, by_http, by_outbox) = (intent(55), intent(56), intent(57));
        let postgres = format!("postgres://{ROLE}@127.0.0.1:{}/{DATABASE}", self.postgres.port());
        format!(
            "Send another from a second terminal, through Redis:

  NOTIFICATION_REDIS_MASTER_ADDR={redis_addr} {program} send --type game.turn.ready \\
        --producer {PRODUCER} --user u-1 --key game-123:turn-55 \\
    --payload '{by_stream}'

Or through the HTTP API, with the token of a producer:

  curl http://{addr}/v1/intents -H 'Authorization: Bearer {producer}' \\
        -H 'Idempotency-Key: game-123:turn-56' -H 'Content-Type: application/json' \\
    -d '{{\"notification_type\":\"game.turn.ready\",\"audience_kind\":\"user\",\"recipient_user_ids\":[\"u-1\"],
         \"occurred_at_ms\":1775121700000,\"payload\":{by_http}}}'

Or as a row of an outbox, which a relay in the service moves to the stream:

  psql {postgres} -c 'INSERT INTO {SCHEMA}.openoutbox_events (event_id, event_type, payload) VALUES (gen_random_uuid(),
    $$game.turn.ready$$, convert_to($${{\"audience_kind\":\"user\",\"recipient_user_ids\":[\"u-1\"],\"payload\":{by_outbox}}}$$, $$UTF8$$))'

Read what became of them, with the token of an operator:

  curl http://{addr}/v1/notifications -H 'Authorization: Bearer {operator}'

Any user exists here. Ctrl-C ends it all and leaves nothing running.
"
        )
    }
}

/// Prints the published entries.
struct Watch {
    streams: [String; 2],
    stop: CancellationToken,
    /// Printed once the sample has come out.
    invitation: String,
}

impl Watch {
    async fn show(self, redis: RedisClient, intents: String) {
        if let Err(error) = send_sample(&redis, &intents).await {
            println!("The sample intent could not be sent: {}", domain::ports::error_chain(&error));
            return;
        }
        println!("\n→ {intents}\n    game.turn.ready for {} and {}", USERS[0].0, USERS[1].0);
        println!("    (two users, each by push and by e-mail: four entries will come out)\n");
        let mut seen = [String::from("0-0"), String::from("0-0")];
        let (mut shown, mut invited) = (0, false);
        while !self.stop.is_cancelled() {
            for (stream, last) in self.streams.iter().zip(&mut seen) {
                let mut range = redis::cmd("XRANGE");
                range.arg(stream).arg(format!("({last}")).arg("+").arg("COUNT").arg(MAX_ENTRIES_PER_READ);
                // A read that failed is repeated.
                let Ok(Value::Array(entries)) = redis.command("read an outbound stream", &range).await else {
                    continue;
                };
                for entry in entries {
                    if let Some((id, fields)) = readable(entry) {
                        print_entry(stream, &id, &fields);
                        *last = id;
                        shown += 1;
                    }
                }
            }
            if shown >= 4 && !invited {
                println!("{}", self.invitation);
                invited = true;
            }
            if self.stop.run_until_cancelled(tokio::time::sleep(OUTBOUND_POLL_INTERVAL)).await.is_none() {
                break;
            }
        }
    }
}

async fn send_sample(redis: &RedisClient, intents: &str) -> Result<(), StoreError> {
    let draft = IntentDraft {
        notification_type: "game.turn.ready".to_owned(),
        producer: PRODUCER.to_owned(),
        recipients: Recipients::Users(USERS.map(|(id, _)| id.to_owned()).into()),
        idempotency_key: "game-123:turn-54".to_owned(),
        occurred_at_ms: SystemClock.now().as_millis().to_string(),
        payload_json: r#"{"game_id":"game-123","game_name":"Nova","turn_number":54}"#.to_owned(),
        request_id: None,
        trace_id: None,
    };
    let producer = RedisIntentProducer::new(redis, intents.to_owned());
    producer.append(&draft.into_entry()).await.map(drop)
}

fn readable(entry: Value) -> Option<(String, Vec<String>)> {
    let Value::Array(parts) = entry else { return None };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    match parts.as_slice() {
        [id, Value::Array(fields)] => Some((text(id), fields.iter().map(text).collect())),
        _ => None,
    }
}

fn print_entry(stream: &str, id: &str, fields: &[String]) {
    println!("← {stream} {id}");
    for pair in fields.chunks_exact(2) {
        println!("    {:<16} {}", pair[0], pair[1]);
    }
    println!();
}
