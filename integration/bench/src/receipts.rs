//! Receipts through the HTTP API, beside intents through the stream.
//!
//! Three loads alternate: intents alone, with receipts at the rate of the goal, and with as many receipts as
//! the service can handle. The receipts are for records that exist before the service starts, so that each
//! load reports on published routes. The load generator of the receipts (`receipts/reporter.rs`) is a process
//! of its own on the same cores.

pub(crate) mod reporter;

use anyhow::{Context, ensure};
use serde_json::json;
use tokio_postgres::Client;

use self::reporter::{BATCH, ReportOrder, Reported};
use crate::Scale;
use crate::contender::Contender;
use crate::figure::{Figure, ReportSection};
use crate::http::ApiService;
use crate::latency::{Percentiles, steady};
use crate::load::{self, ROUTES};
use crate::measure::{Cpu, median};
use crate::rows::{RouteState, Rows};
use crate::testbed::Testbed;
use crate::watch::{confirm, wait_until_none_live};

/// Intents per second.
const INTENTS: u32 = 500;
/// Receipts per second: the lowest accepted rate of the load without a fixed rate.
const RECEIPTS: u32 = 4_000;
/// Connections that report, if each waits for its responses, and at a steady rate.
const CONNECTIONS: u32 = 8;
const STEADY_CONNECTIONS: u32 = 64;

/// The amounts of a run.
struct ReceiptsSize {
    /// Records whose routes are reported on.
    records: u32,
    seconds: u32,
    rounds: usize,
}

impl ReceiptsSize {
    fn of(scale: Scale) -> Self {
        let (seconds, rounds) = (scale.seconds, scale.latency_rounds);
        Self { records: if scale.smoke { 1_000 } else { 10_000 }, seconds, rounds }
    }
}

/// The load beside the intents.
#[derive(Clone, Copy)]
enum ReceiptLoad {
    Nothing,
    SteadyReceipts,
    MostReceipts,
}

/// The results of one load.
struct Measured {
    intents: Percentiles,
    receipts: Option<ReceiptTimes>,
}

struct ReceiptTimes {
    reported: Reported,
    /// Processor time of the load generator for each receipt, in microseconds.
    generator: f64,
}

