//! The baseline of the relay: the minimal correct program that moves the events of an outbox to the stream.
//!
//! It keeps the promises of the relay as long as nothing fails: one claim at a time, which takes the earliest
//! events of a partition key and none of a key that another claim holds; appends with markers, in order;
//! updates of the outbox after that. It has one connection to each server and sends without waiting: while a
//! batch is appended, the previous one is marked and the next one is claimed. It has no validation, no normal
//! form, no expiring leases, no retries, no size limits, no types and no telemetry.

use std::time::SystemTime;

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use serde::Deserialize;
use serde_json::value::RawValue;
use store_redis::outbox_marker;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::events::PRODUCER;
use crate::baseline;
use crate::testbed::{INTENTS, Servers, connect_redis};

/// The default batch of the relay.
const BATCH: i64 = 500;
const MARKER_MILLIS: u64 = 120_000;

const BEGIN: &str = "BEGIN; SELECT pg_advisory_xact_lock(1)";
/// One row for each event, and one without `place` that contains the end of the examined range. `head` takes
/// the earliest events of each key; an event that is DELIVERING sorts first.
const CLAIM: &str = "WITH slot AS MATERIALIZED (
        SELECT row_number() OVER (ORDER BY available_at, created_at, event_id) AS place, due.* FROM (
            SELECT event_id, available_at, created_at, coalesce(partition_key, '') AS key
            FROM openoutbox_events
            WHERE status = 'PENDING' AND available_at <= now()
              AND (available_at, created_at, event_id) > ($1, $2, $3::text::uuid)
            ORDER BY available_at, created_at, event_id LIMIT $4) due),
    wanted AS MATERIALIZED (
        SELECT key, array_agg(place ORDER BY place) AS places FROM slot WHERE key <> '' GROUP BY key),
    head AS (
        SELECT places[rank] AS place, event_id
        FROM wanted CROSS JOIN LATERAL (
            SELECT first.*, row_number() OVER earliest AS rank, first_value(status) OVER earliest AS status_of_key
            FROM (
                SELECT event_id, status, created_at FROM openoutbox_events
                WHERE hashtextextended(partition_key, 0) = hashtextextended(key, 0) AND partition_key = key
                  AND partition_key <> '' AND status IN ('PENDING', 'DELIVERING') AND available_at <= now()
                ORDER BY status, created_at, event_id LIMIT cardinality(places)) first
            WINDOW earliest AS (ORDER BY status, created_at, event_id)) h
        WHERE status_of_key = 'PENDING'),
    claimed AS MATERIALIZED (
        SELECT place, event_id FROM slot WHERE key = '' UNION ALL SELECT place, event_id FROM head),
    changed AS (
        UPDATE openoutbox_events e SET status = 'DELIVERING', locked_by = 'baseline', locked_at = now(), updated_at = now()
        FROM claimed c WHERE e.event_id = c.event_id
        RETURNING c.place, e.event_id::text, e.available_at, e.created_at, e.event_type, e.payload)
    SELECT * FROM changed
    UNION ALL SELECT NULL, event_id::text, available_at, created_at, NULL, NULL
    FROM slot WHERE place = (SELECT max(place) FROM slot HAVING count(*) = $4)";
const MARK: &str = "UPDATE openoutbox_events SET status = 'DELIVERED', delivered_at = now(), locked_by = NULL, locked_at = NULL,
        updated_at = now()
    WHERE event_id = ANY ($1::text[]::uuid[])";

/// `ARGV`: the TTL of a marker, the number of names and values of an entry, then these.
const APPEND: &str = "
local n = tonumber(ARGV[2])
for i = 2, #KEYS do
  if not redis.call('GET', KEYS[i]) then
    local at = 3 + (i - 2) * n
    local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, at, at + n - 1))
    redis.call('SET', KEYS[i], id, 'PX', ARGV[1])
  end
end
return #KEYS - 1";

/// The members of an event's payload.
#[derive(Deserialize)]
struct Body<'a> {
    audience_kind: &'a str,
    #[serde(borrow)]
    recipient_user_ids: &'a RawValue,
    #[serde(borrow)]
    payload: &'a RawValue,
    request_id: &'a str,
}

/// A claimed event.
struct ClaimedEvent {
    place: i64,
    row: tokio_postgres::Row,
}

impl ClaimedEvent {
    fn id(&self) -> &str {
        self.row.get(1)
    }
}

/// A place in the queue.
struct QueuePosition {
    available_at: SystemTime,
    created_at: SystemTime,
    event_id: String,
}

impl Default for QueuePosition {
    fn default() -> Self {
        let (at, event_id) = (SystemTime::UNIX_EPOCH, "00000000-0000-0000-0000-000000000000".to_owned());
        Self { available_at: at, created_at: at, event_id }
    }
}

