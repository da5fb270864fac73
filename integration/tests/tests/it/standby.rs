//! A primary with a streaming standby that is promoted under load: everything whose connection string names
//! both continues by itself, and what the standby never had is read again from the stream.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use harness::{Postgres, PostgresOptions, ServiceBuilder, TestDatabase, wait_for};

use crate::api::{TokensFile, accept, body, with_api};
use crate::outbox::Outbox;
use crate::state::State;
use crate::world::*;

/// The longest time from a promotion to the first intent that is accepted after it: a statement, an opened
/// connection, and a new term.
const RECOVERY_BOUND: Duration = Duration::from_secs(60);

/// A world whose database is on `primary` and streamed to `standby`.
pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) primary: Postgres,
    pub(crate) standby: Postgres,
}

impl Pair {
    pub(crate) async fn new() -> Self {
        let primary = Postgres::start(PostgresOptions::default()).await.expect("a primary starts");
        let database = TestDatabase::on(&primary).await;
        let world = World::with(database, None).await;
        let standby = Postgres::start_standby(&primary).await.expect("a standby starts");
        Self { world, primary, standby }
    }

    /// As [`Pair::new`]; each commit waits for the standby.
    async fn synchronous() -> Self {
        let pair = Self::new().await;
        for sql in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
            pair.primary.execute("postgres", sql).await.expect("it is allowed");
        }
        wait_for("the standby is synchronous", BOUND, async || {
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            (pair.world.number(sql).await == 1).then_some(())
        })
        .await;
        pair
    }

    fn dsn_of(&self, database: &TestDatabase) -> String {
        let both = database.dsn_of_hosts(&[self.primary.port(), self.standby.port()]);
        format!("{both}&target_session_attrs=read-write")
    }

    fn service(&self) -> ServiceBuilder {
        self.world.service().env("NOTIFICATION_POSTGRES_PRIMARY_DSN", self.dsn_of(&self.world.database))
    }

    /// Stops the replication, so that the standby misses all later commits.
    async fn cut(&self) {
        for sql in ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"] {
            self.standby.execute("postgres", sql).await.expect("it is allowed");
        }
        wait_for("nothing is replicated", BOUND, async || {
            (self.world.number("SELECT count(*) FROM pg_stat_replication").await == 0).then_some(())
        })
        .await;
    }

    /// Waits until the standby has replayed all commits.
    pub(crate) async fn replicated(&self) {
        wait_for("the standby has all", BOUND, async || {
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
            (self.world.number(sql).await == 1).then_some(())
        })
        .await;
    }

    /// Promotes the standby. From then on the world looks at it.
    pub(crate) async fn promote(&mut self) {
        self.standby.promote().await.expect("it is promoted");
        self.world.database = self.world.database.on_port(self.standby.port());
    }
}

/// How the primary is lost.
#[derive(Clone, Copy)]
enum Loss {
    Killed,
    /// Its connections stay open and are silent.
    Paused,
}

