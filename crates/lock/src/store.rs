//! Runs the statements: the reads, the order of row locks, and the interpretation of results.
//!
//! Rows are always locked in the order counter, then lock, after the advisory lock that the original
//! implementation uses to admit one acquirer of a key. Every change of a lock locks its row first and reads
//! the clock afterwards, so two clients can never both own a lease. Acquiring is a transaction, sent as a
//! whole, COMMIT included, before its first response; everything else is one statement. So a client that
//! stops in between holds nothing.

use std::time::Duration;

use futures_util::future::try_join_all;
use pg::rights::{RequiredRights, missing_rights};
use pg::{PgError, PgPool, row};
use sea_query::SelectStatement;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::fence::{FENCE_MAX, FENCE_WARN};
use crate::key::{LockKey, hash_key};
use crate::schema::{DELETE, TableNames, schema_sql};
use crate::statements::{LeaseLength, Selector, Statements};
use crate::telemetry::{EventSink, LockEvent, LockOperation, LockOutcome, Reason};
use crate::{Extension, GrantedLock, LockError, LockId, LockInfo, Release};

/// The advisory lock of [`LockStore::setup_schema`]: "fencelck" in ASCII.
const SETUP_LOCK: i64 = 0x66_65_6e_63_65_6c_63_6b;
/// The number of attempts to release an abandoned lock, which has no caller that could retry.
const ABANDONED_RELEASE_ATTEMPTS: u32 = 3;
/// The pause between two of these attempts.
const ABANDONED_RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// The outcome of one attempt to acquire.
#[derive(Debug)]
pub(crate) enum Attempt {
    Granted(GrantedLock),
    Locked,
    /// The attempt failed after it was sent: the lock may have been granted.
    Unknown(LockError),
}

/// The locks in two tables of one database.
#[derive(Clone)]
pub(crate) struct LockStore {
    pub(crate) pool: PgPool,
    pub(crate) names: TableNames,
    pub(crate) statements: Statements,
    pub(crate) telemetry: EventSink,
    /// True if all clients acquire a key for the same time.
    pub(crate) same_ttl: bool,
}

