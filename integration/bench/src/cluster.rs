//! The cost of a Redis Cluster: the same intents on one server and on three primaries, among which intake and
//! both channels are divided.

use std::time::Instant;

use anyhow::Context;
use harness::{RedisCluster, RedisClusterOptions, RedisOptions};
use redis::aio::MultiplexedConnection;

use crate::figure::{Figure, ReportSection};
use crate::measure::{Cpu, median};
use crate::round::{BenchRound, Rounds, Unit};
use crate::testbed::{INTENTS, MAIL, PUSH, Testbed, connect_redis};
use crate::watch::{confirm, wait_for_length, wait_until_none_live};
use crate::{Scale, load, throughput};

/// Primaries, so that each of the three streams can have one of its own.
const PRIMARIES: usize = 3;

/// Measures one server and a Cluster in alternating rounds.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let mut one = Rounds::new("one server", Unit::Intent);
    let mut several = Rounds::new("Cluster of three primaries", Unit::Intent);
    let mut busiest = Vec::new();
    for round in 1..=scale.rounds {
        println!("cluster: round {round} of {}: one server, then a Cluster", scale.rounds);
        let (time, used) = throughput::service(testbed, scale.intents, load::ROUTES).await?;
        one.push(BenchRound::of(scale.intents, time, used));
        let on_cluster = on_cluster(testbed, scale.intents).await?;
        several.push(on_cluster.round);
        busiest.push(on_cluster.busiest);
    }
    let micros = |rounds: &Rounds| rounds.median(BenchRound::whole);
    let mut figures = vec![
        several.times("rate on a Cluster to that on one server", &one),
        Figure::shown(
            "processor time on a Cluster to that on one server",
            micros(&several) / micros(&one),
            "x",
        ),
    ];
    let name = "Cluster of three primaries: CPU of the busiest node";
    figures.push(Figure::shown(name, median(busiest.iter().copied()), "µs/intent").of_rounds(busiest));
    for rounds in [&one, &several] {
        figures.push(rounds.speed("throughput"));
        figures.extend(rounds.cpu());
    }
    let title = format!(
        "Redis Cluster: {} intents of {} routes in the stream, on one server and on {PRIMARIES} primaries without replicas, on the \
         same processors; {} alternating round(s), medians",
        scale.intents,
        load::ROUTES,
        scale.rounds
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

/// A round on a Cluster.
struct ClusterRound {
    round: BenchRound,
    /// Processor time of the node that used most, in microseconds for each intent.
    busiest: f64,
}

/// One round of the service on a Cluster, with the settings of the testbed's server.
async fn on_cluster(testbed: &mut Testbed, intents: u32) -> anyhow::Result<ClusterRound> {
    let arguments = ["--appendfsync", "everysec"].map(str::to_owned).to_vec();
    let node = RedisOptions { appendonly: true, arguments, ..RedisOptions::default() };
    let options =
        RedisClusterOptions { primaries: PRIMARIES, replicas: 0, node, ..RedisClusterOptions::default() };
    let cluster = RedisCluster::start(options).await?;
    let dsn = testbed.fresh().await?;
    load::preload(&mut node_of(&cluster, INTENTS).await?, 0, intents, load::ROUTES).await?;
    let (mut push, mut mail) = (node_of(&cluster, PUSH).await?, node_of(&cluster, MAIL).await?);
    let client = testbed.postgres(&dsn).await?;
    let service = testbed
        .service(&dsn)
        .env("NOTIFICATION_REDIS_MASTER_ADDR", "")
        .env("NOTIFICATION_REDIS_CLUSTER_ADDRS", cluster.addrs())
        .start()
        .await;
    let of_nodes = || cluster.nodes.iter().map(|node| Cpu::now(None, node.pid(), 0)).collect::<Vec<_>>();
    let of_others = || Cpu::now(testbed.postgres.pid(), None, service.pid());
    let (started, others, nodes) = (Instant::now(), of_others(), of_nodes());
    let entries = u64::from(intents * load::ROUTES / 2);
    wait_for_length(&mut push, PUSH, entries).await?;
    wait_for_length(&mut mail, MAIL, entries).await?;
    wait_until_none_live(&client).await?;
    let (time, others) = (started.elapsed(), of_others().since(others));
    let nodes: Vec<Cpu> = of_nodes().into_iter().zip(nodes).map(|(now, then)| now.since(then)).collect();
    confirm(&client, intents, load::ROUTES).await?;
    testbed.stop(service).await;
    let busiest = nodes.iter().map(|node| node.redis).max().unwrap_or_default();
    Ok(ClusterRound {
        round: BenchRound::of(intents, time, nodes.into_iter().fold(others, Cpu::and)),
        busiest: busiest as f64 / f64::from(intents),
    })
}

/// A connection to the node that has this stream.
async fn node_of(cluster: &RedisCluster, stream: &str) -> anyhow::Result<MultiplexedConnection> {
    let node = cluster.primary_of(stream).await?.context("the slot has no node")?;
    connect_redis(&cluster.nodes[node].addr()).await
}
