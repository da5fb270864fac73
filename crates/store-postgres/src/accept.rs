//! Acceptance is a committed row: records, routes, malformed rows and, for a stream, its checkpoint in one
//! transaction.
//!
//! Two round trips: the first stores responses, if there are any, moves the checkpoint, if there is one, and
//! inserts the records. The second, sent only if all of that succeeded, inserts the routes and the malformed
//! rows and commits. The routes cannot be sent with the first: if a record was not inserted because its id
//! was taken, they would belong to another record.
//!
//! Crash recovery: a crash before COMMIT leaves nothing; after a later one, intake resumes after the
//! committed checkpoint; if the response to COMMIT is lost, either may be the case. A probe leaves nothing:
//! its transaction is never committed.

use std::collections::{HashMap, HashSet};

use domain::accept::Probe;

use domain::entry::EntryId;
use domain::malformed_intent::MalformedIntent;
use domain::outcome::{Acceptance, Outcome};
use domain::ports::{AcceptanceBatch, AcceptanceStore, Fate, Known, StoreError};
use domain::record::IdempotencyKey;
use futures_util::future::{join, join3, join4};
use idempotency::statements;
use pg::{PgError, Prepared, Session};

use crate::codec::column;
use crate::error::store_error;
use crate::idempotency_keys::Completions;
use crate::records::{ids_taken, requests, requests_of};
use crate::{PgStore, checkpoint, malformed_intents, records, routes};

/// The size in bytes of a transaction after which its connection is closed: the buffers of a connection never
/// shrink, and the pool has many connections.
const MAX_KEPT_BUFFER: usize = 1024 * 1024;

impl AcceptanceStore for PgStore {
    async fn find_known(&self, intents: &[(IdempotencyKey, EntryId)]) -> Result<Known, StoreError> {
        if intents.is_empty() {
            return Ok(Known::default());
        }
        let session = self.session("look for known idempotency keys").await?;
        let keys = intents.iter().map(|(key, _)| key);
        let by_key = session.prepare(requests_of(keys)).await.map_err(store_error)?;
        let by_id = session
            .prepare(ids_taken(intents.iter().map(|(_, id)| id.to_string())))
            .await
            .map_err(store_error)?;
        let (by_key, by_id) = join(session.run(&by_key), session.run(&by_id)).await;

        let requests = requests(&by_key.map_err(store_error)?)?;
        let taken: HashSet<String> = by_id
            .map_err(store_error)?
            .iter()
            .map(|row| column(row, "records.notification_id", ""))
            .collect::<Result<_, _>>()?;
        let mut taken_ids = HashMap::new();
        for (key, id) in intents {
            if !requests.contains_key(key) && taken.contains(&id.to_string()) {
                taken_ids.insert(*id, records::next_suffix(&session, *id).await?);
            }
        }
        let fingerprints = requests.into_iter().map(|(key, request)| (key, request.fingerprint)).collect();
        Ok(Known { fingerprints, taken_ids })
    }

    async fn accept(&self, batch: AcceptanceBatch<'_>) -> Result<Fate, StoreError> {
        let session = self.session("accept a batch of intents").await?;
        let rows = Rows::of(&batch.outcomes);
        let completions = Completions::of(self.endpoint, &batch.responses)?;
        let fate = match write(&session, &batch, &rows, &completions).await {
            Ok(Fate::Committed) => Ok(Fate::Committed),
            Ok(Fate::WriteConflict) => {
                let taken = check_taken(&session, &rows.acceptances).await;
                taken.map(|()| Fate::WriteConflict).map_err(store_error)
            }
            Ok(fate) => session.rollback().await.map(|()| fate).map_err(store_error),
            Err(error) => {
                // The connection stays usable if the server only rejected a value; otherwise this fails, too,
                // and the session closes it. Either way the first error is the one to report.
                drop(session.rollback().await);
                Err(store_error(error))
            }
        };
        if rows.bytes() > MAX_KEPT_BUFFER {
            session.close();
        }
        fate
    }

