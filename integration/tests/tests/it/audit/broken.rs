//! Every kind of contradiction, created by hand one after another: an audit reports it and nothing else.

use std::collections::BTreeSet;

use domain::audit::DiscrepancyKind as Kind;
use domain::entry::RawFields;
use harness::wait_for;
use serde_json::Value;
use tokio_postgres::{Client, NoTls};

use super::prepared;
use crate::world::*;

/// An id that no stream has generated.
const FAR: &str = "99999999999999-0";
/// The notification that is broken: all its routes are published.
const ONE: &str = "(SELECT notification_id FROM records WHERE idempotency_key = 'game-1:turn-1')";
const ROUTE: &str = "notification_id = (SELECT notification_id FROM records WHERE idempotency_key = 'game-1:turn-1') \
                     AND route_id = 'push:user:u-1'";

/// The prepared state; each case gets a copy of it.
struct Original {
    world: World,
    /// The keys of Redis with the result of `DUMP`.
    keys: Vec<(String, Vec<u8>)>,
}

/// A copy that may be broken.
struct Copy {
    client: Client,
    redis: redis::aio::MultiplexedConnection,
    dsn: String,
}

impl Original {
    async fn new() -> Self {
        let world = prepared().await;
        let mut redis = world.redis().await;
        let mut keys = Vec::new();
        let names: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis).await.expect("is there");
        for key in names {
            let dump = redis::cmd("DUMP").arg(&key).query_async(&mut redis).await.expect("is there");
            keys.push((key, dump));
        }
        Self { world, keys }
    }

    async fn copy(&self, kind: Kind) -> Copy {
        let name = kind.as_str();
        let superuser = |database: &str| {
            format!("postgres://postgres@127.0.0.1:{}/{database}", self.world.database.port())
        };
        let admin = connect(&superuser("postgres")).await;
        let create = format!("CREATE DATABASE copy_{name} TEMPLATE {}", self.world.database.name());
        // A dropped connection takes a moment to end.
        wait_for("no one is connected", BOUND, async || admin.batch_execute(&create).await.ok()).await;
        let client = connect(&superuser(&format!("copy_{name}"))).await;
        client.batch_execute("SET search_path = notification").await.expect("it is there");
        let mut redis = self.world.redis().await;
        redis::cmd("FLUSHALL").exec_async(&mut redis).await.expect("Redis is there");
        for (key, dump) in &self.keys {
            let mut restore = redis::cmd("RESTORE");
            restore.arg(key).arg(0).arg(dump).exec_async(&mut redis).await.expect("Redis is there");
        }
        let own = self.world.database.dsn();
        let dsn = own.replacen(&format!("/{}?", self.world.database.name()), &format!("/copy_{name}?"), 1);
        assert_ne!(dsn, own);
        Copy { client, redis, dsn }
    }
}

async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.expect("the superuser can connect");
    tokio::spawn(async { drop(connection.await) });
    client
}

impl Copy {
    async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn text(&self, sql: &str) -> String {
        self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    async fn redis(&mut self, words: &[&str]) -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.redis).await.expect("Redis carries it out")
    }

    /// Deletes the entries of these routes, as a consumer does.
    async fn consume(&mut self, routes: &str) {
        for (stream, channel) in [(PUSH, "push"), (MAIL, "email")] {
            let sql =
                format!("SELECT published_entry_id FROM routes WHERE {routes} AND channel = '{channel}'");
            for row in self.client.query(&sql, &[]).await.expect("the query is right") {
                self.redis(&["XDEL", stream, row.get(0)]).await;
            }
        }
    }

    async fn set_cached(&mut self, entry: Option<&str>, fence: Option<&str>) {
        let stored = redis::cmd("GET").arg(CACHED_CHECKPOINT).query_async::<String>(&mut self.redis).await;
        let stored = stored.expect("there is one");
        let (id, own) = stored.split_once('@').expect("it has a fence");
        let changed = format!("{}@{}", entry.unwrap_or(id), fence.unwrap_or(own));
        self.redis(&["SET", CACHED_CHECKPOINT, &changed]).await;
    }
}