async fn lose_under_load(loss: Loss) {
    let mut pair = Pair::synchronous().await;
    let tokens = TokensFile::new(&pair.world);
    let service = with_api(pair.service(), &tokens).start().await;
    reads(&service).await;
    let (sent, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let by_http = 10_000;
    let producer = {
        let redis = pair.world.redis().await;
        let (sent, stop) = (&sent, &stop);
        async move {
            let mut redis = redis;
            while !stop.load(Ordering::Relaxed) {
                let n = sent.fetch_add(1, Ordering::Relaxed);
                intent(n).query_async::<String>(&mut redis).await.expect("Redis is there");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    let accepted = AtomicU32::new(0);
    let client = async {
        while !stop.load(Ordering::Relaxed) {
            let n = by_http + accepted.load(Ordering::Relaxed);
            accept(&service, &key(n), &body(n)).await;
            accepted.fetch_add(1, Ordering::Relaxed);
        }
    };
    let failover = async {
        let reached = |bound: u32| {
            sent.load(Ordering::Relaxed) > bound && accepted.load(Ordering::Relaxed) > bound / 10
        };
        wait_for("there is load", BOUND, async || reached(100).then_some(())).await;
        match loss {
            Loss::Killed => pair.primary.kill().await,
            Loss::Paused => pair.primary.pause(),
        }
        pair.promote().await;
        let before = accepted.load(Ordering::Relaxed);
        wait_for("it accepts again", RECOVERY_BOUND, async || {
            // One request may have been under way.
            (accepted.load(Ordering::Relaxed) > before + 1).then_some(())
        })
        .await;
        let (streamed, posted) = (sent.load(Ordering::Relaxed), accepted.load(Ordering::Relaxed));
        wait_for("there is load after it", BOUND, async || {
            let more = sent.load(Ordering::Relaxed) > streamed + 50;
            (more && accepted.load(Ordering::Relaxed) > posted + 5).then_some(())
        })
        .await;
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(producer, client, failover);
    let (streamed, posted) = (sent.load(Ordering::Relaxed), accepted.load(Ordering::Relaxed));
    pair.world.settled(i64::from(streamed + posted)).await;
    pair.world.check((0..streamed).chain(by_http..by_http + posted)).await;
}

// INV-07
#[tokio::test]
async fn nothing_is_lost_or_doubled_when_a_synchronous_standby_is_promoted_after_its_primary_was_killed() {
    lose_under_load(Loss::Killed).await;
}

// INV-07
#[tokio::test]
async fn nothing_is_lost_or_doubled_when_a_synchronous_standby_is_promoted_while_its_primary_is_silent() {
    lose_under_load(Loss::Paused).await;
}

// INV-07, CRASH-14
#[tokio::test]
async fn what_an_asynchronous_standby_never_had_is_read_again_from_the_stream_and_published_once() {
    let mut pair = Pair::new().await;
    let service = pair.service().start().await;
    pair.world.send(0..20).await;
    pair.world.settled(20).await;
    pair.replicated().await;
    pair.cut().await;
    pair.world.send(20..40).await;
    pair.world.settled(40).await;
    let ids = "SELECT notification_id FROM records ORDER BY 1";
    let before = pair.world.column(ids).await;
    pair.primary.kill().await;
    pair.promote().await;
    assert_eq!(pair.world.number("SELECT count(*) FROM records").await, 20, "the standby lacks the rest");
    pair.world.send(40..50).await;
    pair.world.settled(50).await;
    assert_eq!(pair.world.column(ids).await[..40], before, "they have the same ids");
    pair.world.check(0..50).await;
    drop(service);
}

#[tokio::test]
async fn what_http_acknowledged_and_an_asynchronous_standby_never_had_is_accepted_anew_if_it_is_sent_again() {
    let mut pair = Pair::new().await;
    let tokens = TokensFile::new(&pair.world);
    let service = with_api(pair.service(), &tokens).start().await;
    accept(&service, &key(0), &body(0)).await;
    pair.world.settled(1).await;
    pair.replicated().await;
    pair.cut().await;
    accept(&service, &key(1), &body(1)).await;
    pair.world.settled(2).await;
    pair.primary.kill().await;
    pair.promote().await;
    accept(&service, &key(2), &body(2)).await;
    let keys = "SELECT idempotency_key FROM records ORDER BY 1";
    assert_eq!(pair.world.column(keys).await, [key(0), key(2)], "nobody can know of the acknowledged one");
    accept(&service, &key(1), &body(1)).await;
    pair.world.settled(3).await;
    let routes = pair.world.number("SELECT count(*) FROM routes WHERE status = 'published'").await;
    // The consumers see the notification of the lost record as well, under its own ids.
    assert_eq!((routes, pair.world.outbound().await.len()), (12, 16));
}

#[tokio::test]
async fn relay_and_state_store_continue_on_the_promoted_standby() {
    let primary = Postgres::start(PostgresOptions::default()).await.expect("a primary starts");
    let world = World::with(TestDatabase::on(&primary).await, None).await;
    let mut outbox = Outbox { world, database: TestDatabase::empty_on(&primary).await };
    outbox.migrate().await;
    let state = State::on(TestDatabase::empty_on(&primary).await);
    let standby = Postgres::start_standby(&primary).await.expect("a standby starts");
    let mut primary = primary;
    let both = |database: &TestDatabase| {
        let hosts = database.dsn_of_hosts(&[primary.port(), standby.port()]);
        format!("{hosts}&target_session_attrs=read-write")
    };
    let _relay = outbox.relay().env("NOTIFICATION_OUTBOX_DSN", both(&outbox.database)).start().await;
    let _store = state.process().env("STATE_PROXY_PG_URL", both(&state.database)).start().await;
    assert_eq!(state.ask("PUT", "/keys/a", "1").await.status, 204);
    outbox.insert(0..20).await;
    outbox.drained().await;
    wait_for("the standby has all", BOUND, async || {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
        (outbox.number(sql).await == 1).then_some(())
    })
    .await;
    primary.kill().await;
    standby.promote().await.expect("it is promoted");
    outbox.database = outbox.database.on_port(standby.port());
    outbox.insert(20..40).await;
    outbox.drained().await;
    outbox.check_stream(0..40).await;
    wait_for("a document is stored", BOUND, async || {
        (state.ask("PUT", "/keys/b", "2").await.status == 204).then_some(())
    })
    .await;
    assert_eq!(state.ask("GET", "/keys/a", "").await.status, 200);
}
