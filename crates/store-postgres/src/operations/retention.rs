//! Deletes old rows of `operator_actions`, in chunks that the worker sizes.

use domain::operations::OperatorActionId;
use domain::ports::{Cutoff, Expired, Removal, RetentionStore, StoreError};
use pg::sql::any;
use pg::{PgError, Session, bind};
use sea_query::{DeleteStatement, Expr, ExprTrait, Order, Query, SelectStatement};

use crate::PgStore;
use crate::codec::{column, instant};
use crate::error::store_error;
use crate::retention::{stored_bytes, time_of};
use crate::schema::{Input, OperatorActions as A};

impl RetentionStore<OperatorActionId> for PgStore {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<OperatorActionId>>,
        limit: usize,
    ) -> Result<Vec<Expired<OperatorActionId>>, StoreError> {
        let session = self.session("list expired actions of operators").await?;
        let rows = session.query(&expired_actions(cutoff, after, limit)).await.map_err(store_error)?;
        rows.iter()
            .map(|row| {
                let id: i64 = column(row, "operator_actions.id", "")?;
                let name = id.to_string();
                Ok(Expired {
                    key: OperatorActionId(id),
                    at: instant(row, "operator_actions.at", &name)?,
                    rows: 1,
                    bytes: column::<i32>(row, "bytes", &name)?.unsigned_abs().into(),
                    live: false,
                })
            })
            .collect()
    }

    /// Deletes expired rows. Nothing changes these rows, so a lock on one belongs to a session that was left
    /// open: the statement waits briefly, and the worker tries again with fewer rows.
    async fn delete_expired(
        &self,
        keys: &[&OperatorActionId],
        cutoff: Cutoff,
    ) -> Result<Removal, StoreError> {
        let session = self.session("delete expired actions of operators").await?;
        let removed = session.execute(&delete_actions(keys, cutoff)).await.map_err(store_error)?;
        Ok(Removal { removed, ..Removal::default() })
    }
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let cutoff = Cutoff { at: ambient::Timestamp::MIN, age: std::time::Duration::ZERO };
    session.prepare(&expired_actions(cutoff, None, 1)).await?;
    session.prepare(&delete_actions(&[], cutoff)).await?;
    Ok(())
}

/// A page of `operator_actions_at_idx`.
pub(super) fn expired_actions(
    cutoff: Cutoff,
    after: Option<&Expired<OperatorActionId>>,
    limit: usize,
) -> SelectStatement {
    let (at, id) = after.map_or((ambient::Timestamp::MIN, i64::MIN), |last| (last.at, last.key.0));
    let order = [A::At, A::Id];
    let mut page = Query::select();
    page.columns(order)
        .expr_as(stored_bytes(A::Arguments), Input::Bytes)
        .from(A::Table)
        .and_where(Expr::col(A::At).lt(time_of(cutoff)))
        .and_where(Expr::tuple(order.map(Expr::col)).gt(Expr::tuple([bind::instant(at), bind::bigint(id)])));
    for column in order {
        page.order_by(column, Order::Asc);
    }
    page.limit(limit as u64).take()
}

/// Deletes these rows, by the primary key.
pub(super) fn delete_actions(keys: &[&OperatorActionId], cutoff: Cutoff) -> DeleteStatement {
    Query::delete()
        .from_table(A::Table)
        .and_where(Expr::col(A::Id).eq(any(bind::bigints(keys.iter().map(|key| key.0)))))
        .and_where(Expr::col(A::At).lt(time_of(cutoff)))
        .take()
}
