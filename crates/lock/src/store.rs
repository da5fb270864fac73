//! Running the statements: what is read, in which order rows are held, and what the answers mean.
//!
//! Rows are always held in the order counter, then lock. Whoever changes a lock holds its row first and reads the clock
//! afterwards, so two of them can never both find a lease theirs. To acquire is a transaction, sent whole, COMMIT included,
//! before its first answer; everything else is one statement. So a client that stops in the middle holds nothing.

use std::time::Duration;

use pg::{PgError, PgPool};
use sea_query::SelectStatement;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::fence::{FENCE_MAX, FENCE_WARN};
use crate::key::{Key, hash_key};
use crate::schema::{TableNames, schema_sql};
use crate::statements::{Statements, Which, has_rights};
use crate::telemetry::{Event, Operation, Outcome, Reason, Telemetry};
use crate::{Extension, Grant, LockError, LockId, LockInfo, Release};

/// Any number that nobody else uses: "fencelck" in ASCII. Taken while tables are made, by nothing else.
const SETUP_LOCK: i64 = 0x66_65_6e_63_65_6c_63_6b;
/// How often a release is tried for somebody who no longer waits for it.
const HAND_OVER_ATTEMPTS: u32 = 3;
/// The pause between two of these attempts.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(200);

/// What became of one attempt to acquire.
#[derive(Debug)]
pub(crate) enum Attempt {
    Granted(Grant),
    Locked,
    /// It failed after it was sent: the lock may have been granted.
    Unknown(LockError),
}

/// Locks in two tables of one database.
pub(crate) struct Store {
    pub(crate) pool: PgPool,
    pub(crate) names: TableNames,
    pub(crate) statements: Statements,
    pub(crate) telemetry: Telemetry,
}

impl Store {
    pub(crate) async fn acquire(&self, key: &Key, id: &LockId, ttl_ms: i64) -> Result<Attempt, LockError> {
        let attempt = self.try_acquire(key, id, ttl_ms).await;
        self.telemetry.report(|| Event {
            operation: Operation::Acquire,
            outcome: match &attempt {
                Ok(Attempt::Granted(_)) => Outcome::Done,
                Ok(Attempt::Locked) => Outcome::Refused(Reason::Locked),
                Ok(Attempt::Unknown(error)) | Err(error) => Outcome::Failed(error),
            },
            key_hash: Some(hash_key(&key.user)),
            lock_id_hash: Some(id.hash()),
        });
        attempt
    }

    async fn try_acquire(&self, key: &Key, id: &LockId, ttl_ms: i64) -> Result<Attempt, LockError> {
        let session = self.pool.session("acquire a lock").await?;
        if says_live(&session.query(&self.statements.peek(key)).await?)? {
            return Ok(Attempt::Locked);
        }
        let ensure = session.prepare(&self.statements.ensure_counter(key)).await?;
        let counter = session.prepare(&self.statements.seize_counter(key)).await?;
        let holder = session.prepare(&self.statements.seize(key)).await?;
        let grant = session.prepare(&self.statements.grant(key, id, ttl_ms)).await?;
        // The lease begins, at the latest, here: what the server grants later ends later.
        let asked_at = Instant::now();
        let (begun, ensured, counter, holder, granted, committed) = tokio::join!(
            biased;
            session.begin(),
            session.run(&ensure),
            session.run(&counter),
            session.run(&holder),
            session.run(&grant),
            session.commit(),
        );
        // Behind a statement that failed the others fail too, and COMMIT rolls back without an error of its own.
        let answers = || -> Result<_, PgError> {
            begun?;
            ensured?;
            let answers = (counter?, holder?, granted?);
            committed.map(|()| answers)
        };
        let (counter, holder, granted) = match answers() {
            Ok(answers) => answers,
            Err(error) => return Ok(Attempt::Unknown(error.into())),
        };
        let Some(row) = granted.first() else {
            let count: i64 = counter.first().map_or(Ok(0), |row| column(row, 0, "fence"))?;
            let used_up = count >= FENCE_MAX as i64 && !says_live(&holder)?;
            return if used_up { Err(LockError::FencesUsedUp) } else { Ok(Attempt::Locked) };
        };
        let fence = fence_of(row, 0)?;
        if fence > FENCE_WARN {
            tracing::warn!(key_hash = hash_key(&key.user), fence, "the fences of this key are running out");
        }
        let expires_at_ms = column(row, 1, "expires_at_ms")?;
        Ok(Attempt::Granted(Grant { lock_id: id.clone(), fence, expires_at_ms, asked_at }))
    }

    pub(crate) async fn extend(&self, id: &LockId, ttl_ms: i64) -> Result<Extension, LockError> {
        let changed = self.change("extend a lock", &self.statements.extend(id, ttl_ms)).await;
        self.report(Operation::Extend, id, &changed);
        Ok(match changed? {
            Ok(expires_at_ms) => Extension::Extended { expires_at_ms },
            Err(_) => Extension::NotHeld,
        })
    }

    pub(crate) async fn release(&self, id: &LockId) -> Result<Release, LockError> {
        let changed = self.change("release a lock", &self.statements.release(id)).await;
        self.report(Operation::Release, id, &changed);
        Ok(match changed? {
            Ok(_) => Release::Released,
            Err(_) => Release::NotHeld,
        })
    }

    /// Releases for somebody who is gone: a failure that may pass is met with another try.
    pub(crate) async fn hand_over(&self, id: &LockId) -> Result<Release, LockError> {
        for _ in 1..HAND_OVER_ATTEMPTS {
            match self.release(id).await {
                Err(error) if error.is_transient() => tokio::time::sleep(HAND_OVER_PAUSE).await,
                outcome => return outcome,
            }
        }
        self.release(id).await
    }

