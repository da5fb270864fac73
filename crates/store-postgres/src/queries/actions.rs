//! The list of operators' actions.

use ambient::Timestamp;
use domain::operations::OperatorActionId;
use domain::ports::StoreError;
use domain::query::{ActionFilter, ActionPlace, Page, PageLimit, RecordedAction};
use pg::{BoundStatement, Session, parameter};
use tokio_postgres::Row;

use super::{MAX_EXAMINED, examined, page};
use crate::codec::{column, count, instant};
use crate::error::store_error;

pub(super) async fn list(
    session: &Session,
    filter: &ActionFilter,
    after: Option<&ActionPlace>,
    limit: PageLimit,
) -> Result<Page<RecordedAction, ActionPlace>, StoreError> {
    let rows = session.query(listed(filter, after, limit.get())).await.map_err(store_error)?;
    Ok(page(examined(&rows, action)?, limit.get(), RecordedAction::place))
}

fn action(row: &Row) -> Result<RecordedAction, StoreError> {
    let id: i64 = column(row, "operator_actions.id", "")?;
    let key = id.to_string();
    Ok(RecordedAction {
        id: OperatorActionId(id),
        at: instant(row, "operator_actions.at", &key)?,
        actor: column(row, "operator_actions.actor", &key)?,
        action: column(row, "operator_actions.action", &key)?,
        arguments: column(row, "operator_actions.arguments", &key)?,
        affected: count(row, "operator_actions.affected", &key)?,
        request_id: column(row, "operator_actions.request_id", &key)?,
    })
}

pg::statements! {
    /// At most [`MAX_EXAMINED`] rows, read backwards from a position. Returns the matching rows until the
    /// page is full, and the last one in any case.
    LIST = "operator_actions.list", plan ["operator_actions_at_idx"], "
        SELECT *
        FROM (
            SELECT *,
                ($5::text IS NULL OR actor = $5::text) AND ($6::text IS NULL OR action = $6::text)
                AND ($7::text IS NULL OR request_id = $7::text) AS matches
            FROM (
                SELECT id, at, actor, action, arguments, affected, request_id,
                    row_number() OVER (ORDER BY at DESC, id DESC) AS rows
                FROM operator_actions
                WHERE (at, id) < ($1::timestamptz, $2::bigint) AND at >= $3::timestamptz
                ORDER BY at DESC, id DESC
                LIMIT $4::bigint
            ) AS examined
        ) AS compared
        WHERE matches OR rows = $4::bigint
        ORDER BY at DESC, id DESC
        LIMIT $8::bigint";
}

pub(super) fn listed(filter: &ActionFilter, after: Option<&ActionPlace>, limit: usize) -> BoundStatement {
    let ActionFilter { actor, action, request_id, after: since, before } = filter;
    let before = before.unwrap_or(Timestamp::MAX);
    // Before the first id of that time, so that the end of the period is exclusive.
    let (at, id) = match after {
        Some(place) if place.at < before => (place.at, place.id().0),
        _ => (before, i64::MIN),
    };
    LIST.bind([
        parameter::instant(at),
        parameter::bigint(id),
        parameter::instant(since.unwrap_or(Timestamp::MIN)),
        parameter::rows(MAX_EXAMINED),
        parameter::optional_text(actor.as_deref()),
        parameter::optional_text(action.as_deref()),
        parameter::optional_text(request_id.as_deref()),
        parameter::rows(limit),
    ])
}
