//! Intents through the HTTP API, beside the same intents through the stream.
//!
//! The load generator is a child process on the same cores; its processor time is reported separately. Rates
//! count to the last completion of a route, like those of the stream, and, where named, to the last response.
//! A replay repeats the requests of the previous run: the same keys with the same intents.

pub(crate) mod client;
mod counted;
pub(crate) mod fairness;
pub(crate) mod generator;
mod steady;

use std::time::{Duration, Instant};

use ambient::RandomTokens;
use anyhow::{Context, ensure};
use harness::Service;
use http_server::tokens::{Grant, Role, new_token};
use serde_json::json;
use tempfile::NamedTempFile;
use tokio_postgres::Client;

use self::client::ROUTES;
use self::generator::{LoadOrder, RequestLoad, ResponseCounts};
use crate::Scale;
use crate::contender::Contender;
use crate::figure::{Figure, ReportSection};
use crate::measure::{Cpu, median};
use crate::round::{BenchRound, Rounds, Unit, rates};
use crate::testbed::Testbed;
use crate::throughput;
use crate::watch::{confirm, wait_for_entries, wait_until_none_live};

/// The lowest accepted ratios with the most connections: of the rates to that of the stream, and of replays
/// to fresh intents.
const FRESH_RATIO: f64 = 0.5;
const BATCH_RATIO: f64 = 0.8;
const REPLAY_RATIO: f64 = 2.0;

/// The amounts of one round.
struct HttpSize {
    /// Intents through the stream.
    stream: u32,
    /// The requests for each number of connections, the most first.
    http: [Requests; 3],
    /// Intents of 1 KiB in the counted run.
    counted: u32,
    rounds: usize,
    /// The duration of the steady load in seconds.
    seconds: u32,
}

impl HttpSize {
    fn of(scale: Scale) -> Self {
        let (rounds, seconds) = (scale.latency_rounds, scale.seconds);
        if scale.smoke {
            let http = [(256, 600, 600, 20), (64, 300, 300, 100), (1, 20, 200, 100)].map(Requests::of);
            return Self { stream: 1_000, http, counted: 600, rounds, seconds };
        }
        // All intents that are in progress at a time are accepted well within the request timeout.
        let http = [(256, 25_000, 50_000, 20), (64, 15_000, 30_000, 100), (1, 1_500, 10_000, 500)];
        let http = http.map(Requests::of);
        Self { stream: 50_000, http, counted: 20_000, rounds, seconds }
    }
}

/// The requests of one number of connections.
#[derive(Clone, Copy)]
struct Requests {
    connections: u32,
    /// Intents in requests of their own.
    singles: u32,
    /// Intents in batches, and in one batch.
    batched: u32,
    batch: u32,
}

impl Requests {
    fn of((connections, singles, batched, batch): (u32, u32, u32, u32)) -> Self {
        Self { connections, singles, batched, batch }
    }
}

/// The service with its API.
pub(crate) struct ApiService {
    pub(crate) service: Service,
    pub(crate) addr: String,
    /// The token of the producer of all intents, and that of an operator.
    pub(crate) producer: String,
    pub(crate) operator: String,
    /// The token of another producer.
    other: String,
    /// The token file, which the service reads again while it runs.
    _tokens: NamedTempFile,
}

impl ApiService {
    /// Starts the service with its defaults, except for the API.
    pub(crate) async fn start(testbed: &Testbed, dsn: &str) -> anyhow::Result<Self> {
        let token = |name: &str, grant: &Grant| {
            new_token(name, grant, &RandomTokens).map_err(|problem| anyhow::anyhow!(problem))
        };
        let producer = token("producer", &Grant::Producer("game_master".to_owned()))?;
        let operator = token("operator", &Grant::Role(Role::Operator))?;
        let other = token("other", &Grant::Producer(fairness::OTHER_PRODUCER.to_owned()))?;
        let tokens = NamedTempFile::new().context("could not create the tokens file")?;
        std::fs::write(tokens.path(), format!("{}\n{}\n{}", producer.entry, operator.entry, other.entry))?;
        let service = testbed
            .service(dsn)
            .env("NOTIFICATION_API_HTTP_ADDR", "127.0.0.1:0")
            .env("NOTIFICATION_API_TOKENS_FILE", tokens.path().display().to_string())
            .start()
            .await;
        let addr = service.api_addr();
        Ok(Self {
            service,
            addr,
            producer: producer.token,
            operator: operator.token,
            other: other.token,
            _tokens: tokens,
        })
    }

