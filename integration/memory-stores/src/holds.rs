//! Holds of the database in memory, and the routes that they keep.

use std::collections::HashSet;

use ambient::Timestamp;
use domain::document::Counted;
use domain::hold::{Hold, HoldKey, HoldsInForce, RouteToHold};
use domain::ports::{HoldStore, StoreError};
use domain::route::RouteKey;

use super::database::MemoryDatabase;
use super::lock;

impl MemoryDatabase {
    /// Makes a hold, or releases it.
    pub fn set_hold(&self, key: &HoldKey, is_released: bool) {
        lock(&self.0).holds.insert(key.clone(), is_released);
    }

    /// The held routes, with their holds.
    pub fn held(&self) -> Vec<(RouteKey, HoldKey)> {
        lock(&self.0).held.iter().map(|(key, (hold, _))| (key.clone(), hold.clone())).collect()
    }
}

impl HoldStore for MemoryDatabase {
    async fn list_holds(&self) -> Result<Vec<Hold>, StoreError> {
        let tables = lock(&self.0);
        let hold = |(key, is_released): (&HoldKey, &bool)| Hold {
            key: key.clone(),
            since: Timestamp::UNIX_EPOCH,
            actor: String::new(),
            reason: String::new(),
            released_at: is_released.then_some(Timestamp::UNIX_EPOCH),
            routes: Counted::up_to_cap(tables.held.values().filter(|(of, _)| of == key).count() as u64),
        };
        Ok(tables.holds.iter().map(hold).collect())
    }

    async fn holds_in_force(&self) -> Result<HoldsInForce, StoreError> {
        let tables = lock(&self.0);
        let in_force = tables.holds.iter().filter(|(_, is_released)| !**is_released);
        Ok(HoldsInForce::new(in_force.map(|(key, _)| key.clone()).collect()))
    }

    async fn hold_routes(
        &self,
        routes: &[RouteToHold],
        now: Timestamp,
    ) -> Result<HashSet<RouteKey>, StoreError> {
        let tables = &mut *lock(&self.0);
        let mut held = HashSet::new();
        for RouteToHold { key, version, hold } in routes {
            let Some(row) = tables.routes.get_mut(key) else { continue };
            let is_as_read = row.status.is_live() && row.route.version == *version;
            if !is_as_read || tables.locked.contains(key) || tables.holds.get(hold) != Some(&false) {
                continue;
            }
            row.touch(now);
            tables.held.insert(key.clone(), (hold.clone(), row.route.next_attempt_at));
            row.route.next_attempt_at = Timestamp::MAX;
            held.insert(key.clone());
        }
        Ok(held)
    }

    async fn released_holds(&self) -> Result<Vec<HoldKey>, StoreError> {
        let tables = lock(&self.0);
        Ok(tables.holds.iter().filter(|(_, is_released)| **is_released).map(|(key, _)| key.clone()).collect())
    }

    async fn release_routes(&self, hold: &HoldKey, limit: usize, now: Timestamp) -> Result<u64, StoreError> {
        let tables = &mut *lock(&self.0);
        let of_hold = tables.held.iter().filter(|(key, (of, _))| of == hold && !tables.locked.contains(*key));
        let mut first: Vec<(Timestamp, RouteKey)> =
            of_hold.map(|(key, (_, due_at))| (*due_at, key.clone())).collect();
        first.sort();
        first.truncate(limit);
        for (_, key) in &first {
            tables.held.remove(key);
            if let Some(row) = tables.routes.get_mut(key).filter(|row| row.status.is_live()) {
                row.touch(now);
                row.route.next_attempt_at = now;
            }
        }
        Ok(first.len() as u64)
    }

    async fn end_hold(&self, hold: &HoldKey) -> Result<bool, StoreError> {
        let tables = &mut *lock(&self.0);
        let keeps = tables.held.values().any(|(of, _)| of == hold);
        Ok(!keeps && tables.holds.get(hold) == Some(&true) && tables.holds.remove(hold).is_some())
    }
}
