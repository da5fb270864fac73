//! The store against a real PostgreSQL: one server for all tests, one migrated database for each.

mod acceptance;
mod arrays;
mod migrations;
mod retention;
mod routes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::accept::{self, Acceptance, Policy, Settled};
use domain::catalog::Catalog;
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::ports::{AcceptanceBatch, AcceptanceStore, Commit, Known, Lookup, User};
use harness::TestDatabase;
use pg::{Dsn, PgPool, PoolSettings};
use store_postgres::PgStore;

const STREAM: &str = "notification:intents";
const LEASE_TTL: Duration = Duration::from_secs(5);

/// A migrated database and a store on it.
struct World {
    database: TestDatabase,
    store: PgStore,
}

impl World {
    async fn new() -> Self {
        let database = TestDatabase::new().await;
        let dsn = Dsn::parse(&database.dsn()).expect("the harness gives a connection string");
        let settings = PoolSettings { max_connections: 4, operation_timeout: Duration::from_secs(5) };
        let store = PgStore::new(PgPool::new(&dsn, settings).expect("a pool"));
        Self { database, store }
    }

    /// The first column of every row, as text.
    async fn column(&self, sql: &str) -> Vec<String> {
        let rows = self.database.client().await.query(sql, &[]).await.expect("the query is right");
        rows.iter().map(|row| row.get::<_, String>(0)).collect()
    }

    async fn execute(&self, sql: &str) -> u64 {
        self.database.client().await.execute(sql, &[]).await.expect("the statement is right")
    }

    /// Accepts intents with these entry numbers at `now`, for one user with two routes each.
    async fn accept(&self, numbers: impl IntoIterator<Item = u64>, now: Timestamp) -> Vec<Acceptance> {
        let settled: Vec<Settled> =
            numbers.into_iter().flat_map(|n| decide([entry(n, &format!("key-{n}"), 54)], now)).collect();
        assert_eq!(self.commit(&settled, last_id(&settled)).await, Commit::Done);
        settled.into_iter().map(accepted).collect()
    }

    /// Commits on top of whatever progress there is.
    async fn commit(&self, settled: &[Settled], last_entry_id: EntryId) -> Commit {
        let progress = self.store.load_progress(STREAM).await.expect("PostgreSQL is there");
        let after = progress.map(|progress| progress.last_entry_id);
        let batch = AcceptanceBatch { stream: STREAM, fence: 0, after, last_entry_id, settled };
        self.store.accept(batch).await.expect("PostgreSQL is there")
    }
}

fn last_id(settled: &[Settled]) -> EntryId {
    settled.iter().map(|outcome| id_of(&accepted(outcome.clone()))).max().expect("not empty")
}

fn id_of(acceptance: &Acceptance) -> EntryId {
    acceptance.record.notification_id.as_str().parse().expect("the id of an entry")
}

fn accepted(settled: Settled) -> Acceptance {
    match settled {
        Settled::Accepted(acceptance) => acceptance,
        other => panic!("not accepted: {other:?}"),
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
}

fn entry(number: u64, key: &str, turn: u32) -> RawEntry {
    let payload = format!(r#"{{"game_id":"g-1","game_name":"Nebula","turn_number":{turn}}}"#);
    let fields = RawFields::from_iter([
        ("notification_type", "game.turn.ready"),
        ("producer", "game_master"),
        ("audience_kind", "user"),
        ("recipient_user_ids_json", r#"["u-1"]"#),
        ("idempotency_key", key),
        ("occurred_at_ms", "1775121700000"),
        ("payload_json", &payload),
        ("request_id", "r-1"),
    ]);
    RawEntry { id: EntryId::new(number, 0), fields }
}

fn policy() -> Policy {
    Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::new(),
        locales: vec!["en".into()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(7 * 24 * 3600),
        head_start: LEASE_TTL,
    }
}

/// What becomes of entries of which nothing is known yet.
fn decide(entries: impl IntoIterator<Item = RawEntry>, now: Timestamp) -> Vec<Settled> {
    decide_knowing(entries, &Known::default(), now)
}

fn decide_knowing(
    entries: impl IntoIterator<Item = RawEntry>,
    known: &Known,
    now: Timestamp,
) -> Vec<Settled> {
    let policy = policy();
    let decoded: Vec<_> = entries.into_iter().map(|entry| accept::decode(entry, &policy)).collect();
    let batch: Vec<_> = decoded.iter().collect();
    let user = User { email: "u-1@example.com".into(), preferred_language: "en".into() };
    let users = HashMap::from([("u-1", Lookup::Found(user))]);
    accept::decide(STREAM, &batch, known, &users, &policy, now).settled
}
