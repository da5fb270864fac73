//! Locks in two tables of one database: the statements, the order of row locks, and the interpretation of
//! results.
//!
//! Rows are always locked in the order counter, then lock, after the advisory lock that the original
//! implementation uses to admit one acquirer of a key. Every change of a lock locks its row first and reads
//! the clock afterwards, so two clients can never both own a lease. Acquiring is a transaction, sent as a
//! whole, COMMIT included, before its first response; everything else is one statement. So a client that
//! stops in between holds nothing.

use std::time::Duration;

use pg::parameter::Parameter;
use pg::rights;
use pg::{BoundStatement, PgError, PgPool, Session, Statement, parameter, row};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::fence::{FENCE_DIGITS, FENCE_MAX, FENCE_WARN};
use crate::key::{LockKey, hash_key};
use crate::schema::{TableNames, schema_sql};
use crate::statements::{
    BEGIN_AGAIN, ENSURE_COUNTER, EXTEND, GRANT, HAS_SESSION, LEASE_END, LOCK_COUNTER, LOCK_KEY, LOCK_ROW,
    LOCK_SESSION, LOOKUP_ID, LOOKUP_KEY, PEEK, PURGE, PURGE_AFTER_MS, RAISE_COUNTER, RELEASE, RELEASE_ORPHAN,
    STATEMENTS,
};
use crate::store::{Attempt, Selector};
use crate::telemetry::Reason;
use crate::{GrantedLock, LockError, LockId, LockInfo};

/// The advisory lock of [`LockTables::setup_schema`]: "fencelck" in ASCII.
const SETUP_LOCK: i64 = 0x66_65_6e_63_65_6c_63_6b;
/// Settings of a grant's session, with which the server ends it about 5 s after the host of the client has
/// vanished.
const NOTICE_VANISHED_HOST: &str = "SET tcp_keepalives_idle = 1; SET tcp_keepalives_interval = 1; \
    SET tcp_keepalives_count = 4; SET tcp_user_timeout = 4000";

/// The locks in two tables of one database.
#[derive(Clone)]
pub(crate) struct LockTables {
    pub(crate) pool: PgPool,
    pub(crate) names: TableNames,
}

