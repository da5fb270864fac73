//! Deletes expired records, in chunks that the worker sizes. Routes and dead letters are deleted with their
//! record by cascade, receipts by a statement of their own.
//!
//! A record may be deleted only if none of its routes is live, and an operator may be retrying one of its
//! dead letters at the same time (ADR 0020). So a chunk of records is one transaction that locks, checks
//! again, then deletes:
//!
//! 1. It locks the records, so that no other transaction adds routes, and all of their routes, so that no
//!    other changes them. It waits for no lock: rows that another transaction holds are left out.
//! 2. A later statement, which sees all changes committed before the locks were granted, counts the routes of
//!    each record. A record stays if one of its routes is live, or was not locked.
//! 3. It deletes the others and the receipts of their routes. A transaction that writes a receipt has locked
//!    its route.
//!
//! A record whose key must be kept for longer is listed like any other, and stays: neither lock nor count
//! includes it.
//!
//! A crash at any of these steps leaves all records of the chunk unchanged, or none of them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{Cutoff, Expired, Removal, RetentionStore, StoreError};
use domain::record::NotificationId;
use futures_util::future::{join3, join4};
use pg::sql::{Written, any};
use pg::{PgError, Session, bind};
use sea_query::{
    DeleteStatement, Expr, ExprTrait, Func, JoinType, LockBehavior, LockType, Order, Query, SelectStatement,
};
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::{column, count, instant};
use crate::error::store_error;
use crate::schema::{Input, Receipts, Records, Routes};

impl RetentionStore<NotificationId> for PgStore {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<NotificationId>>,
        limit: usize,
    ) -> Result<Vec<Expired<NotificationId>>, StoreError> {
        let session = self.session("list expired records").await?;
        let rows = session.query(&expired_records(cutoff, after, limit)).await.map_err(store_error)?;
        rows.iter()
            .map(|row| {
                let id: String = column(row, "records.notification_id", "")?;
                Ok(Expired {
                    at: instant(row, "records.accepted_at", &id)?,
                    bytes: u64::from(column::<i32>(row, "bytes", &id)?.unsigned_abs())
                        + count(row, "receipt_bytes", &id)?,
                    rows: 1 + count(row, "routes", &id)? + count(row, "receipts", &id)?,
                    live: count(row, "live_routes", &id)? > 0,
                    key: NotificationId::from(id),
                })
            })
            .collect()
    }

    async fn delete_expired(&self, keys: &[&NotificationId], cutoff: Cutoff) -> Result<Removal, StoreError> {
        let session = self.session("delete expired records").await?;
        let ids: Vec<&str> = keys.iter().map(|id| id.as_str()).collect();
        let result = delete_unless_live_or_locked(&session, &ids, cutoff).await;
        if result.is_err() {
            // The connection stays usable if the server only rejected a statement; otherwise this fails too,
            // and the session closes it. Either way the first error is the one to report.
            drop(session.rollback().await);
        }
        result
    }
}

async fn delete_unless_live_or_locked(
    session: &Session,
    ids: &[&str],
    cutoff: Cutoff,
) -> Result<Removal, StoreError> {
    let (records, routes, counts) = lock_and_count(session, ids, cutoff).await.map_err(store_error)?;
    let records: HashSet<&str> =
        records.iter().map(|row| column(row, "records.notification_id", "")).collect::<Result<_, _>>()?;
    let mut locked_routes: HashMap<&str, u64> = HashMap::new();
    for row in &routes {
        let id: &str = column(row, "routes.notification_id", "")?;
        locked_routes.insert(id, count(row, "routes", id)?);
    }
    let mut removal = Removal::default();
    let mut removable = Vec::new();
    for row in &counts {
        let id: &str = column(row, "records.notification_id", "")?;
        let routes = count(row, "routes", id)?;
        if count(row, "live_routes", id)? > 0 {
            removal.live += 1;
        } else if records.contains(id) && locked_routes.get(id).copied().unwrap_or(0) == routes {
            removable.push(id);
        } else {
            removal.locked += 1;
        }
    }
    if removable.is_empty() {
        session.rollback().await.map_err(store_error)?;
        return Ok(removal);
    }
    let receipts = session.prepare(&delete_receipts(&removable)).await.map_err(store_error)?;
    let delete = session.prepare(&delete_records(&removable)).await.map_err(store_error)?;
    // A COMMIT after a failed statement rolls back without an error of its own, so every result is checked.
    let (receipts, deleted, committed) =
        join3(session.change(&receipts), session.change(&delete), session.commit()).await;
    receipts.map_err(store_error)?;
    removal.removed = deleted.map_err(store_error)?;
    committed.map_err(store_error)?;
    Ok(removal)
}

