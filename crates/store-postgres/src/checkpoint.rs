//! The durable checkpoint of each intents stream: all entries up to and including the checkpoint's have an
//! outcome.

use std::collections::HashSet;

use domain::checkpoint::{Checkpoint, Witness};
use domain::entry::EntryId;
use domain::ports::{
    CheckpointMove, CheckpointStore, Fence, FenceWrite, ProcessedTrace, ServerId, StoreError, Swap,
};
use futures_util::future::join;
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, InsertStatement, OnConflict, Query, SelectStatement, UpdateStatement};

use crate::codec::{column, corrupt};
use crate::error::store_error;
use crate::records::{is_id_of, requests, requests_of};
use crate::schema::Intake;
use crate::{PgStore, malformed_intents};

impl CheckpointStore for PgStore {
    async fn find_last_processed(
        &self,
        stream: &str,
        entries: &[ProcessedTrace],
    ) -> Result<Option<EntryId>, StoreError> {
        let session = self.session("look for the outcomes of entries").await?;
        let scopes = entries.iter().filter_map(|entry| entry.request.as_ref()).map(|(scope, _)| scope);
        let by_scope = session.prepare(&requests_of(scopes)).await.map_err(store_error)?;
        let malformed =
            session.prepare(&malformed_intents::known(stream, traces(entries))).await.map_err(store_error)?;
        let (by_scope, malformed) = join(session.run(&by_scope), session.run(&malformed)).await;

        let requests = requests(&by_scope.map_err(store_error)?)?;
        let malformed: HashSet<String> = malformed
            .map_err(store_error)?
            .iter()
            .map(|row| column(row, "malformed_intents.stream_entry_id", stream))
            .collect::<Result<_, _>>()?;
        let accepted = |entry: &ProcessedTrace| {
            entry.request.as_ref().is_some_and(|(scope, fingerprint)| {
                requests.get(scope).is_some_and(|found| {
                    found.fingerprint == *fingerprint && is_id_of(&found.notification_id, entry.entry_id)
                })
            })
        };
        let processed = entries
            .iter()
            .filter(|entry| accepted(entry) || malformed.contains(&entry.entry_id.to_string()))
            .map(|entry| entry.entry_id);
        Ok(processed.max())
    }

    async fn write_fence(&self, stream: &str, fence: Fence, begins: bool) -> Result<FenceWrite, StoreError> {
        let session = self.session("claim the checkpoint").await?;
        claim_for(&session, stream, fence, begins).await
    }

    async fn load_checkpoint(&self, stream: &str) -> Result<Option<Checkpoint>, StoreError> {
        let session = self.session("load the checkpoint").await?;
        load(&session, stream).await
    }

    async fn load_witness(&self, stream: &str) -> Result<Witness, StoreError> {
        let session = self.session("load the witness of the intents stream").await?;
        let rows = session.query(&witness_of(stream)).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(Witness::default()) };
        let run_id: Option<String> = column(row, "intake.server_run_id", stream)?;
        let replication_id: Option<String> = column(row, "intake.replication_id", stream)?;
        let server = run_id.zip(replication_id).map(|(run_id, replication_id)| ServerId {
            run_id: run_id.into(),
            replication_id: replication_id.into(),
        });
        let fingerprint: Option<String> = column(row, "intake.last_entry_fingerprint", stream)?;
        let parse = |text: String| {
            let (id, fingerprint) = text.split_once(' ')?;
            Some((id.parse().ok()?, fingerprint.to_owned()))
        };
        Ok(Witness { server, fingerprint: fingerprint.and_then(parse) })
    }

    async fn move_checkpoint_back(
        &self,
        to: CheckpointMove<'_>,
        server: &ServerId,
    ) -> Result<Swap, StoreError> {
        let Some(expected) = to.expected else { return Ok(Swap::Conflict) };
        let session = self.session("move the checkpoint back").await?;
        match session.execute(&move_back(&to, expected, server)).await.map_err(store_error)? {
            0 => Ok(Swap::Conflict),
            _ => Ok(Swap::Applied),
        }
    }

    async fn save_intents_server(&self, stream: &str, server: &ServerId) -> Result<(), StoreError> {
        let session = self.session("save the server of the intents stream").await?;
        session.execute(&save_server(stream, server)).await.map(drop).map_err(store_error)
    }
}

fn traces(entries: &[ProcessedTrace]) -> impl Iterator<Item = (EntryId, &str)> + Clone {
    entries.iter().map(|entry| (entry.entry_id, entry.fields_fingerprint.as_str()))
}

