//! Cancels live routes under their leases, so that no route is both cancelled and published (ADR 0059).
//!
//! A publisher appends a route only under its lease, or under a permit while nobody holds the lease, and may
//! work on a copy of the route that it read before the cancellation. So the lease is taken first, and a
//! cancelled route keeps it for the dedupe TTL: a publisher that finds it free again after that reads the
//! route again before it appends. A lease that a publisher holds is waited for; a lease that finds a marker
//! means that the entry is in the stream.
//!
//! Each chunk goes through these steps. What is left if the process dies after a step:
//!
//! | step | after a crash |
//! |---|---|
//! | 1. take the leases | the routes are live, and no publisher takes them before the dedupe TTL has passed |
//! | 2. change the rows with the version that was read | before the commit as step 1, else cancelled |
//! | 3. release the leases of routes that were not changed | they expire after the dedupe TTL |
//! | 4. wait for leases of publishers, begin again | those routes are as their publishers leave them |
//!
//! The token of a lease is made of the actor and the request, so a request that is repeated takes its own
//! leases over. If the response to COMMIT is lost, the leases stay: the routes may be cancelled. Without
//! Redis nothing is changed.

use std::collections::HashMap;
use std::time::Duration;

use ambient::Timestamp;
use domain::operations::{OperatorAction, RouteChange, Selection, Target, TargetPlace, Targets};
use domain::ports::{
    ChangeOutcome, LeaseOutcome, LeaseStore, LeaseToken, Operations, StoreError, error_chain,
};
use domain::query::Page;
use domain::route::RouteKey;
use tokio::time::{Instant, sleep};

/// The pause before leases that publishers hold are tried again.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time that a chunk waits for leases of publishers. Routes that are leased after that count as
/// locked.
const MAX_LEASE_WAIT: Duration = Duration::from_secs(10);

/// The times of leases and markers, as publishers have them.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    /// The TTL of a publisher's lease.
    pub lease_ttl: Duration,
    /// The TTL of a marker, and of the lease of a cancelled route.
    pub dedupe_ttl: Duration,
}

/// Operators' changes of routes. Live routes are cancelled under their leases.
#[derive(Clone, Debug)]
pub struct LeasedChanges<S, L> {
    /// Selects and changes the rows.
    pub store: S,
    /// The leases of routes.
    pub leases: L,
    /// The times of leases.
    pub times: LeaseTimes,
}

impl<S: Operations, L: LeaseStore> Operations for LeasedChanges<S, L> {
    async fn select_routes(
        &self,
        change: &RouteChange,
        selection: &Selection,
    ) -> Result<Targets, StoreError> {
        self.store.select_routes(change, selection).await
    }

    async fn list_targets(
        &self,
        change: &RouteChange,
        selection: &Selection,
        after: Option<&TargetPlace>,
        limit: usize,
    ) -> Result<Page<Target, TargetPlace>, StoreError> {
        self.store.list_targets(change, selection, after, limit).await
    }

    async fn change_routes(
        &self,
        change: &RouteChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> Result<Vec<ChangeOutcome>, StoreError> {
        match change {
            RouteChange::Cancel { .. } => {
                let key = action.idempotency_key.as_ref().unwrap_or(&action.request_id);
                let token = LeaseToken(format!("cancel:{}:{key}", action.actor));
                Cancellation { changes: self, change, action, token, now }.run(chunk).await
            }
            RouteChange::Replay(_) | RouteChange::Discard { .. } | RouteChange::Resend { .. } => {
                self.store.change_routes(change, chunk, action, now).await
            }
        }
    }
}

/// The cancellation of a chunk.
struct Cancellation<'a, S, L> {
    changes: &'a LeasedChanges<S, L>,
    change: &'a RouteChange,
    action: &'a OperatorAction,
    token: LeaseToken,
    now: Timestamp,
}

