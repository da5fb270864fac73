//! The list of malformed intents, and those of one entry id with their raw fields.

use ambient::Timestamp;
use domain::ports::{MalformedKey, StoreError};
use domain::query::{
    MalformedFilter, MalformedPlace, MalformedSummary, Page, PageLimit, StoredMalformedIntent,
};
use domain::record::IdempotencyKey;
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Order, Query, SelectStatement};
use tokio_postgres::Row;

use super::{MAX_EXAMINED, equals_if_given, examined, page};
use crate::codec::{column, instant};
use crate::error::store_error;
use crate::schema::{Input, MalformedIntents as M};

/// The maximum number of rows that are shown of one entry id: each is from a recreated stream.
const MAX_ROWS_OF_ENTRY: usize = 100;
/// The bytes of raw fields after which further rows are shown without them: more than one row can have.
const MAX_RAW_FIELDS: usize = 24 * 1024 * 1024;

const SHOWN: [M; 9] = [
    M::Stream,
    M::StreamEntryId,
    M::FieldsFingerprint,
    M::NotificationType,
    M::Producer,
    M::IdempotencyKey,
    M::FailureCode,
    M::FailureMessage,
    M::RecordedAt,
];

pub(super) async fn list(
    session: &Session,
    filter: &MalformedFilter,
    after: Option<&MalformedPlace>,
    limit: PageLimit,
) -> Result<Page<MalformedSummary, MalformedPlace>, StoreError> {
    let rows = session.query(&listed(filter, after, limit.get())).await.map_err(store_error)?;
    Ok(page(examined(&rows, summary)?, limit.get(), MalformedSummary::place))
}

pub(super) async fn get(
    session: &Session,
    stream: &str,
    entry_id: &str,
) -> Result<Vec<StoredMalformedIntent>, StoreError> {
    let rows = session.query(&of_entry(stream, entry_id)).await.map_err(store_error)?;
    let mut summaries = rows.iter().map(summary).collect::<Result<Vec<_>, _>>()?;
    summaries.sort_by_key(|row| std::cmp::Reverse(row.recorded_at));
    let (mut found, mut bytes) = (Vec::with_capacity(summaries.len()), 0);
    for summary in summaries {
        let raw_fields = match bytes {
            0..MAX_RAW_FIELDS => raw_fields_of(session, &summary.key).await?,
            _ => None,
        };
        bytes += raw_fields.as_ref().map_or(0, String::len);
        found.push(StoredMalformedIntent { summary, raw_fields });
    }
    Ok(found)
}

/// The newest row with this producer and key.
pub(super) async fn newest_with_key(
    session: &Session,
    scope: &IdempotencyKey,
) -> Result<Option<MalformedSummary>, StoreError> {
    let rows = session.query(&with_key(scope)).await.map_err(store_error)?;
    rows.first().map(summary).transpose()
}

/// The raw fields of a row; `None` if it was deleted meanwhile.
async fn raw_fields_of(session: &Session, key: &MalformedKey) -> Result<Option<String>, StoreError> {
    let rows = session.query(&raw_fields(key)).await.map_err(store_error)?;
    rows.first().map(|row| column(row, "malformed_intents.raw_fields", &key.entry_id)).transpose()
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&listed(&MalformedFilter::default(), None, 1)).await?;
    session.prepare(&of_entry("", "")).await?;
    let key =
        MalformedKey { stream: String::new(), entry_id: String::new(), fields_fingerprint: String::new() };
    session.prepare(&raw_fields(&key)).await?;
    session.prepare(&with_key(&IdempotencyKey { producer: String::new(), key: String::new() })).await?;
    Ok(())
}

fn summary(row: &Row) -> Result<MalformedSummary, StoreError> {
    let entry_id: String = column(row, "malformed_intents.stream_entry_id", "")?;
    let text = |place| column::<String>(row, place, &entry_id);
    Ok(MalformedSummary {
        notification_type: text("malformed_intents.notification_type")?.into(),
        producer: text("malformed_intents.producer")?,
        idempotency_key: text("malformed_intents.idempotency_key")?.into(),
        failure_code: text("malformed_intents.failure_code")?,
        failure_message: text("malformed_intents.failure_message")?.into(),
        recorded_at: instant(row, "malformed_intents.recorded_at", &entry_id)?,
        key: MalformedKey {
            stream: text("malformed_intents.stream")?,
            fields_fingerprint: text("malformed_intents.fields_fingerprint")?,
            entry_id: entry_id.clone(),
        },
    })
}

