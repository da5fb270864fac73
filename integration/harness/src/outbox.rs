//! A producer with its own outbox, in a database that the service does not use.

use std::collections::BTreeSet;

use redis::streams::{StreamId, StreamRangeReply};
use serde_json::{Value, json};

use crate::world::*;
use crate::{Finished, Service, ServiceBuilder, TestDatabase, wait_for};

/// A service's servers, and a producer's database with an outbox.
pub struct Outbox {
    /// The servers of the service.
    pub world: World,
    /// The producer's database.
    pub database: TestDatabase,
}

impl Outbox {
    /// An outbox with its table.
    pub async fn new() -> Self {
        Self::with(World::new().await).await
    }

    /// An outbox beside this world.
    pub async fn with(world: World) -> Self {
        let outbox = Self { world, database: TestDatabase::empty().await };
        outbox.migrate().await;
        outbox
    }

    /// An outbox on the PostgreSQL of the service, which the test stops itself.
    pub async fn with_own_postgres() -> Self {
        let world = World::with_own_postgres().await;
        let server = world.postgres.as_ref().expect("its own");
        let database = TestDatabase::empty_on(server).await;
        let outbox = Self { world, database };
        outbox.migrate().await;
        outbox
    }

    /// Makes the table, or brings it up to date.
    pub async fn migrate(&self) {
        migrate(&self.database).await;
    }

    /// A relay for mode `intents`, with timings that suit a test.
    pub fn relay(&self) -> ServiceBuilder {
        self.world.on_redis(self.relay_via(self.world.redis.port(), self.database.port()))
    }

    /// A relay that connects through proxies.
    pub fn relay_via(&self, redis_port: u16, postgres_port: u16) -> ServiceBuilder {
        relay_of(&self.database, redis_port, postgres_port)
    }

    /// A service with a relay inside.
    pub fn service_with_relay(&self) -> ServiceBuilder {
        self.world
            .service()
            .env("NOTIFICATION_OUTBOX_DSN", self.database.dsn())
            .env("NOTIFICATION_OUTBOX_PRODUCER", "game_master")
            .env("NOTIFICATION_OUTBOX_POLL_INTERVAL", "50ms")
    }

    /// Runs a command whose only setting is the connection string.
    pub async fn command(&self, arguments: &[&str]) -> Finished {
        command(&self.database, arguments).await
    }

    /// Inserts well-formed events in one transaction, each an intent for two users.
    pub async fn insert(&self, range: impl IntoIterator<Item = u32>) {
        let rows: Vec<String> = range.into_iter().map(event_row).collect();
        self.execute(&format!("{INSERT} {}", rows.join(","))).await;
    }

    /// Runs statements.
    pub async fn execute(&self, sql: &str) {
        self.database.client().await.batch_execute(sql).await.expect("the statement is right");
    }

    /// A text from the first row.
    pub async fn text(&self, sql: &str) -> String {
        self.database.client().await.query_one(sql, &[]).await.expect("the query is right").get(0)
    }

    /// The number in the first column of the only row.
    pub async fn number(&self, sql: &str) -> i64 {
        self.database.client().await.query_one(sql, &[]).await.expect("the query is right").get(0)
    }

    /// The number of events with this status.
    pub async fn count(&self, status: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM openoutbox_events WHERE status = '{status}'")).await
    }

    /// Waits until no event is PENDING or DELIVERING.
    pub async fn drained(&self) {
        let client = self.database.client().await;
        wait_for("the outbox is empty", BOUND, async || {
            let sql = "SELECT count(*) FROM openoutbox_events WHERE status IN ('PENDING', 'DELIVERING')";
            (client.query_one(sql, &[]).await.ok()?.get::<_, i64>(0) == 0).then_some(())
        })
        .await;
    }

    /// Waits until an event has this status, and returns its last error.
    pub async fn becomes(&self, event_id: &str, status: &str) -> String {
        let client = self.database.client().await;
        wait_for(&format!("{event_id} is {status}"), BOUND, async || {
            let sql = format!(
                "SELECT coalesce(last_error, '') FROM openoutbox_events WHERE event_id = '{event_id}' AND status = '{status}'"
            );
            client.query_opt(&sql, &[]).await.ok()?.map(|row| row.get::<_, String>(0))
        })
        .await
    }

