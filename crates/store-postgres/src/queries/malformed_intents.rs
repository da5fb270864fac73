//! The list of malformed intents, and those of one entry id with their raw fields.

use ambient::Timestamp;
use domain::ports::{MalformedKey, StoreError};
use domain::query::{
    MalformedFilter, MalformedPlace, MalformedSummary, Page, PageLimit, StoredMalformedIntent,
};
use domain::record::IdempotencyKey;
use pg::{BoundStatement, Session, parameter};
use tokio_postgres::Row;

use super::{MAX_EXAMINED, examined, page};
use crate::codec::{column, instant, optional_instant};
use crate::error::store_error;

/// The maximum number of rows that are shown of one entry id: each is from a recreated stream.
const MAX_ROWS_OF_ENTRY: usize = 100;
/// The maximum number of rows with a producer and key among which the former entry of one is looked for.
const MAX_WITH_KEY: usize = 1_000;
/// The bytes of raw fields after which further rows are shown without them: more than one row can have.
const MAX_RAW_FIELDS: usize = 24 * 1024 * 1024;

pub(super) async fn list(
    session: &Session,
    filter: &MalformedFilter,
    after: Option<&MalformedPlace>,
    limit: PageLimit,
) -> Result<Page<MalformedSummary, MalformedPlace>, StoreError> {
    malformed_page(session, filter, after, limit.get()).await
}

/// A page of the list of any size.
pub(crate) async fn malformed_page(
    session: &Session,
    filter: &MalformedFilter,
    after: Option<&MalformedPlace>,
    limit: usize,
) -> Result<Page<MalformedSummary, MalformedPlace>, StoreError> {
    let rows = session.query(listed(filter, after, limit)).await.map_err(store_error)?;
    Ok(page(examined(&rows, malformed_row)?, limit, MalformedSummary::place))
}

pub(super) async fn get(
    session: &Session,
    stream: &str,
    entry_id: &str,
) -> Result<Vec<StoredMalformedIntent>, StoreError> {
    let rows = session.query(of_entry(stream, entry_id)).await.map_err(store_error)?;
    let mut summaries = rows.iter().map(malformed_row).collect::<Result<Vec<_>, _>>()?;
    summaries.sort_by_key(|row| std::cmp::Reverse(row.recorded_at));
    let (mut found, mut bytes) = (Vec::with_capacity(summaries.len()), 0);
    for summary in summaries {
        let raw_fields = match bytes {
            0..MAX_RAW_FIELDS => raw_fields_of(session, &summary.key).await?,
            _ => None,
        };
        bytes += raw_fields.as_ref().map_or(0, String::len);
        let from = session.query(resubmitted_as(&summary)).await.map_err(store_error)?;
        let from = from.first().map(|row| column(row, "malformed_intents.stream_entry_id", entry_id));
        let resubmitted_from = from.transpose()?;
        found.push(StoredMalformedIntent {
            summary,
            raw_fields,
            resubmitted_from,
            resubmitted_outcome: None,
            conflict: None,
        });
    }
    Ok(found)
}

/// The newest row with this producer and key.
pub(super) async fn newest_with_key(
    session: &Session,
    key: &IdempotencyKey,
) -> Result<Option<MalformedSummary>, StoreError> {
    let rows = session.query(with_key(key)).await.map_err(store_error)?;
    rows.first().map(malformed_row).transpose()
}

/// The raw fields of a row; `None` if it was deleted meanwhile.
async fn raw_fields_of(session: &Session, key: &MalformedKey) -> Result<Option<String>, StoreError> {
    let rows = session.query(raw_fields(key)).await.map_err(store_error)?;
    rows.first().map(|row| column(row, "malformed_intents.raw_fields", &key.entry_id)).transpose()
}

/// Reads the columns of [`malformed_text`].
pub(crate) fn malformed_row(row: &Row) -> Result<MalformedSummary, StoreError> {
    let entry_id: String = column(row, "malformed_intents.stream_entry_id", "")?;
    let text = |place| column::<String>(row, place, &entry_id);
    Ok(MalformedSummary {
        notification_type: text("malformed_intents.notification_type")?.into(),
        producer: text("malformed_intents.producer")?,
        idempotency_key: text("malformed_intents.idempotency_key")?.into(),
        failure_code: text("malformed_intents.failure_code")?,
        failure_message: text("malformed_intents.failure_message")?.into(),
        recorded_at: instant(row, "malformed_intents.recorded_at", &entry_id)?,
        resubmitted_at: optional_instant(row, "malformed_intents.resubmitted_at", &entry_id)?,
        resubmitted_entry_id: column(row, "malformed_intents.resubmitted_entry_id", &entry_id)?,
        key: MalformedKey {
            stream: text("malformed_intents.stream")?,
            fields_fingerprint: text("malformed_intents.fields_fingerprint")?,
            entry_id: entry_id.clone(),
        },
    })
}

/// The columns of a summary.
macro_rules! malformed_text {
    () => {
        "stream, stream_entry_id, fields_fingerprint, notification_type, producer, idempotency_key,
            failure_code, failure_message, recorded_at, resubmitted_at, resubmitted_entry_id"
    };
}

pub(crate) use malformed_text;

