//! What deleting old rows costs the traffic beside it.
//!
//! The same rows are there both times, and the same intents come at the same steady rate. With the default retention the
//! rows are too old, and the pass that begins when the service starts deletes them while the intents come; the producer
//! goes on until the pass is over, so that it is at work beside all of them. The run without keeps the rows.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use harness::Service;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::figure::Figure;
use crate::growth::{Rows, drop_database, insert, is_smoke, settle, stop};
use crate::measure::median;
use crate::world::World;
use crate::{Scale, load};

/// How much slower the slowest hundredth may become.
const P99_GROWTH: f64 = 2.0;
/// The longest that one DELETE may take.
const LONGEST_CHUNK_MILLIS: f64 = 500.0;

/// How long a pass, and the last completion, may take.
const BOUND: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);
const REMOVED: &str = "retention removed old rows";
/// A day more than the default retention.
const AGE: &str = "31 days";
/// A retention for which the rows are too young.
const KEEP: &str = "8760h";

/// How much of everything.
struct Size {
    records: u32,
    rate: u32,
    /// The least that a run lasts.
    seconds: u32,
    /// The slowest hundredth of one run is a matter of luck.
    rounds: usize,
}

impl Size {
    fn of(scale: Scale) -> Self {
        if is_smoke(scale) {
            Self { records: 4_000, rate: 100, seconds: 3, rounds: 1 }
        } else {
            Self { records: 200_000, rate: 500, seconds: 20, rounds: 3 }
        }
    }
}

/// What the log says about the pass.
struct Pass {
    time: Duration,
    records: u64,
    longest_chunk_ms: f64,
}

/// From acceptance to append, in milliseconds.
struct Delay {
    p50: f64,
    p99: f64,
}

impl Delay {
    fn median(rounds: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| median(rounds.iter().map(value));
        Self { p50: of(|round| round.p50), p99: of(|round| round.p99) }
    }
}

/// Both runs in turn, and the medians.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    let size = Size::of(scale);
    let (mut all_with, mut all_without, mut passes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        let (with, intents, pass) = beside_pass(world, &size).await?;
        ensure!(pass.records == u64::from(size.records), "the pass left some: it removed {}", pass.records);
        all_with.push(with);
        passes.push(pass);
        all_without.push(without_pass(world, &size, intents).await?);
    }
    let (with, without) = (Delay::median(&all_with), Delay::median(&all_without));
    let longest_chunk_ms = passes.iter().map(|pass| pass.longest_chunk_ms).fold(0.0, f64::max);
    let rate = size.rate;
    Ok(vec![
        Figure::shown(
            format!("acceptance to append at {rate} intents/s, p50, no retention"),
            without.p50,
            "ms",
        ),
        Figure::shown("the same beside retention, p50", with.p50, "ms"),
        Figure::shown(
            format!("acceptance to append at {rate} intents/s, p99, no retention"),
            without.p99,
            "ms",
        ),
        Figure::shown("the same beside retention, p99", with.p99, "ms"),
        Figure::at_most("p99 beside retention to without", with.p99 / without.p99, "x", P99_GROWTH),
        Figure::at_most("longest DELETE of all passes", longest_chunk_ms, "ms", LONGEST_CHUNK_MILLIS),
        Figure::shown(
            format!("pass over {} records with {} routes", size.records, size.records * 4),
            median(passes.iter().map(|pass| pass.time.as_secs_f64())),
            "s",
        ),
    ])
}

/// Intents come until the pass is over. Also gives how many that were.
async fn beside_pass(world: &mut World, size: &Size) -> anyhow::Result<(Delay, u32, Pass)> {
    println!("retention: {} old records go beside {} intents/s", size.records, size.rate);
    let dsn = loaded(world, size).await?;
    let service = world.service(&dsn).env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await;
    let started = Instant::now();
    let mut pass = None;
    let most = size.rate * u32::try_from(BOUND.as_secs())?;
    let sent = produce(world.redis().await?, size.rate, most, |sent| {
        if pass.is_none() && sent % (size.rate / 10).max(1) == 0 {
            pass = logged(&service, started.elapsed());
        }
        pass.is_none() || sent < size.rate * size.seconds
    });
    let sent = sent.await?;
    let pass = pass.with_context(|| format!("the pass was not over after {BOUND:?}"))?;
    let delay = delays(world, &dsn, sent).await?;
    stop(world, service).await;
    drop_database(world, &dsn).await?;
    Ok((delay, sent, pass))
}

