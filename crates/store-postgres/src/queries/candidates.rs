//! Notifications that an index can find completely: by idempotency key, by recipient, by receipt, by status.
//!
//! An index with the order of the list returns the first [`MAX_CANDIDATES`] after a position. One with
//! another order returns all, or reports that there are too many: then they are so frequent that examining
//! the list finds them.

use ambient::Timestamp;
use domain::ports::StoreError;
use domain::query::NotificationFilter;
use domain::receipt::ReceiptStatus;
use domain::record::RecordCursor;
use domain::route::{Channel, RouteStatus};
use pg::{BoundStatement, Session, Statement, bind, parameter};
use sea_query::extension::postgres::{PgBinOper, PgFunc};
use sea_query::{Expr, ExprTrait, Order, Query, SelectStatement};
use state::query::MAX_ELEMENTS;
use tokio_postgres::Row;

use crate::codec::{column, instant};
use crate::error::store_error;
use crate::receipts::receipt_with;
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
    if let (None, Some(receipt)) = (&found, filter.receipt.filter(is_rare)) {
        found = by_receipt(session, receipt, range).await?;
    }
    match (&found, filter.status) {
        (None, Some(RouteStatus::Pending)) => by_pending(session, range).await,
        (None, Some(status)) if status != RouteStatus::Published => {
            let rows = session.query(unpublished(status, range)).await.map_err(store_error)?;
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
    let rows = session.query(with_record_ids(ids)).await.map_err(store_error)?;
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
            let rows = session.query(next_producer(last)).await.map_err(store_error)?;
            let Some(row) = rows.first() else { break };
            if producers.len() == MAX_PRODUCERS {
                return Ok(None);
            }
            producers.push(column(row, "records.producer", "")?);
        }
    }
    let rows = session.query(with_key(&producers, key)).await.map_err(store_error)?;
    Ok(Some(Candidates::new(record_places(&rows)?, None, range)))
}

/// Searches a user by id, an administrator by address: an id may look like an address.
async fn by_recipient(
    session: &Session,
    recipient: &str,
    range: &Range,
) -> Result<Option<Candidates>, StoreError> {
    let rows = session.query(to_user(recipient)).await.map_err(store_error)?;
    if rows.len() == MAX_CANDIDATES {
        return Ok(None);
    }
    let mut places = record_places(&rows)?;
    let rows = session.query(to_administrator(recipient, range)).await.map_err(store_error)?;
    let (to_administrator, end) = ordered(&rows)?;
    places.extend(to_administrator);
    Ok(Some(Candidates::new(places, end, range)))
}

/// True for a status that few receipts have. The index collects all receipts with a status before the first
/// is read, so a frequent status is found faster along the list.
fn is_rare(status: &ReceiptStatus) -> bool {
    !matches!(status, ReceiptStatus::Delivered | ReceiptStatus::Opened)
}

async fn by_receipt(
    session: &Session,
    status: ReceiptStatus,
    range: &Range,
) -> Result<Option<Candidates>, StoreError> {
    let rows = session.query(with_receipt(status)).await.map_err(store_error)?;
    if rows.len() == MAX_CANDIDATES {
        return Ok(None);
    }
    Ok(Some(Candidates::new(record_places(&rows)?, None, range)))
}

