//! Records with their routes, in the order of acceptance.

use std::collections::HashMap;

use ambient::Timestamp;
use domain::audit::{AuditedRecord, AuditedRoute, RouteRow, Subject, UnreadableRow};
use domain::catalog::AudienceKind;
use domain::ports::{AuditedPage, StoreError};
use domain::record::{NotificationId, RecordCursor};
use domain::route::RouteKey;
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session};
use serde_json::Value;
use tokio_postgres::Row;

use crate::codec::{column, corrupt, count, instant, name, optional_instant, route_key, small_count};
use crate::error::store_error;
use crate::queries::{next_attempt_range, next_attempt_text};

/// The maximum number of records of a page.
const MAX_PAGE_RECORDS: usize = 256;
/// The maximum number of routes of a page, unless its only record has more.
const MAX_PAGE_ROUTES: u64 = 4_096;
/// The maximum bytes of recipients in a page, unless its only record has more.
const MAX_PAGE_RECIPIENT_BYTES: u64 = 1024 * 1024;
/// The maximum number of routes that are read at once: eight times as many as a valid record can have.
const MAX_READ_ROUTES: usize = 16_384;

pub(super) async fn list(
    session: &Session,
    after: &RecordCursor,
    until: Timestamp,
) -> Result<AuditedPage, StoreError> {
    let rows = session.query(sizes(after, until)).await.map_err(store_error)?;
    let (places, is_cut) = first_of_page(&rows)?;
    let ids: Vec<&NotificationId> = places.iter().map(|place| &place.notification_id).collect();
    let page = get(session, &ids).await?;
    let next = places.last().filter(|_| is_cut || rows.len() == MAX_PAGE_RECORDS).cloned();
    Ok(AuditedPage { next, ..page })
}

/// The positions of the records that fit into a page, and true if others were left out.
fn first_of_page(rows: &[Row]) -> Result<(Vec<RecordCursor>, bool), StoreError> {
    let (mut places, mut routes, mut bytes) = (Vec::with_capacity(rows.len()), 0, 0);
    for row in rows {
        let id: String = column(row, "records.notification_id", "")?;
        routes += count(row, "routes", &id)?;
        bytes += count(row, "bytes", &id)?;
        if !places.is_empty() && (routes > MAX_PAGE_ROUTES || bytes > MAX_PAGE_RECIPIENT_BYTES) {
            return Ok((places, true));
        }
        let accepted_at = instant(row, "records.accepted_at", &id)?;
        places.push(RecordCursor { accepted_at, notification_id: NotificationId::from(id) });
    }
    Ok((places, false))
}

pub(super) async fn get(session: &Session, ids: &[&NotificationId]) -> Result<AuditedPage, StoreError> {
    let mut page = AuditedPage::default();
    if ids.is_empty() {
        return Ok(page);
    }
    // Records first: one that is deleted in between has no routes, and is missing when it is read again.
    let records = session.query(records_of(ids)).await.map_err(store_error)?;
    let rows = session.query(routes_of(ids)).await.map_err(store_error)?;
    if rows.len() == MAX_READ_ROUTES {
        let problem = format!("{} records from here on have {MAX_READ_ROUTES} routes or more", ids.len());
        return Err(corrupt("routes", ids[0].as_str(), problem));
    }
    let mut routes: HashMap<NotificationId, Vec<RouteRow>> = HashMap::with_capacity(ids.len());
    for row in &rows {
        let key = route_key(row)?;
        let id = key.notification_id.clone();
        let shown = key.to_string();
        let read = route(row, key.clone(), &shown).map(RouteRow::Read);
        let read = read.unwrap_or_else(|error| RouteRow::Unreadable(key, error.to_string()));
        routes.entry(id).or_default().push(read);
    }
    for row in &records {
        let id: String = column(row, "records.notification_id", "")?;
        let id = NotificationId::from(id);
        let routes = routes.remove(&id).unwrap_or_default();
        match record(row, id.clone(), routes) {
            Ok(record) => page.records.push(record),
            Err(error) => {
                let subject = Subject::Notification(id);
                page.unreadable.push(UnreadableRow { subject, problem: error.to_string() });
            }
        }
    }
    Ok(page)
}

