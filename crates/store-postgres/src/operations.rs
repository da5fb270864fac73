//! Operators' changes: dead letters are replayed or discarded, in chunks that leave a row in
//! `operator_actions`.
//!
//! A chunk is one transaction:
//!
//! 1. It locks the routes that still have the version that the operator saw, and their dead letters. It waits
//!    for no lock: rows that another transaction holds are left out, be it another operator's, one of
//!    retention, or one that was left open in a console.
//! 2. It changes the locked rows and no others, and counts each of them.
//! 3. It records the change, and commits.
//!
//! Crash recovery: a crash before COMMIT leaves the chunk unchanged, a later one leaves it done; the chunks
//! before it are committed. A repeated request selects the remaining dead letters. If the response to COMMIT
//! is lost, the caller receives an outage error, and the repeated request does the rest.
//!
//! Concurrent transactions: a publisher changes live routes only, so it reads a replayed route when it is
//! due, and never a dead one. Retention holds the locks of the routes it deletes, and skips a record with a
//! locked or live route. If two operators collide, one of them finds the rows locked or at another version.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ambient::Timestamp;
use domain::operations::{
    DeadLetterChange, MAX_ROUTES_PER_REQUEST, OperatorAction, Selection, Target, Targets, replay,
};
use domain::ports::{Completion, Operations, StoreError};
use domain::query::{COUNT_CAP, Counted, DeadLetterFilter, DeadLetterPlace, Page};
use domain::route::{RouteKey, RouteStatus, Version};
use pg::Session;
use tokio::time::Instant;
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::{column, corrupt, instant, loggable, name, route_key, route_keys};
use crate::error::store_error;
use crate::queries::{DeadLetterRow, dead_letter_page};

pub(crate) mod retention;
pub(crate) mod statements;

pub(crate) use statements::insert_action;
use statements::{delete, discard, lock, replay_routes, routes_named, touch, unchanged};

/// The number of dead letters that are read together while they are selected.
const SELECTED_AT_ONCE: usize = 1_000;
/// The maximum number of pages of dead letters that are read to select those of one request: each examines as
/// many rows as a page of a list.
const MAX_SELECTED_PAGES: usize = 50;

impl Operations for PgStore {
    async fn select_dead_letters(
        &self,
        change: &DeadLetterChange,
        selection: &Selection,
    ) -> Result<Targets, StoreError> {
        let session = self.plans.session("select dead letters").await.map_err(store_error)?;
        match selection {
            Selection::Ids(ids) => select_named(&session, change, ids).await,
            Selection::Filter(filter) => {
                // Another page may take as long as all before it.
                let time = self.plans.operation_timeout().map_or(Duration::MAX, |limit| limit / 2);
                select_listed(&session, filter, time).await
            }
        }
    }

    async fn list_targets(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterPlace>,
        limit: usize,
    ) -> Result<Page<Target, DeadLetterPlace>, StoreError> {
        let session = self.plans.session("list dead letters to change").await.map_err(store_error)?;
        let filter = DeadLetterFilter { discarded: false, ..filter.clone() };
        let Page { items, next } = dead_letter_page(&session, &filter, after, limit).await?;
        Ok(Page { items: items.into_iter().map(target).collect(), next })
    }

    async fn change_dead_letters(
        &self,
        change: &DeadLetterChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> Result<Vec<Completion>, StoreError> {
        let session = self.session("change dead letters").await?;
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
            let rows = session.query(unchanged(chunk)).await.map_err(store_error)?;
            locked = route_keys(&rows)?;
        }
        let outcome = |target: &Target| match &target.key {
            key if changed.contains(key) => Completion::Applied,
            key if locked.contains(key) => Completion::Locked,
            _ => Completion::Conflict,
        };
        Ok(chunk.iter().map(outcome).collect())
    }
}