/// Creates one contradiction. A new kind needs a case of its own.
async fn make_wrong(copy: &mut Copy, kind: Kind) {
    let route = |set: &str| format!("UPDATE routes SET {set} WHERE {ROUTE}");
    match kind {
        Kind::EntryWithoutOutcome => {
            let entry = intent(70).query_async::<String>(&mut copy.redis).await.expect("Redis is there");
            copy.sql(&format!("UPDATE intake SET last_entry_id = '{entry}'")).await;
        }
        Kind::EntryWithTwoOutcomes => {
            let fields: RawFields = intent_draft(1).into_entry();
            let fingerprint = fields.fingerprint();
            copy.sql(&format!(
                "INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, failure_code, failure_message, raw_fields, \
                 recorded_at) VALUES ('{INTENTS}', {ONE}, '{fingerprint}', 'recipient_not_found', '', '[]', now())"
            ))
            .await;
        }
        Kind::ConflictWithoutRow => {
            copy.sql("DELETE FROM malformed_intents WHERE failure_code = 'idempotency_conflict'").await;
        }
        Kind::RecordDiffersFromEntry => {
            // A key that was sent once: otherwise its record would make a duplicate a conflict, too.
            copy.sql(
                "UPDATE records SET request_fingerprint = 'v1:x' WHERE idempotency_key = 'game-1:turn-2'",
            )
            .await;
        }
        Kind::StreamOfWrongType => {
            copy.redis(&["DEL", PUSH]).await;
            copy.redis(&["SET", PUSH, "x"]).await;
        }
        Kind::IntentsStreamAbsent => drop(copy.redis(&["DEL", INTENTS]).await),
        Kind::CheckpointAfterStream => copy.sql(&format!("UPDATE intake SET last_entry_id = '{FAR}'")).await,
        Kind::StreamTrimmedPastCheckpoint => {
            // Two entries that were never read, the first of which is trimmed.
            intent(70).query_async::<String>(&mut copy.redis).await.expect("Redis is there");
            intent(71).query_async::<String>(&mut copy.redis).await.expect("Redis is there");
            copy.redis(&["XTRIM", INTENTS, "MAXLEN", "1"]).await;
        }
        Kind::CachedCheckpointAhead => copy.set_cached(Some(FAR), None).await,
        Kind::CachedFenceAhead => copy.set_cached(None, Some("000000000009999")).await,
        Kind::CachedCheckpointGarbled => drop(copy.redis(&["SET", CACHED_CHECKPOINT, "x"]).await),
        Kind::LeaderFenceBelowCheckpoint => {
            copy.sql(
                "DELETE FROM locks; UPDATE intake SET fence = 9999; \
                 INSERT INTO locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) \
                 SELECT 'intake:notification:intents', 'abcdefghijklmnopqrstuv', now_ms + 3600000, now_ms, '000000000000001', \
                 'intake:notification:intents' FROM (SELECT (extract(epoch FROM now()) * 1000)::bigint AS now_ms) AS clock",
            )
            .await;
        }
        Kind::RecordWithoutRoutes => {
            copy.consume(&format!("notification_id = {ONE}")).await;
            copy.sql(&format!("DELETE FROM routes WHERE notification_id = {ONE}")).await;
        }
        Kind::RecordIncomplete => {
            copy.consume(ROUTE).await;
            copy.sql(&format!("DELETE FROM routes WHERE {ROUTE}")).await;
        }
        Kind::RouteOfNoRecipient => copy.sql(&skipped_route(ONE, "push:user:stranger")).await,
        Kind::RecordChanged => {
            copy.sql(&format!("UPDATE records SET updated_at = now() WHERE notification_id = {ONE}")).await;
        }
        Kind::UnreadableRow => {
            copy.sql("ALTER TABLE routes DROP CONSTRAINT routes_status_check").await;
            copy.sql(&route("status = 'lost'")).await;
        }
        Kind::ScheduleMismatch => {
            copy.sql("ALTER TABLE routes DROP CONSTRAINT routes_schedule_check").await;
            copy.sql(&route("next_attempt_at = now()")).await;
        }
        Kind::RouteWithoutEnd => {
            let parked = "status = 'pending', next_attempt_at = 'infinity', published_at = NULL, published_entry_id = ''";
            copy.sql(&route(parked)).await;
        }
        Kind::AttemptsOverBudget => copy.sql(&route("attempt_count = max_attempts + 1")).await,
        Kind::RouteIdMismatch => copy.sql(&route("recipient_ref = 'user:other'")).await,
        Kind::VersionDidNotRise => copy.sql(&route("updated_at = created_at")).await,
        Kind::TerminalWithoutTime => copy.sql(&route("published_at = NULL")).await,
        Kind::PublishedWithoutEntry => copy.sql(&route("published_entry_id = ''")).await,
        Kind::DeadLetterWithoutRow => copy.sql("DELETE FROM dead_letters").await,
        Kind::RowWithoutDeadLetter => copy.sql(&dead_letter(ONE, "push:user:u-1")).await,
        Kind::RouteWithoutRecord => {
            copy.sql("ALTER TABLE routes DROP CONSTRAINT routes_notification_id_fkey").await;
            copy.sql(&skipped_route("'5-0'", "push:user:u-1")).await;
        }
        Kind::DeadLetterWithoutRoute => {
            copy.sql("ALTER TABLE dead_letters DROP CONSTRAINT dead_letters_notification_id_route_id_fkey")
                .await;
            copy.sql(&dead_letter(ONE, "push:user:stranger")).await;
        }
        Kind::PublishedEntryMissing => copy.sql(&route(&format!("published_entry_id = '{FAR}'"))).await,
        Kind::OutboundStreamAbsent => drop(copy.redis(&["DEL", PUSH]).await),
        Kind::OutboundEntryWithoutRoute => {
            let known = copy.text(&format!("SELECT {ONE}")).await;
            let unknown = format!("{}77/push:user:u-1", known.trim_end_matches('0'));
            copy.redis(&["XADD", PUSH, "*", "event_id", &unknown]).await;
        }
        Kind::OutboundEntryNotPublished => {
            let skipped = "SELECT notification_id || '/' || route_id FROM routes WHERE status = 'skipped'";
            let skipped = copy.text(skipped).await;
            copy.redis(&["XADD", MAIL, "*", "delivery_id", &skipped]).await;
        }
        Kind::DuplicateOutboundEntry => {
            let published = copy.text(&format!("SELECT {ONE} || '/push:user:u-1'")).await;
            copy.redis(&["XADD", PUSH, "*", "event_id", &published]).await;
        }
    }
}