    /// Changes the lock `id` if it is live; says when the lease ends or ended, or why nothing changed.
    async fn change(
        &self,
        operation: &'static str,
        change: &SelectStatement,
    ) -> Result<Result<i64, Reason>, LockError> {
        let session = self.pool.session(operation).await?;
        let rows = session.query(change).await?;
        let row = rows.first().ok_or(LockError::Corrupt("lock_id"))?;
        Ok(match (column(row, 1, "expires_at_ms")?, column(row, 0, "lock_id")?) {
            (Some(expires_at_ms), _) => Ok(expires_at_ms),
            (None, true) => Err(Reason::Expired),
            (None, false) => Err(Reason::NotFound),
        })
    }

    fn report<T>(&self, operation: Operation, id: &LockId, changed: &Result<Result<T, Reason>, LockError>) {
        self.telemetry.report(|| Event {
            operation,
            outcome: match changed {
                Ok(Ok(_)) => Outcome::Done,
                Ok(Err(reason)) => Outcome::Refused(*reason),
                Err(error) => Outcome::Failed(error),
            },
            key_hash: None,
            lock_id_hash: Some(id.hash()),
        });
    }

    pub(crate) async fn lookup(&self, which: Which<'_>) -> Result<Option<LockInfo>, LockError> {
        let found = self.find(which).await;
        let (key_hash, lock_id_hash) = match which {
            Which::Key(key) => (Some(key), None),
            Which::Id(id) => (None, Some(id)),
        };
        self.telemetry.report(|| Event {
            operation: Operation::Lookup,
            outcome: match &found {
                Ok(Some(_)) => Outcome::Done,
                Ok(None) => Outcome::Refused(Reason::NotFound),
                Err(error) => Outcome::Failed(error),
            },
            key_hash: key_hash.map(|key| hash_key(&key.user)),
            lock_id_hash: lock_id_hash.map(LockId::hash),
        });
        found
    }

    async fn find(&self, which: Which<'_>) -> Result<Option<LockInfo>, LockError> {
        let session = self.pool.session("look up a lock").await?;
        let rows = session.query(&self.statements.lookup(which)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(LockInfo {
            key_hash: hash_key(column(row, 0, "user_key")?),
            lock_id_hash: hash_key(column(row, 1, "lock_id")?),
            expires_at_ms: column(row, 2, "expires_at_ms")?,
            acquired_at_ms: column(row, 3, "acquired_at_ms")?,
            fence: fence_of(row, 4)?,
        }))
    }

    pub(crate) async fn purge(&self, limit: u64) -> Result<u64, LockError> {
        let session = self.pool.session("purge expired locks").await?;
        Ok(session.execute(&self.statements.purge(limit)).await?)
    }

    pub(crate) async fn raise_counter(&self, key: &Key, floor: i64) -> Result<u64, LockError> {
        let session = self.pool.session("raise a fence counter").await?;
        let rows = session.query(&self.statements.raise_counter(key, floor)).await?;
        let fence: i64 = rows.first().map_or(Ok(floor), |row| column(row, 0, "fence"))?;
        u64::try_from(fence).map_err(|_| LockError::Corrupt("fence"))
    }

    pub(crate) async fn setup_schema(&self) -> Result<(), LockError> {
        let session = self.pool.session("make the tables of the locks").await?;
        session.begin().await?;
        // "If it does not exist" is no protection from another process that makes it at the same time.
        session.execute_batch(&format!("SELECT pg_advisory_xact_lock({SETUP_LOCK})")).await?;
        session.execute_batch(&schema_sql(&self.names)).await?;
        session.commit().await?;
        // The check takes a connection of its own: who holds one while waiting for another may wait for ever.
        drop(session);
        self.check_schema().await
    }

    pub(crate) async fn check_schema(&self) -> Result<(), LockError> {
        let session = self.pool.session("check the tables of the locks").await?;
        let (key, id) = (Key::parse("check")?, LockId::from_bytes([0; 16]));
        session.prepare(&self.statements.ensure_counter(&key)).await?;
        session.prepare(&self.statements.seize_counter(&key)).await?;
        session.prepare(&self.statements.grant(&key, &id, 1)).await?;
        session.prepare(&self.statements.extend(&id, 1)).await?;
        session.prepare(&self.statements.release(&id)).await?;
        session.prepare(&self.statements.purge(1)).await?;
        session.prepare(&self.statements.raise_counter(&key, 0)).await?;
        session.prepare(&self.statements.peek(&key)).await?;
        session.prepare(&self.statements.seize(&key)).await?;
        for which in [Which::Key(&key), Which::Id(&id)] {
            session.prepare(&self.statements.lookup(which)).await?;
        }
        // Preparing asks for no right on a table; running does.
        let needs = self.names.needs();
        let rows = session.query(&has_rights(&needs)).await?;
        let row = rows.first().ok_or(LockError::Corrupt("right"))?;
        let mut missing = Vec::new();
        for (place, need) in needs.iter().enumerate() {
            if !column(row, place, "right")? {
                missing.push(format!("{} in: {}", need.what, need.table));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(LockError::NoRights(missing.join("; ")))
    }
}

/// Whether there is a row and it says that its lease is live.
fn says_live(rows: &[Row]) -> Result<bool, LockError> {
    rows.first().map_or(Ok(false), |row| column(row, 0, "expires_at_ms"))
}

fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize, name: &'static str) -> Result<T, LockError> {
    row.try_get(index).map_err(|_| LockError::Corrupt(name))
}

fn fence_of(row: &Row, index: usize) -> Result<u64, LockError> {
    column::<&str>(row, index, "fence")?.parse().map_err(|_| LockError::Corrupt("fence"))
}
