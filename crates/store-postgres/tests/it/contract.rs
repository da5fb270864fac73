//! The suites of the ports on PostgreSQL.

use domain::ports::{AcceptanceStore, CheckpointStore, MalformedKey, RetentionStore, RouteStore};
use domain::record::NotificationId;
use domain::route::RouteKey;
use harness::contract::acceptance::AcceptanceFixture;
use harness::contract::retention::RetentionFixture;
use harness::contract::routes::RoutesFixture;
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

mod acceptance {
    harness::acceptance_contract!(super::World::new().await);
}

mod retention {
    harness::retention_contract!(super::World::new().await);
}

mod routes {
    harness::routes_contract!(super::World::new().await);
}
