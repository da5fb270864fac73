//! Job queues that others run, doing the same work on the same servers: one job per route, whose execution is an XADD.
//!
//! They are programs for Node under `peers/`, driven by a line on their input for each step, so that what is prepared is
//! outside the clock. All jobs are added first and executed then, as all intents wait in the stream before the service
//! starts; the full path of a queue is both, one after the other. A queue has no lease, no receipt and no foreign key to
//! pay for, and BullMQ no database.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::chart::{Bars, Chart};
use crate::figure::{Figure, Section};
use crate::growth::{drop_database, is_smoke};
use crate::measure::{Cpu, median};
use crate::throughput::{self, cpu, wait_for_entries};
use crate::world::{PUSH, ROLE, World};
use crate::{Scale, load};

const PEERS: [&str; 3] = ["graphile-worker", "pg-boss", "bullmq"];
/// How long one step of a peer may take.
const BOUND: Duration = Duration::from_secs(300);

/// One round of one peer, or of the service.
#[derive(Clone, Copy, Debug)]
struct Round {
    routes_per_second: f64,
    /// Microseconds for each route.
    postgres: f64,
    redis: f64,
    own: f64,
}

impl Round {
    fn of(routes: u32, time: Duration, cpu: Cpu) -> Self {
        let each = |micros: u64| micros as f64 / f64::from(routes);
        Self {
            routes_per_second: f64::from(routes) / time.as_secs_f64(),
            postgres: each(cpu.postgres),
            redis: each(cpu.redis),
            own: each(cpu.own),
        }
    }

    fn median(rounds: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| median(rounds.iter().map(value));
        Self {
            routes_per_second: of(|round| round.routes_per_second),
            postgres: of(|round| round.postgres),
            redis: of(|round| round.redis),
            own: of(|round| round.own),
        }
    }
}

/// What a peer did in one round.
struct PeerRound {
    whole: Round,
    added_per_second: f64,
    executed_per_second: f64,
    /// What it says of itself.
    name: String,
}

/// The service and each peer in turn.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let jobs = if is_smoke(scale) { 4_000 } else { 80_000 };
    let (mut services, mut peers) = (Vec::new(), PEERS.map(|_| Vec::new()));
    for round in 1..=scale.rounds {
        println!("peers, round {round} of {}: the service, then {}", scale.rounds, PEERS.join(", "));
        let (time, used) = throughput::service(world, jobs / load::ROUTES, load::ROUTES).await?;
        services.push(Round::of(jobs, time, used));
        for (name, rounds) in PEERS.iter().zip(&mut peers) {
            let done =
                peer(world, name, jobs).await.with_context(|| format!("{name} could not be measured"))?;
            rounds.push(done);
        }
    }
    let service = Round::median(&services);
    let mut figures = Vec::new();
    let mut bars = vec![("service".to_owned(), service)];
    report(&mut figures, "service", &service);
    for (short, rounds) in PEERS.iter().zip(&peers) {
        let Some(first) = rounds.first() else { bail!("{short} was not measured") };
        let whole = Round::median(&rounds.iter().map(|round| round.whole).collect::<Vec<_>>());
        let of = |value: fn(&PeerRound) -> f64| median(rounds.iter().map(value));
        let name = &first.name;
        figures.push(Figure::shown(format!("{name}: adding"), of(|round| round.added_per_second), "jobs/s"));
        let executing = of(|round| round.executed_per_second);
        figures.push(Figure::shown(format!("{short}: executing"), executing, "jobs/s"));
        report(&mut figures, short, &whole);
        let times = service.routes_per_second / whole.routes_per_second;
        figures.push(Figure::shown(format!("the service to {short}"), times, "x"));
        bars.push(((*short).to_owned(), whole));
    }
    let title = format!(
        "Peers: {jobs} routes, {} round(s) in turn, medians; the full path of a queue is adding and then executing",
        scale.rounds
    );
    Ok(Section { title, figures, charts: charts(&bars) })
}

fn report(figures: &mut Vec<Figure>, name: &str, round: &Round) {
    let name = |what: &str| format!("{name}: {what}");
    figures.push(Figure::shown(name("full path"), round.routes_per_second, "routes/s"));
    figures.push(Figure::shown(name("CPU of PostgreSQL"), round.postgres, "µs/route"));
    figures.push(Figure::shown(name("CPU of Redis"), round.redis, "µs/route"));
    figures.push(Figure::shown(name("own CPU"), round.own, "µs/route"));
}

