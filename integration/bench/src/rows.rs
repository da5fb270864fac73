//! Rows that exist before the service starts.

use anyhow::Context;

use crate::load;
use crate::testbed::Testbed;

/// Records of four routes each, a millisecond apart.
pub(crate) struct Rows {
    pub(crate) records: u32,
    /// The age of the last record's acceptance, as an interval of PostgreSQL.
    pub(crate) age: &'static str,
    /// The state of the routes.
    pub(crate) state: RouteState,
}

/// The state of routes that exist before the service starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteState {
    Published,
    /// Pending, and overdue.
    Due,
    /// Pending, and kept by a hold of a producer.
    Held,
}

/// The beginning of the request ids of the records.
pub(crate) const OLD_REQUEST: &str = "old-request-";

/// Records that are loaded in one transaction.
const CHUNK: u32 = 25_000;

/// The id of a record is an entry id of its time, so that new records come after it in the indexes on the id.
/// Its idempotency key lies between those of new records, as with a real producer.
const INSERT_RECORDS: &str = "INSERT INTO records (notification_id, notification_type, producer, audience_kind,
    recipient_user_ids, payload_json, idempotency_key, request_fingerprint, request_id, occurred_at, accepted_at, updated_at,
    idempotency_expires_at)
    SELECT $1::bigint + n || '-0', 'game.turn.ready', 'game_master', 'user',
    jsonb_build_array('user-' || n % 500, 'user-' || (n + 1) % 500), $4::text,
    'game-master:game-' || n % 1000 || ':turn-' || n || '-' || $1::bigint,
    'v1:' || lpad(to_hex(n), 64, '0'), 'old-request-' || n, at, at, at, at + interval '168 hours'
    FROM generate_series($2::bigint, $3::bigint) n, to_timestamp(($1::bigint + n) / 1000.0) at";
const INSERT_PUBLISHED: &str = "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts,
    resolved_email, resolved_locale, created_at, updated_at, published_at, published_entry_id)
    SELECT $1::bigint + n || '-0', channel || ':user:' || name, channel, 'user:' || name, 'published', 3,
    CASE channel WHEN 'email' THEN name || '@example.com' ELSE '' END, 'en', at, at, at, $1::bigint + n || '-1'
    FROM generate_series($2::bigint, $3::bigint) n, to_timestamp(($1::bigint + n) / 1000.0) at,
    (VALUES ('push', 0), ('push', 1), ('email', 0), ('email', 1)) route (channel, place),
    concat('user-', (n + place) % 500) name";
const INSERT_DUE: &str =
    "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts,
    resolved_email, resolved_locale, created_at, updated_at, next_attempt_at)
    SELECT $1::bigint + n || '-0', channel || ':user:' || name, channel, 'user:' || name, 'pending', 3,
    CASE channel WHEN 'email' THEN name || '@example.com' ELSE '' END, 'en', at, at, at + interval '5 s'
    FROM generate_series($2::bigint, $3::bigint) n, to_timestamp(($1::bigint + n) / 1000.0) at,
    (VALUES ('push', 0), ('push', 1), ('email', 0), ('email', 1)) route (channel, place),
    concat('user-', (n + place) % 500) name";

const HOLD: &str = "INSERT INTO holds (scope, name, since, actor, reason) VALUES ('producer', 'other', now(), 'bench', 'held')";
const KEEP: &str = "INSERT INTO held_routes (notification_id, route_id, scope, name, due_at)
    SELECT notification_id, route_id, 'producer', 'other', next_attempt_at FROM routes";
const PARK: &str = "UPDATE routes SET next_attempt_at = 'infinity'";

impl Rows {
    /// Inserts the rows in chunks, with every index and foreign key in place.
    pub(crate) async fn insert(&self, testbed: &Testbed, dsn: &str) -> anyhow::Result<()> {
        let client = testbed.postgres(dsn).await?;
        let newest: i64 = client
            .query_one("SELECT (extract(epoch FROM now() - $1::text::interval) * 1000)::bigint", &[&self.age])
            .await
            .context("could not compute the age of the rows")?
            .get(0);
        let payload = payload();
        let records = client.prepare(INSERT_RECORDS).await?;
        let routes = client
            .prepare(if self.state == RouteState::Published { INSERT_PUBLISHED } else { INSERT_DUE })
            .await?;
        let base = newest - i64::from(self.records);
        for first in (0..self.records).step_by(CHUNK as usize) {
            let last = i64::from((first + CHUNK).min(self.records) - 1);
            let first = i64::from(first);
            client.batch_execute("BEGIN").await?;
            client
                .execute(&records, &[&base, &first, &last, &payload])
                .await
                .context("could not load records")?;
            client.execute(&routes, &[&base, &first, &last]).await.context("could not load routes")?;
            client.batch_execute("COMMIT").await?;
        }
        if self.state == RouteState::Held {
            client.batch_execute(&[HOLD, KEEP, PARK].join(";")).await.context("could not hold the routes")?;
        }
        Ok(())
    }

    /// Inserts the rows and vacuums the tables, as autovacuum would have done for tables of this size.
    pub(crate) async fn insert_vacuumed(&self, testbed: &Testbed, dsn: &str) -> anyhow::Result<()> {
        self.insert(testbed, dsn).await?;
        let client = testbed.postgres(dsn).await?;
        for table in ["records", "routes", "held_routes"] {
            client.batch_execute(&format!("VACUUM ANALYZE {table}")).await.context("could not vacuum")?;
        }
        testbed.checkpoint().await
    }

    /// Inserts the rows and keeps the statistics of the empty tables.
    pub(crate) async fn insert_without_statistics(&self, testbed: &Testbed, dsn: &str) -> anyhow::Result<()> {
        let client = testbed.postgres(dsn).await?;
        client
            .batch_execute(
                "ALTER TABLE records SET (autovacuum_enabled = off); ALTER TABLE routes SET (autovacuum_enabled = off);
                 ANALYZE records; ANALYZE routes",
            )
            .await
            .context("could not keep the statistics stale")?;
        self.insert(testbed, dsn).await?;
        testbed.checkpoint().await
    }
}

/// A payload of the same size as that of an intent.
fn payload() -> String {
    load::draft(0).payload_json
}