/// Writes the change of a chunk and returns the changed routes.
async fn write(
    session: &Session,
    change: &DeadLetterChange,
    chunk: &[Target],
    action: &OperatorAction,
    now: Timestamp,
) -> Result<HashSet<RouteKey>, StoreError> {
    session.begin().await.map_err(store_error)?;
    let locked = route_keys(&session.query(lock(chunk)).await.map_err(store_error)?)?;
    if locked.is_empty() {
        session.rollback().await.map_err(store_error)?;
        return Ok(locked);
    }
    let targets: Vec<Target> = chunk.iter().filter(|target| locked.contains(&target.key)).cloned().collect();
    let written = match change {
        DeadLetterChange::Replay(budgets) => {
            let routes: Vec<_> =
                targets.iter().map(|target| (target, replay(target.channel, *budgets, now))).collect();
            let deleted = session.execute(delete(&targets)).await.map_err(store_error)?;
            check_all(deleted, &targets, "dead_letters")?;
            session.execute(replay_routes(&routes, now)).await
        }
        DeadLetterChange::Discard { reason } => {
            let marked = discard(&targets, &action.actor, reason, now);
            check_all(session.execute(marked).await.map_err(store_error)?, &targets, "dead_letters")?;
            session.execute(touch(&targets, now)).await
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

async fn select_named(
    session: &Session,
    change: &DeadLetterChange,
    ids: &[String],
) -> Result<Targets, StoreError> {
    let mut targets = Targets::default();
    let mut seen = HashSet::new();
    let ids: Vec<&String> =
        ids.iter().filter(|id| seen.insert(id.as_str())).take(MAX_ROUTES_PER_REQUEST).collect();
    for page in ids.chunks(SELECTED_AT_ONCE) {
        let keys: Vec<Option<RouteKey>> = page.iter().map(|id| id.parse().ok()).collect();
        let given: Vec<&RouteKey> = keys.iter().flatten().collect();
        let rows = session.query(routes_named(&given)).await.map_err(store_error)?;
        let mut found = rows.iter().map(named).collect::<Result<HashMap<_, _>, _>>()?;
        for (id, key) in page.iter().zip(&keys) {
            match key.as_ref().and_then(|key| found.remove(key)) {
                None => targets.unknown.push((*id).clone()),
                Some(Some((target, discarded))) if change.applies_to(discarded, true) => {
                    targets.targets.push(target);
                }
                Some(_) => targets.unchanged += 1,
            }
        }
    }
    Ok(targets)
}

/// A route, with its dead letter, if it has one, and true if that is discarded.
type Named = (RouteKey, Option<(Target, bool)>);

fn named(row: &Row) -> Result<Named, StoreError> {
    let key = route_key(row)?;
    let shown = loggable(&key);
    let status: RouteStatus = name(row, "routes.status", &shown)?;
    let classification: Option<String> = column(row, "dead_letters.failure_classification", &shown)?;
    let (RouteStatus::DeadLetter, Some(classification)) = (status, classification) else {
        return Ok((key, None));
    };
    let target = Target {
        version: Version::read(instant(row, "routes.updated_at", &shown)?),
        channel: name(row, "routes.channel", &shown)?,
        classification,
        key: key.clone(),
    };
    Ok((key, Some((target, column(row, "discarded", &shown)?))))
}

/// Selects dead letters in the order of the list; those beyond the limit of one request are only counted.
/// Starts no page after `time`: the selection is then incomplete, and more dead letters remain than were
/// counted.
async fn select_listed(
    session: &Session,
    filter: &DeadLetterFilter,
    time: Duration,
) -> Result<Targets, StoreError> {
    let filter = DeadLetterFilter { discarded: false, ..filter.clone() };
    let begun = Instant::now();
    let mut targets = Targets::default();
    let mut after = None;
    for _ in 0..MAX_SELECTED_PAGES {
        let page = dead_letter_page(session, &filter, after.as_ref(), SELECTED_AT_ONCE).await?;
        for row in page.items {
            match targets.targets.len() {
                MAX_ROUTES_PER_REQUEST => targets.remaining.count += 1,
                _ => targets.targets.push(target(row)),
            }
        }
        after = page.next;
        if after.is_none() || targets.remaining.count >= COUNT_CAP || begun.elapsed() >= time {
            break;
        }
    }
    targets.remaining = Counted { capped: after.is_some(), ..targets.remaining };
    Ok(targets)
}

fn target(DeadLetterRow { letter, version }: DeadLetterRow) -> Target {
    Target {
        key: letter.key,
        version,
        channel: letter.channel,
        classification: letter.failure_classification,
    }
}

#[cfg(test)]
mod tests;
