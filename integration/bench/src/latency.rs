//! How long an intent takes at a steady rate: from its XADD to its last entry, as a blocked reader sees it; of the service
//! and of the ceiling.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;

use crate::ceiling::Ceiling;
use crate::chart::{Chart, Lines};
use crate::figure::{Figure, Section};
use crate::growth::{drop_database, stop};
use crate::measure::percentile;
use crate::world::{MAIL, PUSH, World};
use crate::{Scale, load};

/// By rate: what p50 and p99 must be at most, in milliseconds.
const GOALS: [(u32, Option<f64>, f64); 3] =
    [(125, Some(3.0), 10.0), (1_000, None, 25.0), (3_000, None, 100.0)];
/// Where the ceiling misses a goal on this machine, what the service may take of the ceiling's time.
const CEILING_TIMES: f64 = 1.5;
/// At which rate p99 from acceptance to append must be below how much.
const PUBLISH_RATE: u32 = 500;
const PUBLISH_P99: f64 = 100.0;
/// How long after the last intent its entries may come.
const PATIENCE: Duration = Duration::from_secs(30);

/// In milliseconds.
#[derive(Clone, Copy, Debug)]
struct Spread {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |fraction| percentile(&values, fraction);
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// What came of one rate.
struct Latency {
    rate: u32,
    /// From the XADD of an intent to the last of its entries.
    ceiling: Spread,
    service: Spread,
    /// From acceptance to append, by the clocks of service and Redis, in whole milliseconds.
    publish: Spread,
}

/// One steady load after the other, each on the ceiling and then on the service.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let (mut figures, mut all) = (Vec::new(), Vec::new());
    for rate in scale.rates {
        println!("latency: {rate} intents/s for {} s, the ceiling, then the service", scale.seconds);
        let ceiling = of_ceiling(world, scale.seconds, *rate).await?;
        let (service, publish) = of_service(world, scale.seconds, *rate).await?;
        let latency = Latency { rate: *rate, ceiling, service, publish };
        report(&mut figures, &latency);
        all.push(latency);
    }
    let title = format!(
        "Latency: from XADD to the last of four entries as a blocked reader sees it, {} s at each rate; \
         acceptance to append in whole milliseconds",
        scale.seconds
    );
    Ok(Section { title, figures, charts: vec![chart(&all)] })
}

fn report(figures: &mut Vec<Figure>, Latency { rate, ceiling, service, publish }: &Latency) {
    let name = |what: &str| format!("{rate} intents/s: {what}");
    let goal = GOALS.iter().find(|(at, ..)| at == rate);
    let (p50, p99) = goal.map_or((None, None), |(_, p50, p99)| (*p50, Some(*p99)));
    figures.push(Figure::shown(name("ceiling, p50"), ceiling.p50, "ms"));
    figures.push(Figure::shown(name("ceiling, p99"), ceiling.p99, "ms"));
    figures.push(judged(name("service, p50"), service.p50, p50, ceiling.p50));
    figures.push(Figure::shown(name("service, p90"), service.p90, "ms"));
    figures.push(judged(name("service, p99"), service.p99, p99, ceiling.p99));
    figures.push(Figure::shown(name("service, max"), service.max, "ms"));
    figures.push(Figure::shown(name("service, acceptance to append, p50"), publish.p50, "ms"));
    let bound = (*rate == PUBLISH_RATE).then_some(PUBLISH_P99);
    let name = name("service, acceptance to append, p99");
    figures.push(match bound {
        Some(bound) => Figure {
            goal: Some((format!("under {bound} ms"), publish.p99 < bound)),
            ..Figure::shown(name, publish.p99, "ms")
        },
        None => Figure::shown(name, publish.p99, "ms"),
    });
}

/// Against the bound, or against the ceiling where the machine does not even allow that to keep the bound.
fn judged(name: String, value: f64, bound: Option<f64>, ceiling: f64) -> Figure {
    match bound {
        Some(bound) if ceiling <= bound => Figure::at_most(name, value, "ms", bound),
        Some(bound) => {
            let allowed = ceiling * CEILING_TIMES;
            let goal =
                format!("at most {allowed:.2} ms: {CEILING_TIMES}x the ceiling, which misses {bound} ms");
            Figure { goal: Some((goal, value <= allowed)), ..Figure::shown(name, value, "ms") }
        }
        None => Figure::shown(name, value, "ms"),
    }
}

fn chart(all: &[Latency]) -> Chart {
    let line = |name: &str, of: fn(&Latency) -> f64| (name.to_owned(), all.iter().map(of).collect());
    Chart::Lines(Lines {
        file: "latency",
        title: "From XADD to the last entry",
        unit: "ms",
        across: "intents/s",
        at: all.iter().map(|latency| latency.rate.to_string()).collect(),
        lines: vec![
            line("ceiling, p50", |latency| latency.ceiling.p50),
            line("ceiling, p99", |latency| latency.ceiling.p99),
            line("service, p50", |latency| latency.service.p50),
            line("service, p99", |latency| latency.service.p99),
        ],
    })
}