/// Measures alternating rounds of the three loads.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let size = ReceiptsSize::of(scale);
    let [mut alone, mut steady, mut most] = [Vec::new(), Vec::new(), Vec::new()];
    for round in 1..=size.rounds {
        println!("receipts: round {round} of {}: intents alone, then beside receipts", size.rounds);
        alone.push(one_load(testbed, &size, ReceiptLoad::Nothing).await?);
        steady.push(one_load(testbed, &size, ReceiptLoad::SteadyReceipts).await?);
        most.push(one_load(testbed, &size, ReceiptLoad::MostReceipts).await?);
    }
    let mut figures = of_intents("alone", &alone);
    let name = format!("beside {RECEIPTS} receipts/s");
    figures.extend(of_intents(&name, &steady));
    let p99 = |rounds: &[Measured]| median(rounds.iter().map(|round| round.intents.p99));
    let each = steady.iter().zip(&alone).map(|(with, without)| with.intents.p99 / without.intents.p99);
    let ratio = Figure::shown(format!("intents {name}: p99, to p99 alone"), p99(&steady) / p99(&alone), "x");
    figures.push(ratio.of_rounds(each));
    figures.extend(of_receipts(
        &format!("{RECEIPTS} receipts/s, {STEADY_CONNECTIONS} connections"),
        &steady,
        false,
    ));
    figures.extend(of_intents("beside as many receipts as are answered", &most));
    figures.extend(of_receipts(
        &format!("as many receipts as are answered, {CONNECTIONS} connections"),
        &most,
        true,
    ));
    let title = format!(
        "Receipts: reports through the API in batches of {BATCH}, beside {INTENTS} intents/s of {ROUTES} routes through the stream for {} s; {} \
         routes are reported of; {} alternating round(s), medians",
        size.seconds,
        size.records * ROUTES,
        size.rounds
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

fn of_intents(beside: &str, rounds: &[Measured]) -> Vec<Figure> {
    let shown = |what: &str, of: fn(&Percentiles) -> f64| {
        let each = || rounds.iter().map(|round| of(&round.intents));
        let name = format!("{INTENTS} intents/s {beside}: to the last entry, {what}");
        Figure::shown(name, median(each()), "ms").of_rounds(each())
    };
    vec![
        shown("p50", |intents| intents.p50),
        shown("p99", |intents| intents.p99),
        shown("max", |intents| intents.max),
    ]
}

fn of_receipts(load: &str, rounds: &[Measured], is_judged: bool) -> Vec<Figure> {
    let shown = |what: &str, unit, of: fn(&ReceiptTimes) -> f64| {
        let each = || rounds.iter().filter_map(|round| round.receipts.as_ref()).map(of);
        Figure::shown(format!("{load}: {what}"), median(each()), unit).of_rounds(each())
    };
    let rate = shown("rate", "receipts/s", |receipts| {
        f64::from(receipts.reported.reports) / receipts.reported.seconds
    });
    vec![
        if is_judged { rate.at_least(RECEIPTS.into()) } else { rate },
        shown("p50 to an answer", "ms", |receipts| receipts.reported.p50),
        shown("p99 to an answer", "ms", |receipts| receipts.reported.p99),
        shown("CPU of the load generator", "µs/receipt", |receipts| receipts.generator),
    ]
}

/// One load, in a database of its own.
async fn one_load(
    testbed: &mut Testbed,
    size: &ReceiptsSize,
    beside: ReceiptLoad,
) -> anyhow::Result<Measured> {
    let dsn = testbed.fresh().await?;
    Rows { records: size.records, age: "1 hour", state: RouteState::Published }
        .insert_vacuumed(testbed, &dsn)
        .await?;
    let client = testbed.postgres(&dsn).await?;
    let api = ApiService::start(testbed, &dsn).await?;
    let mut reporter = ReportSender::start(testbed, &dsn).await?;
    let intents = load::Steady { first: 0, routes: ROUTES, rate: INTENTS, most: INTENTS * size.seconds };
    let sending = steady(testbed, intents, |_| true);
    let (sent, receipts) = match beside {
        ReceiptLoad::Nothing => (sending.await?, None),
        ReceiptLoad::SteadyReceipts | ReceiptLoad::MostReceipts => {
            reporter.prepare(&api, &client, beside, size.seconds).await?;
            let (sent, receipts) = tokio::try_join!(sending, reporter.send())?;
            confirm_receipts(&client, &receipts.reported, size).await?;
            (sent, Some(receipts))
        }
    };
    wait_until_none_live(&client).await?;
    confirm(&client, size.records + intents.most, ROUTES).await?;
    reporter.0.end().await?;
    api.stop(testbed).await;
    Ok(Measured { intents: sent.0, receipts })
}

/// Checks that each reported route has its receipt.
async fn confirm_receipts(client: &Client, reported: &Reported, size: &ReceiptsSize) -> anyhow::Result<()> {
    let found: i64 = client
        .query_one("SELECT count(*) FROM receipts", &[])
        .await
        .context("could not count receipts")?
        .get(0);
    let expected = reported.reports.min(size.records * ROUTES);
    ensure!(found == i64::from(expected), "{found} receipts of {expected} routes that were reported of");
    Ok(())
}

/// The process that sends reports.
struct ReportSender(Contender);

impl ReportSender {
    async fn start(testbed: &Testbed, dsn: &str) -> anyhow::Result<Self> {
        Ok(Self(Contender::own(testbed, reporter::NAME, dsn, 0).await?))
    }

    /// Encodes the requests and opens the connections.
    async fn prepare(
        &mut self,
        api: &ApiService,
        client: &Client,
        beside: ReceiptLoad,
        seconds: u32,
    ) -> anyhow::Result<()> {
        let sql = "SELECT notification_id || '/' || route_id FROM routes ORDER BY notification_id, route_id";
        let rows = client.query(sql, &[]).await.context("could not read the ids of routes")?;
        let (rate, connections) = match beside {
            ReceiptLoad::SteadyReceipts => (Some(RECEIPTS), STEADY_CONNECTIONS),
            ReceiptLoad::Nothing | ReceiptLoad::MostReceipts => (None, CONNECTIONS),
        };
        let order = ReportOrder {
            addr: api.addr.clone(),
            token: api.operator.clone(),
            ids: rows.iter().map(|row| row.get(0)).collect(),
            connections,
            rate,
            seconds,
        };
        self.0.request(&json!(order).to_string()).await?;
        self.0.expect("prepared").await.map(drop)
    }

    async fn send(&mut self) -> anyhow::Result<ReceiptTimes> {
        let before = self.cpu()?;
        self.0.request(reporter::SEND).await?;
        let report = self.0.expect("done").await?;
        let reported: Reported = serde_json::from_value(report["reported"].clone())?;
        ensure!(reported.reports > 0, "nothing was reported");
        let generator = self.cpu()?.saturating_sub(before) as f64 / f64::from(reported.reports);
        Ok(ReceiptTimes { reported, generator })
    }

    fn cpu(&self) -> anyhow::Result<u64> {
        Ok(Cpu::now(None, None, self.0.pid()?).own)
    }
}
