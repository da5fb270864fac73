//! Operators' changes of the database in memory.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;

use ambient::Timestamp;
use domain::operations::{DeadLetterChange, OperatorAction, Selection, Target, Targets, replay};
use domain::ports::{Completion, Operations, StoreError};
use domain::query::{DeadLetterFilter, DeadLetterPlace, Page};
use domain::route::{RouteKey, RouteStatus, Version};

use super::database::{MemoryDatabase, ServiceTables};
use super::lock;
use super::rows::RecordedAction;

impl MemoryDatabase {
    /// The actions of operators, in order.
    pub fn actions(&self) -> Vec<RecordedAction> {
        lock(&self.0).actions.clone()
    }
}

impl Operations for MemoryDatabase {
    async fn select_dead_letters(
        &self,
        change: &DeadLetterChange,
        selection: &Selection,
    ) -> Result<Targets, StoreError> {
        match selection {
            Selection::Ids(ids) => Ok(named(&lock(&self.0), change, ids)),
            // Loops list the targets of a filter in pages.
            Selection::Filter(_) => Err(StoreError::Refused {
                operation: "select dead letters",
                source: "the store in memory selects them by their ids only".into(),
            }),
        }
    }

    /// Lists the targets, newest first. Of the filter, only `created_before` counts.
    async fn list_targets(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterPlace>,
        limit: usize,
    ) -> Result<Page<Target, DeadLetterPlace>, StoreError> {
        let tables = lock(&self.0);
        let place = |place: &DeadLetterPlace| (place.created_at, place.key.clone());
        let mut places: Vec<DeadLetterPlace> = tables
            .dead_letters
            .iter()
            .filter(|(_, letter)| !letter.is_discarded)
            .map(|(key, letter)| DeadLetterPlace { created_at: letter.created_at, key: key.clone() })
            .filter(|found| filter.created_before.is_none_or(|before| found.created_at < before))
            .filter(|found| after.is_none_or(|after| place(found) < place(after)))
            .collect();
        places.sort_by_key(|found| Reverse(place(found)));
        places.truncate(limit);
        let next = places.last().filter(|_| places.len() == limit).cloned();
        Ok(Page { items: places.iter().filter_map(|found| target(&tables, &found.key)).collect(), next })
    }

    async fn change_dead_letters(
        &self,
        change: &DeadLetterChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> Result<Vec<Completion>, StoreError> {
        let mut tables = lock(&self.0);
        let outcomes: Vec<Completion> =
            chunk.iter().map(|target| tables.change(change, target, now)).collect();
        let changed: Vec<Target> = chunk
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| **outcome == Completion::Applied)
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

impl ServiceTables {
    fn change(&mut self, change: &DeadLetterChange, target: &Target, now: Timestamp) -> Completion {
        let Some(row) = self.routes.get_mut(&target.key) else { return Completion::Conflict };
        let Some(letter) = self.dead_letters.get_mut(&target.key) else { return Completion::Conflict };
        if row.status != RouteStatus::DeadLetter || row.route.version != target.version {
            return Completion::Conflict;
        }
        if self.locked.contains(&target.key) {
            return Completion::Locked;
        }
        let least = row.route.version.updated_at() + Duration::from_micros(1);
        row.route.version = Version::read(now.max(least));
        match change {
            DeadLetterChange::Replay(budgets) => {
                let replayed = replay(row.route.channel, *budgets, now);
                row.status = replayed.status;
                row.route.attempt_count = replayed.attempt_count;
                row.route.max_attempts = replayed.max_attempts;
                row.route.next_attempt_at = replayed.next_attempt_at;
                self.dead_letters.remove(&target.key);
            }
            DeadLetterChange::Discard { .. } => letter.is_discarded = true,
        }
        Completion::Applied
    }
}

fn named(tables: &ServiceTables, change: &DeadLetterChange, ids: &[String]) -> Targets {
    let mut targets = Targets::default();
    let mut seen = HashSet::new();
    for id in ids.iter().filter(|id| seen.insert(id.as_str())) {
        let key = id.parse::<RouteKey>().ok().filter(|key| tables.routes.contains_key(key));
        let Some(key) = key else {
            targets.unknown.push(id.clone());
            continue;
        };
        let discarded = tables.dead_letters.get(&key).is_some_and(|letter| letter.is_discarded);
        match target(tables, &key) {
            Some(target) if change.applies_to(discarded, true) => targets.targets.push(target),
            _ => targets.unchanged += 1,
        }
    }
    targets
}

fn target(tables: &ServiceTables, key: &RouteKey) -> Option<Target> {
    let row = tables.routes.get(key).filter(|row| row.status == RouteStatus::DeadLetter)?;
    tables.dead_letters.get(key)?;
    Some(Target {
        key: key.clone(),
        version: row.route.version,
        channel: row.route.channel,
        classification: row.last_error_classification.to_owned(),
    })
}
