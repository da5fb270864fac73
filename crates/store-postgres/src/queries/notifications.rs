//! The list of notifications: if an index has candidates for the search, they are checked by key; otherwise
//! the list is examined.

use std::collections::HashMap;

use domain::ports::StoreError;
use domain::query::{NotificationFilter, NotificationSummary, Page, PageLimit, RouteCounts};
use domain::record::{NotificationId, RecordCursor};
use domain::route::RouteStatus;
use pg::sql::any;
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Func, Iden, Order, Query, SelectStatement, SubQueryStatement};
use tokio_postgres::Row;

use super::candidates::{self, Candidates, Range, has_recipient};
use super::{MAX_EXAMINED, equals_if_given, examined, page};
use crate::codec::{column, count, instant, name};
use crate::error::store_error;
use crate::schema::{Input, Records, Routes};

/// The maximum number of candidates that one statement checks.
pub(super) const CHECKED_AT_ONCE: usize = 500;
/// The approximate maximum of routes that are counted for one page; a page with more of them ends early.
const MAX_PAGE_ROUTES: usize = 20_000;
/// The number of channels of one recipient.
const CHANNELS: usize = domain::route::Channel::ALL.len();

/// A notification without its routes, and its number of users.
pub(super) struct Found {
    pub(super) summary: NotificationSummary,
    recipients: usize,
}

pub(super) async fn list(
    session: &Session,
    filter: &NotificationFilter,
    after: Option<&RecordCursor>,
    limit: PageLimit,
) -> Result<Page<NotificationSummary, RecordCursor>, StoreError> {
    let range = Range::new(filter, after);
    let found = match candidates::find(session, filter, &range).await? {
        Some(candidates) => check(session, filter, candidates, limit.get()).await?,
        None => {
            let statement = listed(filter, &range, limit.get());
            let rows = session.query(&statement).await.map_err(store_error)?;
            page(examined(&rows, parse)?, limit.get(), |found| found.summary.place())
        }
    };
    let mut page = end_early(found);
    count_routes_of(session, &mut page.items).await?;
    Ok(page)
}

/// The candidates that match, in order, until the page is full.
async fn check(
    session: &Session,
    filter: &NotificationFilter,
    candidates: Candidates,
    limit: usize,
) -> Result<Page<Found, RecordCursor>, StoreError> {
    let mut items: Vec<Found> = Vec::new();
    for chunk in candidates.places.chunks(CHECKED_AT_ONCE) {
        let rows = session.query(&with_ids(filter, chunk)).await.map_err(store_error)?;
        let mut found = rows.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
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

pub(super) fn newest_first(found: &mut [Found]) {
    let place = |found: &Found| (found.summary.accepted_at, found.summary.notification_id.clone());
    found.sort_by_key(|found| std::cmp::Reverse(place(found)));
}

/// Cuts a page whose notifications have very many routes.
pub(super) fn end_early(page: Page<Found, RecordCursor>) -> Page<NotificationSummary, RecordCursor> {
    let mut routes = 0;
    let fits = |found: &&Found| {
        routes += found.recipients.max(1) * CHANNELS;
        routes <= MAX_PAGE_ROUTES
    };
    let kept = page.items.iter().take_while(fits).count().max(1);
    let is_cut = kept < page.items.len();
    let items: Vec<NotificationSummary> =
        page.items.into_iter().take(kept).map(|found| found.summary).collect();
    let next = if is_cut { items.last().map(NotificationSummary::place) } else { page.next };
    Page { items, next }
}

pub(super) async fn count_routes_of(
    session: &Session,
    items: &mut [NotificationSummary],
) -> Result<(), StoreError> {
    if items.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = items.iter().map(|item| item.notification_id.as_str()).collect();
    let mut counts: HashMap<String, RouteCounts> = HashMap::new();
    for row in session.query(&route_counts(&ids)).await.map_err(store_error)? {
        let id: String = column(&row, "routes.notification_id", "")?;
        let status: RouteStatus = name(&row, "routes.status", &id)?;
        let routes = count(&row, "routes", &id)?;
        counts.entry(id).or_default().add(status, routes);
    }
    for item in items {
        item.routes = counts.get(item.notification_id.as_str()).copied().unwrap_or_default();
    }
    Ok(())
}

pub(super) fn parse(row: &Row) -> Result<Found, StoreError> {
    let id: String = column(row, "records.notification_id", "")?;
    let summary = NotificationSummary {
        notification_type: column(row, "records.notification_type", &id)?,
        producer: column(row, "records.producer", &id)?,
        audience_kind: column(row, "records.audience_kind", &id)?,
        idempotency_key: column(row, "records.idempotency_key", &id)?,
        accepted_at: instant(row, "records.accepted_at", &id)?,
        occurred_at: instant(row, "records.occurred_at", &id)?,
        routes: RouteCounts::default(),
        notification_id: NotificationId::from(id.clone()),
    };
    let recipients: i32 = column(row, "recipients", &id)?;
    Ok(Found { summary, recipients: usize::try_from(recipients).unwrap_or(0) })
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let filter = NotificationFilter::default();
    session.prepare(&listed(&filter, &Range::new(&filter, None), 1)).await?;
    session.prepare(&with_ids(&filter, &[])).await?;
    session.prepare(&route_counts(&[])).await?;
    Ok(())
}

const SHOWN: [Records; 7] = [
    Records::NotificationId,
    Records::NotificationType,
    Records::Producer,
    Records::AudienceKind,
    Records::IdempotencyKey,
    Records::AcceptedAt,
    Records::OccurredAt,
];

pub(super) fn show<T: Iden + Copy + 'static>(select: &mut SelectStatement, record: T) {
    let recipients = Func::cust("jsonb_array_length").arg(Expr::col((record, Records::RecipientUserIds)));
    select.columns(SHOWN.map(|column| (record, column))).expr_as(recipients, Input::Recipients);
}

/// At most [`MAX_EXAMINED`] rows of `records_listing_idx` after a position. Returns the matching rows until
/// the page is full, and the last one in any case.
pub(super) fn listed(filter: &NotificationFilter, range: &Range, limit: usize) -> SelectStatement {
    let order = [Records::AcceptedAt, Records::NotificationId];
    let after = [bind::instant(range.after.accepted_at), bind::text(range.after.notification_id.as_str())];
    let mut rows = Query::select();
    rows.columns(SHOWN)
        .column(Records::RecipientUserIds)
        .expr_as(
            Expr::cust("row_number() OVER (ORDER BY accepted_at DESC, notification_id DESC)"),
            Input::Rows,
        )
        .from(Records::Table)
        .and_where(Expr::tuple(order.map(Expr::col)).lt(Expr::tuple(after)))
        .and_where(Expr::col(Records::AcceptedAt).gte(bind::instant(range.since)));
    for column in order {
        rows.order_by(column, Order::Desc);
    }
    rows.limit(MAX_EXAMINED as u64);
    let mut select = Query::select();
    show(&mut select, Input::Table);
    select
        .column((Input::Table, Input::Rows))
        .expr_as(matches(Input::Table, filter), Input::Matches)
        .from_subquery(rows, Input::Table)
        .and_where(
            matches(Input::Table, filter)
                .or(Expr::col((Input::Table, Input::Rows)).eq(bind::bigint(MAX_EXAMINED as i64))),
        );
    for column in order {
        select.order_by((Input::Table, column), Order::Desc);
    }
    select.limit(limit as u64).take()
}

/// The candidates that match, by the primary key.
pub(super) fn with_ids(filter: &NotificationFilter, places: &[RecordCursor]) -> SelectStatement {
    let ids = bind::texts(places.iter().map(|place| place.notification_id.as_str()));
    let mut select = Query::select();
    show(&mut select, Records::Table);
    select
        .from(Records::Table)
        .and_where(Expr::col((Records::Table, Records::NotificationId)).eq(any(ids)))
        .and_where(matches(Records::Table, filter))
        .limit(CHECKED_AT_ONCE as u64)
        .take()
}

/// Every condition except those of the range.
fn matches<T: Iden + Copy + 'static>(record: T, filter: &NotificationFilter) -> Expr {
    equals_if_given((record, Records::Producer), filter.producer.as_deref())
        .and(equals_if_given((record, Records::NotificationType), filter.notification_type.as_deref()))
        .and(equals_if_given((record, Records::IdempotencyKey), filter.idempotency_key.as_deref()))
        .and(is_to(record, filter))
        .and(has_status(record, filter.status))
}

