//! Deletes old malformed intents, in chunks that the worker sizes.

use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{Cutoff, Expired, MalformedKey, Removal, RetentionStore, StoreError};
use pg::sql::unnest;
use pg::{PgError, Session, bind};
use sea_query::{
    DeleteStatement, Expr, ExprTrait, Func, LockBehavior, LockType, Order, Query, SelectStatement,
};

use crate::PgStore;
use crate::codec::{column, count, instant};
use crate::error::store_error;
use crate::retention::{stored_bytes, time_of};
use crate::schema::{Input, MalformedIntents};

impl RetentionStore<MalformedKey> for PgStore {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<MalformedKey>>,
        limit: usize,
    ) -> Result<Vec<Expired<MalformedKey>>, StoreError> {
        let session = self.session("list expired malformed intents").await?;
        let rows = session.query(&expired_malformed(cutoff, after, limit)).await.map_err(store_error)?;
        rows.iter()
            .map(|row| {
                let stream: String = column(row, "malformed_intents.stream", "")?;
                let entry_id: String = column(row, "malformed_intents.stream_entry_id", &stream)?;
                Ok(Expired {
                    at: instant(row, "malformed_intents.recorded_at", &entry_id)?,
                    rows: 1,
                    bytes: column::<i32>(row, "bytes", &entry_id)?.unsigned_abs().into(),
                    live: false,
                    key: MalformedKey {
                        fields_fingerprint: column(row, "malformed_intents.fields_fingerprint", &entry_id)?,
                        stream,
                        entry_id,
                    },
                })
            })
            .collect()
    }

    async fn delete_expired(&self, keys: &[&MalformedKey], cutoff: Cutoff) -> Result<Removal, StoreError> {
        let session = self.session("delete expired malformed intents").await?;
        let removed = session.execute(&delete_malformed(keys, cutoff)).await.map_err(store_error)?;
        let mut removal = Removal { removed, ..Removal::default() };
        if removed < keys.len() as u64 {
            let left = session.query(&count_malformed(keys, cutoff)).await.map_err(store_error)?;
            for row in &left {
                removal.locked = count(row, "rows", "malformed_intents")?;
            }
        }
        Ok(removal)
    }
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let cutoff = Cutoff { at: Timestamp::MIN, age: Duration::ZERO };
    session.prepare(&expired_malformed(cutoff, None, 1)).await?;
    session.prepare(&delete_malformed(&[], cutoff)).await?;
    session.prepare(&count_malformed(&[], cutoff)).await?;
    Ok(())
}

const MALFORMED_KEY: [MalformedIntents; 3] =
    [MalformedIntents::Stream, MalformedIntents::StreamEntryId, MalformedIntents::FieldsFingerprint];

/// A page of `malformed_intents_recorded_idx`.
pub(crate) fn expired_malformed(
    cutoff: Cutoff,
    after: Option<&Expired<MalformedKey>>,
    limit: usize,
) -> SelectStatement {
    let place = match after {
        Some(Expired { key, at, .. }) => [
            bind::instant(*at),
            bind::text(&key.stream),
            bind::text(&key.entry_id),
            bind::text(&key.fields_fingerprint),
        ],
        None => [bind::instant(Timestamp::MIN), bind::text(""), bind::text(""), bind::text("")],
    };
    let order = [
        MalformedIntents::RecordedAt,
        MalformedIntents::Stream,
        MalformedIntents::StreamEntryId,
        MalformedIntents::FieldsFingerprint,
    ];
    let mut page = Query::select();
    page.columns(MALFORMED_KEY)
        .column(MalformedIntents::RecordedAt)
        .expr_as(stored_bytes(MalformedIntents::RawFields), Input::Bytes)
        .from(MalformedIntents::Table)
        .and_where(Expr::col(MalformedIntents::RecordedAt).lt(time_of(cutoff)))
        .and_where(Expr::tuple(order.map(Expr::col)).gt(Expr::tuple(place)));
    for column in order {
        page.order_by(column, Order::Asc);
    }
    page.limit(limit as u64).take()
}

/// The rows with these keys, by the primary key.
fn old_malformed(keys: &[&MalformedKey], cutoff: Cutoff) -> SelectStatement {
    let texts = |value: fn(&MalformedKey) -> &str| unnest(bind::texts(keys.iter().map(|key| value(key))));
    let given = Query::select()
        .expr_as(texts(|key| &key.stream), MalformedIntents::Stream)
        .expr_as(texts(|key| &key.entry_id), MalformedIntents::StreamEntryId)
        .expr_as(texts(|key| &key.fields_fingerprint), MalformedIntents::FieldsFingerprint)
        .take();
    let same = |column| Expr::col((MalformedIntents::Table, column)).equals((Input::Table, column));
    let [first, second, third] = MALFORMED_KEY.map(same);
    Query::select()
        .from_subquery(given, Input::Table)
        .inner_join(MalformedIntents::Table, first.and(second).and(third))
        .and_where(Expr::col((MalformedIntents::Table, MalformedIntents::RecordedAt)).lt(time_of(cutoff)))
        .take()
}

pub(crate) fn delete_malformed(keys: &[&MalformedKey], cutoff: Cutoff) -> DeleteStatement {
    let mut locked = old_malformed(keys, cutoff);
    locked.columns(MALFORMED_KEY.map(|column| (MalformedIntents::Table, column))).lock_with_tables_behavior(
        LockType::Update,
        [MalformedIntents::Table],
        LockBehavior::SkipLocked,
    );
    Query::delete()
        .from_table(MalformedIntents::Table)
        .and_where(Expr::tuple(MALFORMED_KEY.map(Expr::col)).in_subquery(locked))
        .take()
}

/// The number of these rows that still exist, by the primary key.
pub(crate) fn count_malformed(keys: &[&MalformedKey], cutoff: Cutoff) -> SelectStatement {
    old_malformed(keys, cutoff)
        .expr_as(
            Func::count(Expr::col((MalformedIntents::Table, MalformedIntents::StreamEntryId))),
            Input::Rows,
        )
        .take()
}
