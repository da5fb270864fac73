//! Claims and stored responses in a table of PostgreSQL.
//!
//! A claim is one statement, and so its own transaction: a process that crashes during it has claimed all of
//! its free keys or none. Live keys are only read, so a transaction that has locked such a row cannot delay a
//! claim. A claim waits for a free key with an open transaction, at most for the pool's lock timeout. Then
//! the elements of the batch are tried one by one with [`SINGLE_LOCK_TIMEOUT`], and only those that are still
//! locked are busy. Changes of claims behave in the same way.

mod found;
mod in_transaction;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use pg::rights;
use pg::{BoundStatement, PgError, PgPool, Session, Statement, row};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use self::found::{FoundKey, read};
pub use self::in_transaction::{complete_free_in, complete_in};
use crate::schema::{required_grants, schema_sql};
use crate::statements::{CLAIM, CLAIM_ASYNCHRONOUSLY, STATEMENTS};
use crate::{
    Claim, ClaimId, ClaimRequest, CompletionRequest, Guarded, IdempotencyError, KeyLookup, LockTtl, Store,
    statements,
};

/// The largest number of keys claimed by one statement; larger requests use several statements.
pub const MAX_CLAIM_BATCH: usize = 256;
/// The number of attempts for a key whose row another transaction changes meanwhile.
pub const MAX_CLAIM_ROUNDS: usize = 5;
/// The time that one element waits for its row after its batch could not lock all rows. It is short enough
/// that a whole batch of such waits fits into an operation of a few seconds.
pub const SINGLE_LOCK_TIMEOUT: Duration = Duration::from_millis(10);
/// The advisory lock of [`PostgresStore::setup_schema`]: "idempkey" in ASCII.
const SETUP_LOCK: i64 = 0x69_64_65_6d_70_6b_65_79;

/// Claims and stored responses in the table `idempotency_keys` of the first schema of `search_path`.
///
/// Its pool should have [`crate::PLANNER_PARAMETERS`] as session parameters. Every wait has the deadlines of
/// the pool.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pool: PgPool,
    claim: Statement,
}

impl PostgresStore {
    /// Creates a store on the table that [`PostgresStore::setup_schema`] or a migration with
    /// [`crate::schema_sql`] has created.
    pub fn new(pool: PgPool) -> Self {
        Self { pool, claim: CLAIM }
    }

    /// Makes claims that do not wait for the disk, for handlers that store their response in the transaction
    /// of their effect ([`complete_in`]): if a crash of the server loses a claim, that transaction is fenced
    /// and has no effect.
    #[must_use]
    pub fn with_asynchronous_claims(self) -> Self {
        Self { claim: CLAIM_ASYNCHRONOUSLY, ..self }
    }

    /// Creates the table if it is missing, and checks that an existing one can be used. Several processes may
    /// do so at once.
    pub async fn setup_schema(&self) -> Result<(), IdempotencyError> {
        let session = self.pool.session("create the table of idempotency keys").await?;
        session.begin().await?;
        // IF NOT EXISTS does not prevent an error if another process creates the table at the same time.
        session.execute_batch(&format!("SELECT pg_advisory_xact_lock({SETUP_LOCK})")).await?;
        session.execute_batch(schema_sql()).await?;
        session.commit().await?;
        // The check takes its own connection: holding one while waiting for another can deadlock the pool.
        drop(session);
        self.check_schema().await
    }

    /// Checks that every statement of this crate can be prepared on the table, and that the role has the
    /// rights to run it.
    pub async fn check_schema(&self) -> Result<(), IdempotencyError> {
        let session = self.pool.session("check the table of idempotency keys").await?.checking();
        session.prepare_all(STATEMENTS).await?;
        let missing = rights::missing(&session, &required_grants()).await?;
        if missing.is_empty() { Ok(()) } else { Err(IdempotencyError::NoRights(rights::list(&missing))) }
    }
}

impl Store for PostgresStore {
    async fn lookup(&self, keys: &[KeyLookup]) -> Result<Vec<Option<Claim>>, IdempotencyError> {
        let mut claims = Vec::with_capacity(keys.len());
        for batch in keys.chunks(MAX_CLAIM_BATCH) {
            let session = self.pool.session("look up idempotency keys").await?;
            let rows = session.query(statements::lookup(batch)).await?;
            let by_key = by_key(&rows)?;
            begin_again(&session, &by_key).await?;
            for lookup in batch {
                let row = by_key.get(&(lookup.owner.as_str(), lookup.key.as_str()));
                let found = row.map(|row| read(row)).transpose()?;
                claims.push(found.map(|found| found.for_fingerprint(&lookup.fingerprint)));
            }
        }
        Ok(claims)
    }

