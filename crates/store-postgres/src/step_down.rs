//! Operators' requests that a replica step down: `replicas.step_down_at`, which the replica reads.
//!
//! Crash recovery: the request and its row in `operator_actions` are one transaction. All times are the
//! server's.

use std::time::Duration;

use domain::ports::{StepDownStore, StoreError};
use domain::query::REPLICA_FRESH_FOR;
use domain::step_down::{StepDown, StepDownState};
use pg::{Session, parameter};

use crate::PgStore;
use crate::codec::{column, one_row};
use crate::error::store_error;
use crate::operator_actions::insert_action;

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
        let fresh = parameter::bigint(REPLICA_FRESH_FOR.as_secs().cast_signed());
        let state = STATE.bind([parameter::text(replica), fresh]);
        let rows = session.query(state).await.map_err(store_error)?;
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

async fn write(session: &Session, asked: &StepDown) -> Result<bool, StoreError> {
    session.begin().await.map_err(store_error)?;
    let requested = REQUEST.bind([parameter::text(&asked.replica)]);
    if !one_row(session.execute(requested).await.map_err(store_error)?, "replicas", &asked.replica)? {
        session.rollback().await.map_err(store_error)?;
        return Ok(false);
    }
    let by = (asked.actor.as_str(), asked.request_id.as_str());
    let insert = insert_action(by, StepDown::ACTION, &asked.arguments().to_string(), 1);
    session.execute(insert).await.map_err(store_error)?;
    session.commit().await.map_err(store_error)?;
    Ok(true)
}

pg::statements! {
    /// Stores the request.
    REQUEST = "replicas.request_step_down", plan ["replicas_pkey"], "
        UPDATE replicas SET step_down_at = clock_timestamp() WHERE replica = $1::text";

    /// The row of the replica, and another one that was seen recently: the table has a row for each replica
    /// of the last hour.
    STATE = "replicas.step_down_state", plan ["replicas_pkey", "Seq Scan on replicas"], "
        SELECT (extract(epoch FROM clock_timestamp() - step_down_at) * 1000000)::bigint AS requested_ago,
            (
                SELECT replica FROM replicas
                WHERE replica <> $1::text AND seen_at >= now() - $2::bigint * interval '1 second'
                LIMIT 1
            ) AS other_replica
        FROM replicas
        WHERE replica = $1::text
        LIMIT 1";
}
