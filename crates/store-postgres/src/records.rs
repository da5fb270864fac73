//! Records: one for each accepted intent; the row reserves the intent's idempotency key.

use std::collections::HashMap;

use ambient::Timestamp;
use domain::entry::EntryId;
use domain::outcome::Acceptance;
use domain::ports::StoreError;
use domain::record::{IdempotencyKey, NotificationId, Record};
use domain::submission::AcceptedRequest;
use pg::{BoundStatement, Session, Statement, parameter};
use tokio_postgres::Row;

use crate::codec::{column, count, instant};
use crate::error::store_error;

macro_rules! insert_all_text {
    () => {
        "
        INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids,
            payload_json, idempotency_key, request_fingerprint, request_id, trace_id, occurred_at, accepted_at,
            updated_at, idempotency_expires_at)
        SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]),
            unnest($5::text[]::jsonb[]), unnest($6::text[]), unnest($7::text[]), unnest($8::text[]), unnest($9::text[]),
            unnest($10::text[]), unnest($11::timestamptz[]), unnest($12::timestamptz[]), unnest($12::timestamptz[]),
            unnest($13::timestamptz[])"
    };
}

/// The number after the highest `~n` in use for an entry id.
pub(crate) async fn next_suffix(session: &Session, id: EntryId) -> Result<u32, StoreError> {
    let mut highest: u32 = 0;
    for row in session.query(suffixed_ids(id)).await.map_err(store_error)? {
        let name: String = column(&row, "records.notification_id", "")?;
        let suffix = name.rsplit_once('~').and_then(|(_, digits)| digits.parse().ok());
        highest = Ord::max(highest, suffix.unwrap_or(0));
    }
    Ok(highest.saturating_add(1))
}

/// The accepted intent that has reserved a key.
pub(crate) struct Request {
    pub(crate) notification_id: NotificationId,
    pub(crate) fingerprint: String,
}

pub(crate) fn requests(rows: &[Row]) -> Result<HashMap<IdempotencyKey, Request>, StoreError> {
    rows.iter()
        .map(|row| {
            let key = key(row)?;
            let fingerprint = column(row, "records.request_fingerprint", &key.key)?;
            let id: String = column(row, "records.notification_id", &key.key)?;
            Ok((key, Request { notification_id: NotificationId::from(id), fingerprint }))
        })
        .collect()
}

fn key(row: &Row) -> Result<IdempotencyKey, StoreError> {
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
            let key = key(row)?;
            let id: String = column(row, "records.notification_id", &key.key)?;
            let request = AcceptedRequest {
                notification_id: NotificationId::from(id),
                fingerprint: column(row, "records.request_fingerprint", &key.key)?,
                accepted_at: instant(row, "records.accepted_at", &key.key)?,
                routes: usize::try_from(count(row, "routes", &key.key)?).unwrap_or(usize::MAX),
            };
            Ok((key, request))
        })
        .collect()
}

/// True if a notification's id is `<id>` or `<id>~<n>`.
pub(crate) fn is_id_of(notification_id: &NotificationId, id: EntryId) -> bool {
    notification_id.as_str().split('~').next() == Some(&id.to_string())
}