async fn of_ceiling(world: &mut World, seconds: u32, rate: u32) -> anyhow::Result<Spread> {
    let dsn = world.fresh().await?;
    let ceiling = tokio::spawn(Ceiling::connect(world, &dsn).await?.run(rate * seconds));
    let whole = steady(world, rate * seconds, rate).await?;
    ceiling.await.context("the ceiling panicked")??;
    drop_database(world, &dsn).await?;
    Ok(whole)
}

/// From XADD to the last entry, and from acceptance to append.
async fn of_service(world: &mut World, seconds: u32, rate: u32) -> anyhow::Result<(Spread, Spread)> {
    let dsn = world.fresh().await?;
    let service = world.service(&dsn).start().await;
    let whole = steady(world, rate * seconds, rate).await?;
    // The last routes are still being completed.
    crate::throughput::wait_for_completions(world, &dsn, rate * seconds, load::ROUTES).await?;
    let client = world.postgres(&dsn).await?;
    let rows = client
        .query(
            "SELECT (split_part(published_entry_id, '-', 1)::bigint - floor(extract(epoch FROM created_at) * 1000))::float8
             FROM routes WHERE status = 'published'",
            &[],
        )
        .await?;
    let publish = rows.iter().map(|row| row.get::<_, f64>(0)).collect();
    stop(world, service).await;
    drop_database(world, &dsn).await?;
    Ok((whole, Spread::of(publish)))
}

/// Sends intents to whoever is at work, and watches their entries come.
async fn steady(world: &World, intents: u32, rate: u32) -> anyhow::Result<Spread> {
    let each = intents as usize * 2;
    let observers = [
        tokio::spawn(observe(world.redis().await?, PUSH, "notification_id", each)),
        tokio::spawn(observe(world.redis().await?, MAIL, "delivery_id", each)),
    ];
    let sent = produce(world.redis().await?, intents, rate).await?;
    let mut last_seen: HashMap<String, Instant> = HashMap::new();
    let mut entries = 0;
    for observer in observers {
        for (notification_id, seen) in observer.await?? {
            entries += 1;
            let last = last_seen.entry(notification_id).or_insert(seen);
            *last = seen.max(*last);
        }
    }
    ensure!(entries == intents * load::ROUTES, "{entries} entries of {}", intents * load::ROUTES);
    ensure!(last_seen.len() == intents as usize, "{} of {intents} intents came through", last_seen.len());
    let waited = |(id, seen): (&String, &Instant)| {
        let sent = sent.get(id).context("an entry of no intent of ours")?;
        anyhow::Ok(seen.saturating_duration_since(*sent).as_secs_f64() * 1_000.0)
    };
    let whole = last_seen.iter().map(waited).collect::<anyhow::Result<Vec<f64>>>()?;
    Ok(Spread::of(whole))
}

/// An open loop: what is due is sent, whether or not what was sent before has been answered.
async fn produce(
    redis: MultiplexedConnection,
    intents: u32,
    rate: u32,
) -> anyhow::Result<HashMap<String, Instant>> {
    let sent: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let started = tokio::time::Instant::now();
    let mut sending = tokio::task::JoinSet::new();
    for n in 0..intents {
        tokio::time::sleep_until(started + Duration::from_secs(1) * n / rate).await;
        let (mut redis, sent) = (redis.clone(), Arc::clone(&sent));
        sending.spawn(async move {
            let at = Instant::now();
            let id: String = load::xadd(n).query_async(&mut redis).await?;
            sent.lock().unwrap_or_else(PoisonError::into_inner).insert(id, at);
            anyhow::Ok(())
        });
    }
    while let Some(outcome) = sending.join_next().await {
        outcome??;
    }
    let sent = std::mem::take(&mut *sent.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(sent)
}

/// Reads `count` entries of `stream` as they come: which notification, and when.
async fn observe(
    mut redis: MultiplexedConnection,
    stream: &'static str,
    field: &'static str,
    count: usize,
) -> anyhow::Result<Vec<(String, Instant)>> {
    let mut seen = Vec::with_capacity(count);
    let mut after = "0-0".to_owned();
    let mut last = Instant::now();
    while seen.len() < count {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(1_000).arg("BLOCK").arg(1_000).arg("STREAMS").arg(stream).arg(&after);
        let reply: Option<StreamReadReply> = command.query_async(&mut redis).await?;
        let now = Instant::now();
        for entry in reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids) {
            let id: String = entry.get(field).context("an entry without its id")?;
            seen.push((id.split('/').next().unwrap_or_default().to_owned(), now));
            after = entry.id;
            last = now;
        }
        ensure!(last.elapsed() < PATIENCE, "{} of {count} entries of {stream}, and no more come", seen.len());
    }
    Ok(seen)
}
