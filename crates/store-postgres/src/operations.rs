//! Operators' changes: dead letters are replayed or discarded, live routes are cancelled and published ones
//! are sent again, in chunks that leave a row in `operator_actions`. `targets.rs` selects the routes.
//!
//! A chunk is one transaction:
//!
//! 1. It locks the routes that still have the version with which they were selected, and their dead letters.
//!    It waits for no lock: rows that another transaction holds are left out, be it another operator's, one
//!    of retention, or one that was left open in a console.
//! 2. It changes the locked rows and no others, and counts each of them.
//! 3. It records the change, and commits.
//!
//! Crash recovery: a crash before COMMIT leaves the chunk unchanged, a later one leaves it done; the chunks
//! before it are committed. A repeated request selects the remaining dead letters. If the response to COMMIT
//! is lost, the caller receives an outage error, and the repeated request does the rest.
//!
//! Concurrent transactions: a publisher changes live routes only, so it reads a replayed route when it is
//! due, and never a dead one. Live routes are cancelled under their leases. A published route that is sent
//! again has a new version, so a repeated completion of its old entry is a conflict. Retention holds the
//! locks of the routes it deletes, and skips a record with a locked or live route: a record stays while one
//! of its routes is sent again. If two operators collide, one of them finds the rows locked or at another
//! version.

use std::collections::HashSet;
use std::time::Duration;

use ambient::Timestamp;
use domain::operations::{
    OperatorAction, RouteChange, Selection, Target, TargetPlace, Targets, cancelled_by, replay, resend,
};
use domain::ports::{ChangeOutcome, Operations, StoreError};
use domain::query::Page;
use domain::route::RouteKey;
use pg::Session;

use crate::PgStore;
use crate::codec::{corrupt, loggable, route_keys};
use crate::error::store_error;
use crate::operator_actions::insert_action;

pub(crate) mod statements;
pub(crate) mod targets;

use statements::{
    cancel, delete, discard, lock, release_held, replay_routes, resend_routes, touch, unchanged,
};
use targets::{select_listed, select_named, target_page};

impl Operations for PgStore {
    async fn select_routes(
        &self,
        change: &RouteChange,
        selection: &Selection,
    ) -> Result<Targets, StoreError> {
        let session = self.plans.session("select routes to change").await.map_err(store_error)?;
        match selection {
            Selection::Ids(ids) => select_named(&session, change, ids).await,
            Selection::DeadLetters(_) | Selection::Routes(_) => {
                // Another page may take as long as all before it.
                let time = self.plans.operation_timeout().map_or(Duration::MAX, |limit| limit / 2);
                select_listed(&session, change, selection, time).await
            }
        }
    }

    async fn list_targets(
        &self,
        change: &RouteChange,
        selection: &Selection,
        after: Option<&TargetPlace>,
        limit: usize,
    ) -> Result<Page<Target, TargetPlace>, StoreError> {
        let session = self.plans.session("list routes to change").await.map_err(store_error)?;
        target_page(&session, change, selection, after, limit).await
    }

    async fn change_routes(
        &self,
        change: &RouteChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> Result<Vec<ChangeOutcome>, StoreError> {
        let session = self.session("change routes").await?;
        let changed = match write(&session, change, chunk, action, now).await {
            Ok(changed) => changed,
            Err(error) => {
                // If this fails too, the session closes its connection. Either way the first error is the one
                // to report.
                drop(session.rollback().await);
                return Err(error);
            }
        };
        let mut locked = HashSet::new();
        if changed.len() < chunk.len() {
            let rows = session.query(unchanged(change.changes(), chunk)).await.map_err(store_error)?;
            locked = route_keys(&rows)?;
        }
        let outcome = |target: &Target| match &target.key {
            key if changed.contains(key) => ChangeOutcome::Changed,
            key if locked.contains(key) => ChangeOutcome::Locked,
            _ => ChangeOutcome::Conflict,
        };
        Ok(chunk.iter().map(outcome).collect())
    }
}

/// Writes the change of a chunk and returns the changed routes.
async fn write(
    session: &Session,
    change: &RouteChange,
    chunk: &[Target],
    action: &OperatorAction,
    now: Timestamp,
) -> Result<HashSet<RouteKey>, StoreError> {
    session.begin().await.map_err(store_error)?;
    let locked = route_keys(&session.query(lock(change.changes(), chunk)).await.map_err(store_error)?)?;
    if locked.is_empty() {
        session.rollback().await.map_err(store_error)?;
        return Ok(locked);
    }
    let targets: Vec<Target> = chunk.iter().filter(|target| locked.contains(&target.key)).cloned().collect();
    let written = match change {
        RouteChange::Replay(budgets) => {
            let routes: Vec<_> =
                targets.iter().map(|target| (target, replay(target.channel, *budgets, now))).collect();
            let deleted = session.execute(delete(&targets)).await.map_err(store_error)?;
            check_all(deleted, &targets, "dead_letters")?;
            session.execute(replay_routes(&routes, now)).await
        }
        RouteChange::Discard { reason } => {
            let marked = discard(&targets, &action.actor, reason, now);
            check_all(session.execute(marked).await.map_err(store_error)?, &targets, "dead_letters")?;
            session.execute(touch(&targets, now)).await
        }
        RouteChange::Resend { budgets, reason } => {
            let routes: Vec<_> =
                targets.iter().map(|target| (target, resend(target, *budgets, now))).collect();
            session.execute(resend_routes(&routes, (&action.actor, reason), now)).await
        }
        RouteChange::Cancel { reason } => {
            session.execute(release_held(&targets)).await.map_err(store_error)?;
            session.execute(cancel(&targets, &cancelled_by(&action.actor, reason), now)).await
        }
    };
    check_all(written.map_err(store_error)?, &targets, "routes")?;
    let arguments = action.arguments(change, &targets).to_string();
    let by = (action.actor.as_str(), action.request_id.as_str());
    let insert = insert_action(by, change.action(), &arguments, targets.len() as u64);
    session.execute(insert).await.map_err(store_error)?;
    session.commit().await.map_err(store_error)?;
    Ok(locked)
}

/// Checks that each locked row was changed, and no other.
fn check_all(rows: u64, targets: &[Target], table: &'static str) -> Result<(), StoreError> {
    if rows == targets.len() as u64 {
        return Ok(());
    }
    let problem = format!("{rows} rows were changed where {} were locked by primary key", targets.len());
    Err(corrupt(table, &targets.first().map_or_else(String::new, |target| loggable(&target.key)), problem))
}

#[cfg(test)]
mod tests;
