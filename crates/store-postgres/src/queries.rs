//! Reading for operators and producers, on a pool of its own: a slow search takes no connection from the
//! traffic.
//!
//! Every list is read from an index in the order of the list, starting at a position, and examines at most
//! [`MAX_EXAMINED`] rows (ADR 0029). Frequent searches have an index that returns all matches at once:
//! `candidates.rs`. An operator's search by a filter (`search.rs`) is limited by its time instead.

mod actions;
mod activity;
mod candidates;
mod causes;
mod database;
mod dead_letters;
mod detail;
mod intent_trace;
mod malformed_intents;
mod notifications;
mod replicas;
mod search;
mod status;
mod traced;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use ambient::{Timestamp, data_age};
use domain::ports::{ActivityQueries, Queries, StoreError};
use domain::query::{
    ActionFilter, ActionPlace, ActivityHistory, ActivityPeriod, Causes, DeadLetter, DeadLetterCause,
    DeadLetterFilter, DeadLetterPlace, IntentTrace, MalformedCause, MalformedFilter, MalformedPlace,
    MalformedSummary, Notification, NotificationFilter, NotificationSummary, Page, PageLimit, RecordedAction,
    SearchFilter, SearchOutcome, StoreStatus, StoredMalformedIntent,
};
use domain::record::{IdempotencyKey, NotificationId, Record, RecordCursor};
use pg::{PgPool, Session, Statement};
use tokio_postgres::Row;

use crate::codec::column;
use crate::error::store_error;
use crate::read_replicas::{ReadReplicas, Replica};

pub(crate) use dead_letters::{DeadLetterRow, dead_letter_page};
pub(crate) use detail::{next_attempt_range, next_attempt_text};
pub(crate) use malformed_intents::{malformed_page, malformed_row, malformed_text};

/// The maximum number of rows of a table that one page examines.
pub(crate) const MAX_EXAMINED: usize = 10_000;

/// Read access to the service's tables.
#[derive(Clone, Debug)]
pub struct PgQueries {
    pool: PgPool,
    /// The pool for reads by primary keys.
    lookups: PgPool,
    /// The replicas that serve lists, searches and counts, if there are any.
    replicas: Option<ReadReplicas>,
}

impl PgQueries {
    /// Queries on `pool`, whose sessions have the settings [`crate::QUERY_SESSION`] and whose operation
    /// timeout is that of a query.
    pub fn new(pool: PgPool) -> Self {
        Self { lookups: pool.clone(), pool, replicas: None }
    }

    /// Adds a separate pool for reads by primary keys, such as that of the notification for a repeated
    /// intent: a search takes no connection from it.
    pub fn with_lookups(self, lookups: PgPool) -> Self {
        Self { lookups, ..self }
    }

    /// Reads lists, searches and counts from these replicas. Reads by primary keys stay on the primary: they
    /// are about what has just changed.
    #[must_use]
    pub fn with_replicas(self, replicas: ReadReplicas) -> Self {
        Self { replicas: Some(replicas), ..self }
    }

    /// The source of a read: a replica if one may be read, or else the primary.
    pub(crate) async fn source(&self, operation: &'static str) -> Source<'_> {
        let replica = match &self.replicas {
            Some(replicas) => replicas.choose().await,
            None => None,
        };
        Source { queries: self, operation, replica }
    }

    pub(crate) async fn session(&self, operation: &'static str) -> Result<Session, StoreError> {
        self.pool.session(operation).await.map_err(store_error)
    }

    async fn lookup(&self, operation: &'static str) -> Result<Session, StoreError> {
        self.lookups.session(operation).await.map_err(store_error)
    }
}

/// The source of one read.
pub(crate) struct Source<'a> {
    queries: &'a PgQueries,
    operation: &'static str,
    /// The replica, and the moment up to which it has everything; `None` for the primary.
    replica: Option<(&'a Replica, Instant)>,
}

impl Source<'_> {
    pub(crate) async fn session(&self) -> Result<Session, StoreError> {
        match self.replica {
            Some((replica, _)) => replica.session(self.operation).await,
            None => self.queries.session(self.operation).await,
        }
    }

    /// Ends the read with this outcome, or continues with the primary if the replica failed. A read that took
    /// too long is not made again.
    pub(crate) fn end<T>(&mut self, outcome: Result<T, StoreError>) -> ControlFlow<Result<T, StoreError>> {
        match (self.replica.take(), outcome) {
            (Some((replica, _)), Err(error @ StoreError::Unavailable { .. })) => {
                replica.failed(error);
                ControlFlow::Continue(())
            }
            (Some((_, as_of)), outcome) => {
                data_age::read_as_of(as_of);
                ControlFlow::Break(outcome)
            }
            (None, outcome) => ControlFlow::Break(outcome),
        }
    }
}

/// Runs a read that may be a little old, on a replica or on the primary.
macro_rules! read {
    ($queries:expr, $operation:literal, $session:ident => $read:expr) => {{
        let mut source = $queries.source($operation).await;
        loop {
            let outcome = match source.session().await {
                Ok($session) => $read.await,
                Err(error) => Err(error),
            };
            if let ControlFlow::Break(outcome) = source.end(outcome) {
                break outcome;
            }
        }
    }};
}
pub(crate) use read;

impl Queries for PgQueries {
    async fn get_notification(&self, id: &NotificationId) -> Result<Option<Notification>, StoreError> {
        let session = self.lookup("get a notification").await?;
        let Some(mut found) = detail::get(&session, id).await? else { return Ok(None) };
        if found.routes.iter().any(|route| route.status.is_live()) {
            found.obstacles = Some(replicas::obstacles(&session).await?);
        }
        Ok(Some(found))
    }

