//! The contract suites of the ports, run on PostgreSQL.

use std::collections::BTreeMap;

use domain::hold::HoldKey;
use domain::ports::{
    AcceptanceStore, Activity, ActivityQueries, CheckpointStore, HoldChanges, HoldStore, IdempotencyStore,
    KeySweep, MalformedKey, Operations, Queries, ReceiptStore, ReplicaStore, RepublishStore, ResubmitStore,
    RetentionStore, RouteStore, SessionHash, SessionStore, SessionSweep, StepDownStore,
};
use domain::record::{IdempotencyKey, NotificationId};
use domain::replica::{ActivityPart, Delays, PartActivity};
use domain::route::RouteKey;
use harness::contract::accept::AcceptanceFixture;
use harness::contract::holds::HoldsFixture;
use harness::contract::idempotency::IdempotencyFixture;
use harness::contract::keys::KeysFixture;
use harness::contract::operations::OperationsFixture;
use harness::contract::queries::QueriesFixture;
use harness::contract::receipts::ReceiptsFixture;
use harness::contract::replicas::ReplicasFixture;
use harness::contract::republish::RepublishFixture;
use harness::contract::resubmit::ResubmitFixture;
use harness::contract::retention::RetentionFixture;
use harness::contract::routes::RoutesFixture;
use harness::contract::sessions::SessionsFixture;
use memory_stores::RecordedAction;
use tokio_postgres::Client;

use super::*;

impl AcceptanceFixture for World {
    fn store(&self) -> &(impl AcceptanceStore + CheckpointStore) {
        &self.store
    }

    async fn records(&self) -> Vec<String> {
        self.column("SELECT notification_id FROM records ORDER BY 1").await
    }

    async fn routes(&self) -> Vec<String> {
        self.column("SELECT notification_id || '/' || route_id FROM routes ORDER BY 1").await
    }

    async fn malformed(&self) -> Vec<String> {
        self.column("SELECT stream_entry_id FROM malformed_intents ORDER BY 1").await
    }
}

impl IdempotencyFixture for World {
    fn store(&self) -> &(impl AcceptanceStore + IdempotencyStore) {
        &self.store
    }

    async fn expire(&self, key: &IdempotencyKey) {
        let sql = "UPDATE idempotency_keys SET expires_at = now() - interval '1 second' WHERE key = $1";
        self.database.client().await.execute(sql, &[&key.key]).await.expect("the statement is right");
    }
}

impl KeysFixture for World {
    fn sweep(&self) -> &impl KeySweep {
        &self.store
    }

    async fn keys(&self) -> Vec<String> {
        self.column("SELECT key FROM idempotency_keys ORDER BY 1").await
    }
}

impl RoutesFixture for World {
    /// The connection of the transaction.
    type Lock = Client;

    fn store(&self) -> &(impl AcceptanceStore + RouteStore) {
        &self.store
    }

    async fn lock(&self, key: &RouteKey) -> Client {
        lock(&self.database, key).await
    }

    async fn release(&self, client: Client) {
        release(&client).await;
    }

    async fn dead_letters(&self) -> Vec<String> {
        self.column("SELECT notification_id || '/' || route_id FROM dead_letters ORDER BY 1").await
    }
}

impl HoldsFixture for World {
    /// The connection of the transaction.
    type Lock = Client;

    fn store(&self) -> &(impl AcceptanceStore + RouteStore + HoldStore) {
        &self.store
    }

    async fn set_hold(&self, key: &HoldKey, is_released: bool) {
        let sql =
            "INSERT INTO holds VALUES ($1, $2, now(), 'me', 'a test', CASE WHEN $3::boolean THEN now() END)
            ON CONFLICT (scope, name) DO UPDATE SET released_at = excluded.released_at";
        let client = self.database.client().await;
        let set = client.execute(sql, &[&key.scope.as_str(), &key.name, &is_released]).await;
        assert_eq!(set.expect("the statement is right"), 1);
    }

