//! A million dead letters are replayed during traffic; the command is killed in the middle and run again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use harness::{Service, ServiceBuilder, turn_ready, wait_for};
use store_redis::append_command;

use crate::dead_letters::insert_dead_letters;
use crate::world::*;

/// The number of dead letters, unless the variable sets another, for a short run that only shows that the
/// test works.
const DEAD_LETTERS: u32 = 1_000_000;
const DEAD_LETTERS_VARIABLE: &str = "TEST_LARGE_DEAD_LETTERS";
/// Intents per second, each with two routes, unless the variable sets another number.
const RATE: u32 = 500;
const RATE_VARIABLE: &str = "TEST_LARGE_RATE";
/// The time with traffic alone, for comparison.
const BEFORE: Duration = Duration::from_secs(30);
/// The time limit of a replay.
const REPLAY_BOUND: Duration = Duration::from_secs(3_600);
/// The maximum time from an intent to its last entry for 99 of 100 intents during the replay, in
/// milliseconds. A backlog in which they wait takes minutes.
const MAX_P99_MS: i64 = 1_000;

fn number(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Sends intents at a steady rate until it is dropped.
struct Traffic {
    sent: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Traffic {
    async fn start(world: &World, rate: u32) -> Self {
        /// The interval at which intents are sent.
        const TICK: Duration = Duration::from_millis(20);
        let (sent, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let mut redis = world.redis().await;
        let (counter, stopped) = (Arc::clone(&sent), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let begun = Instant::now();
            let mut ticks = tokio::time::interval(TICK);
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await;
                let (first, due) =
                    (counter.load(Ordering::Relaxed), begun.elapsed().as_secs_f64() * f64::from(rate));
                let mut pipeline = redis::pipe();
                for n in first..due as u32 {
                    let draft = turn_ready([format!("u-{}", n % 500)], &key(n), n);
                    pipeline.add_command(append_command(INTENTS, &draft.into_entry())).ignore();
                }
                if due as u32 > first {
                    pipeline.query_async::<()>(&mut redis).await.expect("Redis is there");
                }
                counter.store((due as u32).max(first), Ordering::Relaxed);
            }
        });
        Self { sent, stop, task }
    }

    fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    async fn finish(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("it does not panic");
        self.sent.load(Ordering::Relaxed)
    }
}

fn replay(world: &World) -> Service {
    ServiceBuilder::default()
        .env("NOTIFICATION_POSTGRES_PRIMARY_DSN", world.database.dsn())
        .arguments(["dead-letters", "replay", "--all", "--yes"])
        .spawn()
}

async fn affected(world: &World) -> i64 {
    world.number("SELECT coalesce(sum(affected), 0)::bigint FROM operator_actions").await
}

/// The 50th and the 99th percentile of the time from an intent to its last entry, in milliseconds by the
/// clock of Redis, of the intents that were sent from `first` to before `end`.
async fn latency(world: &World, first: u32, end: u32) -> (i64, i64) {
    let percentile = async |fraction: f64| {
        let sql = format!(
            "SELECT percentile_disc({fraction}) WITHIN GROUP (ORDER BY took) FROM (
                SELECT max(split_part(published_entry_id, '-', 1)::bigint) - split_part(notification_id, '-', 1)::bigint AS took
                FROM records JOIN routes USING (notification_id)
                WHERE idempotency_key LIKE 'game-1:turn-%'
                    AND substr(idempotency_key, 13)::int >= {first} AND substr(idempotency_key, 13)::int < {end}
                GROUP BY notification_id) intents"
        );
        world.number(&sql).await
    };
    (percentile(0.5).await, percentile(0.99).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_dead_letters_are_replayed_beside_traffic_killed_in_the_middle_and_continued() {
    let (dead, rate) = (number(DEAD_LETTERS_VARIABLE, DEAD_LETTERS), number(RATE_VARIABLE, RATE));
    let world = World::new().await;
    insert_dead_letters(&world, dead / 2).await;
    let dead = i64::from(dead / 2 * 2);
    let _service = world.service().start().await;
    let traffic = Traffic::start(&world, rate).await;
    let begun = Instant::now();
    wait_for("there was traffic alone", BEFORE * 2, async || (begun.elapsed() >= BEFORE).then_some(())).await;
    let before = traffic.sent();

    let begun = Instant::now();
    let killed = replay(&world);
    wait_for("half of them are replayed", REPLAY_BOUND, async || {
        (affected(&world).await >= dead / 2).then_some(())
    })
    .await;
    killed.kill().await;
    let at_kill = affected(&world).await;
    assert!(at_kill < dead, "it was killed too late");
    let mut rest = replay(&world);
    let status = rest.wait_exit(REPLAY_BOUND).await;
    let (took, during) = (begun.elapsed(), traffic.sent());
    assert!(status.success(), "{:?}", rest.output());
    let sent = traffic.finish().await;
    wait_for("everything is published", REPLAY_BOUND, async || {
        let settled = format!(
            "SELECT count(*) FROM records WHERE (SELECT count(*) FROM records) < {}
             UNION ALL SELECT count(*) FROM routes WHERE next_attempt_at IS NOT NULL ORDER BY 1 DESC LIMIT 1",
            i64::from(sent) + dead / 2
        );
        (world.number(&settled).await == 0).then_some(())
    })
    .await;

    assert_eq!(affected(&world).await, dead, "each was replayed once");
    let published = world
        .number("SELECT count(DISTINCT (channel, published_entry_id)) FROM routes WHERE status = 'published'")
        .await;
    assert_eq!(published, dead + i64::from(sent) * 2, "each route has an entry of its own");
    let mut entries = 0;
    for stream in [PUSH, MAIL] {
        let length = redis::cmd("XLEN").arg(stream).query_async::<i64>(&mut world.redis().await).await;
        entries += length.expect("Redis is there");
    }
    assert_eq!(entries, published, "nothing was published twice");
    world.check_tables().await;

    let (alone, beside) = (latency(&world, 0, before).await, latency(&world, before, during).await);
    println!(
        "{dead} dead letters in {took:?}, killed at {at_kill}, beside {rate} intents/s; from an intent to its last entry, p50 and p99 in ms: \
         alone {alone:?}, beside the replay {beside:?}"
    );
    assert!(beside.1 <= MAX_P99_MS, "{beside:?}");
}