pg::statements! {
    /// The accepted intents with these keys.
    REQUESTS = "records.requests", plan ["records_idempotency_unique"], "
        SELECT r.producer, r.idempotency_key, r.request_fingerprint, r.notification_id
        FROM unnest($1::text[], $2::text[]) AS g (producer, idempotency_key)
        JOIN records r ON r.producer = g.producer AND r.idempotency_key = g.idempotency_key";

    /// The accepted intents of [`REQUESTS`], with the time of acceptance and the number of routes.
    ACCEPTED_REQUESTS = "records.accepted_requests", plan ["records_idempotency_unique", "routes_pkey"], "
        SELECT r.producer, r.idempotency_key, r.request_fingerprint, r.notification_id, r.accepted_at,
            (SELECT count(*) FROM routes WHERE routes.notification_id = r.notification_id) AS routes
        FROM unnest($1::text[], $2::text[]) AS g (producer, idempotency_key)
        JOIN records r ON r.producer = g.producer AND r.idempotency_key = g.idempotency_key";

    /// The ids that are in use.
    IDS_TAKEN = "records.ids_taken", plan ["records_pkey"], "
        SELECT notification_id FROM records WHERE notification_id = ANY ($1::text[])";

    /// The ids between two.
    IDS_BETWEEN = "records.ids_between", plan ["records_pkey"], "
        SELECT notification_id FROM records WHERE notification_id >= $1::text AND notification_id < $2::text";

    // MODEL-04
    /// Inserts the records whose key and id are free; the number of rows shows whether all were inserted.
    /// `unnest` is in the list of the `SELECT` and not in a `FROM`: the result of a function there is stored
    /// before it is read.
    INSERT = "records.insert", plan [], concat!(insert_all_text!(), " ON CONFLICT DO NOTHING");

    /// Inserts all records or none; the error names the first violated unique index.
    INSERT_ALL = "records.insert_all", plan [], insert_all_text!();
}

/// [`REQUESTS`] or [`ACCEPTED_REQUESTS`].
fn of_keys<'a>(
    statement: &Statement,
    keys: impl Iterator<Item = &'a IdempotencyKey> + Clone,
) -> BoundStatement {
    statement.bind([
        parameter::texts(keys.clone().map(|key| key.producer.as_str())),
        parameter::texts(keys.map(|key| key.key.as_str())),
    ])
}

pub(crate) fn requests_of<'a>(keys: impl Iterator<Item = &'a IdempotencyKey> + Clone) -> BoundStatement {
    of_keys(&REQUESTS, keys)
}

pub(crate) fn accepted_of<'a>(keys: impl Iterator<Item = &'a IdempotencyKey> + Clone) -> BoundStatement {
    of_keys(&ACCEPTED_REQUESTS, keys)
}

pub(crate) fn ids_taken(ids: impl Iterator<Item = String>) -> BoundStatement {
    IDS_TAKEN.bind([parameter::texts(ids)])
}

/// All ids of the form `<id>~<n>`: in byte order they lie between `<id>~` and `<id>` followed by the next
/// character.
fn suffixed_ids(id: EntryId) -> BoundStatement {
    IDS_BETWEEN.bind([parameter::text(format!("{id}~")), parameter::text(format!("{id}\u{7f}"))])
}

/// True if this is one of the service's unique indexes of records: an operator may have added others.
pub(crate) fn is_own_key(constraint: Option<&str>) -> bool {
    matches!(constraint, Some("records_pkey" | "records_idempotency_unique"))
}

/// [`INSERT`] or [`INSERT_ALL`].
pub(crate) fn insert(statement: &Statement, acceptances: &[&Acceptance]) -> BoundStatement {
    let records = || acceptances.iter().map(|acceptance| &acceptance.record);
    let texts = |value: fn(&Record) -> &str| parameter::texts(records().map(value));
    let instants = |value: fn(&Record) -> Timestamp| parameter::instants(records().map(value));
    let recipients = records().map(|record| serde_json::json!(record.recipient_user_ids).to_string());
    statement.bind([
        texts(|record| record.notification_id.as_str()),
        texts(|record| &record.content.notification_type),
        texts(|record| &record.idempotency_key.producer),
        texts(|record| record.audience_kind),
        parameter::texts(recipients),
        texts(|record| &record.content.payload_json),
        texts(|record| &record.idempotency_key.key),
        texts(|record| &record.fingerprint),
        texts(|record| &record.content.request_id),
        texts(|record| &record.content.trace_id),
        instants(|record| record.content.occurred_at),
        instants(|record| record.content.accepted_at),
        instants(|record| record.idempotency_expires_at),
    ])
}