    async fn lock(&self, key: &RouteKey) -> Client {
        lock(&self.database, key).await
    }

    async fn unlock(&self, client: Client) {
        release(&client).await;
    }
}

impl RetentionFixture for World {
    /// The connection of the transaction.
    type Lock = Client;

    fn store(
        &self,
    ) -> &(impl AcceptanceStore + RouteStore + RetentionStore<NotificationId> + RetentionStore<MalformedKey>)
    {
        &self.store
    }

    async fn lock(&self, key: &RouteKey) -> Client {
        lock(&self.database, key).await
    }

    async fn release(&self, client: Client) {
        release(&client).await;
    }

    async fn dependents(&self) -> Vec<String> {
        self.column(
            "SELECT notification_id || '/' || route_id FROM routes
            UNION ALL SELECT notification_id || '/' || route_id FROM dead_letters ORDER BY 1",
        )
        .await
    }
}

impl QueriesFixture for World {
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + ReceiptStore) {
        &self.store
    }

    fn queries(&self) -> &impl Queries {
        &self.queries
    }
}

impl OperationsFixture for World {
    /// The connection of the transaction.
    type Lock = Client;

    fn store(&self) -> &(impl AcceptanceStore + RouteStore + HoldChanges + Operations) {
        &self.store
    }

    fn queries(&self) -> &impl Queries {
        &self.queries
    }

    async fn lock(&self, key: &RouteKey) -> Client {
        lock(&self.database, key).await
    }

    async fn release(&self, client: Client) {
        release(&client).await;
    }

    async fn actions(&self) -> Vec<RecordedAction> {
        self.database.actions().await
    }
}

impl ResubmitFixture for World {
    fn store(&self) -> &(impl AcceptanceStore + ResubmitStore) {
        &self.store
    }

    fn queries(&self) -> &impl Queries {
        &self.queries
    }

    async fn actions(&self) -> Vec<(String, u64)> {
        let actions = self.database.actions().await;
        actions.into_iter().map(|action| (action.action, action.affected)).collect()
    }
}

impl ReceiptsFixture for World {
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + ReceiptStore + RetentionStore<NotificationId>) {
        &self.store
    }

    fn queries(&self) -> &impl Queries {
        &self.queries
    }

    async fn receipts(&self) -> Vec<String> {
        self.column("SELECT key FROM receipts ORDER BY 1").await
    }
}

impl RepublishFixture for World {
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + RepublishStore + Operations) {
        &self.store
    }
}

impl ReplicasFixture for World {
    fn store(&self) -> &(impl ReplicaStore + StepDownStore) {
        &self.store
    }

    async fn actions(&self) -> Vec<RecordedAction> {
        OperationsFixture::actions(self).await
    }

    fn queries(&self) -> &impl ActivityQueries {
        &self.queries
    }