    async fn list_records(&self, ids: &[NotificationId]) -> Result<Vec<Record>, StoreError> {
        detail::list_records(&self.lookup("list records").await?, ids).await
    }

    async fn list_traced(&self, id: &str) -> Result<Vec<NotificationId>, StoreError> {
        read!(self, "list traced notifications", session => traced::list(&session, id))
    }

    async fn list_notifications(
        &self,
        filter: &NotificationFilter,
        after: Option<&RecordCursor>,
        limit: PageLimit,
    ) -> Result<Page<NotificationSummary, RecordCursor>, StoreError> {
        read!(self, "list notifications", session => notifications::list(&session, filter, after, limit))
    }

    async fn search_notifications(
        &self,
        filter: &SearchFilter,
        after: Option<&RecordCursor>,
        limit: PageLimit,
    ) -> Result<SearchOutcome, StoreError> {
        let within = self.pool.operation_timeout().unwrap_or(Duration::MAX);
        read!(self, "search notifications", session => search::search(&session, within, filter, after, limit))
    }

    async fn list_actions(
        &self,
        filter: &ActionFilter,
        after: Option<&ActionPlace>,
        limit: PageLimit,
    ) -> Result<Page<RecordedAction, ActionPlace>, StoreError> {
        read!(self, "list the actions of operators", session => actions::list(&session, filter, after, limit))
    }

    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterPlace>,
        limit: PageLimit,
    ) -> Result<Page<DeadLetter, DeadLetterPlace>, StoreError> {
        read!(self, "list dead letters", session => dead_letters::list(&session, filter, after, limit))
    }

    async fn list_malformed_intents(
        &self,
        filter: &MalformedFilter,
        after: Option<&MalformedPlace>,
        limit: PageLimit,
    ) -> Result<Page<MalformedSummary, MalformedPlace>, StoreError> {
        read!(self, "list malformed intents", session => malformed_intents::list(&session, filter, after, limit))
    }

    async fn get_malformed_intents(
        &self,
        stream: &str,
        entry_id: &str,
    ) -> Result<Vec<StoredMalformedIntent>, StoreError> {
        malformed_intents::get(&self.session("get malformed intents").await?, stream, entry_id).await
    }

    async fn get_intent_trace(&self, stream: &str, key: &IdempotencyKey) -> Result<IntentTrace, StoreError> {
        intent_trace::get(&self.lookup("get the trace of an intent").await?, stream, key).await
    }

    async fn count_dead_letters(&self) -> Result<Causes<DeadLetterCause>, StoreError> {
        read!(self, "count dead letters", session => causes::of_dead_letters(&session))
    }

    async fn count_malformed_intents(&self) -> Result<Causes<MalformedCause>, StoreError> {
        read!(self, "count malformed intents", session => causes::of_malformed_intents(&session))
    }

    async fn status(&self, stream: &str, now: Timestamp) -> Result<StoreStatus, StoreError> {
        read!(self, "read the status", session => status::read(&session, stream, now))
    }
}

impl ActivityQueries for PgQueries {
    async fn activity(&self, period: ActivityPeriod) -> Result<ActivityHistory, StoreError> {
        read!(self, "read the activity", session => activity::read(&session, period))
    }
}

/// All statements of the queries, those of the query builder with any parameters.
pub(crate) fn statements() -> Vec<Statement> {
    let texts = [
        actions::STATEMENTS,
        activity::STATEMENTS,
        candidates::STATEMENTS,
        causes::STATEMENTS,
        dead_letters::STATEMENTS,
        detail::STATEMENTS,
        malformed_intents::STATEMENTS,
        notifications::STATEMENTS,
        replicas::STATEMENTS,
        status::STATEMENTS,
        traced::STATEMENTS,
    ];
    let id = NotificationId::from(String::new());
    let built = [
        candidates::live(),
        candidates::next_producer(""),
        candidates::to_user(""),
        candidates::with_key(&[], ""),
        candidates::with_record_ids(&[]),
        detail::record_of(&id),
        detail::records_of(&[]),
        replicas::replicas(),
    ];
    let built = built.iter().map(|bound| bound.statement().clone());
    [texts.concat(), built.chain(search::statements()).collect()].concat()
}

/// A row of a statement that examines rows in the order of a list: one that matches, or the last one if no
/// more may be examined, with its number.
pub(crate) struct Examined<T> {
    item: T,
    matches: bool,
    number: u64,
}

pub(crate) fn examined<T>(
    rows: &[Row],
    parse: impl Fn(&Row) -> Result<T, StoreError>,
) -> Result<Vec<Examined<T>>, StoreError> {
    let read = |row| {
        let number: i64 = column(row, "rows", "")?;
        Ok(Examined {
            item: parse(row)?,
            matches: column(row, "matches", "")?,
            number: number.unsigned_abs(),
        })
    };
    rows.iter().map(read).collect()
}

/// The page of these rows, at most `limit` of them: it has a next one unless fewer were found before the end
/// of the list.
pub(crate) fn page<T, P>(rows: Vec<Examined<T>>, limit: usize, place: impl Fn(&T) -> P) -> Page<T, P> {
    let is_cut = |last: &&Examined<T>| rows.len() == limit || last.number == MAX_EXAMINED as u64;
    let next = rows.last().filter(is_cut).map(|last| place(&last.item));
    let items = rows.into_iter().filter(|row| row.matches).map(|row| row.item).collect();
    Page { items, next }
}

#[cfg(test)]
mod tests;
