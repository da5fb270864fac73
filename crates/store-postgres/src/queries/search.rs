//! Operators' searches: if an index has candidates, they are checked by key; otherwise the list is read from
//! a position until the page is full. Both are limited to the time of a query by the clock of the server,
//! which leaves the connection usable.

mod hints;
mod names;

use std::time::Duration;

use domain::ports::StoreError;
use domain::query::{FilterFault, NotificationSummary, Page, PageLimit, SearchFilter, SearchOutcome};
use domain::record::RecordCursor;
use pg::parameter::{self, Parameters};
use pg::{BoundStatement, ServerError, Session, Statement};
use state::query::Filter;
use tokio::time::Instant;

use self::hints::Hints;
use self::names::{OnRecords, SearchNames};
use super::candidates::{self, Candidates, Range};
use super::notifications::{CHECKED_AT_ONCE, count_routes_of, end_early, newest_first, parse};
use crate::error::store_error;

/// A snapshot, so that all statements of a search see the same rows.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

pub(super) async fn search(
    session: &Session,
    within: Duration,
    filter: &SearchFilter,
    after: Option<&RecordCursor>,
    limit: PageLimit,
) -> Result<SearchOutcome, StoreError> {
    let filter = match Filter::parse(filter.as_str().as_bytes(), &SearchNames) {
        Ok(parsed) if parsed.names().into_iter().any(|name| !filter.allows(name)) => {
            return Ok(SearchOutcome::Personal);
        }
        Ok(parsed) => parsed,
        Err(error) => {
            let fault = FilterFault { reason: error.reason, line: error.line, column: error.column };
            return Ok(SearchOutcome::Invalid(fault));
        }
    };
    let search = Search { session, filter: &filter, began: Instant::now(), within };
    session.begin_with(BEGIN).await.map_err(store_error)?;
    match search.page(after, limit.get()).await {
        Ok(page) => {
            session.commit().await.map_err(store_error)?;
            Ok(SearchOutcome::Found(page))
        }
        Err(error) if is_cancelled(&error) => {
            session.rollback().await.map_err(store_error)?;
            Ok(SearchOutcome::TooExpensive)
        }
        // The connection is closed with its transaction.
        Err(error) => Err(error),
    }
}

/// True if the server ended a statement that took too long. False if the server does not respond at all.
fn is_cancelled(error: &StoreError) -> bool {
    matches!(error, StoreError::TimedOut { source, .. } if source.is::<ServerError>())
}

/// One search, in its transaction.
struct Search<'a> {
    session: &'a Session,
    filter: &'a Filter,
    began: Instant,
    /// The time limit of the whole search.
    within: Duration,
}

impl Search<'_> {
    async fn page(
        &self,
        after: Option<&RecordCursor>,
        limit: usize,
    ) -> Result<Page<NotificationSummary, RecordCursor>, StoreError> {
        let hints = Hints::of(self.filter);
        let range = Range::new(&hints.filter, after);
        self.limit_time().await?;
        let candidates = match &hints.ids {
            Some(ids) => Some(candidates::by_ids(self.session, ids, &range).await?),
            None => candidates::find(self.session, &hints.filter, &range).await?,
        };
        let found = match candidates {
            Some(candidates) => self.check(candidates, limit).await?,
            None => self.list(&range, limit).await?,
        };
        let mut page = end_early(found);
        self.limit_time().await?;
        count_routes_of(self.session, &mut page.items).await?;
        Ok(page)
    }

    /// Limits the next statements to the remaining time.
    async fn limit_time(&self) -> Result<(), StoreError> {
        let left = self.within.saturating_sub(self.began.elapsed()).as_millis().max(1);
        // The server accepts four bytes.
        let left = left.min(i32::MAX.unsigned_abs().into());
        let set = format!("SET LOCAL statement_timeout = {left}");
        self.session.execute_batch(&set).await.map_err(store_error)
    }

    /// The candidates that match, in order, until the page is full.
    async fn check(
        &self,
        candidates: Candidates,
        limit: usize,
    ) -> Result<Page<NotificationSummary, RecordCursor>, StoreError> {
        let mut items: Vec<NotificationSummary> = Vec::new();
        for chunk in candidates.places.chunks(CHECKED_AT_ONCE) {
            let mut found = self.rows(with_ids(self.filter, chunk)).await?;
            newest_first(&mut found);
            items.extend(found);
            if items.len() >= limit {
                items.truncate(limit);
                let next = items.last().map(|last| last.place());
                return Ok(Page { items, next });
            }
        }
        Ok(Page { items, next: candidates.end })
    }

    async fn list(
        &self,
        range: &Range,
        limit: usize,
    ) -> Result<Page<NotificationSummary, RecordCursor>, StoreError> {
        let items = self.rows(listed(self.filter, range, limit)).await?;
        let next = items.last().filter(|_| items.len() == limit).map(|last| last.place());
        Ok(Page { items, next })
    }

    async fn rows(&self, select: BoundStatement) -> Result<Vec<NotificationSummary>, StoreError> {
        self.limit_time().await?;
        let rows = self.session.query_once(select).await.map_err(store_error)?;
        rows.iter().map(parse).collect()
    }
}

