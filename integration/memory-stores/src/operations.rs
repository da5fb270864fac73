//! Operators' changes of the database in memory.

use std::cmp::Reverse;
use std::collections::HashSet;

use ambient::Timestamp;
use domain::operations::{
    CANCELLED, Changeable, Group, LivePlace, OperatorAction, RequeuedRoute, RouteChange, RouteFilter,
    Selection, Target, TargetPlace, Targets, replay, resend,
};
use domain::ports::{ChangeOutcome, Operations, StoreError};
use domain::query::{DeadLetterFilter, DeadLetterPlace, Page};
use domain::route::{Channel, RouteKey, RouteStatus};

use super::database::{MemoryDatabase, Row, ServiceTables};
use super::lock;
use super::rows::RecordedAction;

impl MemoryDatabase {
    /// The actions of operators, in order.
    pub fn actions(&self) -> Vec<RecordedAction> {
        lock(&self.0).actions.clone()
    }
}

impl Operations for MemoryDatabase {
    async fn select_routes(
        &self,
        change: &RouteChange,
        selection: &Selection,
    ) -> Result<Targets, StoreError> {
        match selection {
            Selection::Ids(ids) => Ok(named(&lock(&self.0), change, ids)),
            // Loops list the targets of a filter in pages.
            Selection::DeadLetters(_) | Selection::Routes(_) => Err(StoreError::Refused {
                operation: "select routes",
                source: "the store in memory selects them by their ids only".into(),
            }),
        }
    }

    /// Lists the targets. Of a filter of dead letters, only `created_before` counts; one of live routes must
    /// name the channel.
    async fn list_targets(
        &self,
        change: &RouteChange,
        selection: &Selection,
        after: Option<&TargetPlace>,
        limit: usize,
    ) -> Result<Page<Target, TargetPlace>, StoreError> {
        let tables = lock(&self.0);
        let (places, page) = match selection {
            Selection::Ids(_) => (Vec::new(), false),
            Selection::DeadLetters(filter) => tables.dead_letters_after(filter, after, limit),
            Selection::Routes(_) if change.changes() == Changeable::Published => {
                tables.published_after(after, limit)
            }
            Selection::Routes(filter) => tables.live_after(filter, after, limit),
        };
        let next = places.last().filter(|_| page).map(|(_, place)| place.clone());
        let items = places.iter().filter_map(|(key, _)| tables.target(change.changes(), key)).collect();
        Ok(Page { items, next })
    }

    async fn change_routes(
        &self,
        change: &RouteChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> Result<Vec<ChangeOutcome>, StoreError> {
        let mut tables = lock(&self.0);
        let outcomes: Vec<ChangeOutcome> =
            chunk.iter().map(|target| tables.change(change, target, now)).collect();
        let changed: Vec<Target> = chunk
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| **outcome == ChangeOutcome::Changed)
            .map(|(target, _)| target.clone())
            .collect();
        if !changed.is_empty() {
            tables.actions.push(RecordedAction {
                actor: action.actor.clone(),
                action: change.action().to_owned(),
                arguments: action.arguments(change, &changed),
                affected: changed.len() as u64,
                request_id: action.request_id.clone(),
            });
        }
        Ok(outcomes)
    }
}

/// The keys of a page with their places, and true if it may have a next one.
type Places = (Vec<(RouteKey, TargetPlace)>, bool);

impl ServiceTables {
    fn dead_letters_after(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&TargetPlace>,
        limit: usize,
    ) -> Places {
        let after = match after {
            Some(TargetPlace::DeadLetter(place)) => Some((place.created_at, place.key.clone())),
            _ => None,
        };
        let mut found: Vec<(Timestamp, RouteKey)> = self
            .dead_letters
            .iter()
            .filter(|(_, letter)| !letter.is_discarded)
            .map(|(key, letter)| (letter.created_at, key.clone()))
            .filter(|(created_at, _)| filter.created_before.is_none_or(|before| *created_at < before))
            .filter(|place| after.as_ref().is_none_or(|after| place < after))
            .collect();
        found.sort_by_key(|place| Reverse(place.clone()));
        found.truncate(limit);
        let place = |(created_at, key): (Timestamp, RouteKey)| {
            (key.clone(), TargetPlace::DeadLetter(DeadLetterPlace { created_at, key }))
        };
        let is_full = found.len() == limit;
        (found.into_iter().map(place).collect(), is_full)
    }