    /// The entries of a stream.
    pub async fn entries(&self, stream: &str) -> Vec<StreamId> {
        let mut redis = self.world.redis_of(stream).await;
        let range: StreamRangeReply = redis::cmd("XRANGE")
            .arg(stream)
            .arg("-")
            .arg("+")
            .query_async(&mut redis)
            .await
            .expect("is there");
        range.ids
    }

    /// The idempotency keys on the intents stream, in order.
    pub async fn keys(&self) -> Vec<String> {
        let entries = self.entries(INTENTS).await;
        entries.iter().map(|entry| entry.get("idempotency_key").expect("every intent has one")).collect()
    }

    /// Checks that each of these events is on the intents stream once, and nothing else is.
    pub async fn check_stream(&self, range: impl IntoIterator<Item = u32>) {
        let keys = self.keys().await;
        let distinct: BTreeSet<String> = keys.iter().cloned().collect();
        assert_eq!(distinct, range.into_iter().map(event_id).collect(), "the events are on the stream");
        assert_eq!(distinct.len(), keys.len(), "no event is there twice");
    }
}

/// Makes the table in a producer's database, or brings it up to date.
pub async fn migrate(database: &TestDatabase) {
    let done = command(database, &["outbox", "migrate"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
}

async fn command(database: &TestDatabase, arguments: &[&str]) -> Finished {
    let builder = ServiceBuilder::default().env("NOTIFICATION_OUTBOX_DSN", database.dsn());
    builder.arguments(arguments.iter().copied()).run().await
}

/// A relay for mode `intents` that connects through proxies, with timings that suit a test.
pub fn relay_of(database: &TestDatabase, redis_port: u16, postgres_port: u16) -> ServiceBuilder {
    ServiceBuilder::default()
        .arguments(["relay"])
        .env("NOTIFICATION_OUTBOX_DSN", database.dsn_via(postgres_port))
        .env("NOTIFICATION_OUTBOX_PRODUCER", "game_master")
        .env("NOTIFICATION_OUTBOX_POLL_INTERVAL", "50ms")
        .env("NOTIFICATION_OUTBOX_LEASE_TIMEOUT", "10s")
        .env("NOTIFICATION_REDIS_MASTER_ADDR", format!("127.0.0.1:{redis_port}"))
        .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "1s")
        .env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "2s")
        .env("NOTIFICATION_INTERNAL_HTTP_ADDR", "127.0.0.1:0")
}

/// The insert statement of a producer.
pub const INSERT: &str = "INSERT INTO openoutbox_events (event_id, event_type, payload) VALUES";

/// The id of event `n`.
pub fn event_id(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

/// The payload of a well-formed event.
pub fn payload(n: u32) -> Value {
    json!({
        "audience_kind": "user",
        "recipient_user_ids": [format!("u-{}", n % 50), format!("u-{}", n % 50 + 100)],
        "payload": {"game_id": "game-1", "game_name": "Nova", "turn_number": n},
    })
}

/// A row for [`INSERT`].
pub fn event_row(n: u32) -> String {
    row(n, "game.turn.ready", &payload(n).to_string())
}

/// A row for [`INSERT`] with a payload in UTF-8.
pub fn row(n: u32, event_type: &str, payload: &str) -> String {
    format!("('{}', '{event_type}', convert_to('{}', 'UTF8'))", event_id(n), payload.replace('\'', "''"))
}

/// Waits until `/readyz` shows this state of the relay, and returns the whole response. Its status is 200
/// throughout.
pub async fn shows(service: &Service, state: &str) -> Value {
    wait_for(&format!("the relay is {state}"), BOUND, async || {
        let (status, body) = service.get("/readyz").await;
        assert_eq!(status, 200, "{body}");
        let relay = if body["outbox_relay"].is_null() { &body } else { &body["outbox_relay"] };
        (relay["state"] == state).then_some(body.clone())
    })
    .await
}
