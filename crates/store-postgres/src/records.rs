//! Records: one for each accepted intent; the row reserves the intent's idempotency key.

use std::collections::HashMap;

use ambient::Timestamp;
use domain::entry::EntryId;
use domain::outcome::Acceptance;
use domain::ports::StoreError;
use domain::record::{IdempotencyKey, NotificationId, Record};
use domain::submission::AcceptedRequest;
use pg::sql::{any, insert_rows, unnest};
use pg::{PgError, Session, bind};
use sea_query::{Asterisk, Expr, ExprTrait, Func, InsertStatement, OnConflict, Query, SelectStatement};
use tokio_postgres::Row;

use crate::codec::{column, count, instant};
use crate::error::store_error;
use crate::schema::{Input, Records, Routes};

/// The number after the highest `~n` in use for an entry id.
pub(crate) async fn next_suffix(session: &Session, id: EntryId) -> Result<u32, StoreError> {
    let mut highest: u32 = 0;
    for row in session.query(&suffixed_ids(id)).await.map_err(store_error)? {
        let name: String = column(&row, "records.notification_id", "")?;
        let suffix = name.rsplit_once('~').and_then(|(_, digits)| digits.parse().ok());
        highest = Ord::max(highest, suffix.unwrap_or(0));
    }
    Ok(highest.saturating_add(1))
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&requests_of([].into_iter())).await?;
    session.prepare(&ids_taken(std::iter::empty())).await?;
    session.prepare(&suffixed_ids(EntryId::ZERO)).await?;
    session.prepare(&insert(&[])).await?;
    session.prepare(&insert_all(&[])).await?;
    Ok(())
}

/// The accepted intent that has reserved a key.
pub(crate) struct Request {
    pub(crate) notification_id: NotificationId,
    pub(crate) fingerprint: String,
}

pub(crate) fn requests(rows: &[Row]) -> Result<HashMap<IdempotencyKey, Request>, StoreError> {
    rows.iter()
        .map(|row| {
            let scope = scope(row)?;
            let fingerprint = column(row, "records.request_fingerprint", &scope.key)?;
            let id: String = column(row, "records.notification_id", &scope.key)?;
            Ok((scope, Request { notification_id: NotificationId::from(id), fingerprint }))
        })
        .collect()
}

fn scope(row: &Row) -> Result<IdempotencyKey, StoreError> {
    let producer = column(row, "records.producer", "")?;
    let key = column(row, "records.idempotency_key", "")?;
    Ok(IdempotencyKey { producer, key })
}

/// The accepted intents of [`requests`], with the content of the response to a repeated intent.
pub(crate) fn accepted_requests(
    rows: &[Row],
) -> Result<HashMap<IdempotencyKey, AcceptedRequest>, StoreError> {
    rows.iter()
        .map(|row| {
            let scope = scope(row)?;
            let id: String = column(row, "records.notification_id", &scope.key)?;
            let request = AcceptedRequest {
                notification_id: NotificationId::from(id),
                fingerprint: column(row, "records.request_fingerprint", &scope.key)?,
                accepted_at: instant(row, "records.accepted_at", &scope.key)?,
                routes: usize::try_from(count(row, "routes", &scope.key)?).unwrap_or(usize::MAX),
            };
            Ok((scope, request))
        })
        .collect()
}

/// True if a notification's id is `<id>` or `<id>~<n>`.
pub(crate) fn is_id_of(notification_id: &NotificationId, id: EntryId) -> bool {
    notification_id.as_str().split('~').next() == Some(&id.to_string())
}

/// The accepted intents, by the unique key of producer and idempotency key.
pub(crate) fn requests_of<'a>(scopes: impl Iterator<Item = &'a IdempotencyKey> + Clone) -> SelectStatement {
    let producers = bind::texts(scopes.clone().map(|scope| scope.producer.as_str()));
    let keys = bind::texts(scopes.map(|scope| scope.key.as_str()));
    let given = Query::select()
        .expr_as(unnest(producers), Input::Producer)
        .expr_as(unnest(keys), Input::IdempotencyKey)
        .take();
    Query::select()
        .columns([
            (Records::Table, Records::Producer),
            (Records::Table, Records::IdempotencyKey),
            (Records::Table, Records::RequestFingerprint),
            (Records::Table, Records::NotificationId),
        ])
        .from_subquery(given, Input::Table)
        .inner_join(
            Records::Table,
            Expr::col((Records::Table, Records::Producer)).equals((Input::Table, Input::Producer)).and(
                Expr::col((Records::Table, Records::IdempotencyKey))
                    .equals((Input::Table, Input::IdempotencyKey)),
            ),
        )
        .take()
}

