//! Holds: what operators keep from being published, and the routes that are kept.

use std::collections::HashSet;
use std::future::Future;

use ambient::Timestamp;

use super::StoreError;
use crate::hold::{Hold, HoldActor, HoldChange, HoldKey, HoldPlan, HoldsInForce, RouteToHold};
use crate::route::RouteKey;

/// The holds in force, and the routes that they keep.
pub trait HoldStore: Send + Sync {
    /// Returns all holds, the oldest first, with the number of routes that each keeps.
    fn list_holds(&self) -> impl Future<Output = Result<Vec<Hold>, StoreError>> + Send;

    /// Returns the holds in force.
    fn holds_in_force(&self) -> impl Future<Output = Result<HoldsInForce, StoreError>> + Send;

    /// Keeps routes that still have their version and whose hold is still in force: they are no longer due.
    /// Returns those that are kept now. Waits for no lock.
    fn hold_routes(
        &self,
        routes: &[RouteToHold],
        now: Timestamp,
    ) -> impl Future<Output = Result<HashSet<RouteKey>, StoreError>> + Send;

    /// Returns the holds that were released and whose routes are not all due again.
    fn released_holds(&self) -> impl Future<Output = Result<Vec<HoldKey>, StoreError>> + Send;

    /// Makes routes of a released hold due at `now`, at most `limit` of them, those that were due first
    /// first. Rows that another transaction has locked are skipped. Returns the number of routes.
    fn release_routes(
        &self,
        hold: &HoldKey,
        limit: usize,
        now: Timestamp,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Deletes a released hold that keeps no route. Returns false if it still keeps one.
    fn end_hold(&self, hold: &HoldKey) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// Changes of holds, for operators.
pub trait HoldChanges: HoldStore {
    /// Returns the routes that `change` would concern now.
    fn plan_hold(
        &self,
        key: &HoldKey,
        change: &HoldChange,
    ) -> impl Future<Output = Result<HoldPlan, StoreError>> + Send;

    /// Makes or releases a hold, and writes a row to `operator_actions`, in one transaction. Returns false,
    /// without a row, if nothing is to be changed: it is held, or not held, already.
    fn change_hold(
        &self,
        key: &HoldKey,
        change: &HoldChange,
        actor: HoldActor<'_>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
