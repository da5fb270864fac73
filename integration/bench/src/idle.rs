//! Nothing to do: what that costs.

use std::time::{Duration, Instant};

use anyhow::Context;
use harness::Proxy;
use redis::aio::MultiplexedConnection;

use crate::figure::{Figure, Section};
use crate::growth::{drop_database, stop};
use crate::world::World;
use crate::{Scale, load, throughput};

/// What each must stay under.
const COMMANDS: f64 = 2.0;
const STATEMENTS: f64 = 1.0;
const CPU_PERCENT: f64 = 1.0;
/// Intents that it brings through before.
const INTENTS: u32 = 10;

/// One replica that has worked, and has nothing more to do.
///
/// Redis counts its commands itself; what goes to PostgreSQL is counted on the way, by a proxy, so that it burdens no one.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    println!("idle: {} s", scale.seconds);
    let dsn = world.fresh().await?;
    let postgres = Proxy::start(world.postgres.port()).await;
    let via = dsn.replace(&format!(":{}/", world.postgres.port()), &format!(":{}/", postgres.port()));
    let service = world.service(&via).start().await;
    let mut redis = world.redis().await?;
    load::preload(&mut redis, INTENTS).await?;
    throughput::wait_for_entries(&mut redis, u64::from(INTENTS * load::ROUTES)).await?;
    throughput::wait_for_completions(world, &dsn, INTENTS, load::ROUTES).await?;
    let (commands, statements) = (commands_so_far(&mut redis).await?, postgres.requests());
    let (started, before) = (Instant::now(), throughput::cpu(world, service.pid()));
    // A rate needs a time; there is no event to wait for.
    tokio::time::sleep(Duration::from_secs(scale.seconds.into())).await;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = throughput::cpu(world, service.pid()).since(before);
    let commands = commands_so_far(&mut redis).await? - commands;
    let statements = postgres.requests() - statements;
    stop(world, service).await;
    drop_database(world, &dsn).await?;
    let figures = vec![
        under("Redis commands, those in scripts too", commands as f64 / seconds, "per second", COMMANDS),
        under("SQL requests, as they are sent", statements as f64 / seconds, "per second", STATEMENTS),
        under("CPU of the service", cpu.own as f64 / seconds / 10_000.0, "% of a core", CPU_PERCENT),
    ];
    let title = format!("Idle: one replica with nothing to do for {} s", scale.seconds);
    Ok(Section { title, figures, charts: Vec::new() })
}

fn under(name: &str, value: f64, unit: &'static str, bound: f64) -> Figure {
    Figure {
        goal: Some((format!("under {bound} {unit}"), value < bound)),
        ..Figure::shown(name, value, unit)
    }
}

/// All that anybody has asked of Redis, but for this question.
async fn commands_so_far(redis: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(redis).await?;
    let mut commands = 0;
    for line in info.lines() {
        let Some((name, counts)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
            continue;
        };
        if name == "info" {
            continue;
        }
        let calls = counts.split(',').find_map(|count| count.strip_prefix("calls="));
        commands += calls.context("a command without its calls")?.parse::<u64>()?;
    }
    Ok(commands)
}