/// At most [`MAX_EXAMINED`] rows of `malformed_intents_recorded_idx`, read backwards from a position. Returns
/// the matching rows until the page is full, and the last one in any case.
pub(super) fn listed(
    filter: &MalformedFilter,
    after: Option<&MalformedPlace>,
    limit: usize,
) -> SelectStatement {
    let order = [M::RecordedAt, M::Stream, M::StreamEntryId, M::FieldsFingerprint];
    let before = filter.recorded_before.unwrap_or(Timestamp::MAX);
    let place = match after {
        Some(MalformedPlace { recorded_at, key }) if *recorded_at < before => [
            bind::instant(*recorded_at),
            bind::text(&key.stream),
            bind::text(&key.entry_id),
            bind::text(&key.fields_fingerprint),
        ],
        _ => [bind::instant(before), bind::text(""), bind::text(""), bind::text("")],
    };
    let mut rows = Query::select();
    rows.columns(SHOWN)
        .expr_as(
            Expr::cust(
                "row_number() OVER (ORDER BY recorded_at DESC, stream DESC, stream_entry_id DESC, fields_fingerprint DESC)",
            ),
            Input::Rows,
        )
        .from(M::Table)
        .and_where(Expr::tuple(order.map(Expr::col)).lt(Expr::tuple(place)))
        .and_where(
            Expr::col(M::RecordedAt).gte(bind::instant(filter.recorded_after.unwrap_or(Timestamp::MIN))),
        );
    for column in order {
        rows.order_by(column, Order::Desc);
    }
    rows.limit(MAX_EXAMINED as u64);
    let matches = || {
        equals_if_given((Input::Table, M::FailureCode), filter.code.as_deref())
            .and(equals_if_given((Input::Table, M::Producer), filter.producer.as_deref()))
            .and(equals_if_given((Input::Table, M::IdempotencyKey), filter.idempotency_key.as_deref()))
    };
    let mut select = Query::select();
    select
        .columns(SHOWN.map(|column| (Input::Table, column)))
        .column((Input::Table, Input::Rows))
        .expr_as(matches(), Input::Matches)
        .from_subquery(rows, Input::Table)
        .and_where(
            matches().or(Expr::col((Input::Table, Input::Rows)).eq(bind::bigint(MAX_EXAMINED as i64))),
        );
    for column in order {
        select.order_by((Input::Table, column), Order::Desc);
    }
    select.limit(limit as u64).take()
}

/// The rows of an entry id, by the first two columns of the primary key.
pub(super) fn of_entry(stream: &str, entry_id: &str) -> SelectStatement {
    Query::select()
        .columns(SHOWN)
        .from(M::Table)
        .and_where(Expr::col(M::Stream).eq(bind::text(stream)))
        .and_where(Expr::col(M::StreamEntryId).eq(bind::text(entry_id)))
        .limit(MAX_ROWS_OF_ENTRY as u64)
        .take()
}

/// The raw fields of a row, by the primary key.
pub(super) fn raw_fields(key: &MalformedKey) -> SelectStatement {
    Query::select()
        .expr_as(Expr::col(M::RawFields).cast_as("text"), M::RawFields)
        .from(M::Table)
        .and_where(Expr::col(M::Stream).eq(bind::text(&key.stream)))
        .and_where(Expr::col(M::StreamEntryId).eq(bind::text(&key.entry_id)))
        .and_where(Expr::col(M::FieldsFingerprint).eq(bind::text(&key.fields_fingerprint)))
        .limit(1)
        .take()
}

/// The end of a part of `malformed_intents_key_idx`, which compares by bytes.
pub(super) fn with_key(scope: &IdempotencyKey) -> SelectStatement {
    let by_bytes = |text: &str| Expr::cust_with_expr("$1 COLLATE \"C\"", bind::text(text));
    Query::select()
        .columns(SHOWN)
        .from(M::Table)
        .and_where(Expr::col(M::Producer).eq(by_bytes(&scope.producer)))
        .and_where(Expr::col(M::IdempotencyKey).eq(by_bytes(&scope.key)))
        .order_by(M::RecordedAt, Order::Desc)
        .limit(1)
        .take()
}
