//! Entries that were not accepted, kept for diagnosis and written in the transaction of their batch.

use bytes::{BufMut, Bytes, BytesMut};
use domain::entry::EntryId;
use domain::malformed_intent::MalformedIntent;
use pg::{BoundStatement, parameter};

pub(crate) mod retention;

pg::statements! {
    /// Inserts the rows that do not exist yet: an entry that is read twice has one row. `unnest` is in the
    /// list of the `SELECT` and not in a `FROM`: the result of a function there is stored before it is read.
    INSERT = "malformed_intents.insert", plan [], "
        INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, notification_type, producer,
            idempotency_key, failure_code, failure_message, raw_fields, recorded_at)
        SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]),
            unnest($6::text[]), unnest($7::text[]), unnest($8::text[]), unnest($9::text[]::jsonb[]),
            unnest($10::timestamptz[])
        ON CONFLICT DO NOTHING";

    /// The ids of those entries, given by id and fingerprint, that have a row with the same content.
    KNOWN = "malformed_intents.known", plan ["malformed_intents_pkey"], "
        SELECT m.stream_entry_id
        FROM unnest($2::text[], $3::text[]) AS g (stream_entry_id, fields_fingerprint)
        JOIN malformed_intents m ON m.stream = $1::text AND m.stream_entry_id = g.stream_entry_id
            AND m.fields_fingerprint = g.fields_fingerprint";
}

/// Copies one row. The caller has checked that it does not exist: unlike [`INSERT`], this fails if it does.
pub(crate) const COPY: &str = "
    COPY malformed_intents (stream, stream_entry_id, fields_fingerprint, notification_type, producer, idempotency_key,
        failure_code, failure_message, raw_fields, recorded_at) FROM STDIN (FORMAT binary)";

pub(crate) fn insert(rows: &[&MalformedIntent]) -> BoundStatement {
    let texts = |value: fn(&MalformedIntent) -> &str| parameter::texts(rows.iter().map(|row| value(row)));
    INSERT.bind([
        texts(|row| &row.stream),
        parameter::texts(rows.iter().map(|row| row.entry_id.to_string())),
        texts(|row| &row.fields_fingerprint),
        texts(|row| &row.notification_type),
        texts(|row| &row.producer),
        texts(|row| &row.idempotency_key),
        texts(|row| row.rejection.code.as_str()),
        texts(|row| &row.rejection.message),
        parameter::texts(rows.iter().map(|row| row.raw_fields.text())),
        parameter::instants(rows.iter().map(|row| row.recorded_at)),
    ])
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

/// The data of a row for [`COPY`], each piece encoded when it is sent.
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

pub(crate) fn known<'a>(
    stream: &str,
    entries: impl Iterator<Item = (EntryId, &'a str)> + Clone,
) -> BoundStatement {
    KNOWN.bind([
        parameter::text(stream),
        parameter::texts(entries.clone().map(|(id, _)| id.to_string())),
        parameter::texts(entries.map(|(_, fingerprint)| fingerprint)),
    ])
}
