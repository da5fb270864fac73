//! Notifications that an index can find completely: by idempotency key, by recipient, by status.
//!
//! An index with the order of the list returns the first [`MAX_CANDIDATES`] after a position. One with
//! another order returns all, or reports that there are too many: then they are so frequent that examining
//! the list finds them.

use ambient::Timestamp;
use domain::ports::StoreError;
use domain::query::NotificationFilter;
use domain::record::RecordCursor;
use domain::route::{Channel, RouteStatus};
use pg::sql::any;
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Func, Iden, Order, Query, SelectStatement};
use state::query::MAX_ELEMENTS;
use tokio_postgres::Row;

use crate::codec::{column, instant};
use crate::error::store_error;
use crate::schema::{Records, Routes};

/// The maximum number of candidates of one search.
pub(super) const MAX_CANDIDATES: usize = 5_000;
/// The maximum number of producers among which a key without a producer is searched.
const MAX_PRODUCERS: usize = 256;

/// The part of the list that is searched.
#[derive(Clone, Debug)]
pub(super) struct Range {
    /// The position after which notifications are searched.
    pub(super) after: RecordCursor,
    /// The earliest time of acceptance.
    pub(super) since: Timestamp,
}

impl Range {
    pub(super) fn new(filter: &NotificationFilter, after: Option<&RecordCursor>) -> Self {
        let newest = RecordCursor::before(filter.accepted_before.unwrap_or(Timestamp::MAX));
        let newer = |one: &RecordCursor, other: &RecordCursor| place(one) < place(other);
        let after = after.filter(|after| newer(after, &newest)).cloned().unwrap_or(newest);
        Self { after, since: filter.accepted_after.unwrap_or(Timestamp::MIN) }
    }

    fn contains(&self, found: &RecordCursor) -> bool {
        place(found) < place(&self.after) && found.accepted_at >= self.since
    }
}

fn place(cursor: &RecordCursor) -> (Timestamp, &str) {
    (cursor.accepted_at, cursor.notification_id.as_str())
}

/// The only notifications of a part of the list that can match, in its order.
#[derive(Debug)]
pub(super) struct Candidates {
    pub(super) places: Vec<RecordCursor>,
    /// The end of that part; `None` if it is the whole range.
    pub(super) end: Option<RecordCursor>,
}

impl Candidates {
    fn new(mut places: Vec<RecordCursor>, end: Option<RecordCursor>, range: &Range) -> Self {
        places.retain(|found| {
            range.contains(found) && end.as_ref().is_none_or(|end| place(found) >= place(end))
        });
        places.sort_by(|one, other| place(other).cmp(&place(one)));
        places.dedup();
        Self { places, end }
    }
}

/// The candidates for `filter`; `None` if no index helps.
pub(super) async fn find(
    session: &Session,
    filter: &NotificationFilter,
    range: &Range,
) -> Result<Option<Candidates>, StoreError> {
    let mut found = None;
    if let Some(key) = &filter.idempotency_key {
        found = by_key(session, filter.producer.as_deref(), key, range).await?;
    }
    if let (None, Some(recipient)) = (&found, &filter.recipient) {
        found = by_recipient(session, recipient, range).await?;
    }
    match (&found, filter.status) {
        (None, Some(RouteStatus::Pending)) => by_pending(session, range).await,
        (None, Some(status)) if status != RouteStatus::Published => {
            let rows = session.query(&unpublished(status, range)).await.map_err(store_error)?;
            let (places, end) = ordered(&rows)?;
            Ok(Some(Candidates::new(places, end, range)))
        }
        _ => Ok(found),
    }
}

/// The notifications with these ids that exist.
pub(super) async fn by_ids(
    session: &Session,
    ids: &[String],
    range: &Range,
) -> Result<Candidates, StoreError> {
    let rows = session.query(&with_record_ids(ids)).await.map_err(store_error)?;
    Ok(Candidates::new(record_places(&rows)?, None, range))
}

