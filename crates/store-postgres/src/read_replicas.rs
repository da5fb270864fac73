//! Read replicas: streaming standbys of the primary, for reads whose result may be a little old (ADR 0070).
//!
//! A replica is read while everything that it lacks of the primary is younger than `max_lag`. Its age is
//! measured on use, at most once per [`MEASURE_INTERVAL`]. A replica that has replayed all that the primary
//! had written when the measurement began lacks only later changes; another one is as old as the last
//! transaction that it replayed, by the clocks of both servers. A replica that cannot be measured, lags too
//! far behind or fails is passed over: the primary serves its reads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ambient::{Episode, Recovery, error_chain};
use domain::ports::StoreError;
use pg::{Dsn, PgPool, Session, parameter};
use tokio_postgres::Row;

use crate::codec::{column, corrupt};
use crate::error::store_error;

/// The shortest time between two measurements of a replica, or half of the permitted lag if that is less.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest duration of a measurement.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time during which a replica that failed is not tried again.
const PAUSE: Duration = Duration::from_secs(5);

pg::statements! {
    /// The last position that the primary has written, and the installation in its tables.
    POSITION = "read_replicas.position", plan ["Seq Scan"], "
        SELECT pg_current_wal_lsn()::text AS position, (SELECT id FROM installation LIMIT 1) AS installation";

    /// The state of a replica: whether it has replayed the position, and the age of the last transaction that
    /// it has.
    STATE = "read_replicas.state", plan ["Seq Scan"], "
        SELECT pg_is_in_recovery() AS is_standby,
            coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false) AS is_caught_up,
            CAST(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000 AS bigint) AS age_ms,
            (SELECT id FROM installation LIMIT 1) AS installation";
}

/// The replicas of one primary. Clones share what was measured.
#[derive(Clone, Debug)]
pub struct ReadReplicas(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    primary: PgPool,
    replicas: Vec<Replica>,
    max_lag: Duration,
    /// The installation of the primary, once it was read.
    installation: OnceLock<String>,
    /// The number of choices so far, so that the replicas take turns.
    turns: AtomicUsize,
}

/// A replica, and what was measured of it.
#[derive(Debug)]
pub(crate) struct Replica {
    dsn: Dsn,
    pool: PgPool,
    state: Mutex<Measured>,
    episode: Episode<String>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    /// The replica has everything up to this moment; `None` if that is unknown.
    as_of: Option<Instant>,
    /// The time of the next measurement.
    next: Instant,
}

/// The reason for which a replica is not read.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("it is not a standby")]
    NotAStandby,
    #[error("it belongs to another installation")]
    OtherInstallation,
    #[error("its age is unknown: it has not replayed a transaction since its start")]
    UnknownAge,
    #[error("it is too far behind the primary")]
    Lags,
    #[error("it did not respond in time")]
    Late,
    #[error("{}", error_chain(.0))]
    Failed(#[from] StoreError),
}

impl ReadReplicas {
    /// Replicas with their pools, whose sessions have the settings [`crate::QUERY_SESSION`]. `primary` is
    /// used to measure their age.
    pub fn new(
        primary: PgPool,
        replicas: impl IntoIterator<Item = (Dsn, PgPool)>,
        max_lag: Duration,
    ) -> Self {
        let replica = |(dsn, pool)| Replica {
            dsn,
            pool,
            state: Mutex::new(Measured { as_of: None, next: Instant::now() }),
            episode: Episode::default(),
        };
        let replicas = replicas.into_iter().map(replica).collect();
        let (installation, turns) = (OnceLock::new(), AtomicUsize::new(0));
        Self(Arc::new(Shared { primary, replicas, max_lag, installation, turns }))
    }

    /// The next replica that may be read, and the moment up to which it has everything.
    pub(crate) async fn choose(&self) -> Option<(&Replica, Instant)> {
        let Shared { replicas, max_lag, turns, .. } = &*self.0;
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        for offset in 0..replicas.len() {
            let replica = &replicas[turn.wrapping_add(offset) % replicas.len()];
            if replica.is_due(self.interval()) {
                self.measure(replica).await;
            }
            let as_of = replica.state().as_of;
            match as_of {
                Some(as_of) if as_of.elapsed() <= *max_lag => return Some((replica, as_of)),
                Some(_) => replica.pass_over(&Unfit::Lags, self.interval()),
                None => {}
            }
        }
        None
    }