/// The accepted intents of [`requests_of`], with the time of acceptance and the number of routes, by the
/// primary key of `routes`.
pub(crate) fn accepted_of<'a>(scopes: impl Iterator<Item = &'a IdempotencyKey> + Clone) -> SelectStatement {
    let routes = Query::select()
        .expr(Func::count(Expr::col(Asterisk)))
        .from(Routes::Table)
        .and_where(
            Expr::col((Routes::Table, Routes::NotificationId))
                .equals((Records::Table, Records::NotificationId)),
        )
        .take();
    let mut statement = requests_of(scopes);
    statement.column((Records::Table, Records::AcceptedAt)).expr_as(routes, Input::Routes);
    statement
}

/// The ids that are in use, by the primary key.
pub(crate) fn ids_taken(ids: impl Iterator<Item = String>) -> SelectStatement {
    let ids = bind::texts(ids);
    Query::select()
        .column(Records::NotificationId)
        .from(Records::Table)
        .and_where(Expr::col(Records::NotificationId).eq(any(ids)))
        .take()
}

/// All ids of the form `<id>~<n>`: in byte order they lie between `<id>~` and `<id>` followed by the next
/// character.
fn suffixed_ids(id: EntryId) -> SelectStatement {
    Query::select()
        .column(Records::NotificationId)
        .from(Records::Table)
        .and_where(Expr::col(Records::NotificationId).gte(bind::text(format!("{id}~"))))
        .and_where(Expr::col(Records::NotificationId).lt(bind::text(format!("{id}\u{7f}"))))
        .take()
}

/// Inserts the records whose key and id are free; the number of rows shows whether all were inserted.
pub(crate) fn insert(acceptances: &[&Acceptance]) -> InsertStatement {
    let mut insert = insert_all(acceptances);
    insert.on_conflict(OnConflict::new().do_nothing().to_owned());
    insert
}

/// True if this is one of the service's unique indexes of records: an operator may have added others.
pub(crate) fn is_own_key(constraint: Option<&str>) -> bool {
    matches!(constraint, Some("records_pkey" | "records_idempotency_unique"))
}

/// Inserts all records or none; the error names the first violated unique index.
pub(crate) fn insert_all(acceptances: &[&Acceptance]) -> InsertStatement {
    let records = || acceptances.iter().map(|acceptance| &acceptance.record);
    let texts = |value: fn(&Record) -> &str| unnest(bind::texts(records().map(value)));
    let instants = |value: fn(&Record) -> Timestamp| unnest(bind::instants(records().map(value)));
    let recipients = records().map(|record| serde_json::json!(record.recipient_user_ids).to_string());
    let columns_and_values = [
        (Records::NotificationId, texts(|record| record.notification_id.as_str())),
        (Records::NotificationType, texts(|record| &record.content.notification_type)),
        (Records::Producer, texts(|record| &record.idempotency_key.producer)),
        (Records::AudienceKind, texts(|record| record.audience_kind)),
        (Records::RecipientUserIds, unnest(bind::jsonbs(recipients))),
        (Records::PayloadJson, texts(|record| &record.content.payload_json)),
        (Records::IdempotencyKey, texts(|record| &record.idempotency_key.key)),
        (Records::RequestFingerprint, texts(|record| &record.fingerprint)),
        (Records::RequestId, texts(|record| &record.content.request_id)),
        (Records::TraceId, texts(|record| &record.content.trace_id)),
        (Records::OccurredAt, instants(|record| record.content.occurred_at)),
        (Records::AcceptedAt, instants(|record| record.content.accepted_at)),
        (Records::UpdatedAt, instants(|record| record.content.accepted_at)),
        (Records::IdempotencyExpiresAt, instants(|record| record.idempotency_expires_at)),
    ];
    insert_rows(Records::Table, columns_and_values)
}