fn record(row: &Row, id: NotificationId, routes: Vec<RouteRow>) -> Result<AuditedRecord, StoreError> {
    let key = id.as_str();
    let recipients: Value = column(row, "records.recipient_user_ids", key)?;
    let recipient_user_ids = serde_json::from_value(recipients)
        .map_err(|error| corrupt("records.recipient_user_ids", key, error.to_string()))?;
    Ok(AuditedRecord {
        accepted_at: instant(row, "records.accepted_at", key)?,
        updated_at: instant(row, "records.updated_at", key)?,
        audience: name::<AudienceKind>(row, "records.audience_kind", key)?,
        recipient_user_ids,
        routes,
        notification_id: id,
    })
}

fn route(row: &Row, key: RouteKey, shown: &str) -> Result<AuditedRoute, StoreError> {
    let time = |place| optional_instant(row, place, shown);
    Ok(AuditedRoute {
        channel: name(row, "routes.channel", shown)?,
        recipient_ref: column(row, "routes.recipient_ref", shown)?,
        status: name(row, "routes.status", shown)?,
        attempt_count: small_count(row, "routes.attempt_count", shown)?,
        max_attempts: small_count(row, "routes.max_attempts", shown)?,
        next_attempt_at: time("routes.next_attempt_at")?,
        created_at: instant(row, "routes.created_at", shown)?,
        updated_at: instant(row, "routes.updated_at", shown)?,
        published_at: time("routes.published_at")?,
        dead_lettered_at: time("routes.dead_lettered_at")?,
        skipped_at: time("routes.skipped_at")?,
        published_entry_id: column(row, "routes.published_entry_id", shown)?,
        has_dead_letter: column(row, "matches", shown)?,
        is_held: column(row, "is_held", shown)?,
        key,
    })
}

pg::statements! {
    /// A page of records with the number of their routes.
    SIZES = "audit.sizes_of_records", plan ["records_listing_idx", "routes_pkey"], "
        SELECT page.notification_id, page.accepted_at, max(page.bytes) AS bytes, count(r.route_id) AS routes
        FROM (
            SELECT notification_id, accepted_at, octet_length(recipient_user_ids::text)::bigint AS bytes
            FROM records
            WHERE (accepted_at, notification_id) > ($1::timestamptz, $2::text) AND accepted_at < $3::timestamptz
            ORDER BY accepted_at, notification_id
            LIMIT $4::bigint
        ) AS page
        LEFT JOIN routes r ON r.notification_id = page.notification_id
        GROUP BY page.accepted_at, page.notification_id
        ORDER BY page.accepted_at, page.notification_id";

    /// The records with these ids.
    RECORDS = "audit.records", plan ["records_pkey"], "
        SELECT notification_id, audience_kind, recipient_user_ids, accepted_at, updated_at FROM records
        WHERE notification_id = ANY ($1::text[])
        LIMIT $2::bigint";

    /// The routes of these records, each with true if it has a dead letter.
    ROUTES = "audit.routes_of_records", plan ["routes_pkey", "dead_letters_pkey", "held_routes_pkey"], concat!("
        SELECT r.notification_id, r.route_id, r.channel, r.recipient_ref, r.status, r.attempt_count, r.max_attempts,
            ", next_attempt_text!("$3", "$4"), ", r.created_at, r.updated_at, r.published_at, r.dead_lettered_at,
            r.skipped_at, r.published_entry_id, d.route_id IS NOT NULL AS matches, k.route_id IS NOT NULL AS is_held
        FROM routes r
        LEFT JOIN held_routes k ON k.notification_id = r.notification_id AND k.route_id = r.route_id
        LEFT JOIN dead_letters d ON d.notification_id = r.notification_id AND d.route_id = r.route_id
        WHERE r.notification_id = ANY ($1::text[])
        LIMIT $2::bigint");
}

pub(super) fn sizes(after: &RecordCursor, until: Timestamp) -> BoundStatement {
    SIZES.bind([
        parameter::instant(after.accepted_at),
        parameter::text(after.notification_id.as_str()),
        parameter::instant(until),
        parameter::rows(MAX_PAGE_RECORDS),
    ])
}

pub(super) fn records_of(ids: &[&NotificationId]) -> BoundStatement {
    RECORDS.bind([texts(ids), parameter::rows(MAX_PAGE_RECORDS)])
}

pub(super) fn routes_of(ids: &[&NotificationId]) -> BoundStatement {
    let [min, max] = next_attempt_range();
    ROUTES.bind([texts(ids), parameter::rows(MAX_READ_ROUTES), min, max])
}

fn texts(ids: &[&NotificationId]) -> Parameter {
    parameter::texts(ids.iter().map(|id| id.as_str()))
}
