//! The load generator: sends requests over many connections; each connection sends its next request as soon
//! as the previous one has a response.
//!
//! It is a process of its own, with one thread, so that its processor time can be separated from the rest.
//! Requests are encoded and connections opened before the time counts.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::client::{self, ClientConnection, ClientResponse};
use crate::measure::percentile;

/// The name with which this program runs as the load generator.
pub(crate) const NAME: &str = "generator";
/// The most times that a request is sent.
pub(super) const MAX_ATTEMPTS: u32 = 10;
/// The pause before a request is sent again.
pub(super) const REPEAT_PAUSE: Duration = Duration::from_millis(50);
/// The step that sends the requests of the load.
pub(crate) const SEND: &str = "send";

/// The requests to be sent.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RequestLoad {
    pub(crate) connections: u32,
    /// The number of the first intent.
    pub(crate) first: u32,
    pub(crate) intents: u32,
    /// Intents of one request; 0 for one intent without a batch.
    pub(crate) batch: u32,
    /// The minimum length of the body of a single intent.
    pub(crate) body_bytes: usize,
}

/// A load and its target.
#[derive(Serialize, Deserialize)]
pub(crate) struct LoadOrder {
    pub(crate) addr: String,
    pub(crate) token: String,
    pub(crate) load: RequestLoad,
}

/// The results of the responses.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ResponseCounts {
    /// Intents that were accepted by the request.
    pub(crate) accepted: u32,
    /// Intents whose stored response was replayed.
    pub(crate) replayed: u32,
    /// Requests that were sent again, because some of their intents could not be decided in time.
    pub(crate) repeats: u32,
    /// Percentiles of the time from a request to its response, in milliseconds, including repeats.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Encoded requests, and the connections for them.
struct PreparedLoad {
    requests: Vec<Vec<u8>>,
    load: RequestLoad,
    connections: Vec<ClientConnection>,
}

/// Reads orders and steps, one per line, until the input ends.
pub(crate) fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut prepared = None;
    println!("{}", json!({ "phase": "ready" }));
    for line in std::io::stdin().lines() {
        let line = line?;
        if line == SEND {
            let prepared = prepared.as_mut().context("nothing is prepared")?;
            let answers = runtime.block_on(send(prepared))?;
            println!("{}", json!({ "phase": "done", "answers": answers }));
        } else {
            let order: LoadOrder = serde_json::from_str(&line).context("neither an order nor a step")?;
            // The connections of the previous order are closed first.
            drop(prepared.take());
            prepared = Some(runtime.block_on(prepare(&order))?);
            println!("{}", json!({ "phase": "prepared" }));
        }
    }
    Ok(())
}

async fn prepare(order: &LoadOrder) -> anyhow::Result<PreparedLoad> {
    let LoadOrder { addr, token, load } = order;
    let numbers = load.first..load.first + load.intents;
    let requests = if load.batch == 0 {
        numbers.map(|n| client::single(token, n, load.body_bytes)).collect()
    } else {
        let end = numbers.end;
        let firsts = numbers.step_by(load.batch as usize);
        firsts.map(|first| client::batch(token, first..(first + load.batch).min(end))).collect()
    };
    let connections = try_join_all((0..load.connections).map(|_| ClientConnection::open(addr))).await?;
    Ok(PreparedLoad { requests, load: *load, connections })
}

/// Sends every request once.
async fn send(prepared: &mut PreparedLoad) -> anyhow::Result<ResponseCounts> {
    let PreparedLoad { requests, load, connections } = prepared;
    let is_batch = load.batch > 0;
    let next = Cell::new(0);
    let [accepted, replayed, repeats] = [0, 0, 0].map(Cell::new);
    let each = connections.iter_mut().map(async |connection| {
        let mut times = Vec::new();
        while let Some((place, request)) = take(requests, &next) {
            let started = Instant::now();
            let mut attempts = 1;
            let is_replay = loop {
                let answer = connection.exchange(request).await?;
                match judge(&answer, is_batch, attempts > 1)? {
                    Judgement::Accepted { is_replay } => break is_replay,
                    Judgement::Undecided if attempts < MAX_ATTEMPTS => {
                        attempts += 1;
                        repeats.set(repeats.get() + 1);
                        tokio::time::sleep(REPEAT_PAUSE).await;
                    }
                    Judgement::Undecided => bail!("a request was not decided in {attempts} attempts"),
                }
            };
            times.push(started.elapsed().as_secs_f64() * 1_000.0);
            let counter = if is_replay { &replayed } else { &accepted };
            counter.set(counter.get() + of_request(load, place));
        }
        anyhow::Ok(times)
    });
    let mut times: Vec<f64> = try_join_all(each).await?.into_iter().flatten().collect();
    ensure!(times.len() == requests.len(), "{} of {} requests were answered", times.len(), requests.len());
    times.sort_by(f64::total_cmp);
    let (p50, p99) = (percentile(&times, 0.5), percentile(&times, 0.99));
    Ok(ResponseCounts {
        accepted: accepted.get(),
        replayed: replayed.get(),
        repeats: repeats.get(),
        p50,
        p99,
    })
}

/// The next request and its place, if one is left.
fn take<'a>(requests: &'a [Vec<u8>], next: &Cell<usize>) -> Option<(usize, &'a Vec<u8>)> {
    let place = next.replace(next.get() + 1);
    Some((place, requests.get(place)?))
}

/// The number of intents of the request at `place`.
fn of_request(load: &RequestLoad, place: usize) -> u32 {
    if load.batch == 0 {
        return 1;
    }
    let before = u32::try_from(place).unwrap_or(u32::MAX).saturating_mul(load.batch);
    load.batch.min(load.intents.saturating_sub(before))
}

/// Returns true if a request with this status must be sent again. A repeated request may find the claim of
/// the attempt that failed.
pub(super) fn is_undecided(status: u16, is_repeat: bool) -> bool {
    status == 503 || (is_repeat && status == 409)
}

/// The meaning of a response for the client.
enum Judgement {
    /// Every intent of the request is accepted, now or before.
    Accepted { is_replay: bool },
    /// Some intents are undecided: the client must send the request again.
    Undecided,
}

fn judge(answer: &ClientResponse<'_>, is_batch: bool, is_repeat: bool) -> anyhow::Result<Judgement> {
    if is_undecided(answer.status, is_repeat) {
        return Ok(Judgement::Undecided);
    }
    if !is_batch {
        answer.expect(202)?;
        return Ok(Judgement::Accepted { is_replay: answer.is_replayed });
    }
    answer.expect(200)?;
    let results = count(answer.body, br#""status":"#);
    let (accepted, undecided) =
        (count(answer.body, br#""status":202"#), count(answer.body, br#""status":503"#));
    ensure!(accepted + undecided == results, "refused: {}", String::from_utf8_lossy(answer.body));
    Ok(if undecided == 0 { Judgement::Accepted { is_replay: false } } else { Judgement::Undecided })
}

/// The number of occurrences of `part` in `text`.
pub(crate) fn count(text: &[u8], part: &[u8]) -> u32 {
    let found = text.windows(part.len()).filter(|window| *window == part).count();
    u32::try_from(found).unwrap_or(u32::MAX)
}
