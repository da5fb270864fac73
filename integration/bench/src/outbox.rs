//! The relay of an outbox: a backlog compared with the baseline, the time from commit to stream, an idle
//! relay, and a long backlog compared with a short one.

pub(crate) mod baseline;
mod events;
mod growth;
mod idle;
mod steady;

use std::time::{Duration, Instant};

use self::events::{Outbox, wait_for_intents};
use crate::Scale;
use crate::contender::Contender;
use crate::figure::{Figure, ReportSection};
use crate::measure::{Cpu, peak_memory_mb};
use crate::round::{BenchRound, Rounds, Unit, costs, rates};
use crate::testbed::Testbed;

/// The name of the baseline as a contender.
pub(crate) const BASELINE: &str = "outbox-baseline";
/// The lowest accepted ratio of the rate to that of the baseline.
const BASELINE_RATIO: f64 = 0.75;
/// The highest accepted peak memory of a relay, in megabytes.
const MEMORY_MB: f64 = 64.0;
/// The default table, which the baseline uses.
const TABLE: &str = "openoutbox_events";

/// The amounts of one run.
struct OutboxSize {
    /// Events in the outbox when a round begins.
    backlog: u32,
    rounds: usize,
    /// The duration of each steady load in seconds.
    seconds: u32,
    /// The duration of the measurement of an idle relay in seconds.
    idle_seconds: u32,
    growth: growth::OutboxGrowthSize,
}

impl OutboxSize {
    fn of(scale: Scale) -> Self {
        let (rounds, seconds) = (scale.latency_rounds, scale.seconds);
        if scale.smoke {
            let growth = growth::OutboxGrowthSize { short: 1_000, long: 5_000, rounds };
            return Self { backlog: 2_000, rounds, seconds: 1, idle_seconds: 1, growth };
        }
        let growth = growth::OutboxGrowthSize { short: 20_000, long: 1_000_000, rounds };
        // The backlog is sampled every 30 s.
        Self { backlog: 200_000, rounds, seconds, idle_seconds: 30, growth }
    }
}

/// A backlog that was drained by the relay.
pub(crate) struct Drained {
    pub(crate) time: Duration,
    pub(crate) cpu: Cpu,
    /// Peak memory of the relay in megabytes.
    memory: f64,
}

/// Measures each part.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let size = OutboxSize::of(scale);
    let mut figures = Vec::new();
    let (baseline, relay, memory) = alternate(testbed, &size).await?;
    for rounds in [&relay, &baseline] {
        figures.push(rounds.speed("rate to the last mark"));
        figures.extend(rounds.cpu());
    }
    figures.push(relay.times("relay to baseline", &baseline).at_least(BASELINE_RATIO));
    figures.push(Figure::shown("relay: peak memory", memory, "MB").under(MEMORY_MB));
    figures.extend(steady::run(testbed, size.seconds, size.rounds).await?);
    figures.extend(idle::run(testbed, size.idle_seconds).await?);
    figures.extend(growth::run(testbed, &size.growth).await?);
    let charts = vec![
        rates("outbox", "A backlog of events", [&baseline, &relay]),
        costs("outbox-cpu", "Processor time", [&baseline, &relay]),
    ];
    let title = format!(
        "Outbox: {} events in mode intents, half of them with one of {} partition keys; {} alternating round(s), medians",
        size.backlog,
        events::KEYS,
        size.rounds
    );
    Ok(ReportSection { title, figures, charts })
}

/// Alternating rounds of the baseline and of the relay, and the peak memory of the relay.
async fn alternate(testbed: &mut Testbed, size: &OutboxSize) -> anyhow::Result<(Rounds, Rounds, f64)> {
    let [mut baseline, mut relay] = ["baseline", "relay"].map(|name| Rounds::new(name, Unit::Event));
    let mut memory: f64 = 0.0;
    for round in 1..=size.rounds {
        println!(
            "outbox: {} events, round {round} of {}: the baseline, then the relay",
            size.backlog, size.rounds
        );
        baseline.push(of_baseline(testbed, size.backlog).await?);
        let drained = drain(testbed, size.backlog).await?;
        relay.push(BenchRound::of(size.backlog, drained.time, drained.cpu));
        memory = memory.max(drained.memory);
    }
    Ok((baseline, relay, memory))
}

/// One round of the baseline, from its first claim to its last update.
async fn of_baseline(testbed: &mut Testbed, events: u32) -> anyhow::Result<BenchRound> {
    let dsn = testbed.fresh().await?;
    let outbox = Outbox::create(testbed, &dsn, TABLE).await?;
    outbox.load(testbed, events).await?;
    let mut contender = Contender::own(testbed, BASELINE, &dsn, events).await?;
    let (time, used) = contender.step(testbed, "run", "done").await?;
    contender.end().await?;
    outbox.confirm(testbed, events).await?;
    Ok(BenchRound::of(events, time, used))
}

/// Starts the relay on an outbox of `events` events, and waits until the last one is marked.
pub(crate) async fn drain(testbed: &mut Testbed, events: u32) -> anyhow::Result<Drained> {
    let dsn = testbed.fresh().await?;
    let outbox = Outbox::create(testbed, &dsn, TABLE).await?;
    outbox.load(testbed, events).await?;
    let (mut redis, client) = (testbed.redis().await?, outbox.observer(testbed).await?);
    let relay = outbox.start(testbed).await;
    let (started, before) = (Instant::now(), testbed.cpu(relay.pid()));
    wait_for_intents(&mut redis, events.into()).await?;
    outbox.wait_until_marked(&client).await?;
    let (time, cpu) = (started.elapsed(), testbed.cpu(relay.pid()).since(before));
    let memory = peak_memory_mb(relay.pid());
    testbed.stop(relay).await;
    outbox.confirm(testbed, events).await?;
    Ok(Drained { time, cpu, memory })
}