/// Opens a transaction and sends its locks and its check together; the server runs them in sequence. Returns
/// the locked records, the locked routes of each, and all routes of each.
async fn lock_and_count(
    session: &Session,
    ids: &[&str],
    cutoff: Cutoff,
) -> Result<(Vec<Row>, Vec<Row>, Vec<Row>), PgError> {
    let records = session.prepare(&lock_records(ids, cutoff)).await?;
    let routes = session.prepare(&lock_routes(ids)).await?;
    let counts = session.prepare(&count_routes(ids, cutoff)).await?;
    let (begun, records, routes, counts) =
        join4(session.begin(), session.run(&records), session.run(&routes), session.run(&counts)).await;
    begun?;
    Ok((records?, routes?, counts?))
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let cutoff = Cutoff { at: Timestamp::MIN, age: Duration::ZERO };
    session.prepare(&expired_records(cutoff, None, 1)).await?;
    session.prepare(&lock_records(&[], cutoff)).await?;
    session.prepare(&lock_routes(&[])).await?;
    session.prepare(&count_routes(&[], cutoff)).await?;
    session.prepare(&delete_receipts(&[])).await?;
    session.prepare(&delete_records(&[])).await?;
    Ok(())
}

/// The time of the cutoff by the earlier of the two clocks.
pub(crate) fn time_of(cutoff: Cutoff) -> Expr {
    let age = i64::try_from(cutoff.age.as_micros()).unwrap_or(i64::MAX);
    let by_the_database =
        Expr::cust("now()").sub(bind::bigint(age).mul(Expr::cust("interval '1 microsecond'")));
    Expr::expr(Func::least([bind::instant(cutoff.at), by_the_database]))
}

/// True if the promised time of a record's key has passed, by both clocks. A replica with a shorter retention
/// than the one that accepted the record would otherwise forget the key too early.
fn promise_has_passed(cutoff: Cutoff) -> Expr {
    let age = i64::try_from(cutoff.age.as_micros()).unwrap_or(i64::MAX);
    let present = bind::instant(cutoff.at).add(bind::bigint(age).mul(Expr::cust("interval '1 microsecond'")));
    let earlier = Func::least([present, Expr::cust("now()")]);
    Expr::col((Records::Table, Records::IdempotencyExpiresAt)).lte(earlier)
}

/// The stored size of a column in bytes, in its row or outside of it, as compressed.
pub(crate) fn stored_bytes<T: sea_query::IntoColumnRef>(column: T) -> Expr {
    Expr::expr(Func::cust("pg_column_size").arg(Expr::col(column)))
}

/// A page of `records_listing_idx`, read backwards, with the number of routes of each record, and with its
/// receipts by a range of their primary key.
pub(crate) fn expired_records(
    cutoff: Cutoff,
    after: Option<&Expired<NotificationId>>,
    limit: usize,
) -> SelectStatement {
    let (time, id) = after.map_or((Timestamp::MIN, ""), |last| (last.at, last.key.as_str()));
    let order = [Records::AcceptedAt, Records::NotificationId];
    let mut page = Query::select();
    page.columns(order)
        .expr_as(
            stored_bytes(Records::PayloadJson).add(stored_bytes(Records::RecipientUserIds)),
            Input::Bytes,
        )
        .from(Records::Table)
        .and_where(Expr::col(Records::AcceptedAt).lt(time_of(cutoff)));
    page.and_where(Expr::tuple(order.map(Expr::col)).gt(Expr::tuple([bind::instant(time), bind::text(id)])));
    for column in order {
        page.order_by(column, Order::Asc);
    }
    page.limit(limit as u64);
    let mut select = Query::select();
    select
        .columns([(Input::Table, Records::NotificationId), (Input::Table, Records::AcceptedAt)])
        .expr_as(Func::max(Expr::col((Input::Table, Input::Bytes))), Input::Bytes)
        .expr_as(Func::count(Expr::col((Routes::Table, Routes::RouteId))), Input::Routes)
        .expr_as(Func::count(Expr::col((Routes::Table, Routes::NextAttemptAt))), Input::LiveRoutes)
        .expr_as(Func::max(Expr::col((Receipts::Table, Input::Receipts))), Input::Receipts)
        .expr_as(Func::max(Expr::col((Receipts::Table, Input::ReceiptBytes))), Input::ReceiptBytes)
        .from_subquery(page, Input::Table)
        .left_join(
            Routes::Table,
            Expr::col((Routes::Table, Routes::NotificationId))
                .equals((Input::Table, Records::NotificationId)),
        )
        .join_lateral(JoinType::InnerJoin, receipts_of_record(), Receipts::Table, Expr::cust("true"));
    for column in order {
        select.group_by_col((Input::Table, column)).order_by((Input::Table, column), Order::Asc);
    }
    select
}

