//! Operators' searches: if an index has candidates, they are checked by key; otherwise the list is read from
//! a position until the page is full. Both are limited to the time of a query by the clock of the server,
//! which leaves the connection usable.

mod hints;
mod names;

use std::time::Duration;

use domain::ports::StoreError;
use domain::query::{FilterFault, NotificationSummary, Page, PageLimit, SearchFilter, SearchOutcome};
use domain::record::RecordCursor;
use pg::sql::any;
use pg::{PgError, PgPool, ServerError, Session, bind};
use sea_query::{Asterisk, Expr, ExprTrait, Func, IntoIden, Order, Query, SelectStatement, TableRef};
use state::query::Filter;
use tokio::time::Instant;

use self::hints::Hints;
use self::names::{OnRecords, SearchNames};
use super::candidates::{self, Candidates, Range};
use super::notifications::{CHECKED_AT_ONCE, Found, count_routes_of, end_early, newest_first, parse};
use crate::error::store_error;
use crate::schema::{Input, Records};

/// A snapshot, so that all statements of a search see the same rows.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

pub(super) async fn search(
    pool: &PgPool,
    filter: &SearchFilter,
    after: Option<&RecordCursor>,
    limit: PageLimit,
) -> Result<SearchOutcome, StoreError> {
    let filter = match Filter::parse(filter.as_str().as_bytes(), &SearchNames) {
        Ok(filter) => filter,
        Err(error) => {
            let fault = FilterFault { reason: error.reason, line: error.line, column: error.column };
            return Ok(SearchOutcome::Invalid(fault));
        }
    };
    let session = pool.session("search notifications").await.map_err(store_error)?;
    let within = pool.operation_timeout().unwrap_or(Duration::MAX);
    let search = Search { session: &session, filter: &filter, began: Instant::now(), within };
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
    ) -> Result<Page<Found, RecordCursor>, StoreError> {
        let mut items: Vec<Found> = Vec::new();
        for chunk in candidates.places.chunks(CHECKED_AT_ONCE) {
            let mut found = self.rows(&with_ids(self.filter, chunk)).await?;
            newest_first(&mut found);
            items.extend(found);
            if items.len() >= limit {
                items.truncate(limit);
                let next = items.last().map(|last| last.summary.place());
                return Ok(Page { items, next });
            }
        }
        Ok(Page { items, next: candidates.end })
    }

    async fn list(&self, range: &Range, limit: usize) -> Result<Page<Found, RecordCursor>, StoreError> {
        let items = self.rows(&listed(self.filter, range, limit)).await?;
        let next = items.last().filter(|_| items.len() == limit).map(|last| last.summary.place());
        Ok(Page { items, next })
    }

    async fn rows(&self, select: &SelectStatement) -> Result<Vec<Found>, StoreError> {
        self.limit_time().await?;
        let rows = self.session.query_once(select).await.map_err(store_error)?;
        rows.iter().map(parse).collect()
    }
}

/// Prepares a statement with every kind of name.
pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let every_kind = r#"{"producer": "", "occurred_at": {"$after": "2026-01-01T00:00:00Z"}, "recipient": "",
        "route.attempt_count": 1, "payload.x": {"$before": "2026-01-01T00:00:00Z"}}"#;
    let filter = Filter::parse(every_kind.as_bytes(), &SearchNames)
        .map_err(|error| PgError::unavailable("search", error))?;
    let range = Range::new(&Hints::of(&filter).filter, None);
    session.prepare(&listed(&filter, &range, 1)).await?;
    session.prepare(&with_ids(&filter, &[])).await?;
    Ok(())
}

fn show(select: &mut SelectStatement) {
    let shown = [
        Records::NotificationId,
        Records::NotificationType,
        Records::Producer,
        Records::AudienceKind,
        Records::IdempotencyKey,
        Records::AcceptedAt,
        Records::OccurredAt,
    ];
    let recipients =
        Func::cust("jsonb_array_length").arg(Expr::col((Records::Table, Records::RecipientUserIds)));
    select.columns(shown.map(|column| (Records::Table, column))).expr_as(recipients, Input::Recipients);
}

/// The rows of `records` that match, without order and limits.
fn matching(filter: &Filter, records: impl Into<TableRef>) -> SelectStatement {
    let target = OnRecords::of(filter);
    let mut select = Query::select();
    show(&mut select);
    select.from(records).and_where(filter.to_expr(&target));
    target.join_payload(&mut select);
    select
}

/// The matching rows of `records_listing_idx` after a position, in its order, until the page is full: reads
/// all of it if few match.
pub(super) fn listed(filter: &Filter, range: &Range, limit: usize) -> SelectStatement {
    let order = [Records::AcceptedAt, Records::NotificationId];
    let column = |column| Expr::col((Records::Table, column));
    let after = [bind::instant(range.after.accepted_at), bind::text(range.after.notification_id.as_str())];
    let mut select = matching(filter, Records::Table);
    select
        .and_where(Expr::tuple(order.map(column)).lt(Expr::tuple(after)))
        .and_where(column(Records::AcceptedAt).gte(bind::instant(range.since)))
        .limit(limit as u64);
    for column in order {
        select.order_by((Records::Table, column), Order::Desc);
    }
    select
}

/// The candidates that match, by the primary key: the inner limit keeps the planner from also reading an
/// index for a condition of the filter.
pub(super) fn with_ids(filter: &Filter, places: &[RecordCursor]) -> SelectStatement {
    let ids = bind::texts(places.iter().map(|place| place.notification_id.as_str()));
    let records = Query::select()
        .column(Asterisk)
        .from(Records::Table)
        .and_where(Expr::col(Records::NotificationId).eq(any(ids)))
        .limit(CHECKED_AT_ONCE as u64)
        .take();
    matching(filter, TableRef::SubQuery(records.into(), Records::Table.into_iden()))
        .limit(CHECKED_AT_ONCE as u64)
        .take()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Parses a filter.
    pub(in super::super) fn searched(json: &str) -> Filter {
        Filter::parse(json.as_bytes(), &SearchNames).unwrap_or_else(|error| panic!("{json}: {error}"))
    }
}