fn is_to<T: Iden + Copy + 'static>(record: T, filter: &NotificationFilter) -> Expr {
    let recipient = filter.recipient.as_deref();
    // No administrator has an empty address.
    let address = recipient.filter(|_| !filter.users_only).unwrap_or_default();
    let route_id = format!("email:email:{address}");
    let route = Query::select()
        .expr(Expr::cust("true"))
        .from(Routes::Table)
        .and_where(Expr::col(Routes::NotificationId).eq(Expr::col((record, Records::NotificationId))))
        .and_where(Expr::col(Routes::RouteId).eq(bind::text(route_id)))
        .limit(1)
        .take();
    let to_administrators = Expr::col((record, Records::AudienceKind))
        .eq(bind::text(domain::catalog::AudienceKind::AdminEmail.as_str()));
    has_recipient(record, recipient).or(to_administrators.and(first(route)))
}

fn has_status<T: Iden + Copy + 'static>(record: T, status: Option<RouteStatus>) -> Expr {
    let statuses = || bind::texts(status.map(RouteStatus::as_str));
    let route = Query::select()
        .expr(Expr::cust("true"))
        .from(Routes::Table)
        .and_where(Expr::col(Routes::NotificationId).eq(Expr::col((record, Records::NotificationId))))
        .and_where(Expr::col(Routes::Status).eq(any(statuses())))
        .limit(1)
        .take();
    Expr::expr(Func::cust("cardinality").arg(statuses())).eq(Expr::cust("0")).or(first(route))
}

/// True if `select` has a row. Unlike `EXISTS`, the planner never turns this into a scan of all rows of the
/// table.
pub(super) fn first(select: SelectStatement) -> Expr {
    let row = Expr::SubQuery(None, Box::new(SubQueryStatement::SelectStatement(select)));
    Expr::expr(Func::coalesce([row, Expr::cust("false")]))
}

/// The numbers of routes, by the primary key; the caller limits the notifications by their recipients.
pub(super) fn route_counts(ids: &[&str]) -> SelectStatement {
    let routes = Query::select()
        .columns([Routes::NotificationId, Routes::Status])
        .from(Routes::Table)
        .and_where(Expr::col(Routes::NotificationId).eq(any(bind::texts(ids))))
        .limit(2 * MAX_PAGE_ROUTES as u64)
        .take();
    Query::select()
        .columns([Routes::NotificationId, Routes::Status])
        .expr_as(Func::count(Expr::col(sea_query::Asterisk)), Input::Routes)
        .from_subquery(routes, Input::Table)
        .group_by_columns([Routes::NotificationId, Routes::Status])
        .take()
}
