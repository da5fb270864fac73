//! The latency of intents at a steady rate: through the stream, and through HTTP.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::ApiService;
use super::client::{self, ClientConnection, ROUTES};
use super::generator::{MAX_ATTEMPTS, REPEAT_PAUSE, is_undecided};
use crate::figure::Figure;
use crate::latency::{Percentiles, observed, steady};
use crate::load::Steady;
use crate::measure::median;
use crate::testbed::Testbed;
use crate::watch::wait_for_completions;

/// Intents per second.
const RATE: u32 = 500;
/// The highest accepted ratio of p99 to that of the stream.
const P99_RATIO: f64 = 2.0;
/// Connections for requests that are due while earlier ones are processed.
const CONNECTIONS: usize = 64;

/// Alternating rounds.
pub(super) struct SteadyLatency {
    stream: Vec<Percentiles>,
    /// The latencies to the last entry, and to the response.
    http: Vec<Percentiles>,
    answers: Vec<Percentiles>,
}

/// An intent that was accepted.
pub(super) struct AcceptedIntent {
    id: String,
    pub(super) due: Instant,
    pub(super) answered: Instant,
}

impl SteadyLatency {
    pub(super) async fn measure(testbed: &mut Testbed, seconds: u32, rounds: usize) -> anyhow::Result<Self> {
        let load = Steady { first: 0, routes: ROUTES, rate: RATE, most: RATE * seconds };
        let mut latency = Self { stream: Vec::new(), http: Vec::new(), answers: Vec::new() };
        for round in 1..=rounds {
            println!("http: {RATE} intents/s for {seconds} s, round {round} of {rounds}: stream, then HTTP");
            latency.stream.push(of_stream(testbed, load).await?);
            let (whole, answers) = of_http(testbed, load).await?;
            latency.http.push(whole);
            latency.answers.push(answers);
        }
        Ok(latency)
    }

    pub(super) fn figures(&self) -> Vec<Figure> {
        let shown = |what: &str, rounds: &[Percentiles], of: fn(&Percentiles) -> f64| {
            let name = format!("{RATE} intents/s, {what}");
            Figure::shown(name, median(rounds.iter().map(of)), "ms").of_rounds(rounds.iter().map(of))
        };
        let p99 = |rounds: &[Percentiles]| median(rounds.iter().map(|round| round.p99));
        let to_stream = |what: &str, rounds: &[Percentiles]| {
            let each = rounds.iter().zip(&self.stream).map(|(one, stream)| one.p99 / stream.p99);
            let name = format!("{RATE} intents/s, p99 {what}, to p99 of the stream");
            Figure::shown(name, p99(rounds) / p99(&self.stream), "x").of_rounds(each).at_most(P99_RATIO)
        };
        vec![
            shown("stream, to the last entry, p50", &self.stream, |round| round.p50),
            shown("stream, to the last entry, p99", &self.stream, |round| round.p99),
            shown("stream, to the last entry, max", &self.stream, |round| round.max),
            shown("HTTP, to the last entry, p50", &self.http, |round| round.p50),
            shown("HTTP, to the last entry, p99", &self.http, |round| round.p99),
            shown("HTTP, to the last entry, max", &self.http, |round| round.max),
            shown("HTTP, to the answer, p50", &self.answers, |round| round.p50),
            shown("HTTP, to the answer, p99", &self.answers, |round| round.p99),
            shown("HTTP, to the answer, max", &self.answers, |round| round.max),
            to_stream("to the last entry", &self.http),
            to_stream("to the answer", &self.answers),
        ]
    }
}

async fn of_stream(testbed: &mut Testbed, load: Steady) -> anyhow::Result<Percentiles> {
    let dsn = testbed.fresh().await?;
    let service = testbed.service(&dsn).start().await;
    let (whole, _) = steady(testbed, load, |_| true).await?;
    wait_for_completions(testbed, &dsn, load.most, ROUTES).await?;
    testbed.stop(service).await;
    Ok(whole)
}

/// The latency to the last entry, and to the response.
async fn of_http(testbed: &mut Testbed, load: Steady) -> anyhow::Result<(Percentiles, Percentiles)> {
    let dsn = testbed.fresh().await?;
    let api = ApiService::start(testbed, &dsn).await?;
    let mut answers = Vec::new();
    let sending = async {
        let accepted = send(load, &api).await?;
        let millis = |one: &AcceptedIntent| one.answered.duration_since(one.due).as_secs_f64() * 1_000.0;
        answers = accepted.iter().map(millis).collect();
        Ok(accepted.into_iter().map(|one| (one.id, one.due)).collect::<HashMap<_, _>>())
    };
    let (whole, _) = observed(testbed, load.routes, sending).await?;
    wait_for_completions(testbed, &dsn, load.most, ROUTES).await?;
    api.stop(testbed).await;
    Ok((whole, Percentiles::of(answers)))
}

/// An open loop, like [`Steady::send`]: each intent is sent when it is due, if a connection is free.
pub(super) async fn send(load: Steady, api: &ApiService) -> anyhow::Result<Vec<AcceptedIntent>> {
    let (give, mut free) = mpsc::channel(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        give.send(ClientConnection::open(&api.addr).await?).await?;
    }
    let started = tokio::time::Instant::now();
    let (mut sending, mut accepted) = (JoinSet::new(), Vec::new());
    for n in 0..load.most {
        let due = started + load.due(n);
        let request = client::single(&api.producer, n, 0);
        tokio::time::sleep_until(due).await;
        let mut connection = free.recv().await.context("no connection is left")?;
        let give = give.clone();
        sending.spawn(async move {
            let mut attempts = 1;
            let (body, answered): (Value, _) = loop {
                let answer = connection.exchange(&request).await?;
                let answered = Instant::now();
                if attempts == MAX_ATTEMPTS || !is_undecided(answer.status, attempts > 1) {
                    answer.expect(202)?;
                    break (answer.json()?, answered);
                }
                attempts += 1;
                tokio::time::sleep(REPEAT_PAUSE).await;
            };
            let id = body["notification_id"].as_str().context("an answer without an id")?.to_owned();
            give.send(connection).await?;
            anyhow::Ok(AcceptedIntent { id, due: due.into_std(), answered })
        });
        while let Some(done) = sending.try_join_next() {
            accepted.push(done??);
        }
    }
    while let Some(done) = sending.join_next().await {
        accepted.push(done??);
    }
    Ok(accepted)
}
