//! The table `operator_actions`: each transaction of an operator's change adds a row, and retention deletes
//! old ones in chunks that the worker sizes.

use domain::operations::OperatorActionId;
use domain::ports::{Cutoff, Expired, Removal, RetentionStore, StoreError};
use pg::{BoundStatement, parameter};

use crate::PgStore;
use crate::codec::{column, instant};
use crate::error::store_error;
use crate::retention::clocks;

impl RetentionStore<OperatorActionId> for PgStore {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<OperatorActionId>>,
        limit: usize,
    ) -> Result<Vec<Expired<OperatorActionId>>, StoreError> {
        let session = self.session("list expired actions of operators").await?;
        let rows = session.query(expired_actions(cutoff, after, limit)).await.map_err(store_error)?;
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
        let removed = session.execute(delete_actions(keys, cutoff)).await.map_err(store_error)?;
        Ok(Removal { removed, ..Removal::default() })
    }
}

pg::statements! {
    /// Records a change by an actor with a request, at the time of the server.
    INSERT = "operator_actions.insert", plan [], "
        INSERT INTO operator_actions (at, actor, action, arguments, affected, request_id)
        VALUES (clock_timestamp(), $1::text, $2::text, $3::text::jsonb, $4::bigint, $5::text)";

    /// A page of expired rows.
    EXPIRED = "operator_actions.expired", plan ["operator_actions_at_idx"], "
        SELECT at, id, pg_column_size(arguments) AS bytes
        FROM operator_actions
        WHERE at < least($1::timestamptz, now() - $2::bigint * interval '1 microsecond')
            AND (at, id) > ($3::timestamptz, $4::bigint)
        ORDER BY at, id
        LIMIT $5::bigint";

    /// Deletes the rows with these ids that are expired.
    DELETE = "operator_actions.delete_expired", plan ["operator_actions_pkey"], "
        DELETE FROM operator_actions
        WHERE id = ANY ($1::bigint[])
            AND at < least($2::timestamptz, now() - $3::bigint * interval '1 microsecond')";
}

pub(crate) fn insert_action(
    (actor, request_id): (&str, &str),
    name: &str,
    arguments: &str,
    affected: u64,
) -> BoundStatement {
    INSERT.bind([
        parameter::text(actor),
        parameter::text(name),
        parameter::text(arguments),
        parameter::bigint(i64::try_from(affected).unwrap_or(i64::MAX)),
        parameter::text(request_id),
    ])
}

pub(crate) fn expired_actions(
    cutoff: Cutoff,
    after: Option<&Expired<OperatorActionId>>,
    limit: usize,
) -> BoundStatement {
    let (last_at, id) = after.map_or((ambient::Timestamp::MIN, i64::MIN), |last| (last.at, last.key.0));
    let [at, age] = clocks(cutoff);
    EXPIRED.bind([at, age, parameter::instant(last_at), parameter::bigint(id), parameter::rows(limit)])
}

pub(crate) fn delete_actions(keys: &[&OperatorActionId], cutoff: Cutoff) -> BoundStatement {
    let [at, age] = clocks(cutoff);
    DELETE.bind([parameter::bigints(keys.iter().map(|key| key.0)), at, age])
}
