//! The fixtures of the database in memory, for each suite of a port on tables.

use domain::hold::HoldKey;
use domain::ports::{
    AcceptanceStore, CheckpointStore, HoldStore, IdempotencyStore, KeySweep, MalformedKey, Operations,
    RepublishStore, RetentionStore, RouteStore,
};
use domain::record::{IdempotencyKey, NotificationId};
use domain::route::RouteKey;
use harness::contract::accept::AcceptanceFixture;
use harness::contract::holds::HoldsFixture;
use harness::contract::idempotency::IdempotencyFixture;
use harness::contract::keys::KeysFixture;
use harness::contract::republish::RepublishFixture;
use harness::contract::retention::RetentionFixture;
use harness::contract::routes::RoutesFixture;
use memory_stores::{MemoryDatabase, RowLock};

pub(super) struct Database(pub(super) MemoryDatabase);

impl AcceptanceFixture for Database {
    fn store(&self) -> &(impl AcceptanceStore + CheckpointStore) {
        &self.0
    }

    async fn records(&self) -> Vec<String> {
        self.0.records().iter().map(ToString::to_string).collect()
    }

    async fn routes(&self) -> Vec<String> {
        self.0.routes().iter().map(|(key, _)| key.to_string()).collect()
    }

    async fn malformed(&self) -> Vec<String> {
        self.0.malformed().iter().map(|row| row.entry_id.to_string()).collect()
    }
}

impl IdempotencyFixture for Database {
    fn store(&self) -> &(impl AcceptanceStore + IdempotencyStore) {
        &self.0
    }

    async fn expire(&self, scope: &IdempotencyKey) {
        self.0.expire_key(scope);
    }
}

impl KeysFixture for Database {
    fn sweep(&self) -> &impl KeySweep {
        &self.0
    }

    async fn keys(&self) -> Vec<String> {
        self.0.idempotency_keys()
    }
}

impl RoutesFixture for Database {
    type Lock = RowLock;

    fn store(&self) -> &(impl AcceptanceStore + RouteStore) {
        &self.0
    }

    async fn lock(&self, key: &RouteKey) -> RowLock {
        self.0.lock_route(key)
    }

    async fn release(&self, lock: RowLock) {
        drop(lock);
    }

    async fn dead_letters(&self) -> Vec<String> {
        self.0.dead_letters().iter().map(ToString::to_string).collect()
    }
}

impl HoldsFixture for Database {
    type Lock = RowLock;

    fn store(&self) -> &(impl AcceptanceStore + RouteStore + HoldStore) {
        &self.0
    }

    async fn set_hold(&self, key: &HoldKey, is_released: bool) {
        self.0.set_hold(key, is_released);
    }

    async fn lock(&self, key: &RouteKey) -> RowLock {
        self.0.lock_route(key)
    }

    async fn unlock(&self, lock: RowLock) {
        drop(lock);
    }
}

impl RetentionFixture for Database {
    type Lock = RowLock;

    fn store(
        &self,
    ) -> &(impl AcceptanceStore + RouteStore + RetentionStore<NotificationId> + RetentionStore<MalformedKey>)
    {
        &self.0
    }

    async fn lock(&self, key: &RouteKey) -> RowLock {
        self.0.lock_route(key)
    }

    async fn release(&self, lock: RowLock) {
        drop(lock);
    }

    async fn dependents(&self) -> Vec<String> {
        let routes = self.0.routes().into_iter().map(|(key, _)| key);
        let mut keys: Vec<String> = routes.chain(self.0.dead_letters()).map(|key| key.to_string()).collect();
        keys.sort();
        keys
    }
}

impl RepublishFixture for Database {
    fn store(&self) -> &(impl AcceptanceStore + RouteStore + RepublishStore + Operations) {
        &self.0
    }
}