async fn without_pass(world: &mut World, size: &Size, intents: u32) -> anyhow::Result<Delay> {
    println!("retention: {} old records stay beside {} intents/s", size.records, size.rate);
    let dsn = loaded(world, size).await?;
    let service = world
        .service(&dsn)
        .env("NOTIFICATION_CLEANUP_INTERVAL", "1s")
        .env("NOTIFICATION_RECORD_RETENTION", KEEP)
        .start()
        .await;
    let sent = produce(world.redis().await?, size.rate, intents, |_| true).await?;
    let delay = delays(world, &dsn, sent).await?;
    ensure!(service.logged(REMOVED).is_none(), "retention was at work in the run without");
    stop(world, service).await;
    drop_database(world, &dsn).await?;
    Ok(delay)
}

async fn loaded(world: &mut World, size: &Size) -> anyhow::Result<String> {
    let dsn = world.fresh().await?;
    insert(world, &dsn, &Rows { records: size.records, age: AGE, due: false }).await?;
    settle(world, &dsn).await?;
    Ok(dsn)
}

/// An open loop of at most `most` intents for as long as `more` says so; how many it sent.
async fn produce(
    redis: MultiplexedConnection,
    rate: u32,
    most: u32,
    mut more: impl FnMut(u32) -> bool,
) -> anyhow::Result<u32> {
    let started = tokio::time::Instant::now();
    let mut sending = JoinSet::new();
    let mut sent = 0;
    while sent < most && more(sent) {
        tokio::time::sleep_until(started + Duration::from_secs(1) * sent / rate).await;
        let (mut redis, n) = (redis.clone(), sent);
        sending.spawn(async move { load::xadd(n).query_async::<()>(&mut redis).await });
        while let Some(outcome) = sending.try_join_next() {
            outcome??;
        }
        sent += 1;
    }
    while let Some(outcome) = sending.join_next().await {
        outcome??;
    }
    Ok(sent)
}

/// The pass, once it is over.
fn logged(service: &Service, time: Duration) -> Option<Pass> {
    let line = service.logged(REMOVED)?;
    Some(Pass {
        time,
        records: line["records"].as_u64()?,
        longest_chunk_ms: line["longest_chunk_ms"].as_f64()?,
    })
}

/// Of the routes of the run, once they are complete.
async fn delays(world: &World, dsn: &str, intents: u32) -> anyhow::Result<Delay> {
    let client = world.postgres(dsn).await?;
    let started = Instant::now();
    // What was loaded is a month old.
    let count =
        "SELECT count(*) FROM routes WHERE created_at > now() - interval '1 day' AND status = 'published'";
    while client.query_one(count, &[]).await?.get::<_, i64>(0) < i64::from(intents) * 4 {
        ensure!(started.elapsed() < BOUND, "routes are not completed after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
    // published_at is the time at which the append had been answered.
    let row = client
        .query_one(
            "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY delay), percentile_disc(0.99) WITHIN GROUP (ORDER BY delay)
             FROM (SELECT extract(epoch FROM published_at - created_at)::float8 * 1000 AS delay FROM routes WHERE created_at > now() - interval '1 day' AND status = 'published') of_run",
            &[],
        )
        .await
        .context("could not compute the delays")?;
    // Never nothing: a ratio is taken of it.
    let at_least_one = |place: usize| row.get::<_, f64>(place).max(1.0);
    Ok(Delay { p50: at_least_one(0), p99: at_least_one(1) })
}
