//! One notification with all its routes.

use std::sync::Arc;

use ambient::Timestamp;
use domain::catalog::AudienceKind;
use domain::ports::StoreError;
use domain::query::{Discarded, MAX_RECORDS, Notification, Route};
use domain::receipt::Receipt;
use domain::record::{IdempotencyKey, NotificationId, Record, RecordContent};
use domain::route::RouteKey;
use pg::sql::any;
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Func, FunctionCall, JoinType, Order, Query, SelectStatement};
use serde_json::Value;
use tokio_postgres::Row;

use crate::codec::{column, corrupt, instant, loggable, name, optional_instant, route_key, small_count};
use crate::error::store_error;
use crate::receipts::receipts_of;
use crate::schema::{DeadLetters, Records, Routes};

/// The maximum number of routes that are shown of a notification: five times as many as an intent to users
/// can have.
const MAX_ROUTES: usize = 10_000;

pub(super) async fn get(session: &Session, id: &NotificationId) -> Result<Option<Notification>, StoreError> {
    let rows = session.query(&record_of(id)).await.map_err(store_error)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (record, updated_at) = record(row, id)?;
    let rows = session.query(&routes_of(id)).await.map_err(store_error)?;
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
    let rows = session.query(&records_of(ids)).await.map_err(store_error)?;
    let record = |row: &Row| {
        let id: String = column(row, "records.notification_id", "")?;
        record(row, &id.into()).map(|(record, _)| record)
    };
    rows.iter().map(record).collect()
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let id = NotificationId::from(String::new());
    session.prepare(&record_of(&id)).await?;
    session.prepare(&records_of(&[])).await?;
    session.prepare(&routes_of(&id)).await?;
    Ok(())
}

fn record(row: &Row, id: &NotificationId) -> Result<(Record, Timestamp), StoreError> {
    let key = id.as_str();
    let text = |place| column::<String>(row, place, key);
    let recipients: Value = column(row, "records.recipient_user_ids", key)?;
    let recipient_user_ids = serde_json::from_value(recipients)
        .map_err(|error| corrupt("records.recipient_user_ids", key, error.to_string()))?;
    let content = RecordContent {
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
        created_at: instant(row, "routes.created_at", &shown)?,
        updated_at: instant(row, "routes.updated_at", &shown)?,
        published_at: time("routes.published_at")?,
        dead_lettered_at: time("routes.dead_lettered_at")?,
        skipped_at: time("routes.skipped_at")?,
        published_entry_id: text("routes.published_entry_id")?,
        recovery_hint: column::<Option<String>>(row, "dead_letters.recovery_hint", &shown)?
            .unwrap_or_default(),
        discarded: discarded(row, &shown)?,
        receipt,
        explanation: String::new(),
    })
}

/// Reads the three columns of a discarded dead letter; `key` identifies the row in errors.
pub(super) fn discarded(row: &Row, key: &str) -> Result<Option<Discarded>, StoreError> {
    let Some(at) = optional_instant(row, "dead_letters.discarded_at", key)? else { return Ok(None) };
    let by = column(row, "dead_letters.discarded_by", key)?;
    Ok(Some(Discarded { at, by, reason: column(row, "dead_letters.discard_reason", key)? }))
}

/// The record with this id, by the primary key.
pub(super) fn record_of(id: &NotificationId) -> SelectStatement {
    let mut statement = records();
    statement.and_where(Expr::col(Records::NotificationId).eq(bind::text(id.as_str()))).limit(1);
    statement
}

/// The records with these ids, by the primary key, once for each id.
pub(super) fn records_of(ids: &[NotificationId]) -> SelectStatement {
    let ids = bind::texts(ids.iter().take(MAX_RECORDS).map(NotificationId::as_str));
    let mut statement = records();
    statement.and_where(Expr::col(Records::NotificationId).eq(any(ids))).limit(MAX_RECORDS as u64);
    statement
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

/// The routes of a notification, by the primary keys of both tables. A time outside the range of `Timestamp`,
/// such as that of a parked route, becomes the last or first one within it.
pub(super) fn routes_of(id: &NotificationId) -> SelectStatement {
    let of_route = |column: Routes| (Routes::Table, column);
    let of_letter = |column: DeadLetters| (DeadLetters::Table, column);
    Query::select()
        .columns(
            [
                Routes::NotificationId,
                Routes::RouteId,
                Routes::Channel,
                Routes::RecipientRef,
                Routes::Status,
                Routes::AttemptCount,
                Routes::MaxAttempts,
                Routes::ResolvedEmail,
                Routes::ResolvedLocale,
                Routes::LastErrorClassification,
                Routes::LastErrorMessage,
                Routes::LastErrorAt,
                Routes::CreatedAt,
                Routes::UpdatedAt,
                Routes::PublishedAt,
                Routes::DeadLetteredAt,
                Routes::SkippedAt,
                Routes::PublishedEntryId,
            ]
            .map(of_route),
        )
        .expr_as(next_attempt(), Routes::NextAttemptAt)
        .columns(
            [
                DeadLetters::RecoveryHint,
                DeadLetters::DiscardedAt,
                DeadLetters::DiscardedBy,
                DeadLetters::DiscardReason,
            ]
            .map(of_letter),
        )
        .from(Routes::Table)
        .join_lateral(JoinType::LeftJoin, letter_of_route(), DeadLetters::Table, Expr::cust("true"))
        .and_where(Expr::col(of_route(Routes::NotificationId)).eq(bind::text(id.as_str())))
        .order_by(of_route(Routes::RouteId), Order::Asc)
        .limit(MAX_ROUTES as u64)
        .take()
}

/// One dead letter by its whole key: never all those of the notification for each route.
fn letter_of_route() -> SelectStatement {
    let same = |column: DeadLetters, of_route: Routes| Expr::col(column).equals((Routes::Table, of_route));
    Query::select()
        .columns([
            DeadLetters::RecoveryHint,
            DeadLetters::DiscardedAt,
            DeadLetters::DiscardedBy,
            DeadLetters::DiscardReason,
        ])
        .from(DeadLetters::Table)
        .and_where(same(DeadLetters::NotificationId, Routes::NotificationId))
        .and_where(same(DeadLetters::RouteId, Routes::RouteId))
        .limit(1)
        .take()
}

/// `next_attempt_at`, or the nearest time in the range of `Timestamp`.
pub(crate) fn next_attempt() -> FunctionCall {
    let column = (Routes::Table, Routes::NextAttemptAt);
    Func::greatest([
        Expr::expr(Func::least([
            Expr::col(column),
            // LEAST and GREATEST ignore a NULL, so the bounds must be NULL with it.
            null_with(column, Timestamp::MAX),
        ])),
        null_with(column, Timestamp::MIN),
    ])
}

fn null_with(column: (Routes, Routes), bound: Timestamp) -> Expr {
    sea_query::CaseStatement::new().case(Expr::col(column).is_not_null(), bind::instant(bound)).into()
}