impl<S: Operations, L: LeaseStore> Cancellation<'_, S, L> {
    async fn run(&self, chunk: &[Target]) -> Result<Vec<ChangeOutcome>, StoreError> {
        let LeaseTimes { lease_ttl, .. } = self.changes.times;
        let deadline = Instant::now() + (lease_ttl + LEASE_POLL_INTERVAL * 2).min(MAX_LEASE_WAIT);
        let mut outcomes = HashMap::with_capacity(chunk.len());
        let mut waiting: Vec<&Target> = chunk.iter().collect();
        let mut leases = self.acquire(&waiting).await?;
        loop {
            let (mut won, mut held) = (Vec::new(), Vec::new());
            for (target, lease) in waiting.into_iter().zip(leases) {
                match lease {
                    LeaseOutcome::Won => won.push(target.clone()),
                    LeaseOutcome::Held => held.push(target),
                    LeaseOutcome::Published(_) => {
                        outcomes.insert(target.key.clone(), ChangeOutcome::Published);
                    }
                }
            }
            if !won.is_empty() {
                self.cancel_leased(&won, &mut outcomes).await?;
            }
            if held.is_empty() || Instant::now() >= deadline {
                break;
            }
            sleep(LEASE_POLL_INTERVAL).await;
            // Routes of this chunk may be cancelled already, so an outage is no longer that of the chunk.
            let Ok(again) = self.acquire(&held).await else { break };
            (waiting, leases) = (held, again);
        }
        // Only routes whose leases are still held have no outcome.
        let outcome = |target: &Target| outcomes.get(&target.key).copied().unwrap_or(ChangeOutcome::Locked);
        Ok(chunk.iter().map(outcome).collect())
    }

    async fn acquire(&self, targets: &[&Target]) -> Result<Vec<LeaseOutcome>, StoreError> {
        let LeasedChanges { leases, times, .. } = self.changes;
        let acquired = leases.acquire_leases(targets, &self.token, times.dedupe_ttl).await;
        if acquired.is_err() {
            let keys: Vec<&RouteKey> = targets.iter().map(|target| &target.key).collect();
            self.release(&keys).await;
        }
        acquired
    }

    /// Cancels routes whose leases are held. One that a publisher or a hold changed before is selected again,
    /// and cancelled if it is still live.
    async fn cancel_leased(
        &self,
        won: &[Target],
        outcomes: &mut HashMap<RouteKey, ChangeOutcome>,
    ) -> Result<(), StoreError> {
        let conflicts = self.change(won, outcomes).await?;
        if !conflicts.is_empty() {
            let selection = Selection::Ids(conflicts.iter().map(RouteKey::to_string).collect());
            let still_live = self.changes.store.select_routes(self.change, &selection).await?;
            self.change(&still_live.targets, outcomes).await?;
        }
        let is_changed = |key: &RouteKey| outcomes.get(key) == Some(&ChangeOutcome::Changed);
        let others: Vec<&RouteKey> =
            won.iter().map(|target| &target.key).filter(|key| !is_changed(key)).collect();
        self.release(&others).await;
        Ok(())
    }

    /// Changes the rows of these targets. Returns the keys of those that have another version.
    async fn change(
        &self,
        targets: &[Target],
        outcomes: &mut HashMap<RouteKey, ChangeOutcome>,
    ) -> Result<Vec<RouteKey>, StoreError> {
        if targets.is_empty() {
            return Ok(Vec::new());
        }
        let changed = self.changes.store.change_routes(self.change, targets, self.action, self.now).await?;
        let mut conflicts = Vec::new();
        for (target, outcome) in targets.iter().zip(changed) {
            outcomes.insert(target.key.clone(), outcome);
            if outcome == ChangeOutcome::Conflict {
                conflicts.push(target.key.clone());
            }
        }
        Ok(conflicts)
    }

    async fn release(&self, keys: &[&RouteKey]) {
        if keys.is_empty() {
            return;
        }
        if let Err(error) = self.changes.leases.release_leases(keys, &self.token).await {
            tracing::debug!(error = error_chain(&error), "leases were not released; they will expire");
        }
    }
}

#[cfg(test)]
mod tests;
