//! From a full intents stream to every entry appended and every route completed.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;

use crate::measure::{Cpu, peak_memory_mb};
use crate::world::{MAIL, PUSH, World};
use crate::{Scale, ceiling, load};

/// How long a round may take.
const BOUND: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(10);

/// One round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) intents_per_second: f64,
    /// Microseconds for each intent.
    pub(crate) postgres: f64,
    pub(crate) redis: f64,
    pub(crate) own: f64,
    pub(crate) memory_mb: f64,
}

impl Round {
    fn of(intents: u32, time: Duration, cpu: Cpu, memory_mb: f64) -> Self {
        let each = |micros: u64| micros as f64 / f64::from(intents);
        Self {
            intents_per_second: f64::from(intents) / time.as_secs_f64(),
            postgres: each(cpu.postgres),
            redis: each(cpu.redis),
            own: each(cpu.own),
            memory_mb,
        }
    }
}

/// The service: from its being ready, which includes being elected and the first read, to the last completion.
pub(crate) async fn service(world: &mut World, scale: Scale) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, scale.intents).await?;
    let service = world.service(&dsn).start().await;
    let (started, before) = (Instant::now(), cpu(world, service.pid()));
    wait_for_entries(&mut redis, u64::from(scale.intents) * 4).await?;
    wait_for_completions(world, &dsn, scale.intents).await?;
    let (time, used) = (started.elapsed(), cpu(world, service.pid()).since(before));
    Ok(Round::of(scale.intents, time, used, peak_memory_mb(service.pid())))
}

/// The ceiling: from its first read to its last completion.
pub(crate) async fn ceiling(world: &mut World, scale: Scale) -> anyhow::Result<Round> {
    let dsn = world.fresh().await?;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, scale.intents).await?;
    let own = std::process::id();
    let (started, before) = (Instant::now(), cpu(world, own));
    ceiling::run(world, &dsn, scale.intents).await?;
    let (time, used) = (started.elapsed(), cpu(world, own).since(before));
    wait_for_entries(&mut redis, u64::from(scale.intents) * 4).await?;
    wait_for_completions(world, &dsn, scale.intents).await?;
    Ok(Round::of(scale.intents, time, used, peak_memory_mb(own)))
}

fn cpu(world: &World, own: u32) -> Cpu {
    Cpu::now(world.postgres.pid(), world.redis.pid(), own)
}

/// The lengths of the streams cost next to nothing to ask for.
async fn wait_for_entries(redis: &mut MultiplexedConnection, entries: u64) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let (push, mail): (u64, u64) =
            redis::pipe().cmd("XLEN").arg(PUSH).cmd("XLEN").arg(MAIL).query_async(redis).await?;
        if push + mail >= entries {
            ensure!(
                push + mail == entries,
                "{} entries, not {entries}: something was appended twice",
                push + mail
            );
            return Ok(());
        }
        ensure!(started.elapsed() < BOUND, "{} of {entries} entries after {BOUND:?}", push + mail);
        tokio::time::sleep(POLL).await;
    }
}

async fn wait_for_completions(world: &World, dsn: &str, intents: u32) -> anyhow::Result<()> {
    let client = world.postgres(dsn).await?;
    let started = Instant::now();
    // An index-only look: the partial index holds what is not completed.
    let live = "SELECT EXISTS (SELECT FROM routes WHERE next_attempt_at IS NOT NULL)";
    while client.query_one(live, &[]).await?.get::<_, bool>(0) {
        ensure!(started.elapsed() < BOUND, "routes are not completed after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
    let row = client.query_one(
        "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM routes WHERE status = 'published')",
        &[],
    );
    let row = row.await.context("could not count")?;
    let (records, routes) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
    ensure!(
        records == i64::from(intents) && routes == records * 4,
        "{records} records and {routes} published routes"
    );
    Ok(())
}