pg::statements! {
    /// At most [`MAX_EXAMINED`] rows, read backwards from a position. Returns the matching rows until the
    /// page is full, and the last one in any case.
    LIST = "malformed_intents.list", plan ["malformed_intents_recorded_idx"], concat!("
        SELECT *
        FROM (
            SELECT *,
                ($7::text IS NULL OR failure_code = $7::text) AND ($8::text IS NULL OR producer = $8::text)
                AND ($9::text IS NULL OR idempotency_key = $9::text) AS matches
            FROM (
                SELECT ", malformed_text!(), ",
                    row_number() OVER (
                        ORDER BY recorded_at DESC, stream DESC, stream_entry_id DESC, fields_fingerprint DESC
                    ) AS rows
                FROM malformed_intents
                WHERE (recorded_at, stream, stream_entry_id, fields_fingerprint)
                        < ($1::timestamptz, $2::text, $3::text, $4::text)
                    AND recorded_at >= $5::timestamptz
                ORDER BY recorded_at DESC, stream DESC, stream_entry_id DESC, fields_fingerprint DESC
                LIMIT $6::bigint
            ) AS examined
        ) AS compared
        WHERE matches OR rows = $6::bigint
        ORDER BY recorded_at DESC, stream DESC, stream_entry_id DESC, fields_fingerprint DESC
        LIMIT $10::bigint");

    /// The rows of an entry id, by the first two columns of the primary key.
    OF_ENTRY = "malformed_intents.of_entry", plan ["malformed_intents_pkey"], concat!("
        SELECT ", malformed_text!(), " FROM malformed_intents
        WHERE stream = $1::text AND stream_entry_id = $2::text
        LIMIT $3::bigint");

    /// The raw fields of a row.
    RAW_FIELDS = "malformed_intents.raw_fields", plan ["malformed_intents_pkey"], "
        SELECT raw_fields::text AS raw_fields FROM malformed_intents
        WHERE stream = $1::text AND stream_entry_id = $2::text AND fields_fingerprint = $3::text
        LIMIT 1";

    /// The row that was resubmitted as an entry: it has the same fields, so the same producer and key.
    RESUBMITTED_AS = "malformed_intents.resubmitted_as", plan ["malformed_intents_key_idx"], "
        SELECT stream_entry_id
        FROM (
            SELECT stream, stream_entry_id, fields_fingerprint, resubmitted_entry_id FROM malformed_intents
            WHERE producer = $1::text COLLATE \"C\" AND idempotency_key = $2::text COLLATE \"C\"
            ORDER BY recorded_at DESC
            LIMIT $6::bigint
        ) AS with_key
        WHERE stream = $3::text AND resubmitted_entry_id = $4::text AND fields_fingerprint = $5::text
        LIMIT 1";

    /// The end of a part of the index, which compares by bytes.
    WITH_KEY = "malformed_intents.with_key", plan ["malformed_intents_key_idx"], concat!("
        SELECT ", malformed_text!(), " FROM malformed_intents
        WHERE producer = $1::text COLLATE \"C\" AND idempotency_key = $2::text COLLATE \"C\"
        ORDER BY recorded_at DESC
        LIMIT 1");
}

pub(super) fn listed(
    filter: &MalformedFilter,
    after: Option<&MalformedPlace>,
    limit: usize,
) -> BoundStatement {
    let before = filter.recorded_before.unwrap_or(Timestamp::MAX);
    let (at, stream, entry_id, fingerprint) = match after {
        Some(MalformedPlace { recorded_at, key }) if *recorded_at < before => {
            (*recorded_at, &*key.stream, &*key.entry_id, &*key.fields_fingerprint)
        }
        _ => (before, "", "", ""),
    };
    LIST.bind([
        parameter::instant(at),
        parameter::text(stream),
        parameter::text(entry_id),
        parameter::text(fingerprint),
        parameter::instant(filter.recorded_after.unwrap_or(Timestamp::MIN)),
        parameter::rows(MAX_EXAMINED),
        parameter::optional_text(filter.code.as_deref()),
        parameter::optional_text(filter.producer.as_deref()),
        parameter::optional_text(filter.idempotency_key.as_deref()),
        parameter::rows(limit),
    ])
}

pub(super) fn of_entry(stream: &str, entry_id: &str) -> BoundStatement {
    OF_ENTRY.bind([parameter::text(stream), parameter::text(entry_id), parameter::rows(MAX_ROWS_OF_ENTRY)])
}

fn raw_fields(key: &MalformedKey) -> BoundStatement {
    RAW_FIELDS.bind([&key.stream, &key.entry_id, &key.fields_fingerprint].map(parameter::text))
}

fn resubmitted_as(row: &MalformedSummary) -> BoundStatement {
    let MalformedKey { stream, entry_id, fields_fingerprint } = &row.key;
    let [producer, key, stream, entry_id, fingerprint] =
        [&*row.producer, &*row.idempotency_key, stream, entry_id, fields_fingerprint].map(parameter::text);
    let limit = parameter::rows(MAX_WITH_KEY);
    RESUBMITTED_AS.bind([producer, key, stream, entry_id, fingerprint, limit])
}

pub(super) fn with_key(key: &IdempotencyKey) -> BoundStatement {
    WITH_KEY.bind([&key.producer, &key.key].map(parameter::text))
}
