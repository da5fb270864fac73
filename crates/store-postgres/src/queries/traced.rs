//! The notifications of a request or of a trace. Neither id has an index: acceptance would pay for it with
//! each record (ADR 0062).

use domain::find::TRACED_NOTIFICATIONS;
use domain::ports::StoreError;
use domain::query::MAX_RECORDS;
use domain::record::NotificationId;
use pg::{BoundStatement, Session, parameter};
use tokio_postgres::Row;

use crate::codec::column;
use crate::error::store_error;

pg::statements! {
    /// Compares a bounded number of records, the newest first.
    OF_TRACE = "records.of_trace", plan ["records_listing_idx"], "
        SELECT notification_id
        FROM (
            SELECT notification_id, request_id, trace_id FROM records
            ORDER BY accepted_at DESC, notification_id DESC
            LIMIT $2::bigint
        ) AS newest
        WHERE request_id = $1::text OR trace_id = $1::text
        LIMIT $3::bigint";
}

pub(super) async fn list(session: &Session, id: &str) -> Result<Vec<NotificationId>, StoreError> {
    let rows = session.query(of_trace(id)).await.map_err(store_error)?;
    let id = |row: &Row| column::<String>(row, "records.notification_id", "").map(NotificationId::from);
    rows.iter().map(id).collect()
}

pub(super) fn of_trace(id: &str) -> BoundStatement {
    let bounds = [TRACED_NOTIFICATIONS, MAX_RECORDS].map(parameter::rows);
    let [newest, found] = bounds;
    OF_TRACE.bind([parameter::text(id), newest, found])
}