    async fn measure(&self, replica: &Replica) {
        let measured = tokio::time::timeout(MEASURE_TIMEOUT, self.age_of(replica)).await;
        match measured.unwrap_or(Err(Unfit::Late)) {
            Ok(as_of) if as_of.elapsed() <= self.0.max_lag => replica.serves(as_of, self.interval()),
            Ok(_) => replica.pass_over(&Unfit::Lags, self.interval()),
            Err(unfit) => replica.pass_over(&unfit, PAUSE),
        }
    }

    fn interval(&self) -> Duration {
        MEASURE_INTERVAL.min(self.0.max_lag / 2)
    }

    /// Returns the moment up to which the replica has everything.
    async fn age_of(&self, replica: &Replica) -> Result<Instant, Unfit> {
        let began = Instant::now();
        // Without the primary, only the time of the last transaction tells the age.
        let position = match (self.position().await, self.0.installation.get()) {
            (Err(error), None) => return Err(error.into()),
            (position, _) => position.ok(),
        };
        let session = replica.session("measure the age of a read replica").await?;
        let rows = session.query(STATE.bind([parameter::optional_text(position)])).await;
        let rows = rows.map_err(store_error)?;
        let row = first(&rows)?;
        if !column::<bool>(row, "is_standby", "")? {
            return Err(Unfit::NotAStandby);
        }
        let installation: Option<String> = column(row, "installation", "")?;
        if self.0.installation.get() != installation.as_ref() {
            return Err(Unfit::OtherInstallation);
        }
        if column(row, "is_caught_up", "")? {
            return Ok(began);
        }
        let age: Option<i64> = column(row, "age_ms", "")?;
        let age = age.map(|age| Duration::from_millis(u64::try_from(age).unwrap_or(0)));
        age.and_then(|age| began.checked_sub(age)).ok_or(Unfit::UnknownAge)
    }

    /// The last position that the primary has written. Keeps the installation of its tables.
    async fn position(&self) -> Result<String, StoreError> {
        let session =
            self.0.primary.session("read the position of the primary").await.map_err(store_error)?;
        let rows = session.query(POSITION.bind([])).await.map_err(store_error)?;
        let row = first(&rows)?;
        if let Some(installation) = column::<Option<String>>(row, "installation", "")? {
            self.0.installation.get_or_init(|| installation);
        }
        column(row, "position", "")
    }
}

fn first(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first().ok_or_else(|| corrupt("read_replicas", "", "there is no row".to_owned()))
}

impl Replica {
    pub(crate) async fn session(&self, operation: &'static str) -> Result<Session, StoreError> {
        self.pool.session(operation).await.map_err(store_error)
    }

    /// Stops reading from this replica for a while: `error` shows that it does not serve.
    pub(crate) fn failed(&self, error: StoreError) {
        self.pass_over(&Unfit::Failed(error), PAUSE);
    }

    /// Returns true for one caller when the next measurement is due; that caller makes it.
    fn is_due(&self, interval: Duration) -> bool {
        let (mut state, now) = (self.state(), Instant::now());
        let is_due = state.next <= now;
        if is_due {
            state.next = now + interval;
        }
        is_due
    }

    fn serves(&self, as_of: Instant, interval: Duration) {
        *self.state() = Measured { as_of: Some(as_of), next: Instant::now() + interval };
        if let Some(Recovery { times, lasted_ms }) = self.episode.recovered(Instant::now()) {
            tracing::info!(read_replica = %self.dsn, times, lasted_ms, "read replica recovered");
        }
    }

    fn pass_over(&self, unfit: &Unfit, pause: Duration) {
        *self.state() = Measured { as_of: None, next: Instant::now() + pause };
        let error = unfit.to_string();
        if self.episode.failed(Instant::now(), error.clone()).is_logged {
            tracing::warn!(read_replica = %self.dsn, error, "a read replica is passed over; the primary serves its reads");
        }
    }

    /// Locks the state. Nothing panics while the lock is held.
    fn state(&self) -> MutexGuard<'_, Measured> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