    async fn claim(&self, requests: &[ClaimRequest]) -> Result<Vec<Claim>, IdempotencyError> {
        // Sorted by bytes, the order in which rows are locked.
        let mut by_key: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for (position, request) in requests.iter().enumerate() {
            by_key.entry(key_of(&request.id)).or_default().push(position);
        }
        let groups: Vec<Vec<usize>> = by_key.into_values().collect();
        let mut claims = vec![Claim::Busy; requests.len()];
        for batch in groups.chunks(MAX_CLAIM_BATCH) {
            let firsts: Vec<&ClaimRequest> = batch.iter().map(|group| &requests[group[0]]).collect();
            let session = self.pool.session("claim idempotency keys").await?;
            for (found, group) in find(&session, &firsts, &self.claim).await?.into_iter().zip(batch) {
                let first = &requests[group[0]];
                for &position in group {
                    claims[position] = found.for_request(&requests[position], first, position == group[0]);
                }
            }
        }
        Ok(claims)
    }

    async fn complete(&self, completions: &[CompletionRequest]) -> Result<Vec<Guarded>, IdempotencyError> {
        let session = self.pool.session("store answers of idempotency keys").await?;
        // An element that is tried alone is copied; the parts of a response are shared.
        change(&session, completions, |some| {
            statements::complete(&some.iter().map(|one| (*one).clone()).collect::<Vec<_>>())
        })
        .await
    }

    async fn abandon(&self, ids: &[ClaimId]) -> Result<Vec<Guarded>, IdempotencyError> {
        let session = self.pool.session("abandon idempotency keys").await?;
        change(&session, ids, statements::abandon).await
    }

    async fn extend(&self, ids: &[ClaimId], lock_ttl: LockTtl) -> Result<Vec<Guarded>, IdempotencyError> {
        let session = self.pool.session("extend claims of idempotency keys").await?;
        change(&session, ids, |some| statements::extend(some, lock_ttl)).await
    }

    async fn sweep(&self, limit: u64) -> Result<u64, IdempotencyError> {
        let session = self.pool.session("sweep expired idempotency keys").await?;
        Ok(session.execute(statements::sweep(limit)).await?)
    }
}

fn key_of(id: &ClaimId) -> (&str, &str) {
    (id.owner.as_str(), id.key.as_str())
}

/// Claims or reads distinct keys. If some are locked, each key is tried alone.
async fn find(
    session: &Session,
    requests: &[&ClaimRequest],
    claim: &Statement,
) -> Result<Vec<FoundKey>, IdempotencyError> {
    match ask(session, requests, claim).await {
        Err(IdempotencyError::Postgres(PgError::Locked { .. })) => {}
        answer => return answer,
    }
    let mut found = Vec::with_capacity(requests.len());
    for request in requests {
        let one = alone(session, requests.len(), ask(session, &[request], claim)).await?;
        found.push(one.and_then(|found| found.into_iter().next()).unwrap_or(FoundKey::Busy));
    }
    Ok(found)
}

