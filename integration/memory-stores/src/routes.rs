//! Due routes of the database in memory, and their outcomes.

use std::collections::HashMap;

use ambient::Timestamp;
use domain::ports::{
    Completion, DueCursor, DueOrder, DuePage, FailureCounts, RouteStore, RowLocks, StoreError,
};
use domain::route::{Channel, Failed, LiveRoute, Published, RouteKey, RouteStatus};

use super::database::{DeadLetterColumns, MemoryDatabase};
use super::lock;

/// The order of the list of due routes.
fn place(route: &LiveRoute) -> (i64, &RouteKey) {
    (route.next_attempt_at.as_micros(), &route.key)
}

fn unreadable(key: &RouteKey) -> StoreError {
    StoreError::Corrupt { place: "routes.updated_at", key: key.to_string(), problem: "out of range".into() }
}

impl RouteStore for MemoryDatabase {
    async fn list_due_routes(
        &self,
        channel: Channel,
        order: DueOrder,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        let after = match after {
            None => None,
            Some(DueCursor { next_attempt_at, key }) => {
                let micros: i64 = next_attempt_at.parse().map_err(|_| StoreError::Refused {
                    operation: "list due routes",
                    source: "the cursor is of another store".into(),
                })?;
                Some((micros, key))
            }
        };
        let tables = lock(&self.0);
        let mut routes: Vec<&LiveRoute> = tables.due(now).filter(|route| route.channel == channel).collect();
        routes.sort_by_key(|route| place(route));
        if order == DueOrder::NewestFirst {
            routes.reverse();
        }
        routes.retain(|route| match order {
            DueOrder::OldestFirst => after.is_none_or(|after| place(route) > after),
            DueOrder::NewestFirst => after.is_none_or(|after| place(route) < after),
        });
        routes.truncate(limit);
        let next = routes.last().filter(|_| routes.len() == limit).map(|last| DueCursor {
            next_attempt_at: last.next_attempt_at.as_micros().to_string(),
            key: last.key.clone(),
        });
        let (corrupt, routes): (Vec<_>, Vec<_>) =
            routes.into_iter().partition(|route| tables.corrupt.contains(&route.key));
        let corrupt = corrupt.into_iter().map(|route| unreadable(&route.key)).collect();
        Ok(DuePage { routes: routes.into_iter().cloned().collect(), corrupt, next })
    }

    async fn next_due(&self) -> Result<HashMap<Channel, Timestamp>, StoreError> {
        let mut next = HashMap::new();
        for route in lock(&self.0).live() {
            let first = next.entry(route.channel).or_insert(route.next_attempt_at);
            *first = route.next_attempt_at.min(*first);
        }
        Ok(next)
    }

    async fn count_due_routes(&self, now: Timestamp, cap: usize) -> Result<u64, StoreError> {
        Ok(lock(&self.0).due(now).take(cap).count() as u64)
    }

    async fn count_failures(&self, cap: usize) -> Result<HashMap<Channel, FailureCounts>, StoreError> {
        let tables = lock(&self.0);
        let mut counts: HashMap<Channel, FailureCounts> = HashMap::new();
        let failing = tables.routes.values().filter(|row| row.status == RouteStatus::Failed);
        for row in failing.take(cap) {
            counts.entry(row.route.channel).or_default().failing += 1;
        }
        let open = tables.dead_letters.iter().filter(|(_, letter)| !letter.is_discarded);
        let mut open: Vec<_> = open.map(|(key, letter)| (letter.created_at, key)).collect();
        open.sort_unstable();
        for (created_at, key) in open.into_iter().take(cap) {
            let Some(row) = tables.routes.get(key) else { continue };
            let counts = counts.entry(row.route.channel).or_default();
            counts.dead_letters += 1;
            counts.oldest_dead_letter.get_or_insert(created_at);
        }
        Ok(counts)
    }

    async fn get_live_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let tables = lock(&self.0);
        let rows = keys.iter().filter_map(|key| tables.routes.get(*key));
        let routes = rows.filter(|row| row.status.is_live()).map(|row| row.route.clone()).collect();
        Ok(DuePage { routes, ..DuePage::default() })
    }

    async fn complete_routes_published(
        &self,
        routes: &[Published],
        now: Timestamp,
        _: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        let mut tables = lock(&self.0);
        let mut complete = |published: &Published| {
            tables.complete(
                (&published.key, published.version),
                now,
                |row| {
                    row.status == RouteStatus::Published && row.published_entry_id == published.entry.entry_id
                },
                |row| {
                    row.status = RouteStatus::Published;
                    row.published_entry_id.clone_from(&published.entry.entry_id);
                    row.published_at = Some(now);
                },
            )
        };
        Ok(routes.iter().map(&mut complete).collect())
    }

    async fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
        _: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        let mut tables = lock(&self.0);
        let mut complete = |failed: &Failed| {
            let status = failed.retry_at.map_or(RouteStatus::DeadLetter, |_| RouteStatus::Failed);
            let mut dies = false;
            let completion = tables.complete(
                (&failed.key, failed.version),
                now,
                |row| {
                    row.status == status
                        && row.route.attempt_count == failed.attempt_count
                        && row.last_error_classification == failed.classification
                        && failed.retry_at.is_none_or(|at| row.route.next_attempt_at == at)
                },
                |row| {
                    row.status = status;
                    row.route.attempt_count = failed.attempt_count;
                    row.last_error_classification = failed.classification;
                    match failed.retry_at {
                        Some(at) => row.route.next_attempt_at = at,
                        None => dies = true,
                    }
                },
            );
            if dies {
                let row = DeadLetterColumns { created_at: now, is_discarded: false };
                tables.dead_letters.insert(failed.key.clone(), row);
            }
            completion
        };
        Ok(routes.iter().map(&mut complete).collect())
    }
}
