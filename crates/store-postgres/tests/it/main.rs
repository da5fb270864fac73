//! The store against a real PostgreSQL: one server for all tests, one migrated database for each.

mod acceptance;
mod contract;
mod erase;
mod installation;
mod migrations;
mod operations;
mod queries;
mod receipts;
mod replicas;
mod republish;
mod retention;
mod routes;
mod search;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::accept::{self, Decoded};
use domain::catalog::Catalog;
use domain::entry::{EntryId, RawEntry};
use domain::intent::IntentDraft;
use domain::outcome::{Acceptance, Outcome};
use domain::policy::Policy;
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, CheckpointMove, CheckpointStore, Fate, Fence, Known, Lookup,
    StoreError, User,
};
use harness::{TestDatabase, turn_ready};
use pg::{Dsn, PgPool, PoolSettings};
use store_postgres::{PgQueries, PgStore, QUERY_SESSION, SESSION};

const STREAM: &str = "notification:intents";
const LEASE_TTL: Duration = Duration::from_secs(5);

/// A migrated database and a store on it.
struct World {
    database: TestDatabase,
    store: PgStore,
    queries: PgQueries,
}

impl World {
    async fn new() -> Self {
        let database = TestDatabase::new().await;
        let dsn = Dsn::parse(&database.dsn()).expect("the harness gives a connection string");
        let pool = |session| {
            // No test with these pools is about time, and a slow machine may need seconds for the largest
            // results.
            let operation_timeout = Duration::from_secs(60);
            PgPool::new(&dsn, PoolSettings { max_connections: 4, operation_timeout, session })
                .expect("a pool")
        };
        let (store, queries) = (
            PgStore::new(pool(SESSION)).with_endpoint("POST /v1/intents"),
            PgQueries::new(pool(QUERY_SESSION)),
        );
        Self { database, store, queries }
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
        let batch = decide(numbers.into_iter().map(|n| entry(n, &format!("key-{n}"), 54)), now);
        assert_eq!(self.commit(&batch).await, Fate::Committed);
        batch.acceptances()
    }

    /// Commits on top of the current checkpoint.
    async fn commit(&self, batch: &Batch) -> Fate {
        let checkpoint = self.store.load_checkpoint(STREAM).await.expect("PostgreSQL is there");
        let expected = checkpoint.map(|checkpoint| checkpoint.last_entry_id);
        self.try_commit(batch, 0, expected).await.expect("PostgreSQL is there")
    }

    async fn try_commit(
        &self,
        batch: &Batch,
        fence: Fence,
        expected: Option<EntryId>,
    ) -> Result<Fate, StoreError> {
        let last = batch.entries.last().expect("a batch is not empty");
        let fingerprint = &last.fields_fingerprint();
        let checkpoint =
            CheckpointMove { stream: STREAM, fence, expected, last_entry_id: last.id, fingerprint };
        let outcomes = batch.outcomes.iter().collect();
        self.store
            .accept(AcceptanceBatch { outcomes, checkpoint: Some(checkpoint), responses: Vec::new() })
            .await
    }
}

/// Entries and their outcomes.
struct Batch {
    entries: Vec<Decoded>,
    outcomes: Vec<Outcome>,
}

impl Batch {
    fn acceptances(&self) -> Vec<Acceptance> {
        let accepted = |outcome: &Outcome| outcome.acceptance().expect("accepted").clone();
        self.outcomes.iter().map(accepted).collect()
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
}

fn entry(number: u64, key: &str, turn: u32) -> RawEntry {
    let draft = IntentDraft {
        payload_json: format!(r#"{{"game_id":"g-1","game_name":"Nebula","turn_number":{turn}}}"#),
        request_id: Some("r-1".to_owned()),
        ..turn_ready(["u-1"], key, turn)
    };
    let fields = draft.into_entry();
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

/// The outcomes of entries for which the store has no earlier data.
fn decide(entries: impl IntoIterator<Item = RawEntry>, now: Timestamp) -> Batch {
    decide_knowing(entries, &Known::default(), now)
}

fn decide_knowing(entries: impl IntoIterator<Item = RawEntry>, known: &Known, now: Timestamp) -> Batch {
    let policy = policy();
    let entries: Vec<Decoded> =
        entries.into_iter().map(|entry| accept::decode(STREAM, entry, &policy, now)).collect();
    let user = User { email: "u-1@example.com".into(), preferred_language: "en".into() };
    let users = HashMap::from([("u-1".to_owned(), Lookup::Found(user))]);
    let decision = accept::decide(STREAM, &entries, known, &users, &policy, policy.schedule(now, true));
    let outcomes = decision.decided.into_iter().map(|decided| decided.outcome).collect();
    Batch { entries, outcomes }
}
