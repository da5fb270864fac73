//! One notification with all its routes.

use std::sync::Arc;

use ambient::Timestamp;
use domain::catalog::AudienceKind;
use domain::hold::RouteHold;
use domain::ports::StoreError;
use domain::query::{Discarded, MAX_RECORDS, Notification, Route, RouteResend};
use domain::receipt::Receipt;
use domain::record::{IdempotencyKey, NotificationId, Record, RecordContent};
use domain::route::{FailedAttempt, RouteKey};
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session, bind};
use sea_query::extension::postgres::PgFunc;
use sea_query::{Expr, ExprTrait, Query, SelectStatement};
use serde_json::Value;
use tokio_postgres::Row;

use crate::codec::{column, corrupt, instant, loggable, name, optional_instant, route_key, small_count};
use crate::error::store_error;
use crate::holds::hold_key;
use crate::receipts::receipts_of;
use crate::schema::Records;

/// The maximum number of routes that are shown of a notification: five times as many as an intent to users
/// can have.
const MAX_ROUTES: usize = 10_000;

pub(super) async fn get(session: &Session, id: &NotificationId) -> Result<Option<Notification>, StoreError> {
    let rows = session.query(record_of(id)).await.map_err(store_error)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (record, updated_at) = record(row, id)?;
    let rows = session.query(routes_of(id)).await.map_err(store_error)?;
    let keys = rows.iter().map(route_key).collect::<Result<Vec<_>, _>>()?;
    let mut receipts = receipts_of(session, &keys.iter().collect::<Vec<_>>()).await?;
    let routes = rows.iter().zip(&keys).map(|(row, key)| route(row, key, receipts.remove(key)));
    Ok(Some(Notification::new(record, updated_at, routes.collect::<Result<_, _>>()?)))
}

/// The records of the first [`MAX_RECORDS`] of these ids.
pub(super) async fn list_records(
    session: &Session,
    ids: &[NotificationId],
) -> Result<Vec<Record>, StoreError> {
    let rows = session.query(records_of(ids)).await.map_err(store_error)?;
    let record = |row: &Row| {
        let id: String = column(row, "records.notification_id", "")?;
        record(row, &id.into()).map(|(record, _)| record)
    };
    rows.iter().map(record).collect()
}

fn record(row: &Row, id: &NotificationId) -> Result<(Record, Timestamp), StoreError> {
    let key = id.as_str();
    let text = |place| column::<String>(row, place, key);
    let recipients: Value = column(row, "records.recipient_user_ids", key)?;
    let recipient_user_ids = serde_json::from_value(recipients)
        .map_err(|error| corrupt("records.recipient_user_ids", key, error.to_string()))?;
    let content = RecordContent {
        producer: text("records.producer")?,
        notification_type: text("records.notification_type")?,
        payload_json: text("records.payload_json")?,
        occurred_at: instant(row, "records.occurred_at", key)?,
        accepted_at: instant(row, "records.accepted_at", key)?,
        request_id: text("records.request_id")?,
        trace_id: text("records.trace_id")?,
    };
    let record = Record {
        notification_id: id.clone(),
        idempotency_key: IdempotencyKey {
            producer: text("records.producer")?,
            key: text("records.idempotency_key")?,
        },
        audience_kind: name::<AudienceKind>(row, "records.audience_kind", key)?.as_str(),
        recipient_user_ids,
        fingerprint: text("records.request_fingerprint")?,
        content: Arc::new(content),
        idempotency_expires_at: instant(row, "records.idempotency_expires_at", key)?,
    };
    Ok((record, instant(row, "records.updated_at", key)?))
}

/// A route with its receipt, which is in another table.
fn route(row: &Row, key: &RouteKey, receipt: Option<Receipt>) -> Result<Route, StoreError> {
    let shown = loggable(key);
    let text = |place| column::<String>(row, place, &shown);
    let time = |place| optional_instant(row, place, &shown);
    Ok(Route {
        route_id: key.route_id.as_str().into(),
        route_number: 0,
        channel: name(row, "routes.channel", &shown)?,
        recipient_ref: text("routes.recipient_ref")?.into(),
        status: name(row, "routes.status", &shown)?,
        attempt_count: small_count(row, "routes.attempt_count", &shown)?,
        max_attempts: small_count(row, "routes.max_attempts", &shown)?,
        next_attempt_at: time("routes.next_attempt_at")?,
        resolved_email: text("routes.resolved_email")?.into(),
        resolved_locale: text("routes.resolved_locale")?,
        last_error_classification: text("routes.last_error_classification")?,
        last_error_message: text("routes.last_error_message")?,
        last_error_at: time("routes.last_error_at")?,
        failed_attempts: failed_attempts(row, &shown)?,
        created_at: instant(row, "routes.created_at", &shown)?,
        updated_at: instant(row, "routes.updated_at", &shown)?,
        published_at: time("routes.published_at")?,
        dead_lettered_at: time("routes.dead_lettered_at")?,
        skipped_at: time("routes.skipped_at")?,
        published_entry_id: text("routes.published_entry_id")?,
        recovery_hint: column::<Option<String>>(row, "dead_letters.recovery_hint", &shown)?
            .unwrap_or_default(),
        discarded: discarded(row, &shown)?,
        resend: resend(row, &shown)?,
        hold: hold(row, &shown)?,
        receipt,
        explanation: String::new(),
    })
}

fn failed_attempts(row: &Row, key: &str) -> Result<Vec<FailedAttempt>, StoreError> {
    let kept: Option<Value> = column(row, "routes.failed_attempts", key)?;
    kept.map_or(Ok(Vec::new()), serde_json::from_value)
        .map_err(|error| corrupt("routes.failed_attempts", key, error.to_string()))
}

