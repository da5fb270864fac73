//! Producers and operators, who repeat what failed until it is done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::api_client::{OPERATOR, PRODUCER, body, try_ask};
use harness::outbox::{INSERT, event_id, event_row};
use harness::wait_for;
use harness::world::{intent, key};
use redis::AsyncConnectionConfig;
use serde_json::{Value, json};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use crate::boundary::Protocol;
use crate::site::{Apis, BOUND, Site};

/// The time that a client waits for a response.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before a repetition.
const PAUSE: Duration = Duration::from_millis(50);
/// The most intents that are sent until one is held.
const HELD_INTENTS: u32 = 30;
/// The time after which the next one is sent.
const HELD_PAUSE: Duration = Duration::from_millis(700);
/// The first number of what is sent by HTTP, and of events.
pub(crate) const BY_HTTP: u32 = 1_000;

/// The stage of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Every server keeps what is written.
    Kept,
    /// The server that takes over lacks what is written.
    InLostTail,
}

/// The server that acknowledges an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acknowledger {
    /// Redis, for entries of the stream.
    Redis,
    /// PostgreSQL, for requests over HTTP and rows of an outbox.
    Postgres,
}

/// The acknowledgements that clients have received.
#[derive(Debug)]
struct Promises {
    stage: Stage,
    /// The idempotency key of each intent, with the stage in which it was acknowledged.
    intents: BTreeMap<String, (Acknowledger, Stage)>,
}

/// The clients of a site.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    redis_port: u16,
    database: String,
    outbox: Option<String>,
    apis: Apis,
    promises: Arc<Mutex<Promises>>,
    /// The time before which routes are resent, in RFC 3339.
    until: String,
}

impl Clients {
    pub(crate) fn new(site: &Site) -> Self {
        let port = site.postgres_for_clients.port();
        let superuser = |name: &str| format!("postgres://postgres@127.0.0.1:{port}/{name}?connect_timeout=5");
        Self {
            redis_port: site.redis_for_clients.port(),
            database: superuser(site.world.database.name()),
            outbox: site.outbox.as_ref().map(|database| superuser(database.name())),
            apis: Arc::clone(&site.apis),
            promises: Arc::new(Mutex::new(Promises { stage: Stage::Kept, intents: BTreeMap::new() })),
            until: String::new(),
        }
    }

