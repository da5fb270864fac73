//! The producer's side: one statement in the transaction that writes the producer's own rows.

use std::collections::BTreeMap;

use ambient::Timestamp;
use bytes::Bytes;
use pg::{PgError, Session, Statement, parameter};
use tokio_postgres::GenericClient;
use uuid::Uuid;

use crate::TableName;

/// An event as a producer writes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEvent {
    /// Its primary key. A transaction that writes an existing id fails.
    pub event_id: Uuid,
    /// Its kind or destination.
    pub event_type: String,
    /// Events with the same key are published in order; empty for none.
    pub partition_key: String,
    /// The content to publish.
    pub payload: Bytes,
    /// Additional names and values.
    pub headers: BTreeMap<String, String>,
    /// The earliest time of publication; `None` for at once.
    pub available_at: Option<Timestamp>,
}

impl NewEvent {
    /// Creates an event with a new id, without a key or headers, that is due at once.
    pub fn new(event_type: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            event_id: Uuid::new_v4(),
            event_type: event_type.into(),
            partition_key: String::new(),
            payload: payload.into(),
            headers: BTreeMap::new(),
            available_at: None,
        }
    }

    fn headers_json(&self) -> String {
        serde_json::json!(self.headers).to_string()
    }

    fn available_at_text(&self) -> String {
        self.available_at.map(|at| at.to_string()).unwrap_or_default()
    }
}

fn insert(table: &TableName) -> String {
    format!(
        "INSERT INTO {} (event_id, event_type, partition_key, payload, headers, available_at)
         VALUES ($1::text::uuid, $2::text, nullif($3::text, ''), $4::bytea, $5::text::jsonb,
                 coalesce(nullif($6::text, '')::timestamptz, now()))",
        table.quoted()
    )
}

/// Writes the event in the transaction that is open on `session`. The event is published if and only if that
/// transaction is committed.
pub async fn enqueue(session: &Session, table: &TableName, event: &NewEvent) -> Result<(), PgError> {
    let statement = Statement::composed("outbox.enqueue", &[], insert(table)).bind([
        parameter::text(event.event_id.to_string()),
        parameter::text(&event.event_type),
        parameter::text(&event.partition_key),
        parameter::bytea(&event.payload),
        parameter::text(event.headers_json()),
        parameter::text(event.available_at_text()),
    ]);
    session.execute(statement).await.map(drop)
}

/// Does the same as [`enqueue`] for a producer with its own connection: in `transaction`, a
/// [`tokio_postgres::Transaction`] or a similar type.
pub async fn enqueue_on(
    transaction: &impl GenericClient,
    table: &TableName,
    event: &NewEvent,
) -> Result<(), tokio_postgres::Error> {
    let (id, headers, available_at) =
        (event.event_id.to_string(), event.headers_json(), event.available_at_text());
    transaction
        .execute(
            &insert(table),
            &[&id, &event.event_type, &event.partition_key, &&event.payload[..], &headers, &available_at],
        )
        .await
        .map(drop)
}