async fn by_pending(session: &Session, range: &Range) -> Result<Option<Candidates>, StoreError> {
    let rows = session.query(live()).await.map_err(store_error)?;
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

/// The first entry of the unique index after a producer: there are few producers, so each costs one lookup.
pub(super) fn next_producer(after: &str) -> BoundStatement {
    let select = Query::select()
        .column(Records::Producer)
        .from(Records::Table)
        .and_where(Expr::col(Records::Producer).gt(bind::text(after)))
        .order_by(Records::Producer, Order::Asc)
        .limit(1)
        .take();
    BoundStatement::built("records.next_producer", &["records_idempotency_unique"], &select)
}

/// The places of the records that meet the condition.
fn records(condition: Expr, limit: usize) -> SelectStatement {
    Query::select()
        .columns([Records::NotificationId, Records::AcceptedAt])
        .from(Records::Table)
        .and_where(condition)
        .limit(limit as u64)
        .take()
}

/// The records with these ids, by the primary key.
pub(super) fn with_record_ids(ids: &[String]) -> BoundStatement {
    let is_one = Expr::col(Records::NotificationId).eq(PgFunc::any(bind::texts(ids)));
    BoundStatement::built("records.places_of_ids", &["records_pkey"], &records(is_one, MAX_ELEMENTS))
}

/// The records with this key, by the unique key of producer and idempotency key.
pub(super) fn with_key(producers: &[String], key: &str) -> BoundStatement {
    let is_of_one = Expr::col(Records::Producer).eq(PgFunc::any(bind::texts(producers)));
    let has_key = Expr::col(Records::IdempotencyKey).eq(bind::text(key));
    let select = records(is_of_one.and(has_key), MAX_PRODUCERS);
    BoundStatement::built("records.places_of_key", &["records_idempotency_unique"], &select)
}

/// The records to a user, by `records_recipients_idx`, in no order. It has no other condition: an index for
/// that condition would be read instead, as a whole.
pub(super) fn to_user(user_id: &str) -> BoundStatement {
    let given = bind::text(user_list(Some(user_id))).cast_as("jsonb");
    let is_to_user = Expr::col(Records::RecipientUserIds).binary(PgBinOper::Contains, given);
    let select = records(is_to_user, MAX_CANDIDATES);
    BoundStatement::built("records.places_to_user", &["records_recipients_idx"], &select)
}

/// The JSON that a list of recipients must contain to have this user; any list contains that of no user.
pub(super) fn user_list(user_id: Option<&str>) -> String {
    serde_json::json!(user_id.into_iter().collect::<Vec<&str>>()).to_string()
}

/// The live routes, by `routes_due_idx`, as a whole unless it is too large. It contains failed routes, too;
/// the caller checks the status.
pub(super) fn live() -> BoundStatement {
    let channels = bind::texts(Channel::ALL.map(Channel::as_str));
    let select = Query::select()
        .columns([Routes::NotificationId, Routes::CreatedAt])
        .from(Routes::Table)
        .and_where(Expr::col(Routes::Channel).eq(PgFunc::any(channels)))
        .and_where(Expr::col(Routes::NextAttemptAt).is_not_null())
        .limit(MAX_CANDIDATES as u64)
        .take();
    BoundStatement::built("routes.places_of_live", &["routes_due_idx"], &select)
}

// Routes of a part of the list, newest first, each in the order of its index.
pg::statements! {
    /// The routes to an administrator.
    TO_ADMINISTRATOR = "routes.places_to_administrator", plan ["routes_admin_idx"], "
        SELECT created_at, notification_id FROM routes
        WHERE recipient_ref = $1::text AND starts_with(route_id, 'email:email:')
            AND (created_at, notification_id) < ($2::timestamptz, $3::text) AND created_at >= $4::timestamptz
        ORDER BY created_at DESC, notification_id DESC
        LIMIT $5::bigint";

    /// The records of the receipts with a status: the key of a receipt begins with the id of its record.
    WITH_RECEIPT = "receipts.places_of_status", plan ["receipts_value_gin", "records_pkey"], "
        SELECT r.notification_id, r.accepted_at
        FROM (SELECT key FROM receipts WHERE value @> $1::text::jsonb LIMIT $2::bigint) AS d
        JOIN records r ON r.notification_id = split_part(d.key, '/', 1)
        LIMIT $2::bigint";

    /// The unpublished routes with a status. The condition of the index is written as the index has it.
    UNPUBLISHED = "routes.places_of_unpublished", plan ["routes_unpublished_idx"], "
        SELECT created_at, notification_id FROM routes
        WHERE status = $1::text AND status IN ('failed', 'dead_letter', 'skipped')
            AND (created_at, notification_id) < ($2::timestamptz, $3::text) AND created_at >= $4::timestamptz
        ORDER BY created_at DESC, notification_id DESC
        LIMIT $5::bigint";
}

pub(super) fn with_receipt(status: ReceiptStatus) -> BoundStatement {
    WITH_RECEIPT.bind([parameter::text(receipt_with(status)), parameter::rows(MAX_CANDIDATES)])
}

pub(super) fn to_administrator(address: &str, range: &Range) -> BoundStatement {
    routes(&TO_ADMINISTRATOR, &format!("email:{address}"), range)
}

pub(super) fn unpublished(status: RouteStatus, range: &Range) -> BoundStatement {
    routes(&UNPUBLISHED, status.as_str(), range)
}

/// [`TO_ADMINISTRATOR`] or [`UNPUBLISHED`], with the value of its first condition.
fn routes(statement: &Statement, value: &str, range: &Range) -> BoundStatement {
    statement.bind([
        parameter::text(value),
        parameter::instant(range.after.accepted_at),
        parameter::text(range.after.notification_id.as_str()),
        parameter::instant(range.since),
        parameter::rows(MAX_CANDIDATES),
    ])
}
