//! Other job queues that do the same work on the same servers: one job per route, whose execution is an XADD.
//!
//! They are programs for Node under `peers/`, started as contenders. All jobs are added first and executed
//! after that, just as all intents are in the stream before the service starts. The full path of a queue is
//! adding plus executing. A queue has no leases, no markers and no foreign keys, and BullMQ has no database.
//!
//! The relay of an outbox does the job of the queues in PostgreSQL: the table has as many events when it
//! starts, and each becomes an entry of eight fields. It is compared with their executing.

use std::path::Path;

use anyhow::{Context, ensure};
use tokio::process::Command;

use crate::contender::Contender;
use crate::figure::{Figure, ReportSection};
use crate::measure::median;
use crate::round::{BenchRound, Rounds, Unit, costs, rates};
use crate::testbed::{ROLE, Testbed};
use crate::watch::wait_for_entries;
use crate::{Scale, load, outbox, throughput};

/// The peers that keep their jobs in PostgreSQL.
const IN_POSTGRES: [&str; 2] = ["graphile-worker", "pg-boss"];

/// The results of one peer, round by round.
struct PeerRates {
    name: &'static str,
    /// The rounds from adding the first job to executing the last one.
    whole: Rounds,
    added_per_second: Vec<f64>,
    executed_per_second: Vec<f64>,
    /// The version and settings that the peer reports.
    about: String,
}

impl PeerRates {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            whole: Rounds::new(name, Unit::Route),
            added_per_second: Vec::new(),
            executed_per_second: Vec::new(),
            about: name.to_owned(),
        }
    }

    async fn round(&mut self, testbed: &mut Testbed, jobs: u32) -> anyhow::Result<()> {
        let dsn = testbed.fresh().await?;
        let grant = format!("GRANT CREATE ON DATABASE \"{}\" TO {ROLE}", Testbed::database_of(&dsn));
        testbed.postgres.execute("postgres", &grant).await?;
        let mut redis = testbed.redis().await?;
        let mut contender = Contender::start(program(self.name)?, testbed, &dsn, jobs)?;
        let ready = contender.expect("ready").await?;
        let value = |name: &str| ready[name].as_str().unwrap_or("?").to_owned();
        self.about =
            format!("{} {} on Node {} ({})", self.name, value("version"), value("node"), value("settings"));
        let (adding, to_add) = contender.step(testbed, "enqueue", "enqueued").await?;
        let (executing, to_execute) = contender.step(testbed, "execute", "executed").await?;
        contender.end().await?;
        wait_for_entries(&mut redis, u64::from(jobs)).await?;
        self.added_per_second.push(f64::from(jobs) / adding.as_secs_f64());
        self.executed_per_second.push(f64::from(jobs) / executing.as_secs_f64());
        self.whole.push(BenchRound::of(jobs, adding + executing, to_add.and(to_execute)));
        Ok(())
    }

    fn figures(&self, service: &Rounds, relay: &Rounds) -> Vec<Figure> {
        let of = |what: &str, rounds: &Vec<f64>| {
            Figure::shown(format!("{}: {what}", self.name), median(rounds.iter().copied()), "routes/s")
                .of_rounds(rounds.iter().copied())
        };
        let mut figures = vec![
            self.whole.speed("full path"),
            of("adding", &self.added_per_second),
            of("executing", &self.executed_per_second),
            service.times(format!("the service to {}", self.name), &self.whole),
        ];
        figures.extend(self.whole.cpu());
        if IN_POSTGRES.contains(&self.name) {
            let each = relay.rates().zip(&self.executed_per_second).map(|(relay, peer)| relay / peer);
            let ratio = relay.rate() / median(self.executed_per_second.iter().copied());
            let name = format!("the relay to {}, executing", self.name);
            figures.push(Figure::shown(name, ratio, "x").of_rounds(each));
        }
        figures
    }
}

fn program(name: &str) -> anyhow::Result<Command> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    ensure!(folder.join("node_modules").is_dir(), "the peers are not installed: run `make bench-peers`");
    // The Node that is installed with the peers is preferred: the machine's own may be too old for them.
    let node = folder.join("node_modules/.bin/node");
    let mut command = if node.exists() { Command::new(node) } else { Command::new("node") };
    command.arg("peer.mjs").arg(name).current_dir(&folder);
    Ok(command)
}

/// Measures the service and each peer in alternating rounds.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let jobs = if scale.smoke { 4_000 } else { 80_000 };
    let mut service = Rounds::new("service", Unit::Route);
    let mut relay = Rounds::new("relay", Unit::Event);
    let mut peers = ["graphile-worker", "pg-boss", "bullmq"].map(PeerRates::new);
    for round in 1..=scale.rounds {
        println!("peers, round {round} of {}: the service and the relay, then the others", scale.rounds);
        let (time, used) = throughput::service(testbed, jobs / load::ROUTES, load::ROUTES).await?;
        service.push(BenchRound::of(jobs, time, used));
        let drained = outbox::drain(testbed, jobs).await?;
        relay.push(BenchRound::of(jobs, drained.time, drained.cpu));
        for peer in &mut peers {
            let name = peer.name;
            peer.round(testbed, jobs).await.with_context(|| format!("{name} could not be measured"))?;
        }
    }
    let mut figures = vec![service.speed("full path")];
    figures.extend(service.cpu());
    figures.push(relay.speed("executing"));
    figures.extend(relay.cpu());
    figures.extend(peers.iter().flat_map(|peer| peer.figures(&service, &relay)));
    let all = || [&service].into_iter().chain(peers.iter().map(|peer| &peer.whole));
    let charts = vec![
        rates("peers", "The same routes through other queues", all()),
        costs("peers-cpu", "Processor time", all()),
    ];
    let about: Vec<&str> = peers.iter().map(|peer| peer.about.as_str()).collect();
    let title = format!(
        "Peers: {jobs} routes or events, {} alternating round(s), medians; the full path of a queue is adding and then executing. {}",
        scale.rounds,
        about.join("; ")
    );
    Ok(ReportSection { title, figures, charts })
}
