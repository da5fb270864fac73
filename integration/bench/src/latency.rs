//! How long an intent takes at a steady rate: from its XADD to each of its entries, as a blocked reader sees them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;

use crate::Scale;
use crate::load;
use crate::measure::{peak_memory_mb, percentile};
use crate::world::{MAIL, PUSH, World};

/// How long after the last intent its entries may come.
const PATIENCE: Duration = Duration::from_secs(30);

/// In milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |fraction| percentile(&values, fraction);
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

pub(crate) struct Latency {
    /// From the XADD of an intent to an entry of its.
    pub(crate) whole: Spread,
    /// From acceptance to append, by the clocks of service and Redis, in whole milliseconds.
    pub(crate) publish: Spread,
    pub(crate) memory_mb: f64,
}

/// Drives the service at `scale.rate` intents a second for `scale.seconds`.
pub(crate) async fn steady(world: &mut World, scale: Scale) -> anyhow::Result<Latency> {
    let dsn = world.fresh().await?;
    let service = world.service(&dsn).start().await;
    let intents = scale.rate * scale.seconds;
    let observers = [
        tokio::spawn(observe(world.redis().await?, PUSH, "notification_id", intents as usize * 2)),
        tokio::spawn(observe(world.redis().await?, MAIL, "delivery_id", intents as usize * 2)),
    ];
    let sent = produce(world.redis().await?, intents, scale.rate).await?;
    let mut whole = Vec::new();
    for observer in observers {
        for (notification_id, seen) in observer.await?? {
            let sent = sent.get(&notification_id).context("an entry of no intent of ours")?;
            whole.push(seen.duration_since(*sent).as_secs_f64() * 1_000.0);
        }
    }
    ensure!(whole.len() == intents as usize * 4, "{} entries of {}", whole.len(), intents * 4);
    let client = world.postgres(&dsn).await?;
    let rows = client
        .query(
            "SELECT (split_part(published_entry_id, '-', 1)::bigint - floor(extract(epoch FROM created_at) * 1000))::float8
             FROM routes WHERE status = 'published'",
            &[],
        )
        .await?;
    let publish = rows.iter().map(|row| row.get::<_, f64>(0)).collect();
    Ok(Latency {
        whole: Spread::of(whole),
        publish: Spread::of(publish),
        memory_mb: peak_memory_mb(service.pid()),
    })
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
