//! Elections on a real PostgreSQL, with notices that the tests control.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use election::{
    CAMPAIGN_INTERVAL_MIN, LEADER_POLL_INTERVAL, Leadership, NoNotice, Notice, RenewedTerm,
    SESSION_POLL_INTERVAL, TERM,
};
use local_servers::{Postgres, PostgresOptions};
use lock::{LockManager, TableNames};
use pg::{Dsn, PgPool, PoolSettings};
use tokio::sync::{Notify, OnceCell};
use tokio::time::{Instant, timeout};

/// The longest wait in a test.
const BOUND: Duration = Duration::from_secs(20);
const ROLE: &str = "svc";
const KEY: &str = "cleanup";

static DATABASES: AtomicU32 = AtomicU32::new(0);
static SERVER: OnceCell<Postgres> = OnceCell::const_new();

async fn server() -> &'static Postgres {
    let start = async || Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    SERVER.get_or_init(start).await
}

/// Creates locks in a new database; returns them and its name. Tests share a server, unless they stop it.
async fn database() -> (LockManager, String) {
    locks_on(server().await).await
}

async fn locks_on(server: &Postgres) -> (LockManager, String) {
    let database = format!("test_{}", DATABASES.fetch_add(1, Ordering::SeqCst));
    server.create_role_and_schema(&database, ROLE, "test").await.expect("a database");
    let dsn = format!("postgres://{ROLE}@127.0.0.1:{}/{database}?search_path=test", server.port());
    let settings = PoolSettings {
        max_connections: 4,
        operation_timeout: BOUND,
        session: pg::SessionSettings::default(),
    };
    let pool = PgPool::new(&Dsn::parse(&dsn).expect("a DSN"), settings).expect("a pool");
    let locks = LockManager::new(pool, TableNames::default());
    locks.setup_schema().await.expect("the tables are created");
    (locks, database)
}

async fn locks() -> LockManager {
    database().await.0
}

/// A notice within this process.
#[derive(Clone, Debug, Default)]
struct LocalNotice(Arc<Notify>);

impl Notice for LocalNotice {
    type Error = Infallible;

    async fn announce(&self) -> Result<(), Infallible> {
        self.0.notify_one();
        Ok(())
    }

    async fn wait(&self, at_most: Duration) -> Result<(), Infallible> {
        // A timeout also ends the wait.
        drop(timeout(at_most, self.0.notified()).await);
        Ok(())
    }
}

/// A notice whose transport is unavailable.
#[derive(Clone, Copy, Debug)]
struct BrokenNotice;

#[derive(Debug)]
struct Unavailable;

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unavailable")
    }
}

impl std::error::Error for Unavailable {}

impl Notice for BrokenNotice {
    type Error = Unavailable;

    async fn announce(&self) -> Result<(), Unavailable> {
        Err(Unavailable)
    }

    async fn wait(&self, _at_most: Duration) -> Result<(), Unavailable> {
        Err(Unavailable)
    }
}

fn candidate<N: Notice + Clone>(locks: &LockManager, name: &str, notice: N) -> Leadership<N> {
    Leadership::new(locks.clone(), KEY, name, notice)
}

async fn win<N: Notice + Clone>(leadership: &Leadership<N>) -> RenewedTerm<N> {
    leadership.campaign().await.expect("PostgreSQL serves").expect("no other process leads")
}

async fn loses<N: Notice + Clone>(leadership: &Leadership<N>) -> bool {
    leadership.campaign().await.expect("PostgreSQL serves").is_none()
}

#[tokio::test]
async fn one_candidate_leads_and_after_it_stepped_down_another_with_a_higher_fence() {
    let locks = locks().await;
    let (one, other) = (candidate(&locks, "one", NoNotice), candidate(&locks, "other", NoNotice));
    let first = win(&one).await;
    assert!(loses(&other).await && loses(&one).await);
    let fence = first.fence();
    first.step_down().await;
    assert!(win(&other).await.fence() > fence);
}

#[tokio::test]
async fn leaderships_of_different_keys_are_independent() {
    let locks = locks().await;
    let _term = win(&candidate(&locks, "one", NoNotice)).await;
    win(&Leadership::new(locks, "another key", "other", NoNotice)).await.step_down().await;
}

