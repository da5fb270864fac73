//! Deleting what is old, in chunks that the worker sizes. Routes and dead letters go with their record by cascade.

use ambient::Timestamp;
use domain::ports::{Expired, RetentionStore, StoreError};
use domain::record::NotificationId;
use pg::{PgError, Session, bind};
use sea_query::{DeleteStatement, Expr, ExprTrait, Func, Order, Query, SelectStatement};

use crate::PgStore;
use crate::codec::{column, instant};
use crate::error::store_error;
use crate::routes::is_live;
use crate::schema::{Given, MalformedIntents, Records, Routes, any};

impl RetentionStore for PgStore {
    async fn list_expired_records(
        &self,
        cutoff: Timestamp,
        after: Option<&Expired>,
        limit: usize,
    ) -> Result<Vec<Expired>, StoreError> {
        let session = self.session("list expired records").await?;
        let rows = session.query(&expired_records(cutoff, after, limit)).await.map_err(store_error)?;
        rows.iter()
            .map(|row| {
                let id: String = column(row, 0, "records.notification_id", "")?;
                Ok(Expired {
                    accepted_at: instant(row, 1, "records.accepted_at", &id)?,
                    routes: column::<i64>(row, 2, "count", &id)?.unsigned_abs(),
                    live_routes: column::<i64>(row, 3, "count", &id)?.unsigned_abs(),
                    notification_id: NotificationId::from(id),
                })
            })
            .collect()
    }

    async fn delete_records(&self, ids: &[NotificationId], cutoff: Timestamp) -> Result<u64, StoreError> {
        let session = self.session("delete expired records").await?;
        session.execute(&delete_records(ids, cutoff)).await.map_err(store_error)
    }

    async fn delete_malformed_intents(&self, cutoff: Timestamp, limit: usize) -> Result<u64, StoreError> {
        let session = self.session("delete expired malformed intents").await?;
        session.execute(&delete_malformed(cutoff, limit)).await.map_err(store_error)
    }
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&expired_records(Timestamp::MIN, None, 1)).await?;
    session.prepare(&delete_records(&[], Timestamp::MIN)).await?;
    session.prepare(&delete_malformed(Timestamp::MIN, 1)).await?;
    Ok(())
}

/// A page of `records_listing_idx`, read backwards, with the number of routes of each record.
pub(crate) fn expired_records(cutoff: Timestamp, after: Option<&Expired>, limit: usize) -> SelectStatement {
    let (time, id) =
        after.map_or((Timestamp::MIN, ""), |last| (last.accepted_at, last.notification_id.as_str()));
    let order = [Records::AcceptedAt, Records::NotificationId];
    let mut page = Query::select();
    page.columns(order)
        .from(Records::Table)
        .and_where(Expr::col(Records::AcceptedAt).lt(bind::instant(cutoff)));
    page.and_where(Expr::tuple(order.map(Expr::col)).gt(Expr::tuple([bind::instant(time), bind::text(id)])));
    for column in order {
        page.order_by(column, Order::Asc);
    }
    page.limit(limit as u64);
    let mut select = Query::select();
    select
        .columns([(Given::Table, Records::NotificationId), (Given::Table, Records::AcceptedAt)])
        .expr(Func::count(Expr::col((Routes::Table, Routes::RouteId))))
        .expr(Func::count(Expr::col((Routes::Table, Routes::NextAttemptAt))))
        .from_subquery(page, Given::Table)
        .left_join(
            Routes::Table,
            Expr::col((Routes::Table, Routes::NotificationId))
                .equals((Given::Table, Records::NotificationId)),
        );
    for column in order {
        select.group_by_col((Given::Table, column)).order_by((Given::Table, column), Order::Asc);
    }
    select
}

/// What the page said is asked again: a record with a live route stays.
pub(crate) fn delete_records(ids: &[NotificationId], cutoff: Timestamp) -> DeleteStatement {
    let live = Query::select()
        .expr(Expr::cust("1"))
        .from(Routes::Table)
        .and_where(
            Expr::col((Routes::Table, Routes::NotificationId))
                .equals((Records::Table, Records::NotificationId)),
        )
        .and_where(is_live())
        .take();
    Query::delete()
        .from_table(Records::Table)
        .and_where(
            Expr::col((Records::Table, Records::NotificationId))
                .eq(any(bind::texts(ids.iter().map(NotificationId::as_str)))),
        )
        .and_where(Expr::col((Records::Table, Records::AcceptedAt)).lt(bind::instant(cutoff)))
        .and_where(Expr::exists(live).not())
        .take()
}

pub(crate) fn delete_malformed(cutoff: Timestamp, limit: usize) -> DeleteStatement {
    let key =
        [MalformedIntents::Stream, MalformedIntents::StreamEntryId, MalformedIntents::FieldsFingerprint];
    let oldest = Query::select()
        .columns(key)
        .from(MalformedIntents::Table)
        .and_where(Expr::col(MalformedIntents::RecordedAt).lt(bind::instant(cutoff)))
        .order_by(MalformedIntents::RecordedAt, Order::Asc)
        .limit(limit as u64)
        .take();
    Query::delete()
        .from_table(MalformedIntents::Table)
        .and_where(Expr::tuple(key.map(Expr::col)).in_subquery(oldest))
        .take()
}