/// Claims the checkpoint for a term. A row that could not be claimed has a higher fence; in both cases the
/// result contains its checkpoint.
async fn claim_for(
    session: &Session,
    stream: &str,
    fence: Fence,
    begins: bool,
) -> Result<FenceWrite, StoreError> {
    let claimed = session.execute(&claim(stream, fence, begins)).await.map_err(store_error)?;
    Ok(match load(session, stream).await? {
        None => FenceWrite::NoCheckpoint,
        Some(checkpoint) if claimed == 0 => FenceWrite::Superseded(checkpoint.fence),
        Some(checkpoint) => FenceWrite::At(checkpoint.last_entry_id),
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
    let to = CheckpointMove {
        stream: "",
        fence: 0,
        expected: None,
        last_entry_id: EntryId::ZERO,
        fingerprint: "",
    };
    session.prepare(&begin(&to)).await?;
    session.prepare(&advance(&to, EntryId::ZERO)).await?;
    let server = ServerId { run_id: "".into(), replication_id: "".into() };
    session.prepare(&move_back(&to, EntryId::ZERO, &server)).await?;
    session.prepare(&checkpoint_of("")).await?;
    session.prepare(&claim("", 0, true)).await?;
    session.prepare(&claim("", 0, false)).await?;
    session.prepare(&witness_of("")).await?;
    session.prepare(&save_server("", &server)).await?;
    Ok(())
}

/// Reads the server that was saved beside the checkpoint, by the primary key.
fn witness_of(stream: &str) -> SelectStatement {
    Query::select()
        .columns([Intake::ServerRunId, Intake::ReplicationId, Intake::LastEntryFingerprint])
        .from(Intake::Table)
        .and_where(Expr::col(Intake::Stream).eq(bind::text(stream)))
        .take()
}

/// Saves the server beside the checkpoint, by the primary key. Another leader that writes at the same time
/// saw the same server, or a later one that the next term notices.
fn save_server(stream: &str, server: &ServerId) -> UpdateStatement {
    Query::update()
        .table(Intake::Table)
        .value(Intake::ServerRunId, bind::text(&*server.run_id))
        .value(Intake::ReplicationId, bind::text(&*server.replication_id))
        .and_where(Expr::col(Intake::Stream).eq(bind::text(stream)))
        .take()
}

/// Moves the checkpoint if it is the expected one. It is compared for equality: a lower one means that
/// PostgreSQL has lost outcomes, and those entries must be read again.
pub(crate) fn advance(to: &CheckpointMove<'_>, expected: EntryId) -> UpdateStatement {
    Query::update()
        .table(Intake::Table)
        .value(Intake::Fence, fence_value(to.fence))
        .value(Intake::LastEntryId, last_entry_id(to))
        .value(Intake::LastEntryFingerprint, fingerprint(to))
        .value(Intake::UpdatedAt, Expr::cust("clock_timestamp()"))
        .and_where(Expr::col(Intake::Stream).eq(bind::text(to.stream)))
        .and_where(Expr::col(Intake::Fence).lte(fence_value(to.fence)))
        .and_where(Expr::col(Intake::LastEntryId).eq(bind::text(expected.to_string())))
        .take()
}

/// Moves the checkpoint like [`advance`], in a stream that lost its newest entries. The same statement saves
/// the server, so that the next term compares both with the same state of Redis.
fn move_back(to: &CheckpointMove<'_>, expected: EntryId, server: &ServerId) -> UpdateStatement {
    advance(to, expected)
        .value(Intake::ServerRunId, bind::text(&*server.run_id))
        .value(Intake::ReplicationId, bind::text(&*server.replication_id))
        .take()
}

/// Inserts the first checkpoint of a stream, unless there is one.
pub(crate) fn begin(to: &CheckpointMove<'_>) -> InsertStatement {
    let mut insert = Query::insert();
    insert
        .into_table(Intake::Table)
        .columns([
            Intake::Stream,
            Intake::Fence,
            Intake::LastEntryId,
            Intake::LastEntryFingerprint,
            Intake::UpdatedAt,
        ])
        .values_panic([
            bind::text(to.stream),
            fence_value(to.fence),
            last_entry_id(to),
            fingerprint(to),
            Expr::cust("clock_timestamp()"),
        ])
        .on_conflict(OnConflict::new().do_nothing().to_owned());
    insert
}

fn last_entry_id(to: &CheckpointMove<'_>) -> Expr {
    bind::text(to.last_entry_id.to_string())
}

/// The fingerprint with the id of its entry: an earlier release moves the checkpoint and leaves the
/// fingerprint.
fn fingerprint(to: &CheckpointMove<'_>) -> Expr {
    bind::text(format!("{} {}", to.last_entry_id, to.fingerprint))
}

/// The checkpoint of a stream, by the primary key.
fn checkpoint_of(stream: &str) -> SelectStatement {
    Query::select()
        .columns([Intake::Fence, Intake::LastEntryId])
        .from(Intake::Table)
        .and_where(Expr::col(Intake::Stream).eq(bind::text(stream)))
        .take()
}

/// Raises the fence of the checkpoint to that of the new term. A term that `begins` needs a higher fence than
/// the stored one.
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

/// The fence as a `bigint`. It has 15 digits, so it always fits.
fn fence_value(fence: Fence) -> Expr {
    bind::bigint(i64::try_from(fence).unwrap_or(i64::MAX))
}
