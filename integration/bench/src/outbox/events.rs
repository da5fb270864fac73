//! Outbox tables with events in them, and checks of the events' outcomes.
//!
//! An event carries the intent of the other scenarios, a third of a kilobyte, in mode `intents`. Half of the
//! events have no partition key; the others have one of ten thousand, drawn at random. They were created a
//! millisecond apart.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, ensure};
use harness::{Service, ServiceBuilder};
use outbox::{ChannelName, TableName, notify_sql, schema_sql};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;
use tokio_postgres::Client;

use crate::testbed::{INTENTS, Testbed};
use crate::watch::{BOUND, POLL};

/// The producer that owns the outbox.
pub(super) const PRODUCER: &str = "game_master";
/// The partition keys of the events that have one.
pub(super) const KEYS: u32 = 10_000;
/// The channel on which inserts are announced.
const CHANNEL: &str = "outbox";
/// Events that are loaded in one transaction.
const CHUNK: u32 = 50_000;
/// Entries that are read at a time.
const PAGE: usize = 5_000;

/// An outbox table in a scenario's database.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    dsn: String,
    table: TableName,
    listening: bool,
}

impl Outbox {
    /// Creates the table.
    pub(super) async fn create(testbed: &Testbed, dsn: &str, table: &str) -> anyhow::Result<Self> {
        let table = TableName::parse(table)?;
        let client = testbed.postgres(dsn).await?;
        client.batch_execute(&schema_sql(&table)).await.context("could not create the outbox")?;
        Ok(Self { dsn: dsn.to_owned(), table, listening: false })
    }

    /// Announces inserts, and makes the relay listen.
    pub(super) async fn listening(self, testbed: &Testbed) -> anyhow::Result<Self> {
        let client = testbed.postgres(&self.dsn).await?;
        let trigger = notify_sql(&self.table, &ChannelName::parse(CHANNEL)?);
        client.batch_execute(&trigger).await.context("could not announce inserts")?;
        Ok(Self { listening: true, ..self })
    }

    /// The relay as a process, with its defaults.
    pub(super) fn relay(&self, testbed: &Testbed) -> ServiceBuilder {
        let relay = ServiceBuilder::default()
            .arguments(["relay"])
            .env("NOTIFICATION_REDIS_MASTER_ADDR", testbed.redis.addr())
            .env("NOTIFICATION_OUTBOX_DSN", &self.dsn)
            .env("NOTIFICATION_OUTBOX_TABLE", self.table.to_string())
            .env("NOTIFICATION_OUTBOX_PRODUCER", PRODUCER)
            .env("NOTIFICATION_INTERNAL_HTTP_ADDR", "127.0.0.1:0");
        if self.listening { relay.env("NOTIFICATION_OUTBOX_LISTEN_CHANNEL", CHANNEL) } else { relay }
    }

    /// Starts the relay.
    pub(super) async fn start(&self, testbed: &Testbed) -> Service {
        self.relay(testbed).start().await
    }

    /// The table's name for a statement.
    pub(super) fn quoted(&self) -> String {
        self.table.to_string()
    }

    /// Inserts `events` events that are due, and vacuums the table, as autovacuum would have done for so
    /// many.
    pub(super) async fn load(&self, testbed: &Testbed, events: u32) -> anyhow::Result<()> {
        let client = testbed.postgres(&self.dsn).await?;
        let text = format!(
            r#"INSERT INTO {} (event_id, event_type, partition_key, payload, available_at, created_at, updated_at)
            SELECT gen_random_uuid(), 'game.turn.ready',
                CASE WHEN n % 2 = 0 THEN NULL ELSE 'game-' || (hashint8(n)::bigint + 2147483648) % $4::bigint END,
                convert_to('{{"audience_kind":"user","recipient_user_ids":["user-' || n % 500 || '","user-' || (n + 1) % 500
                    || '"],"payload":{{"game_id":"game-' || n % 1000 || '","game_name":"' || $5::text || '","turn_number":' || n
                    || '}},"request_id":"request-' || n || '"}}', 'UTF8'), at, at, at
            FROM generate_series($1::bigint, $2::bigint) n,
                 LATERAL (SELECT now() - ($3::bigint - n) * interval '1 millisecond' - interval '1 second') created (at)"#,
            self.quoted()
        );
        let insert = client.prepare(&text).await?;
        let (keys, name) = (i64::from(KEYS), "Nebula ".repeat(28));
        for first in (0..events).step_by(CHUNK as usize) {
            let last = (first + CHUNK).min(events) - 1;
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                [&i64::from(first), &i64::from(last), &i64::from(events), &keys, &name.trim()];
            client.execute(&insert, &parameters).await.context("could not load events")?;
        }
        let vacuum = format!("VACUUM ANALYZE {}", self.quoted());
        client.batch_execute(&vacuum).await.context("could not vacuum the outbox")?;
        testbed.checkpoint().await
    }

