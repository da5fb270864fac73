//! The durable checkpoint of each intents stream: everything up to and including its entry has an outcome.

use domain::checkpoint::Checkpoint;
use domain::entry::EntryId;
use domain::ports::{CheckpointMove, Claim, Fence, StoreError};
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, InsertStatement, OnConflict, Query, SelectStatement, UpdateStatement};

use crate::codec::{column, corrupt};
use crate::error::store_error;
use crate::schema::Intake;

/// A row that could not be claimed has a higher fence; claimed or not, it has the checkpoint.
pub(crate) async fn claim_for(
    session: &Session,
    stream: &str,
    fence: Fence,
    begins: bool,
) -> Result<Claim, StoreError> {
    let claimed = session.execute(&claim(stream, fence, begins)).await.map_err(store_error)?;
    Ok(match load(session, stream).await? {
        None => Claim::NoCheckpoint,
        Some(checkpoint) if claimed == 0 => Claim::Superseded(checkpoint.fence),
        Some(checkpoint) => Claim::At(checkpoint.last_entry_id),
    })
}

pub(crate) async fn load(session: &Session, stream: &str) -> Result<Option<Checkpoint>, StoreError> {
    let rows = session.query(&checkpoint_of(stream)).await.map_err(store_error)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let fence: i64 = column(row, "intake.fence", stream)?;
    let id: String = column(row, "intake.last_entry_id", stream)?;
    let fence = Fence::try_from(fence).map_err(|error| corrupt("intake.fence", stream, error.to_string()))?;
    let last_entry_id =
        id.parse().map_err(|error| corrupt("intake.last_entry_id", stream, format!("{id:?} is {error}")))?;
    Ok(Some(Checkpoint { fence, last_entry_id }))
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let to = CheckpointMove { stream: "", fence: 0, expected: None, last_entry_id: EntryId::ZERO };
    session.prepare(&begin(&to)).await?;
    session.prepare(&advance(&to, EntryId::ZERO)).await?;
    session.prepare(&checkpoint_of("")).await?;
    session.prepare(&claim("", 0, true)).await?;
    session.prepare(&claim("", 0, false)).await?;
    Ok(())
}

/// Moves the checkpoint, but only if it is the expected one. Compared for equality: a lower one means that PostgreSQL has
/// lost outcomes, and those entries must be read again.
pub(crate) fn advance(to: &CheckpointMove<'_>, expected: EntryId) -> UpdateStatement {
    Query::update()
        .table(Intake::Table)
        .value(Intake::Fence, fence_value(to.fence))
        .value(Intake::LastEntryId, last_entry_id(to))
        .value(Intake::UpdatedAt, Expr::cust("clock_timestamp()"))
        .and_where(Expr::col(Intake::Stream).eq(bind::text(to.stream)))
        .and_where(Expr::col(Intake::Fence).lte(fence_value(to.fence)))
        .and_where(Expr::col(Intake::LastEntryId).eq(bind::text(expected.to_string())))
        .take()
}

/// The first checkpoint of a stream, if it is the first.
pub(crate) fn begin(to: &CheckpointMove<'_>) -> InsertStatement {
    let mut insert = Query::insert();
    insert
        .into_table(Intake::Table)
        .columns([Intake::Stream, Intake::Fence, Intake::LastEntryId, Intake::UpdatedAt])
        .values_panic([
            bind::text(to.stream),
            fence_value(to.fence),
            last_entry_id(to),
            Expr::cust("clock_timestamp()"),
        ])
        .on_conflict(OnConflict::new().do_nothing().to_owned());
    insert
}

fn last_entry_id(to: &CheckpointMove<'_>) -> Expr {
    bind::text(to.last_entry_id.to_string())
}

/// By the primary key.
fn checkpoint_of(stream: &str) -> SelectStatement {
    Query::select()
        .columns([Intake::Fence, Intake::LastEntryId])
        .from(Intake::Table)
        .and_where(Expr::col(Intake::Stream).eq(bind::text(stream)))
        .take()
}

/// Raises the fence of the checkpoint to that of the new term. A term that `begins` needs a higher fence than the stored one.
fn claim(stream: &str, fence: Fence, begins: bool) -> UpdateStatement {
    let (stored, own) = (Expr::col(Intake::Fence), fence_value(fence));
    Query::update()
        .table(Intake::Table)
        .value(Intake::Fence, fence_value(fence))
        .value(Intake::UpdatedAt, Expr::cust("clock_timestamp()"))
        .and_where(Expr::col(Intake::Stream).eq(bind::text(stream)))
        .and_where(if begins { stored.lt(own) } else { stored.lte(own) })
        .take()
}

/// A fence has 15 digits: it always fits.
fn fence_value(fence: Fence) -> Expr {
    bind::bigint(i64::try_from(fence).unwrap_or(i64::MAX))
}