fn skipped_route(notification_id: &str, route_id: &str) -> String {
    format!(
        "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at, updated_at, skipped_at) \
         VALUES ({notification_id}, '{route_id}', 'push', substr('{route_id}', 6), 'skipped', 3, now(), now(), now())"
    )
}

fn dead_letter(notification_id: &str, route_id: &str) -> String {
    format!(
        "INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts, \
            failure_classification, failure_message, recovery_hint, created_at) \
         VALUES ({notification_id}, '{route_id}', 'push', 'r', 3, 3, 'c', 'm', 'h', now())"
    )
}

// INV-01, INV-02, INV-03, INV-04, INV-05, INV-06, INV-07, INV-08, INV-13
#[tokio::test]
async fn each_discrepancy_made_by_hand_is_named_and_nothing_else() {
    let original = Original::new().await;
    let mut problems = Vec::new();
    for kind in Kind::ALL {
        let mut copy = original.copy(*kind).await;
        make_wrong(&mut copy, *kind).await;
        let audit = original.world.audit().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", &copy.dsn).run().await;
        let lines = audit.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let found: Vec<String> =
            lines.filter_map(|line| Some(line["discrepancy"].as_str()?.to_owned())).collect();
        if audit.code != Some(1) || found != [kind.as_str()] {
            problems.push(format!(
                "{kind:?}: exit code {:?}, found {found:?}\n{}{}",
                audit.code, audit.stdout, audit.stderr
            ));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(Kind::ALL.iter().map(|kind| kind.as_str()).collect::<BTreeSet<_>>().len(), Kind::ALL.len());
}

#[test]
fn every_discrepancy_of_an_audit_is_on_the_page_for_operators() {
    let page = crate::docs::read("docs/operations.md");
    for kind in Kind::ALL {
        assert!(page.contains(&format!("`{}`", kind.as_str())), "{}", kind.as_str());
    }
}
