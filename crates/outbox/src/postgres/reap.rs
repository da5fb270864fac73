//! Ending expired leases; a batch is halved if the table rejects the change of one of its rows.

use uuid::Uuid;

use super::{PostgresStorage, column, ids, read_attempts};
use crate::row_id::RowId;
use crate::{FailureKind, OutboxError, ReapRequest, Reaped, statements};

impl PostgresStorage {
    pub(super) async fn reap(
        &self,
        request: &ReapRequest,
        kind: &(dyn Fn(u32) -> FailureKind + Send + Sync),
    ) -> Result<Reaped, OutboxError> {
        let session = self.pool.session("reap leases of the outbox").await?;
        match session.query(statements::begin_again(&self.table, request)).await {
            Ok(rows) if !rows.is_empty() => tracing::warn!(
                events = rows.len(),
                "leases of outbox events began in the future; they begin now"
            ),
            Ok(_) => {}
            Err(error) => {
                let error = OutboxError::from(error);
                if !error.is_about_rows() {
                    return Err(error);
                }
                let error = ambient::error_chain(&error);
                tracing::warn!(
                    error,
                    "leases of outbox events that begin in the future could not be changed"
                );
            }
        }
        let rows = session.query(statements::expired_leases(&self.table, request)).await?;
        let mut expired = Vec::with_capacity(rows.len());
        for row in &rows {
            let attempts = read_attempts(row)?.saturating_add(1);
            expired.push((column::<RowId>(row, "event_id")?.0, attempts, kind(attempts)));
        }
        drop(session);
        let is_followed = expired.len() as u64 >= u64::from(request.limit);
        let mut reaped = Reaped { is_followed, ..Reaped::default() };
        let mut parts: Vec<&[(Uuid, u32, FailureKind)]> = vec![&expired];
        while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
            let session = self.pool.session("reap leases of the outbox").await?;
            let error = match session.query(statements::reap(&self.table, request, part)).await {
                Ok(rows) => {
                    reaped.count += ids(&rows)?.len() as u64;
                    continue;
                }
                Err(error) => OutboxError::from(error),
            };
            match (error.is_about_rows(), part) {
                (true, [(event_id, ..)]) => reaped.refused.push(*event_id),
                (true, _) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                (false, _) => return Err(error),
            }
        }
        Ok(reaped)
    }
}