/// Reads the columns of the last resend; `key` identifies the row in errors.
fn resend(row: &Row, key: &str) -> Result<Option<RouteResend>, StoreError> {
    let Some(at) = optional_instant(row, "routes.resent_at", key)? else { return Ok(None) };
    let text = |place| column::<String>(row, place, key);
    Ok(Some(RouteResend {
        at,
        actor: text("routes.resent_by")?.into(),
        reason: text("routes.resend_reason")?.into(),
        replaced_entry_id: text("routes.replaced_entry_id")?,
    }))
}

/// Reads the columns of the hold that keeps a route; `key` identifies the row in errors.
fn hold(row: &Row, key: &str) -> Result<Option<RouteHold>, StoreError> {
    let Some(since) = optional_instant(row, "holds.since", key)? else { return Ok(None) };
    let actor: String = column(row, "holds.actor", key)?;
    let reason: String = column(row, "holds.reason", key)?;
    let released_at = optional_instant(row, "holds.released_at", key)?;
    Ok(Some(RouteHold {
        key: hold_key(row)?,
        since,
        actor: actor.into(),
        reason: reason.into(),
        released_at,
    }))
}

/// Reads the three columns of a discarded dead letter; `key` identifies the row in errors.
pub(super) fn discarded(row: &Row, key: &str) -> Result<Option<Discarded>, StoreError> {
    let Some(at) = optional_instant(row, "dead_letters.discarded_at", key)? else { return Ok(None) };
    let by = column(row, "dead_letters.discarded_by", key)?;
    Ok(Some(Discarded { at, by, reason: column(row, "dead_letters.discard_reason", key)? }))
}

/// The record with this id, by the primary key.
pub(super) fn record_of(id: &NotificationId) -> BoundStatement {
    let mut select = records();
    select.and_where(Expr::col(Records::NotificationId).eq(bind::text(id.as_str()))).limit(1);
    BoundStatement::built("records.get", &["records_pkey"], &select)
}

/// The records with these ids, by the primary key, once for each id.
pub(super) fn records_of(ids: &[NotificationId]) -> BoundStatement {
    let ids = bind::texts(ids.iter().take(MAX_RECORDS).map(NotificationId::as_str));
    let mut select = records();
    select.and_where(Expr::col(Records::NotificationId).eq(PgFunc::any(ids))).limit(MAX_RECORDS as u64);
    BoundStatement::built("records.list", &["records_pkey"], &select)
}

/// The columns of a [`Record`].
fn records() -> SelectStatement {
    Query::select()
        .columns([
            Records::NotificationId,
            Records::NotificationType,
            Records::Producer,
            Records::AudienceKind,
            Records::RecipientUserIds,
            Records::PayloadJson,
            Records::IdempotencyKey,
            Records::RequestFingerprint,
            Records::RequestId,
            Records::TraceId,
            Records::OccurredAt,
            Records::AcceptedAt,
            Records::UpdatedAt,
            Records::IdempotencyExpiresAt,
        ])
        .from(Records::Table)
        .take()
}

/// `next_attempt_at` of a route `r`, or the nearest time between two parameters: those of the range of
/// `Timestamp`, as [`next_attempt_range`] returns them. That of a parked route is later.
macro_rules! next_attempt_text {
    ($min:literal, $max:literal) => {
        concat!(
            "CASE WHEN r.next_attempt_at IS NOT NULL
                THEN least(greatest(r.next_attempt_at, ",
            $min,
            "::timestamptz), ",
            $max,
            "::timestamptz)
            END AS next_attempt_at"
        )
    };
}
pub(crate) use next_attempt_text;

/// The earliest and the latest `Timestamp`.
pub(crate) fn next_attempt_range() -> [Parameter; 2] {
    [Timestamp::MIN, Timestamp::MAX].map(parameter::instant)
}

pg::statements! {
    /// The routes of a notification. For each, one dead letter is read by its whole key: never all those of
    /// the notification.
    ROUTES = "routes.of_notification", plan ["routes_pkey", "dead_letters_pkey", "held_routes_pkey"], concat!("
        SELECT r.notification_id, r.route_id, r.channel, r.recipient_ref, r.status, r.attempt_count, r.max_attempts,
            ", next_attempt_text!("$3", "$4"), ", r.resolved_email, r.resolved_locale,
            r.last_error_classification, r.last_error_message, r.last_error_at, r.failed_attempts, r.created_at,
            r.updated_at, r.published_at, r.dead_lettered_at, r.skipped_at, r.published_entry_id,
            r.resent_at, r.resent_by, r.resend_reason, r.replaced_entry_id, d.recovery_hint, d.discarded_at,
            d.discarded_by, d.discard_reason, k.scope, k.name, k.since, k.actor, k.reason, k.released_at
        FROM routes r
        LEFT JOIN LATERAL (
            SELECT h.* FROM held_routes g JOIN holds h ON h.scope = g.scope AND h.name = g.name
            WHERE g.notification_id = r.notification_id AND g.route_id = r.route_id
            LIMIT 1
        ) AS k ON true
        LEFT JOIN LATERAL (
            SELECT recovery_hint, discarded_at, discarded_by, discard_reason FROM dead_letters
            WHERE notification_id = r.notification_id AND route_id = r.route_id
            LIMIT 1
        ) AS d ON true
        WHERE r.notification_id = $1::text
        ORDER BY r.route_id
        LIMIT $2::bigint");
}

pub(super) fn routes_of(id: &NotificationId) -> BoundStatement {
    let [min, max] = next_attempt_range();
    ROUTES.bind([parameter::text(id.as_str()), parameter::rows(MAX_ROUTES), min, max])
}
