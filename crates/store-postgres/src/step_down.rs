//! Operators' requests that a replica step down: `replicas.step_down_at`, which the replica reads.
//!
//! Crash recovery: the request and its row in `operator_actions` are one transaction. All times are the
//! server's.

use std::time::Duration;

use domain::ports::{StepDownStore, StoreError};
use domain::query::REPLICA_FRESH_FOR;
use domain::step_down::{StepDown, StepDownState};
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Query, SelectStatement, SubQueryStatement, UpdateStatement};

use crate::PgStore;
use crate::codec::{column, corrupt};
use crate::error::store_error;
use crate::operations::insert_action;
use crate::schema::{Input, Replicas as R};

impl StepDownStore for PgStore {
    async fn request_step_down(&self, request: &StepDown) -> Result<bool, StoreError> {
        let session = self.session("ask a replica to step down").await?;
        match write(&session, request).await {
            Ok(found) => Ok(found),
            Err(error) => {
                // If this fails too, the session closes its connection. Either way the first error is the one
                // to report.
                drop(session.rollback().await);
                Err(error)
            }
        }
    }

    async fn get_step_down(&self, replica: &str) -> Result<StepDownState, StoreError> {
        let session = self.session("look for a request to step down").await?;
        let rows = session.query(&state_of(replica)).await.map_err(store_error)?;
        let Some(row) = rows.first() else {
            // The replica has not reported yet, so no operator can have made a request.
            return Ok(StepDownState { requested_ago: None, other_replica: false });
        };
        let micros: Option<i64> = column(row, "requested_ago", replica)?;
        let other: Option<String> = column(row, "other_replica", replica)?;
        Ok(StepDownState {
            requested_ago: micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
            other_replica: other.is_some(),
        })
    }
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    session.prepare(&request("")).await?;
    session.prepare(&state_of("")).await.map(drop)
}

async fn write(session: &Session, asked: &StepDown) -> Result<bool, StoreError> {
    session.begin().await.map_err(store_error)?;
    match session.execute(&request(&asked.replica)).await.map_err(store_error)? {
        0 => {
            session.rollback().await.map_err(store_error)?;
            return Ok(false);
        }
        1 => {}
        rows => {
            return Err(corrupt("replicas", &asked.replica, format!("{rows} rows have this primary key")));
        }
    }
    let by = (asked.actor.as_str(), asked.request_id.as_str());
    let insert = insert_action(by, StepDown::ACTION, &asked.arguments().to_string(), 1);
    session.execute(&insert).await.map_err(store_error)?;
    session.commit().await.map_err(store_error)?;
    Ok(true)
}

/// Stores the request, by the primary key.
fn request(replica: &str) -> UpdateStatement {
    Query::update()
        .table(R::Table)
        .value(R::StepDownAt, Expr::cust("clock_timestamp()"))
        .and_where(Expr::col(R::Replica).eq(bind::text(replica)))
        .take()
}

/// The row of the replica, by the primary key, and another one that was seen recently: the table has a row
/// for each replica of the last hour.
fn state_of(replica: &str) -> SelectStatement {
    let fresh = bind::bigint(REPLICA_FRESH_FOR.as_secs().cast_signed());
    let other = Query::select()
        .column(R::Replica)
        .from(R::Table)
        .and_where(Expr::col(R::Replica).ne(bind::text(replica)))
        .and_where(
            Expr::col(R::SeenAt).gte(Expr::cust("now()").sub(fresh.mul(Expr::cust("interval '1 second'")))),
        )
        .limit(1)
        .take();
    Query::select()
        .expr_as(
            Expr::cust("(extract(epoch FROM clock_timestamp() - step_down_at) * 1000000)::bigint"),
            Input::RequestedAgo,
        )
        .expr_as(
            Expr::SubQuery(None, Box::new(SubQueryStatement::SelectStatement(other))),
            Input::OtherReplica,
        )
        .from(R::Table)
        .and_where(Expr::col(R::Replica).eq(bind::text(replica)))
        .limit(1)
        .take()
}
