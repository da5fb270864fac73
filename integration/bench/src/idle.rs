//! Nothing to do: what that costs.

use std::time::{Duration, Instant};

use harness::Proxy;

use crate::figure::{Figure, Section};
use crate::world::World;
use crate::{Scale, load, throughput};

const COMMANDS: f64 = 2.0;
const STATEMENTS: f64 = 1.0;
const CPU_PERCENT: f64 = 1.0;

/// One replica that has worked, and has nothing more to do. What it asks is counted on the way, by proxies.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    println!("idle: {} s", scale.seconds);
    let dsn = world.fresh().await?;
    let redis = Proxy::start(world.redis.port()).await;
    let postgres = Proxy::start(world.postgres.port()).await;
    let via = dsn.replace(&format!(":{}/", world.postgres.port()), &format!(":{}/", postgres.port()));
    let service = world.service(&via).env("NOTIFICATION_REDIS_MASTER_ADDR", redis.addr()).start().await;
    let mut client = world.redis().await?;
    load::preload(&mut client, 10).await?;
    throughput::wait_for_entries(&mut client, 40).await?;
    throughput::wait_for_completions(world, &dsn, 10).await?;
    let (commands, statements) = (redis.requests(), postgres.requests());
    let (started, before) = (Instant::now(), throughput::cpu(world, service.pid()));
    // A rate needs a time; there is no event to wait for.
    tokio::time::sleep(Duration::from_secs(scale.seconds.into())).await;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = throughput::cpu(world, service.pid()).since(before);
    let rate = |now: u64, then: u64| (now - then) as f64 / seconds;
    world.saw_memory(service.pid());
    let figures = vec![
        Figure::at_most("Redis commands", rate(redis.requests(), commands), "per second", COMMANDS),
        Figure::at_most("SQL statements", rate(postgres.requests(), statements), "per second", STATEMENTS),
        Figure::at_most(
            "CPU of the service",
            cpu.own as f64 / seconds / 10_000.0,
            "% of a core",
            CPU_PERCENT,
        ),
    ];
    Ok(Section { title: "Idle: one replica with nothing to do".to_owned(), figures })
}
