//! The latency of an intent at a steady rate, from its XADD to its last entry as a blocked reader sees it;
//! for the service and for the baseline.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use tokio::task::JoinHandle;

use crate::Scale;
use crate::chart::{FigureChart, LineChart};
use crate::contender::Contender;
use crate::figure::{Figure, ReportSection};
use crate::load::{self, Steady};
use crate::measure::{median, percentile};
use crate::testbed::{MAIL, PUSH, Testbed};
use crate::watch::wait_for_completions;

/// The highest accepted p50 and p99 in milliseconds, for each rate.
const GOALS: [(u32, Option<f64>, f64); 3] =
    [(125, Some(3.0), 10.0), (1_000, None, 25.0), (3_000, None, 100.0)];
/// The rate at which p99 from acceptance to append has a goal, and that goal in milliseconds.
const PUBLISH_RATE: u32 = 500;
const PUBLISH_P99: f64 = 100.0;
/// The time after the last intent within which its entries must arrive.
const ENTRIES_TIMEOUT: Duration = Duration::from_secs(30);

/// Percentiles of a duration, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Percentiles {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |fraction| percentile(&values, fraction);
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// The results at one rate, round by round.
struct RateLatency {
    rate: u32,
    /// The latency from the XADD of an intent to the last of its entries, by round.
    baseline: Vec<Percentiles>,
    service: Vec<Percentiles>,
    /// The latency from acceptance to append, by the clocks of service and Redis, in whole milliseconds.
    publish: Vec<Percentiles>,
}

impl RateLatency {
    async fn measure(testbed: &mut Testbed, scale: Scale, rate: u32) -> anyhow::Result<Self> {
        let mut latency = Self { rate, baseline: Vec::new(), service: Vec::new(), publish: Vec::new() };
        let load = Steady { first: 0, routes: load::ROUTES, rate, most: rate * scale.seconds };
        for round in 1..=scale.latency_rounds {
            println!(
                "latency: {rate} intents/s for {} s, round {round} of {}: the baseline, then the service",
                scale.seconds, scale.latency_rounds
            );
            latency.baseline.push(of_baseline(testbed, load).await?);
            let (service, publish) = of_service(testbed, load).await?;
            latency.service.push(service);
            latency.publish.push(publish);
        }
        Ok(latency)
    }

    fn figures(&self) -> Vec<Figure> {
        let shown = |what: &str, rounds: &[Percentiles], of: fn(&Percentiles) -> f64| {
            let name = format!("{} intents/s: {what}", self.rate);
            Figure::shown(name, median_of(rounds, of), "ms").of_rounds(rounds.iter().map(of))
        };
        let goal = GOALS.iter().find(|(rate, ..)| *rate == self.rate);
        let (p50, p99) = goal.map_or((None, None), |(_, p50, p99)| (*p50, Some(*p99)));
        let judged = |figure: Figure, bound: Option<f64>, baseline: &Figure| match bound {
            Some(bound) => figure.at_most_or_near(bound, baseline.value),
            None => figure,
        };
        let baseline_p50 = shown("baseline, p50", &self.baseline, |percentiles| percentiles.p50);
        let baseline_p99 = shown("baseline, p99", &self.baseline, |percentiles| percentiles.p99);
        let publish_p99 =
            shown("service, acceptance to append, p99", &self.publish, |percentiles| percentiles.p99);
        vec![
            judged(shown("service, p50", &self.service, |percentiles| percentiles.p50), p50, &baseline_p50),
            judged(shown("service, p99", &self.service, |percentiles| percentiles.p99), p99, &baseline_p99),
            baseline_p50,
            baseline_p99,
            shown("service, p90", &self.service, |percentiles| percentiles.p90),
            shown("service, max", &self.service, |percentiles| percentiles.max),
            shown("service, acceptance to append, p50", &self.publish, |percentiles| percentiles.p50),
            if self.rate == PUBLISH_RATE { publish_p99.under(PUBLISH_P99) } else { publish_p99 },
        ]
    }
}

fn median_of(rounds: &[Percentiles], of: fn(&Percentiles) -> f64) -> f64 {
    median(rounds.iter().map(of))
}