/// The number of receipts of the input's record, and their bytes.
fn receipts_of_record() -> SelectStatement {
    let bytes = Func::sum(stored_bytes(Receipts::Value));
    Query::select()
        .expr_as(Func::count(Expr::col(Receipts::Key)), Input::Receipts)
        .expr_as(
            Expr::expr(Func::coalesce([Expr::expr(bytes), Expr::cust("0")])).cast_as("bigint"),
            Input::ReceiptBytes,
        )
        .from(Receipts::Table)
        .and_where(Expr::cust(KEY_OF_RECORD))
        .take()
}

/// Matches the keys of receipts that begin with the id of the input's record and a slash. The next character
/// after a slash is 0, and keys are sorted by their bytes.
const KEY_OF_RECORD: &str =
    "receipts.key >= input.notification_id || '/' AND receipts.key < input.notification_id || '0'";

/// Locks records, by the primary key. The foreign key makes every transaction that adds a route lock its
/// record, so none is added from here on.
pub(crate) fn lock_records(ids: &[&str], cutoff: Cutoff) -> SelectStatement {
    Query::select()
        .column(Records::NotificationId)
        .from(Records::Table)
        .and_where(Expr::col(Records::NotificationId).eq(any(bind::texts(ids))))
        .and_where(Expr::col(Records::AcceptedAt).lt(time_of(cutoff)))
        .and_where(promise_has_passed(cutoff))
        .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
        .take()
}

/// Locks routes, by the primary key, and returns the number locked of each record.
pub(crate) fn lock_routes(ids: &[&str]) -> SelectStatement {
    let locked = Query::select()
        .column(Routes::NotificationId)
        .from(Routes::Table)
        .and_where(Expr::col(Routes::NotificationId).eq(any(bind::texts(ids))))
        .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
        .take();
    Query::select()
        .column(Input::NotificationId)
        .expr_as(Func::count(Expr::col(Input::NotificationId)), Input::Routes)
        .from_subquery(locked, Input::Table)
        .group_by_col(Input::NotificationId)
        .take()
}

/// The number of existing routes of each record, and of its live ones, by the primary keys.
pub(crate) fn count_routes(ids: &[&str], cutoff: Cutoff) -> SelectStatement {
    Query::select()
        .column((Records::Table, Records::NotificationId))
        .expr_as(Func::count(Expr::col((Routes::Table, Routes::RouteId))), Input::Routes)
        .expr_as(Func::count(Expr::col((Routes::Table, Routes::NextAttemptAt))), Input::LiveRoutes)
        .from(Records::Table)
        .left_join(
            Routes::Table,
            Expr::col((Routes::Table, Routes::NotificationId))
                .equals((Records::Table, Records::NotificationId)),
        )
        .and_where(Expr::col((Records::Table, Records::NotificationId)).eq(any(bind::texts(ids))))
        .and_where(Expr::col((Records::Table, Records::AcceptedAt)).lt(time_of(cutoff)))
        .and_where(promise_has_passed(cutoff))
        .group_by_col((Records::Table, Records::NotificationId))
        .take()
}

/// Deletes receipts, by a range of the primary key for each record. A transaction that writes a receipt locks
/// its route first, and all routes are locked here: none is added meanwhile.
pub(crate) fn delete_receipts(ids: &[&str]) -> Written {
    let text = format!(
        "DELETE FROM receipts USING (SELECT unnest($1) AS notification_id) AS input WHERE {KEY_OF_RECORD}"
    );
    Written::new(text, [bind::texts(ids)])
}

/// Deletes records, by the primary key. The routes that would prevent it are locked and were checked.
pub(crate) fn delete_records(ids: &[&str]) -> DeleteStatement {
    Query::delete()
        .from_table(Records::Table)
        .and_where(Expr::col(Records::NotificationId).eq(any(bind::texts(ids))))
        .take()
}

#[cfg(test)]
mod tests;