    /// The log lines above `info`, for the error of a failed run.
    fn warnings(&self) -> String {
        let mut lines = self.service.output();
        lines.retain(|line| !line.contains(r#""level":"INFO""#));
        format!("the service logged {lines:?}")
    }

    pub(crate) async fn stop(self, testbed: &mut Testbed) {
        testbed.stop(self.service).await;
    }
}

/// The process of the load generator.
struct Generator(Contender);

impl Generator {
    async fn start(testbed: &Testbed, dsn: &str) -> anyhow::Result<Self> {
        Ok(Self(Contender::own(testbed, generator::NAME, dsn, 0).await?))
    }

    /// Encodes the requests and opens the connections.
    async fn prepare(&mut self, api: &ApiService, load: RequestLoad) -> anyhow::Result<()> {
        let order = LoadOrder { addr: api.addr.clone(), token: api.producer.clone(), load };
        self.0.request(&json!(order).to_string()).await?;
        self.0.expect("prepared").await.map(drop)
    }

    /// Sends the prepared requests, and checks the numbers of accepted intents and of replayed responses.
    async fn send(&mut self, accepted: u32, replayed: u32) -> anyhow::Result<ResponseCounts> {
        self.0.request(generator::SEND).await?;
        let report = self.0.expect("done").await?;
        let answers: ResponseCounts = serde_json::from_value(report["answers"].clone())?;
        ensure!(
            (answers.accepted, answers.replayed) == (accepted, replayed),
            "{} intents were accepted and {} answers replayed, not {accepted} and {replayed}",
            answers.accepted,
            answers.replayed
        );
        Ok(answers)
    }

    fn cpu(&self) -> anyhow::Result<u64> {
        Ok(Cpu::now(None, None, self.0.pid()?).own)
    }

    async fn end(self) -> anyhow::Result<()> {
        self.0.end().await
    }
}

/// Rounds of one kind of load.
struct Series {
    name: String,
    /// The rounds to the last response, and to the last completion.
    answered: Rounds,
    completed: Rounds,
    /// Processor time of the load generator for each intent, in microseconds.
    generator: Vec<f64>,
    answers: Vec<ResponseCounts>,
}

impl Series {
    fn new(connections: u32, what: &str) -> Self {
        let name = format!("{connections} connection{}, {what}", if connections == 1 { "" } else { "s" });
        let rounds = || Rounds::new(name.clone(), Unit::Intent);
        Self { answered: rounds(), completed: rounds(), name, generator: Vec::new(), answers: Vec::new() }
    }

    fn push(&mut self, sent: &Sent) {
        self.answered.push(BenchRound::of(sent.intents, sent.answered, sent.cpu));
        self.completed.push(BenchRound::of(sent.intents, sent.completed, sent.cpu));
        self.generator.push(sent.generator as f64 / f64::from(sent.intents));
        self.answers.push(sent.answers);
    }

    /// The rate to the last response, and its processor time, by process if `is_detailed`.
    fn figures(&self, is_detailed: bool) -> Vec<Figure> {
        let name = |what: &str| format!("{}: {what}", self.name);
        let shown = |what: &str, values: Vec<f64>, unit: &'static str| {
            Figure::shown(name(what), median(values.iter().copied()), unit).of_rounds(values)
        };
        let of_answers = |of: fn(&ResponseCounts) -> f64| self.answers.iter().map(of).collect();
        let mut figures = vec![
            self.answered.speed("rate to the last answer"),
            shown("p50 to an answer", of_answers(|answers| answers.p50), "ms"),
            shown("p99 to an answer", of_answers(|answers| answers.p99), "ms"),
            shown("requests repeated after 503", of_answers(|answers| answers.repeats.into()), "requests"),
        ];
        let [postgres, redis, own, whole] = self.completed.cpu();
        if is_detailed {
            figures.extend([postgres, redis, own]);
        }
        figures.push(whole);
        figures.push(shown("CPU of the load generator", self.generator.clone(), "µs/intent"));
        figures
    }
}

/// One round of one kind of load.
struct Sent {
    intents: u32,
    answered: Duration,
    completed: Duration,
    cpu: Cpu,
    generator: u64,
    answers: ResponseCounts,
}

/// A running service with its observers, over several loads.
struct LoadRun<'a> {
    testbed: &'a Testbed,
    api: ApiService,
    generator: Generator,
    client: Client,
    /// Intents accepted so far.
    accepted: u32,
}