/// Measures one rate after the other, with alternating rounds of the baseline and of the service.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let mut all = Vec::new();
    for rate in scale.rates {
        all.push(RateLatency::measure(testbed, scale, *rate).await?);
    }
    let title = format!(
        "Latency: from XADD to the last of four entries as a blocked reader sees it, {} s at each rate, {} alternating round(s), \
         medians; acceptance to append in whole milliseconds",
        scale.seconds, scale.latency_rounds
    );
    let figures = all.iter().flat_map(RateLatency::figures).collect();
    Ok(ReportSection { title, figures, charts: vec![chart(&all)] })
}

fn chart(all: &[RateLatency]) -> FigureChart {
    let line = |name: &str, of: fn(&RateLatency) -> f64| (name.to_owned(), all.iter().map(of).collect());
    FigureChart::Lines(LineChart {
        file: "latency",
        title: "From XADD to the last entry",
        unit: "ms",
        x_label: "intents/s",
        points: all.iter().map(|latency| latency.rate.to_string()).collect(),
        lines: vec![
            line("baseline, p50", |latency| median_of(&latency.baseline, |percentiles| percentiles.p50)),
            line("baseline, p99", |latency| median_of(&latency.baseline, |percentiles| percentiles.p99)),
            line("service, p50", |latency| median_of(&latency.service, |percentiles| percentiles.p50)),
            line("service, p99", |latency| median_of(&latency.service, |percentiles| percentiles.p99)),
        ],
    })
}

async fn of_baseline(testbed: &mut Testbed, load: Steady) -> anyhow::Result<Percentiles> {
    let dsn = testbed.fresh().await?;
    let mut baseline = Contender::own(testbed, "baseline", &dsn, load.most).await?;
    baseline.request("run").await?;
    let (whole, _) = steady(testbed, load, |_| true).await?;
    baseline.expect("done").await?;
    baseline.end().await?;
    Ok(whole)
}

/// The latencies from XADD to the last entry, and from acceptance to append.
async fn of_service(testbed: &mut Testbed, load: Steady) -> anyhow::Result<(Percentiles, Percentiles)> {
    let dsn = testbed.fresh().await?;
    let service = testbed.service(&dsn).start().await;
    let (whole, _) = steady(testbed, load, |_| true).await?;
    // The last routes are still being completed.
    wait_for_completions(testbed, &dsn, load.most, load::ROUTES).await?;
    let client = testbed.postgres(&dsn).await?;
    let rows = client
        .query(
            "SELECT (split_part(published_entry_id, '-', 1)::bigint - floor(extract(epoch FROM created_at) * 1000))::float8
             FROM routes WHERE status = 'published'",
            &[],
        )
        .await?;
    let publish = rows.iter().map(|row| row.get::<_, f64>(0)).collect();
    testbed.stop(service).await;
    Ok((whole, Percentiles::of(publish)))
}

/// Sends intents while `more` returns true, and waits for their entries. Returns the latency, and the number
/// of intents.
pub(crate) async fn steady(
    testbed: &Testbed,
    load: Steady,
    more: impl FnMut(u32) -> bool,
) -> anyhow::Result<(Percentiles, u32)> {
    let sending = load.send(testbed.redis().await?, more);
    observed(testbed, load.routes, sending).await
}

/// Reads the entries of the intents that `sending` sends, whose due times it returns by their id. Returns the
/// time from an intent being due to the last of its entries, and the number of intents.
pub(crate) async fn observed(
    testbed: &Testbed,
    routes: u32,
    sending: impl Future<Output = anyhow::Result<HashMap<String, Instant>>>,
) -> anyhow::Result<(Percentiles, u32)> {
    let observers = [
        StreamObserver::start(testbed.redis().await?, PUSH, "notification_id"),
        StreamObserver::start(testbed.redis().await?, MAIL, "delivery_id"),
    ];
    let sent = sending.await?;
    let own: Arc<HashSet<String>> = Arc::new(sent.keys().cloned().collect());
    // Half of the routes are on each channel.
    let expected = sent.len() * routes as usize / observers.len();
    let mut last_seen: HashMap<String, Instant> = HashMap::new();
    for observer in observers {
        for (notification_id, seen) in observer.end(expected, Arc::clone(&own)).await? {
            let last = last_seen.entry(notification_id).or_insert(seen);
            *last = seen.max(*last);
        }
    }
    ensure!(last_seen.len() == sent.len(), "{} of {} intents were processed", last_seen.len(), sent.len());
    let waited = |(id, seen): (&String, &Instant)| {
        let due = sent.get(id).context("an entry of an unknown intent")?;
        anyhow::Ok(seen.saturating_duration_since(*due).as_secs_f64() * 1_000.0)
    };
    let whole = last_seen.iter().map(waited).collect::<anyhow::Result<Vec<f64>>>()?;
    Ok((Percentiles::of(whole), u32::try_from(sent.len())?))
}

