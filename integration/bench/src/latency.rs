//! How long an intent takes at a steady rate: from its XADD to each of its entries, as a blocked reader sees them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;

use crate::Scale;
use crate::figure::{Figure, Section};
use crate::load;
use crate::measure::percentile;
use crate::world::{MAIL, PUSH, World};

/// By rate: what p50 and p99 must be at most, in milliseconds.
const GOALS: [(u32, Option<f64>, f64); 3] =
    [(125, Some(3.0), 10.0), (1_000, None, 25.0), (3_000, None, 100.0)];
/// What p99 from acceptance to append must be at most, at any rate.
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

struct Latency {
    /// From the XADD of an intent to the last of its entries.
    whole: Spread,
    /// From acceptance to append, by the clocks of service and Redis, in whole milliseconds.
    publish: Spread,
}

/// One steady load after the other.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let mut figures = Vec::new();
    for rate in scale.rates {
        println!("latency: {rate} intents/s for {} s", scale.seconds);
        let Latency { whole, publish } = steady(world, scale, *rate).await?;
        let name = |what: &str| format!("{rate} intents/s: {what}");
        let goal = GOALS.iter().find(|(at, ..)| at == rate);
        figures.push(match goal {
            Some((_, Some(p50), _)) => {
                Figure::at_most(name("XADD to last entry, p50"), whole.p50, "ms", *p50)
            }
            _ => Figure::shown(name("XADD to last entry, p50"), whole.p50, "ms"),
        });
        figures.push(Figure::shown(name("XADD to last entry, p90"), whole.p90, "ms"));
        figures.push(match goal {
            Some((.., p99)) => Figure::at_most(name("XADD to last entry, p99"), whole.p99, "ms", *p99),
            None => Figure::shown(name("XADD to last entry, p99"), whole.p99, "ms"),
        });
        figures.push(Figure::shown(name("XADD to last entry, max"), whole.max, "ms"));
        figures.push(Figure::shown(name("acceptance to append, p50"), publish.p50, "ms"));
        figures.push(Figure::at_most(name("acceptance to append, p99"), publish.p99, "ms", PUBLISH_P99));
    }
    let title = format!("Latency: a steady rate for {} s each, as seen by a blocked reader", scale.seconds);
    Ok(Section { title, figures })
}

/// Drives the service at `rate` intents a second for `scale.seconds`.
async fn steady(world: &mut World, scale: Scale, rate: u32) -> anyhow::Result<Latency> {
    let dsn = world.fresh().await?;
    let service = world.service(&dsn).start().await;
    let intents = rate * scale.seconds;
    let observers = [
        tokio::spawn(observe(world.redis().await?, PUSH, "notification_id", intents as usize * 2)),
        tokio::spawn(observe(world.redis().await?, MAIL, "delivery_id", intents as usize * 2)),
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
    ensure!(entries == intents * 4, "{entries} entries of {}", intents * 4);
    let waited = |(id, seen): (&String, &Instant)| {
        let sent = sent.get(id).context("an entry of no intent of ours")?;
        anyhow::Ok(seen.saturating_duration_since(*sent).as_secs_f64() * 1_000.0)
    };
    let whole = last_seen.iter().map(waited).collect::<anyhow::Result<Vec<f64>>>()?;
    let client = world.postgres(&dsn).await?;
    let rows = client
        .query(
            "SELECT (split_part(published_entry_id, '-', 1)::bigint - floor(extract(epoch FROM created_at) * 1000))::float8
             FROM routes WHERE status = 'published'",
            &[],
        )
        .await?;
    let publish = rows.iter().map(|row| row.get::<_, f64>(0)).collect();
    world.saw_memory(service.pid());
    Ok(Latency { whole: Spread::of(whole), publish: Spread::of(publish) })
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
