//! Ending expired leases; a batch is halved if the change of one of its rows fails.

use std::collections::HashSet;

use pg::BoundStatement;
use uuid::Uuid;

use super::delivered::one;
use super::{PostgresStorage, column, ids, read_attempts};
use crate::error::{Blame, UnclearRows};
use crate::row_id::RowId;
use crate::{FailureKind, OutboxError, ReapRequest, Reaped, statements};

impl PostgresStorage {
    pub(super) async fn reap(
        &self,
        request: &ReapRequest,
        kind: &(dyn Fn(u32) -> FailureKind + Send + Sync),
    ) -> Result<Reaped, OutboxError> {
        let mut reaped = self.begin_again(request).await?;
        let session = self.pool.session("reap leases of the outbox").await?;
        let rows = session.query(statements::expired_leases(&self.table, request)).await?;
        let mut expired = Vec::with_capacity(rows.len());
        for row in &rows {
            let attempts = read_attempts(row)?.saturating_add(1);
            expired.push((column::<RowId>(row, "event_id")?.0, attempts, kind(attempts)));
        }
        drop(session);
        reaped.is_followed |= expired.len() as u64 >= u64::from(request.limit);
        let id = |row: &(Uuid, u32, FailureKind)| row.0;
        let statement = |part: &[_]| statements::reap(&self.table, request, part);
        reaped.count = self.change_in_parts(&expired, id, statement, &mut reaped).await?;
        Ok(reaped)
    }

    /// Restarts leases that begin in the future.
    async fn begin_again(&self, request: &ReapRequest) -> Result<Reaped, OutboxError> {
        let mut reaped = Reaped::default();
        let session = self.pool.session("reap leases of the outbox").await?;
        let early = ids(&session.query(statements::early_leases(&self.table, request)).await?)?;
        drop(session);
        let early: Vec<Uuid> = early.into_iter().collect();
        let statement = |part: &[_]| statements::begin_again(&self.table, part);
        let begun = self.change_in_parts(&early, |id| *id, statement, &mut reaped).await?;
        if begun > 0 {
            tracing::warn!(events = begun, "leases of outbox events began in the future; they begin now");
        }
        Ok(reaped)
    }

    /// Changes rows, in halves if that fails, and returns the number of those that were changed. Rows that
    /// fail alone, and rows that a trigger keeps as they are, are added to `reaped.refused`. If too many
    /// fail, the rows not tried yet are left as they are.
    async fn change_in_parts<T>(
        &self,
        rows: &[T],
        id: fn(&T) -> Uuid,
        statement: impl Fn(&[T]) -> BoundStatement,
        reaped: &mut Reaped,
    ) -> Result<u64, OutboxError> {
        let (mut parts, mut changed, mut unclear) = (vec![rows], 0, UnclearRows::new());
        while let Some(part) = parts.pop().filter(|_| !unclear.are_too_many()) {
            if part.is_empty() {
                continue;
            }
            let session = self.pool.session("reap leases of the outbox").await?;
            let error = match session.query(statement(part)).await {
                Ok(rows) => {
                    let row = one(&session, &rows)?;
                    let locked: Vec<RowId> = column(row, "locked")?;
                    let ended: HashSet<Uuid> =
                        column::<Vec<RowId>>(row, "changed")?.into_iter().map(|RowId(id)| id).collect();
                    changed += ended.len() as u64;
                    let kept = locked.into_iter().map(|RowId(id)| id).filter(|id| !ended.contains(id));
                    reaped.refused.extend(kept);
                    continue;
                }
                Err(error) => OutboxError::from(error),
            };
            match (error.blame(), part) {
                (Blame::Server, _) => return Err(error),
                (blame, [row]) => {
                    unclear.add(blame);
                    reaped.refused.push(id(row));
                }
                _ => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
        if unclear.are_too_many() {
            reaped.is_followed = false;
        }
        Ok(changed)
    }
}