    async fn replicas(&self) -> Vec<(String, Vec<String>)> {
        let sql = "SELECT replica, leader_of FROM replicas ORDER BY replica";
        let rows = self.database.client().await.query(sql, &[]).await.expect("the query is right");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn activity(&self) -> BTreeMap<String, Activity> {
        let sql = "SELECT replica, sum(accepted)::bigint, sum(duplicates)::bigint, sum(conflicts)::bigint,
            sum(malformed)::bigint, sum(published)::bigint, sum(failed)::bigint, sum(dead_lettered)::bigint
            FROM activity GROUP BY replica";
        let rows = self.database.client().await.query(sql, &[]).await.expect("the query is right");
        let of_replica = |row: &tokio_postgres::Row| {
            let count = |column: usize| row.get::<_, i64>(column).cast_unsigned();
            let activity = Activity {
                accepted: count(1),
                duplicates: count(2),
                conflicts: count(3),
                malformed: count(4),
                published: count(5),
                failed: count(6),
                dead_lettered: count(7),
            };
            (row.get(0), activity)
        };
        rows.iter().map(of_replica).collect()
    }

    async fn parts(&self) -> BTreeMap<ActivityPart, PartActivity> {
        let sql = "SELECT scope, name, notification_type, published, malformed, delays FROM activity_parts";
        let rows = self.database.client().await.query(sql, &[]).await.expect("the query is right");
        let mut parts: BTreeMap<ActivityPart, PartActivity> = BTreeMap::new();
        for row in rows {
            let (scope, name): (&str, String) = (row.get(0), row.get(1));
            let part = match scope {
                "producer" => ActivityPart::Producer(name),
                _ => ActivityPart::Routes {
                    channel: name.parse().expect("a channel"),
                    notification_type: row.get(2),
                },
            };
            let count = |column: usize| row.get::<_, i64>(column).cast_unsigned();
            let activity = Activity { published: count(3), malformed: count(4), ..Activity::default() };
            let delays: Vec<i64> = row.get(5);
            let mut counts = Delays::default();
            delays.iter().zip(&mut counts.0).for_each(|(found, count)| *count = found.cast_unsigned());
            *parts.entry(part).or_default() += PartActivity { activity, delays: counts };
        }
        parts
    }

    async fn age(&self, by: Duration) {
        let by = format!("interval '{} seconds'", by.as_secs());
        self.execute(&format!("UPDATE activity_parts SET minute = minute - {by}")).await;
        self.execute(&format!(
            "UPDATE replicas SET seen_at = seen_at - {by}, step_down_at = step_down_at - {by}"
        ))
        .await;
        self.execute(&format!("UPDATE activity SET minute = minute - {by}")).await;
    }
}

impl SessionsFixture for World {
    fn store(&self) -> &(impl SessionStore + SessionSweep) {
        &self.store
    }

    async fn sessions(&self) -> Vec<SessionHash> {
        let sql = "SELECT id_sha256 FROM console_sessions ORDER BY 1";
        let rows = self.database.client().await.query(sql, &[]).await.expect("the query is right");
        let id = |row: &tokio_postgres::Row| row.get::<_, Vec<u8>>(0).try_into().expect("32 bytes");
        rows.iter().map(id).map(SessionHash).collect()
    }

    async fn age(&self, by: Duration) {
        let seconds = by.as_secs();
        let sql =
            format!("UPDATE console_sessions SET expires_at = expires_at - interval '{seconds} seconds'");
        self.execute(&sql).await;
    }
}

async fn lock(database: &TestDatabase, key: &RouteKey) -> Client {
    let client = database.client().await;
    client.batch_execute("BEGIN").await.expect("it begins");
    let lock = "SELECT FROM routes WHERE notification_id = $1 AND route_id = $2 FOR UPDATE";
    let locked = client.execute(lock, &[&key.notification_id.as_str(), &key.route_id]).await;
    assert_eq!(locked.expect("it is locked"), 1);
    client
}

async fn release(client: &Client) {
    client.batch_execute("ROLLBACK").await.expect("it rolls back");
}

mod accept {
    harness::acceptance_contract!(super::World::new().await);
}

mod idempotency {
    harness::idempotency_contract!(super::World::new().await);
}

mod keys {
    harness::keys_contract!(super::World::new().await);
}

mod operations {
    harness::operations_contract!(super::World::new().await);
}

mod queries {
    harness::queries_contract!(super::World::new().await);
}

mod receipts {
    harness::receipts_contract!(super::World::new().await);
}

mod intent_trace {
    harness::intent_trace_contract!(super::World::new().await);
}

mod search {
    harness::search_contract!(super::World::new().await);
}

mod sessions {
    harness::sessions_contract!(super::World::new().await);
}

mod holds {
    harness::holds_contract!(super::World::new().await);
}

mod replicas {
    harness::replicas_contract!(super::World::new().await);
}

mod republish {
    harness::republish_contract!(super::World::new().await);
}

mod resubmit {
    harness::resubmit_contract!(super::World::new().await);
}

mod retention {
    harness::retention_contract!(super::World::new().await);
}

mod routes {
    harness::routes_contract!(super::World::new().await);
}