impl LockStore {
    pub(crate) async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl_ms: i64,
    ) -> Result<Attempt, LockError> {
        let attempt = self.try_acquire(key, id, ttl_ms).await;
        self.telemetry.report(|| LockEvent {
            operation: LockOperation::Acquire,
            outcome: match &attempt {
                Ok(Attempt::Granted(_)) => LockOutcome::Done,
                Ok(Attempt::Locked) => LockOutcome::Refused(Reason::Locked),
                Ok(Attempt::Unknown(error)) | Err(error) => LockOutcome::Failed(error),
            },
            key_hash: Some(hash_key(&key.user)),
            lock_id_hash: Some(id.hash()),
        });
        attempt
    }

    async fn try_acquire(&self, key: &LockKey, id: &LockId, ttl_ms: i64) -> Result<Attempt, LockError> {
        let session = self.pool.session("acquire a lock").await?;
        let length = if self.same_ttl { LeaseLength::Millis(ttl_ms) } else { LeaseLength::OfGrant };
        let found = session.query(&self.statements.peek_ahead(key, length)).await?;
        if is_live(&found)? {
            if found.first().map_or(Ok(false), |row| column(row, "is_ahead"))? {
                match session.execute(&self.statements.begin_again(key, length)).await {
                    // Its holder changes the lease, or another client restarts it too.
                    Ok(_) | Err(PgError::Locked { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(Attempt::Locked);
        }
        let advisory = session.prepare(&self.statements.lock_key(key)).await?;
        let ensure = session.prepare(&self.statements.ensure_counter(key)).await?;
        let counter = session.prepare(&self.statements.lock_counter(key)).await?;
        let holder = session.prepare(&self.statements.lock_row(key)).await?;
        let grant = session.prepare(&self.statements.grant(key, id, ttl_ms)).await?;
        // The lease begins here at the latest; if the server grants it later, it also ends later.
        let asked_at = Instant::now();
        let (begun, alone, ensured, counter, holder, granted, committed) = tokio::join!(
            biased;
            session.begin(),
            session.run(&advisory),
            session.run(&ensure),
            session.run(&counter),
            session.run(&holder),
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

    pub(crate) async fn extend(&self, id: &LockId, ttl_ms: i64) -> Result<Extension, LockError> {
        let changed = self.change("extend a lock", &self.statements.extend(id, ttl_ms)).await;
        self.report(LockOperation::Extend, id, &changed);
        Ok(match changed? {
            Ok(expires_at_ms) => Extension::Extended { expires_at_ms },
            Err(_) => Extension::NotHeld,
        })
    }

    pub(crate) async fn release(&self, id: &LockId) -> Result<Release, LockError> {
        let changed = self.change("release a lock", &self.statements.release(id)).await;
        self.report(LockOperation::Release, id, &changed);
        Ok(match changed? {
            Ok(_) => Release::Released,
            Err(_) => Release::NotHeld,
        })
    }

    /// Releases a lock that no caller waits for, and retries transient failures.
    pub(crate) async fn release_abandoned(&self, id: &LockId) -> Result<Release, LockError> {
        for _ in 1..ABANDONED_RELEASE_ATTEMPTS {
            match self.release(id).await {
                Err(error) if error.is_transient() => tokio::time::sleep(ABANDONED_RELEASE_PAUSE).await,
                outcome => return outcome,
            }
        }
        self.release(id).await
    }

    /// Changes the lock `id` if it is live. Returns the end of its lease, or the reason that nothing changed.
    async fn change(
        &self,
        operation: &'static str,
        change: &SelectStatement,
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

    fn report<T>(
        &self,
        operation: LockOperation,
        id: &LockId,
        changed: &Result<Result<T, Reason>, LockError>,
    ) {
        self.telemetry.report(|| LockEvent {
            operation,
            outcome: match changed {
                Ok(Ok(_)) => LockOutcome::Done,
                Ok(Err(reason)) => LockOutcome::Refused(*reason),
                Err(error) => LockOutcome::Failed(error),
            },
            key_hash: None,
            lock_id_hash: Some(id.hash()),
        });
    }

    pub(crate) async fn lookup(&self, which: Selector<'_>) -> Result<Option<LockInfo>, LockError> {
        let found = self.find(which).await;
        let (key_hash, lock_id_hash) = match which {
            Selector::Key(key) => (Some(key), None),
            Selector::Id(id) => (None, Some(id)),
        };
        self.telemetry.report(|| LockEvent {
            operation: LockOperation::Lookup,
            outcome: match &found {
                Ok(Some(_)) => LockOutcome::Done,
                Ok(None) => LockOutcome::Refused(Reason::NotFound),
                Err(error) => LockOutcome::Failed(error),
            },
            key_hash: key_hash.map(|key| hash_key(&key.user)),
            lock_id_hash: lock_id_hash.map(LockId::hash),
        });
        found
    }

    async fn find(&self, which: Selector<'_>) -> Result<Option<LockInfo>, LockError> {
        let session = self.pool.session("look up a lock").await?;
        let rows = session.query(&self.statements.lookup(which)).await?;
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

    pub(crate) async fn expired_at_ms(&self, key: &LockKey) -> Result<Option<i64>, LockError> {
        let session = self.pool.session("look up an expired lock").await?;
        let rows = session.query(&self.statements.lease_end(key)).await?;
        let Some(row) = rows.first().filter(|_| !is_live(&rows).unwrap_or(false)) else { return Ok(None) };
        column(row, "expires_at_ms").map(Some)
    }

    pub(crate) async fn purge(&self, limit: u64) -> Result<u64, LockError> {
        let session = self.pool.session("purge expired locks").await?;
        Ok(session.execute(&self.statements.purge(limit)).await?)
    }

    pub(crate) async fn raise_counter(&self, key: &LockKey, floor: i64) -> Result<u64, LockError> {
        let session = self.pool.session("raise a fence counter").await?;
        let rows = session.query(&self.statements.raise_counter(key, floor)).await?;
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
        let (key, id) = (LockKey::parse("check")?, LockId::from_bytes([0; 16]));
        let statements = &self.statements;
        let inserts = [
            statements.ensure_counter(&key),
            statements.grant(&key, &id, 1),
            statements.raise_counter(&key, 0),
        ];
        let selects = [
            statements.lock_counter(&key),
            statements.lock_key(&key),
            statements.peek_ahead(&key, LeaseLength::OfGrant),
            statements.peek_ahead(&key, LeaseLength::Millis(1)),
            statements.extend(&id, 1),
            statements.release(&id),
            statements.peek(&key),
            statements.lock_row(&key),
            statements.lease_end(&key),
            statements.lookup(Selector::Key(&key)),
            statements.lookup(Selector::Id(&id)),
        ];
        let updates = [LeaseLength::OfGrant, LeaseLength::Millis(1)];
        let updates = updates.map(|length| statements.begin_again(&key, length));
        let purge = statements.purge(1);
        // Prepared concurrently: one after the other would take too long if the server is far away.
        tokio::try_join!(
            try_join_all(inserts.iter().map(|statement| session.prepare(statement))),
            try_join_all(updates.iter().map(|statement| session.prepare(statement))),
            try_join_all(selects.iter().map(|statement| session.prepare(statement))),
            session.prepare(&purge),
        )?;
        let missing = missing_rights(&session, &self.names.required_rights()).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let what = |missing: &RequiredRights<'_>| {
            let verbs =
                if missing.rights.contains(&DELETE) { "read, write and delete" } else { "read and write" };
            format!("{verbs} in: {}", missing.table)
        };
        Err(LockError::NoRights(missing.iter().map(what).collect::<Vec<_>>().join("; ")))
    }
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