/// Repeats the claim until each key has a result, at most [`MAX_CLAIM_ROUNDS`] times.
async fn ask(
    session: &Session,
    requests: &[&ClaimRequest],
    claim: &Statement,
) -> Result<Vec<FoundKey>, IdempotencyError> {
    let mut found = vec![FoundKey::Busy; requests.len()];
    let mut open: Vec<usize> = (0..requests.len()).collect();
    for _ in 0..MAX_CLAIM_ROUNDS {
        let asked: Vec<&ClaimRequest> = open.iter().map(|position| requests[*position]).collect();
        let rows = session.query(statements::claim(claim, &asked)).await?;
        let by_key = by_key(&rows)?;
        begin_again(session, &by_key).await?;
        for &position in &open {
            if let Some(row) = by_key.get(&key_of(&requests[position].id)) {
                found[position] = read(row)?;
            }
        }
        open.retain(|position| !by_key.contains_key(&key_of(&requests[*position].id)));
        if open.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Indexes rows of [`statements::claim`] or [`statements::lookup`] by owner and key.
fn by_key(rows: &[Row]) -> Result<HashMap<(&str, &str), &Row>, IdempotencyError> {
    rows.iter().map(|row| Ok(((column(row, "scope")?, column(row, "key")?), row))).collect()
}

/// Shortens claims made by a clock that was ahead and has been corrected. Otherwise the keys of a crashed
/// process would stay claimed until the clock has caught up.
async fn begin_again(session: &Session, found: &HashMap<(&str, &str), &Row>) -> Result<(), IdempotencyError> {
    let mut ahead = Vec::new();
    for (key, row) in found {
        let is_ahead: Option<bool> = column(row, "is_ahead")?;
        if is_ahead == Some(true) {
            ahead.push(*key);
        }
    }
    if ahead.is_empty() {
        return Ok(());
    }
    session.execute(statements::begin_again(ahead.into_iter())).await?;
    Ok(())
}

/// Changes claims with the statement that `build` makes of them. If some are locked, each is tried alone.
async fn change<'a, T>(
    session: &Session,
    elements: &'a [T],
    build: impl Fn(&[&'a T]) -> BoundStatement,
) -> Result<Vec<Guarded>, IdempotencyError> {
    let all: Vec<&T> = elements.iter().collect();
    match session.query(build(&all)).await {
        Err(PgError::Locked { .. }) => {}
        answer => return outcomes(&answer?, elements.len()),
    }
    let mut changed = Vec::with_capacity(elements.len());
    for element in all {
        let one = async { outcomes(&session.query(build(&[element])).await?, 1) };
        let one = alone(session, elements.len(), one).await?;
        changed.push(one.and_then(|outcomes| outcomes.into_iter().next()).unwrap_or(Guarded::Busy));
    }
    Ok(changed)
}

/// Runs the statement of one element of a batch in its own transaction, which waits for
/// [`SINGLE_LOCK_TIMEOUT`]. Returns `None` if its row is locked. Also returns `None`, without trying, for the
/// only element of a batch, which has waited long enough.
async fn alone<T>(
    session: &Session,
    batch_size: usize,
    statement: impl Future<Output = Result<T, IdempotencyError>>,
) -> Result<Option<T>, IdempotencyError> {
    if batch_size == 1 {
        return Ok(None);
    }
    session.begin().await?;
    session.execute_batch(&format!("SET LOCAL lock_timeout = {}", SINGLE_LOCK_TIMEOUT.as_millis())).await?;
    match statement.await {
        Ok(answer) => {
            session.commit().await?;
            Ok(Some(answer))
        }
        Err(IdempotencyError::Postgres(PgError::Locked { .. })) => {
            session.rollback().await?;
            Ok(None)
        }
        // The connection is closed, which ends its transaction.
        Err(error) => Err(error),
    }
}

/// Returns `Applied` for the positions that the server returned, and `Fenced` for the others.
fn outcomes(rows: &[Row], count: usize) -> Result<Vec<Guarded>, IdempotencyError> {
    let mut outcomes = vec![Guarded::Fenced; count];
    for row in rows {
        let position: i64 = column(row, "position")?;
        let outcome = usize::try_from(position).ok().and_then(|position| outcomes.get_mut(position));
        *outcome.ok_or(IdempotencyError::Corrupt("position"))? = Guarded::Applied;
    }
    Ok(outcomes)
}

fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T, IdempotencyError> {
    row::get(row, name).map_err(|_| IdempotencyError::Corrupt(name))
}

#[cfg(test)]
mod tests {
    use local_servers::{Postgres, PostgresOptions};
    use pg::{Dsn, PoolSettings, SessionSettings};

    use super::*;
    use crate::{Fingerprint, Key, Owner, Token};

    #[tokio::test]
    async fn only_an_asynchronous_claim_commits_without_the_disk_and_only_its_own_transaction() {
        let server = Postgres::start(PostgresOptions::default()).await;
        let server = server.expect("PostgreSQL starts");
        let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
        let session = SessionSettings {
            application_name: "test",
            parameters: &[("synchronous_commit", "on"), ("enable_seqscan", "off")],
        };
        let settings =
            PoolSettings { max_connections: 2, operation_timeout: Duration::from_secs(10), session };
        let pool = PgPool::new(&dsn, settings).expect("a pool");
        PostgresStore::new(pool.clone()).setup_schema().await.expect("the table is created");
        let request = |key: &str| ClaimRequest {
            id: ClaimId {
                owner: Owner::new("s").expect("an owner"),
                key: Key::new(key).expect("a key"),
                token: Token::from([7; 16]),
            },
            fingerprint: Fingerprint::new("f").expect("a fingerprint"),
            lock_ttl: LockTtl::default(),
        };
        for (key, claim, expected) in [("sync", CLAIM, "on"), ("async", CLAIM_ASYNCHRONOUSLY, "off")] {
            let session = pool.session("test").await.expect("a connection");
            session.begin().await.expect("begins");
            let request = request(key);
            let rows = session.query(statements::claim(&claim, &[&request])).await.expect("claims");
            assert_eq!(rows.len(), 1, "{key} was free");
            assert_eq!(session.raw("SHOW synchronous_commit").await.expect("shows"), [expected]);
            session.commit().await.expect("commits");
            assert_eq!(session.raw("SHOW synchronous_commit").await.expect("shows"), ["on"]);
        }
    }
}
