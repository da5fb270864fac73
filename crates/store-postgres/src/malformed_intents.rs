//! Entries that were not accepted, kept for diagnosis and written in the transaction of their batch.

use bytes::{BufMut, Bytes, BytesMut};
use domain::entry::EntryId;
use domain::malformed::MalformedIntent;
use pg::bind;
use pg::sql::{insert_rows, unnest};
use sea_query::{Expr, ExprTrait, Iden, InsertStatement, OnConflict, Query, SelectStatement};

use crate::schema::{Input, MalformedIntents};

pub(crate) mod retention;

/// Inserts the rows that do not exist yet: an entry that is read twice has one row.
pub(crate) fn insert(rows: &[&MalformedIntent]) -> InsertStatement {
    let texts =
        |value: fn(&MalformedIntent) -> String| unnest(bind::texts(rows.iter().map(|row| value(row))));
    let columns_and_values = [
        (MalformedIntents::Stream, texts(|row| row.stream.clone())),
        (MalformedIntents::StreamEntryId, texts(|row| row.entry_id.to_string())),
        (MalformedIntents::FieldsFingerprint, texts(|row| row.fields_fingerprint.clone())),
        (MalformedIntents::NotificationType, texts(|row| row.notification_type.clone())),
        (MalformedIntents::Producer, texts(|row| row.producer.clone())),
        (MalformedIntents::IdempotencyKey, texts(|row| row.idempotency_key.clone())),
        (MalformedIntents::FailureCode, texts(|row| row.rejection.code.as_str().to_owned())),
        (MalformedIntents::FailureMessage, texts(|row| row.rejection.message.clone())),
        (MalformedIntents::RawFields, unnest(bind::jsonbs(rows.iter().map(|row| row.raw_fields.text())))),
        (MalformedIntents::RecordedAt, unnest(bind::instants(rows.iter().map(|row| row.recorded_at)))),
    ];
    let mut insert = insert_rows(MalformedIntents::Table, columns_and_values);
    insert.on_conflict(OnConflict::new().do_nothing().to_owned());
    insert
}

/// True if a row is copied instead of inserted: an inserted value is in memory four times while it is sent.
pub(crate) fn is_large(row: &MalformedIntent) -> bool {
    row.raw_fields.json_length() > MAX_INSERTED
}

/// The longest raw fields, in bytes, that are sent as a parameter of a statement.
const MAX_INSERTED: usize = 1024 * 1024;
/// The header of the data that [`copied`] makes: a signature, no flags and no extension.
const BINARY_COPY: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// 2000-01-01, PostgreSQL's epoch, in microseconds after the Unix epoch.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// Copies one row. The caller has checked that it does not exist: unlike [`insert`], this fails if it does.
pub(crate) fn copy() -> String {
    let columns = [
        MalformedIntents::Stream,
        MalformedIntents::StreamEntryId,
        MalformedIntents::FieldsFingerprint,
        MalformedIntents::NotificationType,
        MalformedIntents::Producer,
        MalformedIntents::IdempotencyKey,
        MalformedIntents::FailureCode,
        MalformedIntents::FailureMessage,
        MalformedIntents::RawFields,
        MalformedIntents::RecordedAt,
    ];
    let columns = columns.map(|column| column.to_string()).join(", ");
    format!("COPY {} ({columns}) FROM STDIN (FORMAT binary)", MalformedIntents::Table.to_string())
}

/// The data of a row for [`copy`], each piece encoded when it is sent.
pub(crate) fn copied(row: &MalformedIntent) -> impl Iterator<Item = Bytes> + use<> {
    let entry_id = row.entry_id.to_string();
    let texts = [
        &row.stream,
        &entry_id,
        &row.fields_fingerprint,
        &row.notification_type,
        &row.producer,
        &row.idempotency_key,
        row.rejection.code.as_str(),
        &row.rejection.message,
    ];
    let mut head = BytesMut::from(BINARY_COPY);
    head.put_i16(10);
    for text in texts {
        head.put_i32(length(text.len()));
        head.put_slice(text.as_bytes());
    }
    // The first byte of a jsonb is the version of its format; the rest is text.
    head.put_i32(length(row.raw_fields.json_length() + 1));
    head.put_u8(1);
    let mut tail = BytesMut::new();
    tail.put_i32(8);
    tail.put_i64(row.recorded_at.as_micros() - POSTGRES_EPOCH);
    tail.put_i16(-1);

    let raw_fields = row.raw_fields.pieces().map(Bytes::from);
    std::iter::once(head.freeze()).chain(raw_fields).chain(std::iter::once(tail.freeze()))
}

fn length(bytes: usize) -> i32 {
    // Cannot fail: domain limits the content of a row to far below two gigabytes.
    i32::try_from(bytes).expect("a column below two gigabytes")
}

/// The ids of those entries, given by id and fingerprint, that have a row with the same content; by the
/// primary key.
pub(crate) fn known<'a>(
    stream: &str,
    entries: impl Iterator<Item = (EntryId, &'a str)> + Clone,
) -> SelectStatement {
    let ids = bind::texts(entries.clone().map(|(id, _)| id.to_string()));
    let fingerprints = bind::texts(entries.map(|(_, fingerprint)| fingerprint));
    let given = Query::select()
        .expr_as(unnest(ids), Input::StreamEntryId)
        .expr_as(unnest(fingerprints), Input::FieldsFingerprint)
        .take();
    let row = |column| Expr::col((MalformedIntents::Table, column));
    let same_row = row(MalformedIntents::Stream)
        .eq(bind::text(stream))
        .and(row(MalformedIntents::StreamEntryId).equals((Input::Table, Input::StreamEntryId)))
        .and(row(MalformedIntents::FieldsFingerprint).equals((Input::Table, Input::FieldsFingerprint)));
    Query::select()
        .column((MalformedIntents::Table, MalformedIntents::StreamEntryId))
        .from_subquery(given, Input::Table)
        .inner_join(MalformedIntents::Table, same_row)
        .take()
}