async fn by_key(
    session: &Session,
    producer: Option<&str>,
    key: &str,
    range: &Range,
) -> Result<Option<Candidates>, StoreError> {
    let mut producers: Vec<String> = producer.map(str::to_owned).into_iter().collect();
    if producer.is_none() {
        loop {
            let last = producers.last().map_or("", String::as_str);
            let rows = session.query(&next_producer(last)).await.map_err(store_error)?;
            let Some(row) = rows.first() else { break };
            if producers.len() == MAX_PRODUCERS {
                return Ok(None);
            }
            producers.push(column(row, "records.producer", "")?);
        }
    }
    let rows = session.query(&with_key(&producers, key)).await.map_err(store_error)?;
    Ok(Some(Candidates::new(record_places(&rows)?, None, range)))
}

/// Searches a user by id, an administrator by address: an id may look like an address.
async fn by_recipient(
    session: &Session,
    recipient: &str,
    range: &Range,
) -> Result<Option<Candidates>, StoreError> {
    let rows = session.query(&to_user(recipient)).await.map_err(store_error)?;
    if rows.len() == MAX_CANDIDATES {
        return Ok(None);
    }
    let mut places = record_places(&rows)?;
    let rows = session.query(&to_administrator(recipient, range)).await.map_err(store_error)?;
    let (to_administrator, end) = ordered(&rows)?;
    places.extend(to_administrator);
    Ok(Some(Candidates::new(places, end, range)))
}

async fn by_pending(session: &Session, range: &Range) -> Result<Option<Candidates>, StoreError> {
    let rows = session.query(&live()).await.map_err(store_error)?;
    if rows.len() == MAX_CANDIDATES {
        return Ok(None);
    }
    Ok(Some(Candidates::new(route_places(&rows)?, None, range)))
}

fn record_places(rows: &[Row]) -> Result<Vec<RecordCursor>, StoreError> {
    let place = |row| {
        let id: String = column(row, "records.notification_id", "")?;
        Ok(RecordCursor {
            accepted_at: instant(row, "records.accepted_at", &id)?,
            notification_id: id.into(),
        })
    };
    rows.iter().map(place).collect()
}

/// The positions of routes in the list: a route is created when its record is accepted.
fn route_places(rows: &[Row]) -> Result<Vec<RecordCursor>, StoreError> {
    let place = |row| {
        let id: String = column(row, "routes.notification_id", "")?;
        Ok(RecordCursor { accepted_at: instant(row, "routes.created_at", &id)?, notification_id: id.into() })
    };
    rows.iter().map(place).collect()
}

/// Rows in the order of the list: if they are cut, they are complete up to the last of them.
fn ordered(rows: &[Row]) -> Result<(Vec<RecordCursor>, Option<RecordCursor>), StoreError> {
    let places = route_places(rows)?;
    let end = places.last().filter(|_| places.len() == MAX_CANDIDATES).cloned();
    Ok((places, end))
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let range = Range::new(&NotificationFilter::default(), None);
    session.prepare(&next_producer("")).await?;
    session.prepare(&with_key(&[], "")).await?;
    session.prepare(&to_user("")).await?;
    session.prepare(&to_administrator("", &range)).await?;
    session.prepare(&unpublished(RouteStatus::Failed, &range)).await?;
    session.prepare(&live()).await?;
    Ok(())
}

/// The first entry of the unique index after a producer: there are few producers, so each costs one lookup.
pub(super) fn next_producer(after: &str) -> SelectStatement {
    Query::select()
        .column(Records::Producer)
        .from(Records::Table)
        .and_where(Expr::col(Records::Producer).gt(bind::text(after)))
        .order_by(Records::Producer, Order::Asc)
        .limit(1)
        .take()
}

/// The records with these ids, by the primary key.
pub(super) fn with_record_ids(ids: &[String]) -> SelectStatement {
    Query::select()
        .columns([Records::NotificationId, Records::AcceptedAt])
        .from(Records::Table)
        .and_where(Expr::col(Records::NotificationId).eq(any(bind::texts(ids))))
        .limit(MAX_ELEMENTS as u64)
        .take()
}