impl LoadRun<'_> {
    /// Sends `load` once. All of it is new, or all of it is replayed.
    async fn send(&mut self, intents: u32, is_replay: bool) -> anyhow::Result<Sent> {
        let mut redis = self.testbed.redis().await?;
        let (fresh, replayed) = if is_replay { (0, intents) } else { (intents, 0) };
        let own = self.generator.cpu()?;
        let (started, before) = (Instant::now(), self.testbed.cpu(self.api.service.pid()));
        let answers = self.generator.send(fresh, replayed).await;
        let answers = answers.with_context(|| self.api.warnings())?;
        let answered = started.elapsed();
        self.accepted += fresh;
        wait_for_entries(&mut redis, u64::from(self.accepted * ROUTES)).await?;
        wait_until_none_live(&self.client).await?;
        let completed = started.elapsed();
        let cpu = self.testbed.cpu(self.api.service.pid()).since(before);
        let generator = self.generator.cpu()?.saturating_sub(own);
        Ok(Sent { intents, answered, completed, cpu, generator, answers })
    }
}

/// Fresh intents, their replays, and batches over as many connections.
struct Kinds {
    requests: Requests,
    fresh: Series,
    replayed: Series,
    batches: Series,
}

impl Kinds {
    fn new(requests: Requests) -> Self {
        let series = |what: &str| Series::new(requests.connections, what);
        let (fresh, replayed) = (series("fresh"), series("replayed"));
        let batches = series(&format!("batches of {}", requests.batch));
        Self { requests, fresh, replayed, batches }
    }

    /// One round, in a database of its own.
    async fn round(&mut self, testbed: &mut Testbed) -> anyhow::Result<()> {
        let dsn = testbed.fresh().await?;
        let (api, client) = (ApiService::start(testbed, &dsn).await?, testbed.postgres(&dsn).await?);
        let generator = Generator::start(testbed, &dsn).await?;
        let mut run = LoadRun { testbed, api, generator, client, accepted: 0 };
        let Requests { connections, singles, batched, batch } = self.requests;
        let load = RequestLoad { connections, first: 0, intents: singles, batch: 0, body_bytes: 0 };
        run.generator.prepare(&run.api, load).await?;
        self.fresh.push(&run.send(load.intents, false).await?);
        self.replayed.push(&run.send(load.intents, true).await?);
        let load = RequestLoad { first: singles, intents: batched, batch, ..load };
        run.generator.prepare(&run.api, load).await?;
        self.batches.push(&run.send(load.intents, false).await?);
        confirm(&run.client, run.accepted, ROUTES).await?;
        let LoadRun { api, generator, .. } = run;
        generator.end().await?;
        api.stop(testbed).await;
        Ok(())
    }
}

/// Measures alternating rounds of the stream and of each number of connections; then latency; then
/// transactions and memory.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let size = HttpSize::of(scale);
    let mut stream = Rounds::new("stream", Unit::Intent);
    let mut kinds = size.http.map(Kinds::new);
    for round in 1..=size.rounds {
        println!("http: round {round} of {}: the stream, then HTTP", size.rounds);
        let (time, used) = throughput::service(testbed, size.stream, ROUTES).await?;
        stream.push(BenchRound::of(size.stream, time, used));
        for kinds in &mut kinds {
            kinds.round(testbed).await?;
        }
    }
    let mut figures = vec![stream.speed("rate to the last completion")];
    figures.extend(stream.cpu());
    for (place, Kinds { fresh, replayed, batches, .. }) in kinds.iter().enumerate() {
        let has_most = place == 0;
        let judged = |figure: Figure, goal: f64| if has_most { figure.at_least(goal) } else { figure };
        for (series, goal) in [(fresh, FRESH_RATIO), (batches, BATCH_RATIO)] {
            let name = format!("{}: ratio to the stream", series.name);
            figures.push(series.completed.speed("rate to the last completion"));
            figures.push(judged(series.completed.times(name, &stream), goal));
            figures.extend(series.figures(has_most));
        }
        let name = format!("{}: ratio of the rates of answers to fresh", replayed.name);
        figures.push(judged(replayed.answered.times(name, &fresh.answered), REPLAY_RATIO));
        figures.extend(replayed.figures(has_most));
    }
    figures.extend(steady::SteadyLatency::measure(testbed, size.seconds, size.rounds).await?.figures());
    let [Requests { connections, singles, .. }, ..] = size.http;
    figures.extend(counted::run(testbed, connections, size.counted).await?);
    let all = kinds.iter().flat_map(|kinds| [&kinds.fresh, &kinds.batches]);
    let charts =
        vec![rates("http", "Through HTTP", [&stream].into_iter().chain(all.map(|series| &series.completed)))];
    let title = format!(
        "HTTP: intents of {ROUTES} routes through the API and through the stream, {} through the stream and {singles} over {connections} \
         connections in each of {} alternating round(s), medians",
        size.stream, size.rounds
    );
    Ok(ReportSection { title, figures, charts })
}
