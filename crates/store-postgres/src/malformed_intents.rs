//! Entries that were not accepted: written with the batch they came in, kept for people.

use domain::malformed::MalformedIntent;
use pg::bind;
use sea_query::{InsertStatement, OnConflict};

use crate::schema::{MalformedIntents, insert_rows, unnest};

/// Writes what is not there yet: an entry that is read twice is one row.
pub(crate) fn insert(rows: &[&MalformedIntent]) -> InsertStatement {
    let texts =
        |value: fn(&MalformedIntent) -> String| unnest(bind::texts(rows.iter().map(|row| value(row))));
    let mut insert = insert_rows(
        MalformedIntents::Table,
        [
            (MalformedIntents::Stream, texts(|row| row.stream.clone())),
            (MalformedIntents::StreamEntryId, texts(|row| row.entry_id.to_string())),
            (MalformedIntents::FieldsFingerprint, texts(|row| row.fields_fingerprint.clone())),
            (MalformedIntents::NotificationType, texts(|row| row.notification_type.clone())),
            (MalformedIntents::Producer, texts(|row| row.producer.clone())),
            (MalformedIntents::IdempotencyKey, texts(|row| row.idempotency_key.clone())),
            (MalformedIntents::FailureCode, texts(|row| row.rejection.code.as_str().to_owned())),
            (MalformedIntents::FailureMessage, texts(|row| row.rejection.message.clone())),
            (
                MalformedIntents::RawFields,
                unnest(bind::jsonbs(rows.iter().map(|row| row.raw_fields_json.as_str()))),
            ),
            (MalformedIntents::RecordedAt, unnest(bind::instants(rows.iter().map(|row| row.recorded_at)))),
        ],
    );
    insert.on_conflict(OnConflict::new().do_nothing().to_owned());
    insert
}