fn charts(rounds: &[(String, Round)]) -> Vec<Chart> {
    let bars = |of: fn(&Round) -> Vec<f64>| {
        rounds.iter().map(|(name, round)| (name.clone(), of(round))).collect::<Vec<_>>()
    };
    vec![
        Chart::Bars(Bars {
            file: "peers",
            title: "The same routes through other queues",
            unit: "routes/s",
            parts: &["routes/s"],
            bars: bars(|round| vec![round.routes_per_second]),
        }),
        Chart::Bars(Bars {
            file: "peers-cpu",
            title: "Processor time",
            unit: "µs/route",
            parts: &["PostgreSQL", "Redis", "own"],
            bars: bars(|round| vec![round.postgres, round.redis, round.own]),
        }),
    ]
}

async fn peer(world: &mut World, name: &str, jobs: u32) -> anyhow::Result<PeerRound> {
    let dsn = world.fresh().await?;
    let database = World::database_of(&dsn);
    let grant = format!("GRANT CREATE ON DATABASE \"{database}\" TO {ROLE}");
    world.postgres.execute("postgres", &grant).await?;
    let mut redis = world.redis().await?;

    let mut peer = Peer::start(world, name, &dsn, jobs)?;
    let ready = peer.hear("ready").await?;
    let pid = peer.child.id().context("it has ended")?;
    let (started, before) = (Instant::now(), cpu(world, pid));
    peer.step("enqueue", "enqueued").await?;
    let added = started.elapsed();
    peer.step("execute", "executed").await?;
    let (whole, used) = (started.elapsed(), cpu(world, pid).since(before));
    wait_for_entries(&mut redis, u64::from(jobs)).await?;
    peer.end().await?;
    drop_database(world, &dsn).await?;
    let rate = |time: Duration| f64::from(jobs) / time.as_secs_f64();
    Ok(PeerRound {
        whole: Round::of(jobs, whole, used),
        added_per_second: rate(added),
        executed_per_second: rate(whole - added),
        name: format!(
            "{name} {} ({})",
            ready["version"].as_str().unwrap_or("?"),
            ready["settings"].as_str().unwrap_or("?")
        ),
    })
}

/// A running peer.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(world: &World, name: &str, dsn: &str, jobs: u32) -> anyhow::Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        ensure!(folder.join("node_modules").is_dir(), "the peers are not installed: run `make bench-peers`");
        // Installed with the peers where the machine's own is too old for them.
        let node = folder.join("node_modules/.bin/node");
        let mut command = if node.exists() { Command::new(node) } else { Command::new("node") };
        command
            .arg("peer.mjs")
            .arg(name)
            .current_dir(&folder)
            .env("PEER_POSTGRES", dsn.split('?').next().unwrap_or(dsn))
            .env("PEER_REDIS", world.redis.addr())
            .env("PEER_JOBS", jobs.to_string())
            .env("PEER_STREAM", PUSH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("could not start node")?;
        let input = child.stdin.take().context("it has no input")?;
        let output = child.stdout.take().context("it has no output")?;
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    async fn step(&mut self, order: &str, phase: &str) -> anyhow::Result<()> {
        self.input.write_all(format!("{order}\n").as_bytes()).await.context("it does not listen")?;
        self.hear(phase).await.map(drop)
    }

    /// The line with which it says that it has come to `phase`.
    async fn hear(&mut self, phase: &str) -> anyhow::Result<Value> {
        let line = tokio::time::timeout(BOUND, self.output.next_line()).await;
        let line = line.with_context(|| format!("it was not {phase:?} within {BOUND:?}"))??;
        let line = line.with_context(|| format!("it ended before it was {phase:?}"))?;
        let said: Value = serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))?;
        ensure!(said["phase"] == phase, "it said {line:?} instead of {phase:?}");
        Ok(said)
    }

    async fn end(mut self) -> anyhow::Result<()> {
        let status = tokio::time::timeout(BOUND, self.child.wait()).await.context("it does not end")??;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}
