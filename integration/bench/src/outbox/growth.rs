//! The cost of an event when a million are pending, compared with 20,000.
//!
//! Both tables are in one database, and rounds alternate. A round starts the relay and ends when the stream
//! has as many events as the short backlog. The processor time of PostgreSQL with its background workers, of
//! Redis and of the relay is counted.

use super::events::{Outbox, wait_for_intents};
use crate::figure::Figure;
use crate::measure::median;
use crate::testbed::{INTENTS, Testbed};

/// The highest accepted ratio of processor time per event.
const RATIO: f64 = 1.15;

/// The numbers of events and rounds.
pub(super) struct OutboxGrowthSize {
    pub(super) short: u32,
    pub(super) long: u32,
    pub(super) rounds: usize,
}

/// Measures alternating rounds.
pub(super) async fn run(testbed: &mut Testbed, size: &OutboxGrowthSize) -> anyhow::Result<[Figure; 3]> {
    let dsn = testbed.fresh().await?;
    let short = Outbox::create(testbed, &dsn, "short").await?;
    let long = Outbox::create(testbed, &dsn, "long").await?;
    println!("outbox: loading {} events", size.long);
    // The long backlog still has `size.long` events at the end of the last round.
    let moved = size.short * u32::try_from(size.rounds)?;
    long.load(testbed, size.long + moved).await?;
    let (mut of_short, mut of_long) = (Vec::new(), Vec::new());
    for round in 1..=size.rounds {
        println!("outbox: {} of {} pending, round {round} of {}", size.short, size.long, size.rounds);
        short.clear(testbed).await?;
        short.load(testbed, size.short).await?;
        of_short.push(cpu_per_event(testbed, &short, size.short).await?);
        testbed.checkpoint().await?;
        of_long.push(cpu_per_event(testbed, &long, size.short).await?);
    }
    let cpu = |pending: u32, each: &[f64]| {
        Figure::shown(format!("CPU per event, {pending} pending"), median(each.iter().copied()), "µs")
            .of_rounds(each.iter().copied())
    };
    let (one, other) = (cpu(size.short, &of_short), cpu(size.long, &of_long));
    let name = format!("CPU per event, {} pending, to {}", size.long, size.short);
    let each = of_short.iter().zip(&of_long).map(|(short, long)| long / short);
    let ratio = Figure::shown(name, other.value / one.value, "x").of_rounds(each).at_most(RATIO);
    Ok([one, other, ratio])
}

/// Processor time for an event, in microseconds.
async fn cpu_per_event(testbed: &mut Testbed, outbox: &Outbox, events: u32) -> anyhow::Result<f64> {
    let mut redis = testbed.redis().await?;
    redis::cmd("XTRIM").arg(INTENTS).arg("MAXLEN").arg(0).query_async::<()>(&mut redis).await?;
    let relay = outbox.start(testbed).await;
    let before = testbed.cpu(relay.pid());
    let moved = wait_for_intents(&mut redis, events.into()).await?;
    let used = testbed.cpu(relay.pid()).since(before);
    testbed.stop(relay).await;
    Ok((used.postgres + used.redis + used.own) as f64 / moved as f64)
}