    async fn probe(&self, probe: &Probe) -> Result<(), StoreError> {
        let session = self.session("insert a row and roll back").await?;
        let rows = Rows {
            acceptances: vec![&probe.acceptance],
            malformed: vec![&probe.malformed],
            large: Vec::new(),
        };
        let tried = try_rows(&session, &rows).await;
        let rolled_back = session.rollback().await;
        tried.and(rolled_back).map_err(store_error)
    }
}

/// The rows that a batch writes, table by table.
struct Rows<'a> {
    acceptances: Vec<&'a Acceptance>,
    malformed: Vec<&'a MalformedIntent>,
    /// The malformed rows that are copied.
    large: Vec<&'a MalformedIntent>,
}

impl<'a> Rows<'a> {
    fn of(outcomes: &[&'a Outcome]) -> Self {
        let outcomes = || outcomes.iter().copied();
        let rows = outcomes().filter_map(Outcome::malformed_row);
        let (large, malformed) = rows.partition(|row| malformed_intents::is_large(row));
        let mut acceptances: Vec<_> = outcomes().filter_map(Outcome::acceptance).collect();
        // The order of the unique index: two batches that insert the same keys then wait for each other in
        // one direction only.
        acceptances
            .sort_unstable_by(|one, other| one.record.idempotency_key.cmp(&other.record.idempotency_key));
        Self { acceptances, malformed, large }
    }

    /// The approximate size of the parameters in bytes.
    fn bytes(&self) -> usize {
        let payloads = self.acceptances.iter().map(|acceptance| acceptance.record.content.payload_json.len());
        payloads.chain(self.malformed.iter().map(|row| row.raw_fields.json_length())).sum()
    }
}

/// Sends the transaction. Leaves it open unless it is committed.
// MODEL-03
async fn write(
    session: &Session,
    batch: &AcceptanceBatch<'_>,
    rows: &Rows<'_>,
    completions: &Completions,
) -> Result<Fate, PgError> {
    let moving = match &batch.checkpoint {
        None => None,
        Some(to) => Some(match to.expected {
            Some(expected) => session.prepare(checkpoint::advance(to, expected)).await?,
            None => session.prepare(checkpoint::begin(to)).await?,
        }),
    };
    let inserting = session.prepare(records::insert(&records::INSERT, &rows.acceptances)).await?;
    let completing = match &completions.claimed[..] {
        [] => None,
        some => Some(session.prepare(statements::complete(some)).await?),
    };
    let completing_free = match &completions.free[..] {
        [] => None,
        some => Some(session.prepare(statements::complete_free(some)).await?),
    };

    // A statement without rows is omitted.
    let with_checkpoint = async {
        match &moving {
            Some(statement) => session.change(statement).await.map(|rows| rows > 0),
            None => Ok(true),
        }
    };
    let with_records =
        async { if rows.acceptances.is_empty() { Ok(0) } else { session.change(&inserting).await } };
    // First of all, because claims may have ended and keys may be taken. A claim's row is locked before a key
    // is taken, and all of them before the records: concurrent transactions then wait for each other in one
    // direction.
    let with_answers = async {
        let stored = async |statement: &Option<Prepared>, answers: usize| match statement {
            Some(statement) => session.change(statement).await.map(|rows| rows == answers as u64),
            None => Ok(true),
        };
        let claimed = stored(&completing, completions.claimed.len());
        let (claimed, free) = join(claimed, stored(&completing_free, completions.free.len())).await;
        Ok::<_, PgError>(claimed? & free?)
    };
    let first = join4(session.begin(), with_answers, with_checkpoint, with_records);
    // Encoded while PostgreSQL inserts the records.
    let second = async {
        let for_routes = session.prepare(routes::insert(&rows.acceptances)).await?;
        // Preparing takes a lock on the table: while an operator has locked it, batches without a malformed
        // intent are committed.
        let for_malformed = match &rows.malformed[..] {
            [] => None,
            some => Some(session.prepare(malformed_intents::insert(some)).await?),
        };
        Ok::<_, PgError>((for_routes, for_malformed))
    };
    let ((begun, answered, moved, inserted), second) = join(first, second).await;
    begun?;
    if !answered? {
        return Ok(Fate::KeyTaken);
    }
    if !moved? {
        return Ok(Fate::CheckpointMoved);
    }
    if inserted? < rows.acceptances.len() as u64 {
        return Ok(Fate::WriteConflict);
    }
    let (for_routes, for_malformed) = second?;
    let with_routes =
        async { if rows.acceptances.is_empty() { Ok(0) } else { session.change(&for_routes).await } };
    let with_malformed = async {
        match &for_malformed {
            Some(statement) => session.change(statement).await,
            None => Ok(0),
        }
    };
    // COPY cannot be pipelined with other statements.
    copy_large(session, &rows.large).await?;
    // A COMMIT after a failed statement rolls back without an error of its own, so every result is checked.
    let (routes, malformed, committed) = join3(with_routes, with_malformed, session.commit()).await;
    routes?;
    malformed?;
    committed?;
    Ok(Fate::Committed)
}

/// Rolls back, and fails if no key or id was taken: then a unique index that an operator added, or a trigger,
/// kept records from being inserted. Deciding the batch again would have the same result.
async fn check_taken(session: &Session, acceptances: &[&Acceptance]) -> Result<(), PgError> {
    session.rollback().await?;
    // Queried first: PostgreSQL would log each taken key as an error.
    if any_is_taken(session, acceptances).await? {
        return Ok(());
    }
    let all = session.prepare(records::insert(&records::INSERT_ALL, acceptances)).await?;
    session.begin().await?;
    let inserted = session.change(&all).await;
    session.rollback().await?;
    match inserted {
        Ok(rows) if rows < acceptances.len() as u64 => Err(PgError::unavailable(
            "insert records",
            "PostgreSQL skipped records without an error, as a trigger or a rule on the table can make it do",
        )),
        Err(error @ PgError::Refused { .. }) if !records::is_own_key(error.constraint()) => Err(error),
        // The key has been taken since, or is free again.
        Ok(_) | Err(PgError::Refused { .. } | PgError::Locked { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// True if a record has one of these keys or ids.
async fn any_is_taken(session: &Session, acceptances: &[&Acceptance]) -> Result<bool, PgError> {
    let keys = acceptances.iter().map(|acceptance| &acceptance.record.idempotency_key);
    let ids = acceptances.iter().map(|acceptance| acceptance.record.notification_id.to_string());
    let by_key = session.query(requests_of(keys)).await?;
    Ok(!by_key.is_empty() || !session.query(ids_taken(ids)).await?.is_empty())
}

/// Copies the rows that do not exist yet. No other replica writes rows of the stream meanwhile: the
/// checkpoint's row is locked.
async fn copy_large(session: &Session, rows: &[&MalformedIntent]) -> Result<(), PgError> {
    for row in rows {
        let entry = (row.entry_id, row.fields_fingerprint.as_str());
        if session.query(malformed_intents::known(&row.stream, [entry].into_iter())).await?.is_empty() {
            session.copy_in(malformed_intents::COPY, malformed_intents::copied(row)).await?;
        }
    }
    Ok(())
}

/// Inserts rows and leaves the transaction open.
async fn try_rows(session: &Session, rows: &Rows<'_>) -> Result<(), PgError> {
    session.begin().await?;
    if session.execute(records::insert(&records::INSERT, &rows.acceptances)).await?
        < rows.acceptances.len() as u64
    {
        return Err(PgError::unavailable("insert a row and roll back", "the key of that row is taken"));
    }
    session.execute(routes::insert(&rows.acceptances)).await?;
    session.execute(malformed_intents::insert(&rows.malformed)).await?;
    // Checks the constraints that would be checked at COMMIT.
    session.execute_batch("SET CONSTRAINTS ALL IMMEDIATE").await
}
