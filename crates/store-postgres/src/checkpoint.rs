//! The durable checkpoint of each intents stream: all entries up to and including the checkpoint's have an
//! outcome.

use std::collections::HashSet;

use domain::checkpoint::{Checkpoint, Witness};
use domain::entry::EntryId;
use domain::ports::{
    CheckpointMove, CheckpointStore, Fence, FenceWrite, ProcessedTrace, ServerId, StoreError, Swap,
};
use futures_util::future::join;
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session};

use crate::codec::{column, corrupt, one_row};
use crate::error::store_error;
use crate::records::{is_id_of, requests, requests_of};
use crate::{PgStore, malformed_intents};

impl CheckpointStore for PgStore {
    // MODEL-06
    async fn find_last_processed(
        &self,
        stream: &str,
        entries: &[ProcessedTrace],
    ) -> Result<Option<EntryId>, StoreError> {
        let session = self.session("look for the outcomes of entries").await?;
        let keys = entries.iter().filter_map(|entry| entry.request.as_ref()).map(|(key, _)| key);
        let by_key = session.prepare(requests_of(keys)).await.map_err(store_error)?;
        let malformed =
            session.prepare(malformed_intents::known(stream, traces(entries))).await.map_err(store_error)?;
        let (by_key, malformed) = join(session.run(&by_key), session.run(&malformed)).await;

        let requests = requests(&by_key.map_err(store_error)?)?;
        let malformed: HashSet<String> = malformed
            .map_err(store_error)?
            .iter()
            .map(|row| column(row, "malformed_intents.stream_entry_id", stream))
            .collect::<Result<_, _>>()?;
        let accepted = |entry: &ProcessedTrace| {
            entry.request.as_ref().is_some_and(|(key, fingerprint)| {
                requests.get(key).is_some_and(|found| {
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
        let rows = session.query(WITNESS.bind([parameter::text(stream)])).await.map_err(store_error)?;
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
        let moved = session.execute(move_back(&to, expected, server)).await.map_err(store_error)?;
        Ok(if one_row(moved, "intake", to.stream)? { Swap::Applied } else { Swap::Conflict })
    }

    async fn save_intents_server(&self, stream: &str, server: &ServerId) -> Result<(), StoreError> {
        let session = self.session("save the server of the intents stream").await?;
        let [run_id, replication_id] = [&server.run_id, &server.replication_id].map(parameter::text);
        let save = SAVE_SERVER.bind([parameter::text(stream), run_id, replication_id]);
        session.execute(save).await.map(drop).map_err(store_error)
    }
}

fn traces(entries: &[ProcessedTrace]) -> impl Iterator<Item = (EntryId, &str)> + Clone {
    entries.iter().map(|entry| (entry.entry_id, entry.fields_fingerprint.as_str()))
}

/// Claims the checkpoint for a term. A row that could not be claimed has a higher fence; in both cases the
/// result contains its checkpoint.
// MODEL-02
async fn claim_for(
    session: &Session,
    stream: &str,
    fence: Fence,
    begins: bool,
) -> Result<FenceWrite, StoreError> {
    let raise = if begins { BEGIN_TERM } else { CONTINUE_TERM };
    let raise = raise.bind([parameter::text(stream), fence_value(fence)]);
    let claimed = one_row(session.execute(raise).await.map_err(store_error)?, "intake", stream)?;
    Ok(match load(session, stream).await? {
        None => FenceWrite::NoCheckpoint,
        Some(checkpoint) if !claimed => FenceWrite::Superseded(checkpoint.fence),
        Some(checkpoint) => FenceWrite::At(checkpoint.last_entry_id),
    })
}

pub(crate) async fn load(session: &Session, stream: &str) -> Result<Option<Checkpoint>, StoreError> {
    let rows = session.query(LOAD.bind([parameter::text(stream)])).await.map_err(store_error)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let fence: i64 = column(row, "intake.fence", stream)?;
    let id: String = column(row, "intake.last_entry_id", stream)?;
    let fence = Fence::try_from(fence).map_err(|error| corrupt("intake.fence", stream, error.to_string()))?;
    let last_entry_id =
        id.parse().map_err(|error| corrupt("intake.last_entry_id", stream, format!("{id:?} is {error}")))?;
    Ok(Some(Checkpoint { fence, last_entry_id }))
}

pg::statements! {
    // MODEL-03, MODEL-05
    /// Moves the checkpoint if it is the expected one. It is compared for equality: a lower one means that
    /// PostgreSQL has lost outcomes, and those entries must be read again.
    ADVANCE = "checkpoint.advance", plan ["intake_pkey"], "
        UPDATE intake
        SET fence = $2::bigint, last_entry_id = $3::text, last_entry_fingerprint = $4::text,
            updated_at = clock_timestamp()
        WHERE stream = $1::text AND fence <= $2::bigint AND last_entry_id = $5::text";

    /// Moves the checkpoint like [`ADVANCE`], in a stream that lost its newest entries. The same statement
    /// saves the server, so that the next term compares both with the same state of Redis.
    MOVE_BACK = "checkpoint.move_back", plan ["intake_pkey"], "
        UPDATE intake
        SET fence = $2::bigint, last_entry_id = $3::text, last_entry_fingerprint = $4::text,
            updated_at = clock_timestamp(), server_run_id = $6::text, replication_id = $7::text
        WHERE stream = $1::text AND fence <= $2::bigint AND last_entry_id = $5::text";

    /// Inserts the first checkpoint of a stream, unless there is one.
    BEGIN = "checkpoint.begin", plan [], "
        INSERT INTO intake (stream, fence, last_entry_id, last_entry_fingerprint, updated_at)
        VALUES ($1::text, $2::bigint, $3::text, $4::text, clock_timestamp())
        ON CONFLICT DO NOTHING";

    /// The checkpoint of a stream.
    LOAD = "checkpoint.load", plan ["intake_pkey"], "
        SELECT fence, last_entry_id FROM intake WHERE stream = $1::text";

    /// Raises the fence of the checkpoint to that of a term that begins: it must be higher than the stored
    /// one.
    BEGIN_TERM = "checkpoint.begin_term", plan ["intake_pkey"], "
        UPDATE intake SET fence = $2::bigint, updated_at = clock_timestamp()
        WHERE stream = $1::text AND fence < $2::bigint";

    /// Raises the fence of the checkpoint to that of the present term.
    CONTINUE_TERM = "checkpoint.continue_term", plan ["intake_pkey"], "
        UPDATE intake SET fence = $2::bigint, updated_at = clock_timestamp()
        WHERE stream = $1::text AND fence <= $2::bigint";

    /// Reads the server that was saved beside the checkpoint.
    WITNESS = "checkpoint.witness", plan ["intake_pkey"], "
        SELECT server_run_id, replication_id, last_entry_fingerprint FROM intake WHERE stream = $1::text";

    /// Saves the server beside the checkpoint. Another leader that writes at the same time saw the same
    /// server, or a later one that the next term notices.
    SAVE_SERVER = "checkpoint.save_server", plan ["intake_pkey"], "
        UPDATE intake SET server_run_id = $2::text, replication_id = $3::text WHERE stream = $1::text";
}

pub(crate) fn advance(to: &CheckpointMove<'_>, expected: EntryId) -> BoundStatement {
    let [stream, fence, last_entry_id, fingerprint] = moved(to);
    ADVANCE.bind([stream, fence, last_entry_id, fingerprint, parameter::text(expected.to_string())])
}

fn move_back(to: &CheckpointMove<'_>, expected: EntryId, server: &ServerId) -> BoundStatement {
    let [stream, fence, last_entry_id, fingerprint] = moved(to);
    MOVE_BACK.bind([
        stream,
        fence,
        last_entry_id,
        fingerprint,
        parameter::text(expected.to_string()),
        parameter::text(&server.run_id),
        parameter::text(&server.replication_id),
    ])
}

pub(crate) fn begin(to: &CheckpointMove<'_>) -> BoundStatement {
    BEGIN.bind(moved(to))
}

/// The stream, the fence, the entry, and its fingerprint with the id of its entry: an earlier release moves
/// the checkpoint and leaves the fingerprint.
fn moved(to: &CheckpointMove<'_>) -> [Parameter; 4] {
    [
        parameter::text(to.stream),
        fence_value(to.fence),
        parameter::text(to.last_entry_id.to_string()),
        parameter::text(format!("{} {}", to.last_entry_id, to.fingerprint)),
    ]
}

/// The fence as a `bigint`. It has 15 digits, so it always fits.
fn fence_value(fence: Fence) -> Parameter {
    parameter::bigint(i64::try_from(fence).unwrap_or(i64::MAX))
}
