//! The latency of one producer's single intents while another producer sends: nothing, batches, one repeated
//! key, or bodies that are announced and never sent.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::ApiService;
use super::client::{self, ClientConnection, ROUTES};
use super::steady;
use crate::Scale;
use crate::figure::{Figure, ReportSection};
use crate::latency::Percentiles;
use crate::load::Steady;
use crate::measure::median;
use crate::testbed::Testbed;

/// The other producer.
pub(super) const OTHER_PRODUCER: &str = "game_lobby";
/// Intents per second of the producer whose latency counts.
const RATE: u32 = 50;
/// The highest accepted ratio of its p99 to that without a neighbour.
const P99_RATIO: f64 = 3.0;
/// Elements of a batch of the other producer.
const BATCH: u32 = 1_000;
/// The time for which a body is announced and not sent, before the next one.
const ANNOUNCED_FOR: Duration = Duration::from_secs(12);

/// The behaviour of the other producer meanwhile.
#[derive(Clone, Copy)]
enum Neighbour {
    Nothing,
    Batches,
    RepeatedKey,
    AnnouncedBodies,
}

impl Neighbour {
    const LOUD: [(Self, &'static str, u32); 3] = [
        (Self::Batches, "12 callers of batches of 1,000 of another producer", 12),
        (Self::RepeatedKey, "64 callers of another producer that repeat one key", 64),
        (Self::AnnouncedBodies, "8 bodies of 8 MiB of another producer that do not come", 8),
    ];

    /// Runs one caller of the other producer, until the future is dropped.
    async fn call(self, addr: String, token: String, caller: u32) -> anyhow::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Batches => {
                let mut connection = ClientConnection::open(&addr).await?;
                for number in 0.. {
                    let keys = (0..BATCH).map(|place| format!("batch-{caller}-{number}-{place}"));
                    let intents: Vec<_> = keys.map(|key| intent(Some(&key))).collect();
                    let body = json!({ "intents": intents }).to_string();
                    connection.exchange(&client::post("/v1/intents:batch", &token, "", &body)).await?;
                }
                Ok(())
            }
            Self::RepeatedKey => {
                let mut connection = ClientConnection::open(&addr).await?;
                let body = intent(None).to_string();
                let request = client::post("/v1/intents", &token, "idempotency-key: repeated\r\n", &body);
                loop {
                    connection.exchange(&request).await?;
                }
            }
            Self::AnnouncedBodies => loop {
                let mut stream = TcpStream::connect(&addr).await?;
                let head = client::post("/v1/intents:batch", &token, "", "");
                let head = String::from_utf8(head)?.replace("content-length: 0", "content-length: 8388608");
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&[b' '; 20 * 1_024]).await?;
                let mut answer = Vec::new();
                // The service may close the connection before the time is over.
                let _ = tokio::time::timeout(ANNOUNCED_FOR, stream.read_to_end(&mut answer)).await;
            },
        }
    }
}

/// An intent of the other producer.
fn intent(key: Option<&str>) -> serde_json::Value {
    let mut intent = json!({
        "notification_type": "lobby.membership.approved",
        "audience_kind": "user",
        "recipient_user_ids": ["u-1"],
        "occurred_at_ms": 1_775_121_700_000_i64,
        "payload": {"game_id": "game-1", "game_name": "Nova"},
    });
    if let Some(key) = key {
        intent["idempotency_key"] = key.into();
    }
    intent
}

/// Measures the latency to the response, in a database of its own.
async fn measure(
    testbed: &mut Testbed,
    seconds: u32,
    neighbour: Neighbour,
    callers: u32,
) -> anyhow::Result<Percentiles> {
    let dsn = testbed.fresh().await?;
    let api = ApiService::start(testbed, &dsn).await?;
    let mut calling = JoinSet::new();
    for caller in 0..callers {
        calling.spawn(neighbour.call(api.addr.clone(), api.other.clone(), caller));
    }
    let load = Steady { first: 0, routes: ROUTES, rate: RATE, most: RATE * seconds };
    let accepted = steady::send(load, &api).await?;
    calling.shutdown().await;
    let millis = |one: &steady::AcceptedIntent| one.answered.duration_since(one.due).as_secs_f64() * 1_000.0;
    let latency = Percentiles::of(accepted.iter().map(millis).collect());
    api.stop(testbed).await;
    Ok(latency)
}

/// Measures alternating rounds alone and with each neighbour.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let (rounds, seconds) = (scale.latency_rounds, scale.seconds);
    let (mut alone, mut beside) = (Vec::new(), Neighbour::LOUD.map(|_| Vec::new()));
    for round in 1..=rounds {
        println!("fairness: round {round} of {rounds}: alone, then beside another producer");
        alone.push(measure(testbed, seconds, Neighbour::Nothing, 0).await?);
        for ((neighbour, _, callers), latencies) in Neighbour::LOUD.into_iter().zip(&mut beside) {
            latencies.push(measure(testbed, seconds, neighbour, callers).await?);
        }
    }
    let shown = |what: &str, latencies: &[Percentiles], name: &str, of: fn(&Percentiles) -> f64| {
        let all = latencies.iter().map(of);
        Figure::shown(format!("{what}: {name} to the response"), median(all.clone()), "ms").of_rounds(all)
    };
    let both = |what: &str, latencies: &[Percentiles]| {
        [shown(what, latencies, "p50", |all| all.p50), shown(what, latencies, "p99", |all| all.p99)]
    };
    let p99 = |latencies: &[Percentiles]| median(latencies.iter().map(|all| all.p99));
    let mut figures = Vec::from(both("alone", &alone));
    for ((_, what, _), latencies) in Neighbour::LOUD.into_iter().zip(&beside) {
        figures.extend(both(&format!("beside {what}"), latencies));
        let each = latencies.iter().zip(&alone).map(|(beside, alone)| beside.p99 / alone.p99);
        let name = format!("beside {what}: p99, to p99 alone");
        let ratio = p99(latencies) / p99(&alone);
        figures.push(Figure::shown(name, ratio, "x").of_rounds(each).at_most(P99_RATIO));
    }
    let title = format!(
        "Fairness: {RATE} single intents/s of a producer for {seconds} s, alone and beside what another producer sends, in {rounds} \
         alternating round(s), medians"
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}
