//! The cost of a relay with nothing to do: with polling, and with LISTEN. PostgreSQL counts the statements
//! itself.

use super::TABLE;
use super::events::{Outbox, wait_for_intents};
use crate::figure::Figure;
use crate::idle::{self, Idled};
use crate::testbed::Testbed;

/// The most statements per second: with polling, one claim per interval of 500 ms and at most 0.5 others;
/// with LISTEN.
const POLLING: f64 = 2.5;
const LISTENING: f64 = 1.0;
/// Events that are moved before the measurement.
const EVENTS: u32 = 10;

/// Measures a relay that has moved all events.
pub(super) async fn run(testbed: &mut Testbed, seconds: u32) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for listens in [false, true] {
        let (how, statements) = if listens { ("LISTEN", LISTENING) } else { ("polling", POLLING) };
        println!("outbox: an idle relay, {how}, for {seconds} s");
        let idled = of(testbed, seconds, listens).await?;
        let name = |what: &str| format!("idle, {how}: {what}");
        let figure = Figure::shown(name("SQL statements"), idled.statements, "per second");
        figures.push(if listens { figure.under(statements) } else { figure.at_most(statements) });
        figures.push(Figure::shown(name("Redis commands"), idled.commands, "per second"));
        figures.push(Figure::shown(name("CPU of the relay"), idled.cpu_percent, "% of a core"));
    }
    Ok(figures)
}

async fn of(testbed: &mut Testbed, seconds: u32, listens: bool) -> anyhow::Result<Idled> {
    let dsn = testbed.fresh().await?;
    let superuser = idle::counting(testbed, &dsn).await?;
    let outbox = Outbox::create(testbed, &dsn, TABLE).await?;
    let outbox = if listens { outbox.listening(testbed).await? } else { outbox };
    outbox.load(testbed, EVENTS).await?;
    let relay = outbox.start(testbed).await;
    wait_for_intents(&mut testbed.redis().await?, EVENTS.into()).await?;
    outbox.wait_until_marked(&outbox.observer(testbed).await?).await?;
    let idled = Idled::measure(testbed, &superuser, &[&relay], seconds).await?;
    testbed.stop(relay).await;
    Ok(idled)
}