    /// Removes all events.
    pub(super) async fn clear(&self, testbed: &Testbed) -> anyhow::Result<()> {
        let client = testbed.postgres(&self.dsn).await?;
        let truncate = format!("TRUNCATE {}", self.quoted());
        client.batch_execute(&truncate).await.context("could not empty the outbox")
    }

    /// A client whose statements about the table use its indexes, whatever the statistics are.
    pub(super) async fn observer(&self, testbed: &Testbed) -> anyhow::Result<Client> {
        crate::watch::observer(testbed, &self.dsn).await
    }

    /// Waits until no event is PENDING or DELIVERING. Call it when all events are in the stream: then the
    /// query reads few rows.
    pub(super) async fn wait_until_marked(&self, client: &Client) -> anyhow::Result<()> {
        let of = |status: &str, order: &str| {
            format!("(SELECT FROM {} WHERE status = '{status}' ORDER BY {order} LIMIT 1)", self.quoted())
        };
        let (delivering, pending) = (of("DELIVERING", "locked_at"), of("PENDING", "available_at DESC"));
        let live = format!("SELECT EXISTS {delivering} OR EXISTS {pending}");
        let live = client.prepare(&live).await?;
        let started = Instant::now();
        while client.query_one(&live, &[]).await.context("could not look for live events")?.get::<_, bool>(0)
        {
            ensure!(started.elapsed() < BOUND, "events are not marked after {BOUND:?}");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Checks that every event is DELIVERED and occurs once in the stream, and that the events of each
    /// partition key are in order.
    pub(super) async fn confirm(&self, testbed: &Testbed, events: u32) -> anyhow::Result<()> {
        let places = places(&mut testbed.redis().await?).await?;
        let client = testbed.postgres(&self.dsn).await?;
        let text = format!(
            "SELECT event_id::text, coalesce(partition_key, '') FROM {} WHERE status = 'DELIVERED' ORDER BY created_at, event_id",
            self.quoted()
        );
        let rows = client.query(&text, &[]).await.context("could not read the events")?;
        let counts = (rows.len(), places.len(), events as usize);
        ensure!(
            counts.0 == counts.2 && counts.1 == counts.2,
            "(delivered, in the stream, expected): {counts:?}"
        );
        let mut last_of_key: HashMap<&str, usize> = HashMap::new();
        for row in &rows {
            let (id, key): (&str, &str) = (row.get(0), row.get(1));
            let place = *places.get(id).with_context(|| format!("event {id} is not in the stream"))?;
            let before = last_of_key.insert(key, place).filter(|_| !key.is_empty());
            ensure!(before.is_none_or(|before| before < place), "events of {key} are out of order");
        }
        Ok(())
    }
}

/// The place in the stream of each event.
async fn places(redis: &mut MultiplexedConnection) -> anyhow::Result<HashMap<String, usize>> {
    let (mut places, mut entries, mut after) = (HashMap::new(), 0, "-".to_owned());
    loop {
        let mut command = redis::cmd("XRANGE");
        command.arg(INTENTS).arg(&after).arg("+").arg("COUNT").arg(PAGE);
        let page: StreamRangeReply = command.query_async(redis).await?;
        let Some(last) = page.ids.last() else { break };
        after = format!("({}", last.id);
        for entry in page.ids {
            let id: String = entry.get("idempotency_key").context("an entry without its key")?;
            places.insert(id, entries);
            entries += 1;
        }
    }
    ensure!(entries == places.len(), "{} events were appended twice", entries - places.len());
    Ok(places)
}

/// Waits for at least `expected` entries in the intents stream. Returns their number.
pub(super) async fn wait_for_intents(
    redis: &mut MultiplexedConnection,
    expected: u64,
) -> anyhow::Result<u64> {
    let started = Instant::now();
    loop {
        let found: u64 = redis::cmd("XLEN").arg(INTENTS).query_async(redis).await?;
        if found >= expected {
            return Ok(found);
        }
        ensure!(started.elapsed() < BOUND, "{found} of {expected} intents after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
}
