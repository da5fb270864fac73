//! How long an intent takes at a steady rate: from its XADD to its last entry, as a blocked reader sees it; of the service
//! and of the ceiling.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use tokio::task::JoinHandle;

use crate::Scale;
use crate::chart::{Chart, Lines};
use crate::figure::{Figure, Section};
use crate::load::{self, Steady};
use crate::measure::{median, percentile};
use crate::party::Party;
use crate::watch::wait_for_completions;
use crate::world::{MAIL, PUSH, World};

/// By rate: what p50 and p99 must be at most, in milliseconds.
const GOALS: [(u32, Option<f64>, f64); 3] =
    [(125, Some(3.0), 10.0), (1_000, None, 25.0), (3_000, None, 100.0)];
/// At which rate p99 from acceptance to append must be below how much.
const PUBLISH_RATE: u32 = 500;
const PUBLISH_P99: f64 = 100.0;
/// How long after the last intent its entries may come.
const PATIENCE: Duration = Duration::from_secs(30);

/// In milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    p90: f64,
    pub(crate) p99: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |fraction| percentile(&values, fraction);
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// What came of one rate, round by round.
struct Latency {
    rate: u32,
    /// From the XADD of an intent to the last of its entries.
    ceiling: Vec<Spread>,
    service: Vec<Spread>,
    /// From acceptance to append, by the clocks of service and Redis, in whole milliseconds.
    publish: Vec<Spread>,
}

impl Latency {
    async fn measure(world: &mut World, scale: Scale, rate: u32) -> anyhow::Result<Self> {
        let mut latency = Self { rate, ceiling: Vec::new(), service: Vec::new(), publish: Vec::new() };
        let load = Steady { rate, most: rate * scale.seconds };
        for round in 1..=scale.latency_rounds {
            println!(
                "latency: {rate} intents/s for {} s, round {round} of {}: the ceiling, then the service",
                scale.seconds, scale.latency_rounds
            );
            latency.ceiling.push(of_ceiling(world, load).await?);
            let (service, publish) = of_service(world, load).await?;
            latency.service.push(service);
            latency.publish.push(publish);
        }
        Ok(latency)
    }

    fn figures(&self) -> Vec<Figure> {
        let shown = |what: &str, rounds: &[Spread], of: fn(&Spread) -> f64| {
            let name = format!("{} intents/s: {what}", self.rate);
            Figure::shown(name, middle(rounds, of), "ms").of_rounds(rounds.iter().map(of))
        };
        let goal = GOALS.iter().find(|(rate, ..)| *rate == self.rate);
        let (p50, p99) = goal.map_or((None, None), |(_, p50, p99)| (*p50, Some(*p99)));
        let judged = |figure: Figure, bound: Option<f64>, ceiling: &Figure| match bound {
            Some(bound) => figure.at_most_or_near(bound, ceiling.value),
            None => figure,
        };
        let ceiling_p50 = shown("ceiling, p50", &self.ceiling, |spread| spread.p50);
        let ceiling_p99 = shown("ceiling, p99", &self.ceiling, |spread| spread.p99);
        let publish_p99 = shown("service, acceptance to append, p99", &self.publish, |spread| spread.p99);
        vec![
            judged(shown("service, p50", &self.service, |spread| spread.p50), p50, &ceiling_p50),
            judged(shown("service, p99", &self.service, |spread| spread.p99), p99, &ceiling_p99),
            ceiling_p50,
            ceiling_p99,
            shown("service, p90", &self.service, |spread| spread.p90),
            shown("service, max", &self.service, |spread| spread.max),
            shown("service, acceptance to append, p50", &self.publish, |spread| spread.p50),
            if self.rate == PUBLISH_RATE { publish_p99.under(PUBLISH_P99) } else { publish_p99 },
        ]
    }
}

fn middle(rounds: &[Spread], of: fn(&Spread) -> f64) -> f64 {
    median(rounds.iter().map(of))
}

/// One steady load after the other, each on the ceiling and on the service in turn.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Section> {
    let mut all = Vec::new();
    for rate in scale.rates {
        all.push(Latency::measure(world, scale, *rate).await?);
    }
    let title = format!(
        "Latency: from XADD to the last of four entries as a blocked reader sees it, {} s at each rate, {} round(s) in turn, \
         medians; acceptance to append in whole milliseconds",
        scale.seconds, scale.latency_rounds
    );
    let figures = all.iter().flat_map(Latency::figures).collect();
    Ok(Section { title, figures, charts: vec![chart(&all)] })
}