/// The statements of a search with every kind of name. The texts vary with the filter.
pub(super) fn statements() -> [Statement; 2] {
    let every_kind = br#"{"producer": "", "occurred_at": {"$after": "2026-01-01T00:00:00Z"}, "recipient": "",
        "route.attempt_count": 1, "receipt.status": "", "receipt.at": {"$after": "2026-01-01T00:00:00Z"},
        "payload.x": {"$before": "2026-01-01T00:00:00Z"}}"#;
    // Cannot fail: a test prepares the statements.
    let filter = Filter::parse(every_kind, &SearchNames).expect("a filter");
    let range = Range::new(&Hints::of(&filter).filter, None);
    [listed(&filter, &range, 1), with_ids(&filter, &[])].map(|bound| bound.statement().clone())
}

/// The rows of `source`, called `records`, that match, without order and limit.
fn matching(filter: &Filter, source: &str, parameters: &mut Parameters) -> String {
    let target = OnRecords::of(filter);
    format!(
        "SELECT records.notification_id, records.notification_type, records.producer, records.audience_kind,
            records.idempotency_key, records.accepted_at, records.occurred_at,
            jsonb_array_length(records.recipient_user_ids) AS recipients,
            jsonb_path_query_array(records.recipient_user_ids, '$[0 to 2]') AS first_recipients
        FROM {source} {} WHERE {}",
        target.join_payload(),
        filter.to_sql(&target, parameters)
    )
}

/// The matching rows of `records_listing_idx` after a position, in its order, until the page is full: reads
/// all of it if few match.
pub(super) fn listed(filter: &Filter, range: &Range, limit: usize) -> BoundStatement {
    let mut parameters = Parameters::default();
    let matching = matching(filter, "records", &mut parameters);
    let [accepted_at, id, since, limit] = [
        parameter::instant(range.after.accepted_at),
        parameter::text(range.after.notification_id.as_str()),
        parameter::instant(range.since),
        parameter::rows(limit),
    ]
    .map(|parameter| parameters.add(parameter));
    let text = format!(
        "{matching} AND (records.accepted_at, records.notification_id) < ({accepted_at}, {id})
            AND records.accepted_at >= {since}
        ORDER BY records.accepted_at DESC, records.notification_id DESC
        LIMIT {limit}"
    );
    Statement::composed("search.listed", &["records_listing_idx"], text).bind(parameters)
}

/// The candidates that match, by the primary key: the inner limit keeps the planner from also reading an
/// index for a condition of the filter.
pub(super) fn with_ids(filter: &Filter, places: &[RecordCursor]) -> BoundStatement {
    let mut parameters = Parameters::default();
    let ids = places.iter().map(|place| place.notification_id.as_str());
    let ids = parameters.add(parameter::texts(ids));
    let limit = parameters.add(parameter::rows(CHECKED_AT_ONCE));
    let records =
        format!("(SELECT * FROM records WHERE notification_id = ANY ({ids}) LIMIT {limit}) AS records");
    let text = format!("{} LIMIT {limit}", matching(filter, &records, &mut parameters));
    Statement::composed("search.with_ids", &["records_pkey"], text).bind(parameters)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Parses a filter.
    pub(in super::super) fn searched(json: &str) -> Filter {
        Filter::parse(json.as_bytes(), &SearchNames).unwrap_or_else(|error| panic!("{json}: {error}"))
    }
}