    fn promises(&self) -> MutexGuard<'_, Promises> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.promises().stage = stage;
    }

    /// The keys of all intents, each with `true` if it must be accepted although `lost` has lost its last
    /// writes.
    pub(crate) fn promised(&self, lost: Option<Acknowledger>) -> BTreeMap<String, bool> {
        let promises = self.promises();
        let intents = promises.intents.iter();
        intents.map(|(key, (by, stage))| (key.clone(), *stage == Stage::Kept || lost != Some(*by))).collect()
    }

    fn acknowledged(&self, key: String, by: Acknowledger, stage: Stage) {
        self.promises().intents.insert(key, (by, stage));
    }

    /// Appends intents to the stream, each until it is acknowledged.
    pub(crate) async fn send(&self, range: impl IntoIterator<Item = u32>) {
        for n in range {
            wait_for("an intent is on the stream", BOUND, async || {
                let stage = self.promises().stage;
                let timeouts = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(PATIENCE))
                    .set_response_timeout(Some(PATIENCE));
                let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.redis_port)).ok()?;
                let sent = async {
                    let mut connection =
                        client.get_multiplexed_async_connection_with_config(&timeouts).await?;
                    intent(n).query_async::<String>(&mut connection).await
                };
                if sent.await.is_err() {
                    tokio::time::sleep(PAUSE).await;
                    return None;
                }
                self.acknowledged(key(n), Acknowledger::Redis, stage);
                Some(())
            })
            .await;
        }
    }

    /// Sends a request to one replica after another until one has carried it out.
    async fn post(&self, token: &str, path: &str, idempotency_key: &str, body: &Value) {
        let (body, mut turn) = (body.to_string(), 0);
        wait_for("a request is carried out", BOUND, async || {
            let addrs: Vec<String> =
                self.apis.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
            turn += 1;
            let addr = addrs.get(turn % addrs.len().max(1))?;
            let asked = try_ask(addr, token, "POST", path, Some(idempotency_key), &body);
            if let Ok(Ok(response)) = tokio::time::timeout(PATIENCE, asked).await {
                match response.status {
                    200..300 => return Some(()),
                    // Another request has the key, or the replica cannot answer now.
                    409 | 503 => {}
                    status => panic!("{path}: {status} {}", response.body),
                }
            }
            tokio::time::sleep(PAUSE).await;
            None
        })
        .await
    }

    /// Submits intents by HTTP, each until it is accepted.
    pub(crate) async fn submit(&self, range: impl IntoIterator<Item = u32>) {
        for n in range {
            let stage = self.promises().stage;
            self.post(PRODUCER, "/v1/intents", &key(n), &body(n)).await;
            self.acknowledged(key(n), Acknowledger::Postgres, stage);
        }
    }

    /// Commits statements on a database. `None` if it is not certain.
    async fn commit(&self, database: &str, sql: &str) -> Option<()> {
        let committed = async {
            let client = connect(database).await?;
            client.batch_execute("SET search_path = notification").await.ok()?;
            match client.batch_execute(sql).await {
                Ok(()) => Some(()),
                // It was committed before, and only the response was lost.
                Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => Some(()),
                Err(_) => None,
            }
        };
        let committed = tokio::time::timeout(PATIENCE, committed).await.ok().flatten();
        if committed.is_none() {
            tokio::time::sleep(PAUSE).await;
        }
        committed
    }

    /// Inserts events into the outbox, each until it is committed.
    pub(crate) async fn insert_events(&self, range: impl IntoIterator<Item = u32>) {
        let database = self.outbox.as_deref().expect("the case has an outbox");
        for n in range {
            let stage = wait_for("an event is committed", BOUND, async || {
                let stage = self.promises().stage;
                self.commit(database, &format!("{INSERT} {}", event_row(n))).await.map(|()| stage)
            })
            .await;
            self.acknowledged(event_id(n), Acknowledger::Postgres, stage);
        }
    }

    /// Inserts records of 31 days ago, with routes that have ended.
    async fn insert_old_records(&self) {
        let sql = "
            INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json,
                idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
            SELECT n || '-0', 't', 'old', 'user', '{}', n::text, 'v1:', now(), now() - interval '31 days', now(), now()
            FROM generate_series(1, 5) n;
            INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at,
                updated_at)
            SELECT notification_id, 'push:user:u', 'push', 'user:u', 'skipped', 3, now(), now() FROM records
            WHERE producer = 'old'";
        wait_for("old records are committed", BOUND, async || self.commit(&self.database, sql).await).await;
    }

    /// Remembers the end of the publications so far, as the time before which routes are resent.
    pub(crate) async fn note_time(&mut self) {
        let client = connect(&self.database).await.expect("the database responds");
        let sql = r#"SELECT to_char((max(published_at) + interval '1 microsecond') AT TIME ZONE 'UTC',
            'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM notification.routes"#;
        self.until = client.query_one(sql, &[]).await.expect("the query is right").get(0);
    }

    /// Does what leads through the protocol. `round` makes the keys of requests differ.
    pub(crate) async fn work(self, protocol: Protocol, round: u32) {
        let first = 10 + 100 * round;
        let request = |path: &'static str, name: &'static str, body: Value| {
            let clients = &self;
            async move { clients.post(OPERATOR, path, &format!("{name}-{round}"), &body).await }
        };
        match protocol {
            Protocol::Accept | Protocol::Publish | Protocol::Complete | Protocol::Elect => {
                self.send(first..first + 6).await;
            }
            Protocol::Retain => {
                self.insert_old_records().await;
                self.send(first..first + 3).await;
            }
            Protocol::Relay => self.insert_events(BY_HTTP + first..BY_HTTP + first + 6).await,
            Protocol::Http => self.submit(BY_HTTP + first..BY_HTTP + first + 4).await,
            Protocol::Replay => {
                request("/v1/dead-letters:replay", "replay", json!({"filter": {"channel": "push"}})).await;
            }
            Protocol::Hold => {
                let hold = json!({"scope": "channel", "name": "email", "reason": "torture"});
                request("/v1/holds:hold", "hold", hold).await;
                self.send_until_held(first).await;
                let release = json!({"scope": "channel", "name": "email"});
                request("/v1/holds:release", "release", release).await;
            }
            Protocol::Resend => {
                let filter = json!({"channel": "push", "until": self.until});
                let resend = json!({"filter": filter, "reason": "torture"});
                request("/v1/routes:resend", "resend", resend).await;
            }
        }
    }

    /// Appends intents until routes are held, which takes as long as a replica needs to notice the hold.
    async fn send_until_held(&self, first: u32) {
        for n in first..first + HELD_INTENTS {
            self.send([n]).await;
            let held = wait_for("routes are held", BOUND, async || {
                let client = connect(&self.database).await?;
                let sql = "SELECT count(*) FROM notification.held_routes";
                let held: i64 = client.query_one(sql, &[]).await.ok()?.get(0);
                tokio::time::sleep(PAUSE).await;
                (held > 0).then_some(())
            });
            if tokio::time::timeout(HELD_PAUSE, held).await.is_ok() {
                return;
            }
        }
    }
}

async fn connect(database: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(database, NoTls).await.ok()?;
    // The task ends with the client.
    tokio::spawn(async { drop(connection.await) });
    Some(client)
}