impl LockTables {
    /// `same_ttl_ms` is the time for which all clients acquire a key, if they agree on it.
    pub(crate) async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl_ms: i64,
        same_ttl_ms: Option<i64>,
    ) -> Result<Attempt, LockError> {
        let session = self.pool.session("acquire a lock").await?;
        let row = || parameter::text(&key.storage);
        let counter = || parameter::text(&key.fence);
        let length = || parameter::optional_bigint(same_ttl_ms);
        let found = session.query(self.names.of(&PEEK).bind([row(), length()])).await?;
        if is_live(&found)? {
            if found.first().map_or(Ok(false), |row| column(row, "is_ahead"))? {
                match session.execute(self.names.of(&BEGIN_AGAIN).bind([row(), length()])).await {
                    // Its holder changes the lease, or another client restarts it too.
                    Ok(_) | Err(PgError::Locked { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(Attempt::Locked);
        }
        let advisory = session.prepare(LOCK_KEY.bind([row()])).await?;
        let ensure = self.names.of(&ENSURE_COUNTER).bind([counter(), parameter::text(&key.user)]);
        let ensure = session.prepare(ensure).await?;
        let lock_counter = session.prepare(self.names.of(&LOCK_COUNTER).bind([counter()])).await?;
        let lock_row = session.prepare(self.names.of(&LOCK_ROW).bind([row()])).await?;
        let grant = self.names.of(&GRANT).bind([
            counter(),
            parameter::bigint(FENCE_MAX as i64),
            row(),
            parameter::text(id.as_str()),
            parameter::bigint(ttl_ms),
            parameter::bigint(FENCE_DIGITS as i64),
            parameter::text(&key.user),
        ]);
        let grant = session.prepare(grant).await?;
        // The lease begins here at the latest; if the server grants it later, it also ends later.
        let asked_at = Instant::now();
        let (begun, alone, ensured, counter, holder, granted, committed) = tokio::join!(
            biased;
            session.begin(),
            session.run(&advisory),
            session.run(&ensure),
            session.run(&lock_counter),
            session.run(&lock_row),
            session.run(&grant),
            session.commit(),
        );
        // After a failed statement the next ones fail too, and COMMIT rolls back without an error of its own.
        let answers = || -> Result<_, PgError> {
            begun?;
            alone?;
            ensured?;
            let answers = (counter?, holder?, granted?);
            committed.map(|()| answers)
        };
        let (counter, holder, granted) = match answers() {
            Ok(answers) => answers,
            Err(error) => return Ok(Attempt::Unknown(error.into())),
        };
        let Some(row) = granted.first() else {
            let count: i64 = counter.first().map_or(Ok(0), |row| column(row, "fence"))?;
            let used_up = count >= FENCE_MAX as i64 && !is_live(&holder)?;
            return if used_up { Err(LockError::FencesUsedUp) } else { Ok(Attempt::Locked) };
        };
        let fence = fence_of(row)?;
        if fence > FENCE_WARN {
            tracing::warn!(key_hash = hash_key(&key.user), fence, "the fences of this key are running out");
        }
        let expires_at_ms = column(row, "expires_at_ms")?;
        Ok(Attempt::Granted(GrantedLock { lock_id: id.clone(), fence, expires_at_ms, asked_at }))
    }

    pub(crate) async fn extend(&self, id: &LockId, ttl_ms: i64) -> Result<Result<i64, Reason>, LockError> {
        let extend = self.names.of(&EXTEND).bind([parameter::text(id.as_str()), parameter::bigint(ttl_ms)]);
        self.change("extend a lock", extend).await
    }

    pub(crate) async fn release(&self, id: &LockId) -> Result<Result<i64, Reason>, LockError> {
        let release = self.names.of(&RELEASE).bind([parameter::text(id.as_str())]);
        self.change("release a lock", release).await
    }

    /// Changes the lock `id` if it is live. Returns the end of its lease, or the reason that nothing changed.
    async fn change(
        &self,
        operation: &'static str,
        change: BoundStatement,
    ) -> Result<Result<i64, Reason>, LockError> {
        let session = self.pool.session(operation).await?;
        let rows = session.query(change).await?;
        let row = rows.first().ok_or(LockError::Corrupt("lock_id"))?;
        Ok(match (column(row, "expires_at_ms")?, column(row, "is_present")?) {
            (Some(expires_at_ms), _) => Ok(expires_at_ms),
            (None, true) => Err(Reason::Expired),
            (None, false) => Err(Reason::NotFound),
        })
    }

    pub(crate) async fn find(&self, which: Selector<'_>) -> Result<Option<LockInfo>, LockError> {
        let session = self.pool.session("look up a lock").await?;
        let lookup = match which {
            Selector::Key(key) => self.names.of(&LOOKUP_KEY).bind([parameter::text(&key.storage)]),
            Selector::Id(id) => self.names.of(&LOOKUP_ID).bind([parameter::text(id.as_str())]),
        };
        let rows = session.query(lookup).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(LockInfo {
            key_hash: hash_key(column(row, "user_key")?),
            lock_id_hash: hash_key(column(row, "lock_id")?),
            expires_at_ms: column(row, "expires_at_ms")?,
            acquired_at_ms: column(row, "acquired_at_ms")?,
            fence: fence_of(row)?,
            free_in: Duration::from_millis(column::<i64>(row, "free_in_ms")?.max(0).unsigned_abs()),
        }))
    }

    pub(crate) async fn open_session(&self, key: &LockKey, fence: u64) -> Result<Session, LockError> {
        let session = self.pool.session("open the session of a lock").await?;
        // It is not used for anything else: what it has locked is released when it is closed.
        session.retire();
        session.execute_batch(NOTICE_VANISHED_HOST).await?;
        let [key, fence] = session_key(key, fence);
        session.query(self.names.of(&LOCK_SESSION).bind([key, fence])).await?;
        Ok(session)
    }

    pub(crate) async fn has_session(&self, key: &LockKey, fence: u64) -> Result<bool, LockError> {
        let session = self.pool.session("look for the session of a lock").await?;
        let [key, fence] = session_key(key, fence);
        let rows = session.query(self.names.of(&HAS_SESSION).bind([key, fence])).await?;
        rows.first().map_or(Ok(false), |row| column(row, "has_session"))
    }

    pub(crate) async fn release_orphan(&self, key: &LockKey, fence: u64) -> Result<bool, LockError> {
        let session = self.pool.session("release a lock whose session has ended").await?;
        let [key, fence] = session_key(key, fence);
        let digits = parameter::bigint(FENCE_DIGITS as i64);
        Ok(session.execute(self.names.of(&RELEASE_ORPHAN).bind([key, fence, digits])).await? > 0)
    }

    pub(crate) async fn expired_at_ms(&self, key: &LockKey) -> Result<Option<i64>, LockError> {
        let session = self.pool.session("look up an expired lock").await?;
        let lease_end = self.names.of(&LEASE_END).bind([parameter::text(&key.storage)]);
        let rows = session.query(lease_end).await?;
        let Some(row) = rows.first().filter(|_| !is_live(&rows).unwrap_or(false)) else { return Ok(None) };
        column(row, "expires_at_ms").map(Some)
    }

    pub(crate) async fn purge(&self, limit: u64) -> Result<u64, LockError> {
        let session = self.pool.session("purge expired locks").await?;
        let limit = parameter::bigint(i64::try_from(limit).unwrap_or(i64::MAX));
        let purge = self.names.of(&PURGE).bind([parameter::bigint(PURGE_AFTER_MS), limit]);
        Ok(session.execute(purge).await?)
    }

    pub(crate) async fn raise_counter(&self, key: &LockKey, floor: i64) -> Result<u64, LockError> {
        let session = self.pool.session("raise a fence counter").await?;
        let raise = self.names.of(&RAISE_COUNTER).bind([
            parameter::text(&key.fence),
            parameter::bigint(floor),
            parameter::text(&key.user),
        ]);
        let rows = session.query(raise).await?;
        let fence: i64 = rows.first().map_or(Ok(floor), |row| column(row, "fence"))?;
        u64::try_from(fence).map_err(|_| LockError::Corrupt("fence"))
    }

    pub(crate) async fn setup_schema(&self) -> Result<(), LockError> {
        let session = self.pool.session("create the tables of the locks").await?;
        session.begin().await?;
        // IF NOT EXISTS does not prevent an error if another process creates the table at the same time.
        session.execute_batch(&format!("SELECT pg_advisory_xact_lock({SETUP_LOCK})")).await?;
        session.execute_batch(&schema_sql(&self.names)).await?;
        session.commit().await?;
        // The check takes its own connection: holding one while waiting for another can deadlock the pool.
        drop(session);
        self.check_schema().await
    }

    pub(crate) async fn check_schema(&self) -> Result<(), LockError> {
        let session = self.pool.session("check the tables of the locks").await?.checking();
        let statements: Vec<Statement> = STATEMENTS.iter().map(|each| self.names.of(each)).collect();
        session.prepare_all(&statements).await?;
        let missing = rights::missing(&session, &self.names.required_grants()).await?;
        if missing.is_empty() { Ok(()) } else { Err(LockError::NoRights(rights::list(&missing))) }
    }
}

/// The parameters that name the session of a grant.
fn session_key(key: &LockKey, fence: u64) -> [Parameter; 2] {
    [parameter::text(&key.storage), parameter::bigint(i64::try_from(fence).unwrap_or(i64::MAX))]
}

/// Returns true if there is a row and its lease is live.
fn is_live(rows: &[Row]) -> Result<bool, LockError> {
    rows.first().map_or(Ok(false), |row| column(row, "is_live"))
}

fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T, LockError> {
    row::get(row, name).map_err(|_| LockError::Corrupt(name))
}

fn fence_of(row: &Row) -> Result<u64, LockError> {
    column::<&str>(row, "fence")?.parse().map_err(|_| LockError::Corrupt("fence"))
}