/// Reads the entries of one stream while `sending` sends, which returns a time for each value of `field`.
/// Returns the time from then to the entry.
pub(crate) async fn observed_entries(
    testbed: &Testbed,
    stream: &'static str,
    field: &'static str,
    sending: impl Future<Output = anyhow::Result<HashMap<String, Instant>>>,
) -> anyhow::Result<Percentiles> {
    let observer = StreamObserver::start(testbed.redis().await?, stream, field);
    let sent = sending.await?;
    let waited = |(id, seen): (String, Instant)| {
        let since = sent.get(&id).context("an entry that was not sent")?;
        anyhow::Ok(seen.saturating_duration_since(*since).as_secs_f64() * 1_000.0)
    };
    let own = Arc::new(sent.keys().cloned().collect());
    let seen = observer.end(sent.len(), own).await?;
    Ok(Percentiles::of(seen.into_iter().map(waited).collect::<anyhow::Result<Vec<f64>>>()?))
}

/// Reads the entries of a stream as they arrive, and keeps the id of the notification and the time for each.
struct StreamObserver {
    stream: &'static str,
    /// The number of expected entries and the ids that they have, once these are known.
    expected: tokio::sync::watch::Sender<Option<Expected>>,
    reading: JoinHandle<anyhow::Result<Vec<(String, Instant)>>>,
}

/// The entries for which an observer waits. It drops others.
#[derive(Clone)]
struct Expected {
    entries: usize,
    own: Arc<HashSet<String>>,
}

impl StreamObserver {
    fn start(mut redis: MultiplexedConnection, stream: &'static str, field: &'static str) -> Self {
        let (expected, until) = tokio::sync::watch::channel(None::<Expected>);
        let reading = tokio::spawn(async move {
            let (mut seen, mut after) = (Vec::new(), "0-0".to_owned());
            loop {
                let expected = until.borrow().clone();
                if let Some(Expected { entries, own }) = expected {
                    seen.retain(|(id, _)| own.contains(id));
                    if seen.len() >= entries {
                        return anyhow::Ok(seen);
                    }
                }
                let mut command = redis::cmd("XREAD");
                command.arg("COUNT").arg(1_000).arg("BLOCK").arg(100).arg("STREAMS").arg(stream).arg(&after);
                let reply: Option<StreamReadReply> = command.query_async(&mut redis).await?;
                let now = Instant::now();
                for entry in reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids) {
                    let id: String = entry.get(field).context("an entry without its id")?;
                    seen.push((id.split('/').next().unwrap_or_default().to_owned(), now));
                    after = entry.id;
                }
            }
        });
        Self { stream, expected, reading }
    }

    /// Waits for as many entries of these ids and returns them.
    async fn end(
        mut self,
        entries: usize,
        own: Arc<HashSet<String>>,
    ) -> anyhow::Result<Vec<(String, Instant)>> {
        self.expected.send_replace(Some(Expected { entries, own }));
        let read = tokio::time::timeout(ENTRIES_TIMEOUT, &mut self.reading).await;
        // Stops the task if it has not ended.
        self.reading.abort();
        let seen = read.with_context(|| {
            format!("{entries} entries of {} have not arrived within {ENTRIES_TIMEOUT:?}", self.stream)
        })???;
        ensure!(seen.len() == entries, "{} entries of {}, not {entries}", seen.len(), self.stream);
        Ok(seen)
    }
}