fn chart(all: &[Latency]) -> Chart {
    let line = |name: &str, of: fn(&Latency) -> f64| (name.to_owned(), all.iter().map(of).collect());
    Chart::Lines(Lines {
        file: "latency",
        title: "From XADD to the last entry",
        unit: "ms",
        across: "intents/s",
        at: all.iter().map(|latency| latency.rate.to_string()).collect(),
        lines: vec![
            line("ceiling, p50", |latency| middle(&latency.ceiling, |spread| spread.p50)),
            line("ceiling, p99", |latency| middle(&latency.ceiling, |spread| spread.p99)),
            line("service, p50", |latency| middle(&latency.service, |spread| spread.p50)),
            line("service, p99", |latency| middle(&latency.service, |spread| spread.p99)),
        ],
    })
}

async fn of_ceiling(world: &mut World, load: Steady) -> anyhow::Result<Spread> {
    let dsn = world.fresh().await?;
    let mut ceiling = Party::own(world, "ceiling", &dsn, load.most).await?;
    ceiling.tell("run").await?;
    let (whole, _) = steady(world, load, |_| true).await?;
    ceiling.hear("done").await?;
    ceiling.end().await?;
    Ok(whole)
}

/// From XADD to the last entry, and from acceptance to append.
async fn of_service(world: &mut World, load: Steady) -> anyhow::Result<(Spread, Spread)> {
    let dsn = world.fresh().await?;
    let service = world.service(&dsn).start().await;
    let (whole, _) = steady(world, load, |_| true).await?;
    // The last routes are still being completed.
    wait_for_completions(world, &dsn, load.most, load::ROUTES).await?;
    let client = world.postgres(&dsn).await?;
    let rows = client
        .query(
            "SELECT (split_part(published_entry_id, '-', 1)::bigint - floor(extract(epoch FROM created_at) * 1000))::float8
             FROM routes WHERE status = 'published'",
            &[],
        )
        .await?;
    let publish = rows.iter().map(|row| row.get::<_, f64>(0)).collect();
    world.stop(service).await;
    Ok((whole, Spread::of(publish)))
}

/// Sends intents to whoever is at work, for as long as `more` says so, and watches their entries come. How long each of
/// them took, and how many they were.
pub(crate) async fn steady(
    world: &World,
    load: Steady,
    more: impl FnMut(u32) -> bool,
) -> anyhow::Result<(Spread, u32)> {
    let observers = [
        Observer::start(world.redis().await?, PUSH, "notification_id"),
        Observer::start(world.redis().await?, MAIL, "delivery_id"),
    ];
    let sent = load.send(world.redis().await?, more).await?;
    let mut last_seen: HashMap<String, Instant> = HashMap::new();
    for observer in observers {
        for (notification_id, seen) in observer.end(sent.len() * 2).await? {
            let last = last_seen.entry(notification_id).or_insert(seen);
            *last = seen.max(*last);
        }
    }
    ensure!(last_seen.len() == sent.len(), "{} of {} intents came through", last_seen.len(), sent.len());
    let waited = |(id, seen): (&String, &Instant)| {
        let due = sent.get(id).context("an entry of no intent of ours")?;
        anyhow::Ok(seen.saturating_duration_since(*due).as_secs_f64() * 1_000.0)
    };
    let whole = last_seen.iter().map(waited).collect::<anyhow::Result<Vec<f64>>>()?;
    Ok((Spread::of(whole), u32::try_from(sent.len())?))
}

/// Reads the entries of a stream as they come: which notification, and when.
struct Observer {
    stream: &'static str,
    /// How many are expected, once that is known.
    expected: tokio::sync::watch::Sender<usize>,
    reading: JoinHandle<anyhow::Result<Vec<(String, Instant)>>>,
}

impl Observer {
    fn start(mut redis: MultiplexedConnection, stream: &'static str, field: &'static str) -> Self {
        let (expected, until) = tokio::sync::watch::channel(usize::MAX);
        let reading = tokio::spawn(async move {
            let (mut seen, mut after) = (Vec::new(), "0-0".to_owned());
            while seen.len() < *until.borrow() {
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
            anyhow::Ok(seen)
        });
        Self { stream, expected, reading }
    }

    /// What it saw, once it has seen as many.
    async fn end(mut self, expected: usize) -> anyhow::Result<Vec<(String, Instant)>> {
        self.expected.send_replace(expected);
        let read = tokio::time::timeout(PATIENCE, &mut self.reading).await;
        // Nobody would hear of it any more.
        self.reading.abort();
        let seen = read.with_context(|| {
            format!("{expected} entries of {} have not come within {PATIENCE:?}", self.stream)
        })???;
        ensure!(seen.len() == expected, "{} entries of {}, not {expected}", seen.len(), self.stream);
        Ok(seen)
    }
}