/// The records with this key, by the unique key of producer and idempotency key.
pub(super) fn with_key(producers: &[String], key: &str) -> SelectStatement {
    Query::select()
        .columns([Records::NotificationId, Records::AcceptedAt])
        .from(Records::Table)
        .and_where(Expr::col(Records::Producer).eq(any(bind::texts(producers))))
        .and_where(Expr::col(Records::IdempotencyKey).eq(bind::text(key)))
        .limit(MAX_PRODUCERS as u64)
        .take()
}

/// The records to a user, by `records_recipients_idx`, in no order. It has no other condition: an index for
/// that condition would be read instead, as a whole.
pub(super) fn to_user(user_id: &str) -> SelectStatement {
    Query::select()
        .columns([Records::NotificationId, Records::AcceptedAt])
        .from(Records::Table)
        .and_where(has_recipient(Records::Table, Some(user_id)))
        .limit(MAX_CANDIDATES as u64)
        .take()
}

/// True if a record is addressed to a user; always true without a user.
pub(super) fn has_recipient<T: Iden + Copy + 'static>(record: T, user_id: Option<&str>) -> Expr {
    let ids: Vec<&str> = user_id.into_iter().collect();
    let given = bind::text(serde_json::json!(ids).to_string()).cast_as("jsonb");
    let contains = sea_query::extension::postgres::PgBinOper::Contains;
    Expr::col((record, Records::RecipientUserIds)).binary(contains, given)
}

/// The routes to an administrator, by `routes_admin_idx`, in its order.
pub(super) fn to_administrator(address: &str, range: &Range) -> SelectStatement {
    listed_routes(range)
        .and_where(Expr::col(Routes::RecipientRef).eq(bind::text(format!("email:{address}"))))
        .and_where(Expr::expr(
            Func::cust("starts_with").arg(Expr::col(Routes::RouteId)).arg(Expr::cust("'email:email:'")),
        ))
        .take()
}

/// The unpublished routes with a status, by `routes_unpublished_idx`, in its order.
pub(super) fn unpublished(status: RouteStatus, range: &Range) -> SelectStatement {
    listed_routes(range)
        .and_where(Expr::col(Routes::Status).eq(bind::text(status.as_str())))
        .and_where(is_unpublished())
        .take()
}

/// The condition of `routes_unpublished_idx`, as the index spells it.
pub(super) fn is_unpublished() -> Expr {
    Expr::cust("status IN ('failed', 'dead_letter', 'skipped')")
}

/// Routes of a part of the list, newest first.
fn listed_routes(range: &Range) -> SelectStatement {
    let order = [Routes::CreatedAt, Routes::NotificationId];
    let after = [bind::instant(range.after.accepted_at), bind::text(range.after.notification_id.as_str())];
    let mut select = Query::select();
    select
        .columns(order)
        .from(Routes::Table)
        .and_where(Expr::tuple(order.map(Expr::col)).lt(Expr::tuple(after)))
        .and_where(Expr::col(Routes::CreatedAt).gte(bind::instant(range.since)))
        .limit(MAX_CANDIDATES as u64);
    for column in order {
        select.order_by(column, Order::Desc);
    }
    select
}

/// The live routes, by `routes_due_idx`, as a whole unless it is too large. It contains failed routes, too;
/// the caller checks the status.
pub(super) fn live() -> SelectStatement {
    Query::select()
        .columns([Routes::NotificationId, Routes::CreatedAt])
        .from(Routes::Table)
        .and_where(Expr::col(Routes::Channel).eq(any(bind::texts(Channel::ALL.map(Channel::as_str)))))
        .and_where(Expr::col(Routes::NextAttemptAt).is_not_null())
        .limit(MAX_CANDIDATES as u64)
        .take()
}