/// A relay, connected.
pub(crate) struct RelayBaseline {
    client: Client,
    claim: Statement,
    mark: Statement,
    redis: MultiplexedConnection,
    /// The SHA-1 of the script.
    append: String,
}

impl RelayBaseline {
    pub(crate) async fn connect(servers: &Servers) -> anyhow::Result<Self> {
        let client = baseline::client(servers).await?;
        let (claim, mark) = (client.prepare(CLAIM).await?, client.prepare(MARK).await?);
        let mut redis = connect_redis(&servers.redis).await?;
        let append = redis::cmd("SCRIPT").arg("LOAD").arg(APPEND).query_async(&mut redis).await?;
        Ok(Self { client, claim, mark, redis, append })
    }

    /// Moves `events` events.
    pub(crate) async fn run(self, events: u32) -> anyhow::Result<()> {
        let mut after = QueuePosition::default();
        let (mut appended, mut claimed) = (Vec::new(), Vec::new());
        let mut left = events as usize;
        while left > 0 {
            // The update of the marked events precedes the claim on their connection.
            let (marked, added, (next, reached)) =
                tokio::try_join!(biased; self.mark(&appended), self.append(&claimed), self.claim(&after))?;
            ensure!(marked == appended.len() as u64, "{marked} of {} events were marked", appended.len());
            ensure!(added == claimed.len(), "{added} of {} events were appended", claimed.len());
            left -= appended.len();
            // After the end, the scan restarts for events that another batch held back.
            after = reached.unwrap_or_default();
            appended = std::mem::replace(&mut claimed, next);
        }
        Ok(())
    }

    /// Claims a batch. Returns it in order, and the end of the examined range unless the outbox ended there.
    async fn claim(
        &self,
        after: &QueuePosition,
    ) -> anyhow::Result<(Vec<ClaimedEvent>, Option<QueuePosition>)> {
        let QueuePosition { available_at, created_at, event_id } = after;
        let parameters: [&(dyn ToSql + Sync); 4] = [available_at, created_at, event_id, &BATCH];
        let (begun, rows, committed) = tokio::join!(
            biased;
            self.client.batch_execute(BEGIN),
            self.client.query(&self.claim, &parameters),
            self.client.batch_execute("COMMIT"),
        );
        begun?;
        committed?;
        let (mut events, mut reached) = (Vec::new(), None);
        for row in rows? {
            match row.get(0) {
                Some(place) => events.push(ClaimedEvent { place, row }),
                None => {
                    let (available_at, created_at, event_id) = (row.get(2), row.get(3), row.get(1));
                    reached = Some(QueuePosition { available_at, created_at, event_id });
                }
            }
        }
        events.sort_unstable_by_key(|event| event.place);
        Ok((events, reached))
    }

    /// Appends a batch with its markers. Returns its length.
    async fn append(&self, events: &[ClaimedEvent]) -> anyhow::Result<usize> {
        if events.is_empty() {
            return Ok(0);
        }
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.append).arg(events.len() + 1).arg(INTENTS);
        for event in events {
            call.arg(outbox_marker(INTENTS, PRODUCER, event.id()).key);
        }
        call.arg(MARKER_MILLIS).arg(16);
        for event in events {
            write(&mut call, event)?;
        }
        Ok(call.query_async(&mut self.redis.clone()).await?)
    }

    /// Marks a batch as delivered. Returns the number of marked events.
    async fn mark(&self, events: &[ClaimedEvent]) -> anyhow::Result<u64> {
        if events.is_empty() {
            return Ok(0);
        }
        let ids: Vec<&str> = events.iter().map(ClaimedEvent::id).collect();
        Ok(self.client.execute(&self.mark, &[&ids]).await?)
    }
}

/// Adds the fields of the entry of an event.
fn write(call: &mut redis::Cmd, event: &ClaimedEvent) -> anyhow::Result<()> {
    let body: Body<'_> = serde_json::from_slice(event.row.get(5)).context("a payload of another form")?;
    let created_at: SystemTime = event.row.get(3);
    let occurred_at = created_at.duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
    call.arg("notification_type").arg(event.row.get::<_, &str>(4)).arg("producer").arg(PRODUCER);
    call.arg("audience_kind").arg(body.audience_kind);
    call.arg("recipient_user_ids_json").arg(body.recipient_user_ids.get());
    call.arg("idempotency_key").arg(event.id()).arg("occurred_at_ms").arg(occurred_at.to_string());
    call.arg("payload_json").arg(body.payload.get()).arg("request_id").arg(body.request_id);
    Ok(())
}