    fn live_after(&self, filter: &RouteFilter, after: Option<&TargetPlace>, limit: usize) -> Places {
        let channel = filter.channel.unwrap_or(Channel::Push);
        let after = match after {
            Some(TargetPlace::Live(place)) => {
                Some((place.next_attempt_at.parse().unwrap_or(Timestamp::MAX), place.key.clone()))
            }
            _ => None,
        };
        let mut found: Vec<(Timestamp, RouteKey)> = self
            .routes
            .iter()
            .filter(|(_, row)| row.status.is_live() && row.route.channel == channel)
            .map(|(key, row)| (row.route.next_attempt_at, key.clone()))
            .filter(|place| after.as_ref().is_none_or(|after| place > after))
            .collect();
        found.sort();
        found.truncate(limit);
        let place = |(due, key): (Timestamp, RouteKey)| {
            let next_attempt_at = due.to_string();
            (key.clone(), TargetPlace::Live(LivePlace { channel, next_attempt_at, key }))
        };
        let is_full = found.len() == limit;
        (found.into_iter().map(place).collect(), is_full)
    }

    /// Published routes by their keys, of any filter.
    fn published_after(&self, after: Option<&TargetPlace>, limit: usize) -> Places {
        let after = match after {
            Some(TargetPlace::Published(_, key)) => Some(key),
            _ => None,
        };
        let published = self.routes.iter().filter(|(_, row)| row.status == RouteStatus::Published);
        let keys = published.map(|(key, _)| key).filter(|key| after.is_none_or(|after| *key > after));
        let found: Vec<RouteKey> = keys.take(limit).cloned().collect();
        let is_full = found.len() == limit;
        let place = |key: RouteKey| (key.clone(), TargetPlace::Published(Timestamp::MIN, key));
        (found.into_iter().map(place).collect(), is_full)
    }

    /// The route, if it is in this state.
    fn target(&self, state: Changeable, key: &RouteKey) -> Option<Target> {
        let row = self.routes.get(key).filter(|row| state.includes(row.status))?;
        let group = match state {
            Changeable::DeadLetters => {
                self.dead_letters.get(key)?;
                Group::Cause(row.last_error_classification.to_owned())
            }
            Changeable::Live | Changeable::Published => {
                Group::Type(row.route.content.notification_type.clone())
            }
        };
        Some(Target {
            key: key.clone(),
            version: row.route.version,
            channel: row.route.channel,
            attempt_count: row.route.attempt_count,
            replaces: row.route.replaces.clone().filter(|_| row.status.is_live()),
            group,
        })
    }

    fn change(&mut self, change: &RouteChange, target: &Target, now: Timestamp) -> ChangeOutcome {
        let Some(row) = self.routes.get_mut(&target.key) else { return ChangeOutcome::Conflict };
        if !change.changes().includes(row.status) || row.route.version != target.version {
            return ChangeOutcome::Conflict;
        }
        if self.locked.contains(&target.key) {
            return ChangeOutcome::Locked;
        }
        row.touch(now);
        match change {
            RouteChange::Replay(budgets) => {
                requeue(row, replay(row.route.channel, *budgets, now));
                self.dead_letters.remove(&target.key);
            }
            RouteChange::Resend { budgets, .. } => {
                row.route.replaces = Some(row.published_entry_id.clone());
                requeue(row, resend(target, *budgets, now));
            }
            RouteChange::Discard { .. } => {
                if let Some(letter) = self.dead_letters.get_mut(&target.key) {
                    letter.is_discarded = true;
                }
            }
            RouteChange::Cancel { .. } => {
                cancel(row);
                self.held.remove(&target.key);
            }
        }
        ChangeOutcome::Changed
    }
}

fn requeue(row: &mut Row, requeued: RequeuedRoute) {
    row.status = requeued.status;
    row.route.attempt_count = requeued.attempt_count;
    row.route.max_attempts = requeued.max_attempts;
    row.route.next_attempt_at = requeued.next_attempt_at;
}

fn cancel(row: &mut Row) {
    row.status = RouteStatus::Skipped;
    row.last_error_classification = CANCELLED;
}

fn named(tables: &ServiceTables, change: &RouteChange, ids: &[String]) -> Targets {
    let mut targets = Targets::default();
    let mut seen = HashSet::new();
    for id in ids.iter().filter(|id| seen.insert(id.as_str())) {
        let key = id.parse::<RouteKey>().ok().filter(|key| tables.routes.contains_key(key));
        let Some(key) = key else {
            targets.unknown.push(id.clone());
            continue;
        };
        let discarded = tables.dead_letters.get(&key).is_some_and(|letter| letter.is_discarded);
        match tables.target(change.changes(), &key) {
            Some(target) if change.applies_to(discarded, true) => targets.targets.push(target),
            _ => targets.unchanged += 1,
        }
    }
    targets
}