#[tokio::test]
async fn a_leader_that_steps_down_reaches_a_waiting_candidate() {
    let (locks, notice) = (locks().await, LocalNotice::default());
    let (one, other) = (candidate(&locks, "one", notice.clone()), candidate(&locks, "other", notice));
    let term = win(&one).await;
    let begun = Instant::now();
    let change = tokio::spawn(async move {
        other.leader_change().await;
        win(&other).await
    });
    term.step_down().await;
    timeout(BOUND, change).await.expect("in time").expect("no panic").step_down().await;
    assert!(begun.elapsed() < LEADER_POLL_INTERVAL, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_leader_that_could_not_step_down_releases_its_term_with_its_next_campaign() {
    let mut server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let locks = locks_on(&server).await.0;
    let leadership = candidate(&locks, "one", NoNotice);
    let term = win(&leadership).await;
    let (fence, begun) = (term.fence(), Instant::now());
    server.kill().await;
    term.step_down().await;
    assert!(leadership.campaign().await.is_err(), "PostgreSQL is unavailable");
    server.start_again().await.expect("PostgreSQL starts");
    let next = win(&leadership).await;
    assert!(begun.elapsed() < TERM, "the lease would have expired by then");
    assert!(next.fence() > fence);
}

#[tokio::test]
async fn a_candidate_without_a_notice_campaigns_again_within_the_poll_interval() {
    let locks = locks().await;
    let _term = win(&candidate(&locks, "one", NoNotice)).await;
    let begun = Instant::now();
    candidate(&locks, "other", NoNotice).leader_change().await;
    assert!(begun.elapsed() >= LEADER_POLL_INTERVAL && begun.elapsed() < TERM, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_notice_that_fails_neither_speeds_up_the_campaigns_nor_keeps_a_leader_in_its_term() {
    let locks = locks().await;
    let leadership = candidate(&locks, "one", BrokenNotice);
    let begun = Instant::now();
    leadership.leader_change().await;
    assert!(begun.elapsed() >= CAMPAIGN_INTERVAL_MIN, "{:?}", begun.elapsed());
    win(&leadership).await.step_down().await;
    assert!(win(&leadership).await.fence() > 1);
}

#[tokio::test]
async fn a_raised_fence_is_below_those_of_all_later_terms() {
    let locks = locks().await;
    let leadership = candidate(&locks, "one", NoNotice);
    leadership.raise_fence(1_000).await.expect("the fence is raised");
    assert!(win(&leadership).await.fence() > 1_000);
}

#[tokio::test]
async fn a_term_whose_lock_is_gone_is_lost_and_stepping_down_announces_nothing() {
    let ((locks, database), notice) = (database().await, LocalNotice::default());
    let term = win(&candidate(&locks, "one", notice.clone())).await;
    server().await.execute(&database, "DELETE FROM test.locks").await.expect("the lock is deleted");
    timeout(BOUND, term.lost()).await.expect("the renewal is refused");
    term.step_down().await;
    assert!(timeout(Duration::ZERO, notice.0.notified()).await.is_err(), "a notice was sent");
}

#[tokio::test]
async fn a_leader_whose_session_ends_is_followed_before_its_lease_expires_and_finds_its_term_lost() {
    let (locks, database) = database().await;
    let (one, other) = (candidate(&locks, "one", NoNotice), candidate(&locks, "other", NoNotice));
    let term = win(&one).await;
    let is_open = async || locks.has_session(KEY, term.fence()).await.expect("PostgreSQL serves");
    timeout(BOUND, async { while !is_open().await {} }).await.expect("the term has a session");
    let change = timeout(SESSION_POLL_INTERVAL, other.leader_change()).await;
    assert!(change.is_err() && loses(&other).await, "the leader's session is open");

    let begun = Instant::now();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    server().await.execute(&database, end).await.expect("the session is ended");
    timeout(BOUND, other.leader_change()).await.expect("the candidate notices it");
    assert!(win(&other).await.fence() > term.fence());
    assert!(begun.elapsed() < LEADER_POLL_INTERVAL, "{:?}", begun.elapsed());
    timeout(BOUND, term.lost()).await.expect("the former leader notices it");
}
