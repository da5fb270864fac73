//! Throughput with traces and without, in alternating rounds.
//!
//! Every intent carries a traceparent, and one of ten is recorded by its producer, so that its acceptance and
//! the batches of its routes are recorded too. The collector is a part of this program that reads requests
//! and discards them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use domain::intent::IntentDraft;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::Scale;
use crate::figure::ReportSection;
use crate::load::{self, ROUTES};
use crate::round::{BenchRound, Rounds, Unit, costs, rates};
use crate::testbed::Testbed;
use crate::throughput::drive_service;

/// The lowest accepted ratio of the rate with traces to that without.
const TRACES_RATIO: f64 = 0.95;
/// The sampling interval: one of so many intents is recorded.
const SAMPLED_EVERY: u32 = 10;

/// Receives telemetry over HTTP.
struct TraceCollector {
    endpoint: String,
    bytes: Arc<AtomicU64>,
}

impl TraceCollector {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&bytes);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(discard(stream, Arc::clone(&counter)));
            }
        });
        Ok(Self { endpoint, bytes })
    }
}

/// Responds to the requests of a connection until it ends.
async fn discard(stream: TcpStream, bytes: Arc<AtomicU64>) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        let mut length = 0;
        line.clear();
        while stream.read_line(&mut line).await? > 2 {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
            line.clear();
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        ensure!(length > 0, "the connection has ended");
        bytes.fetch_add(length as u64, Ordering::Relaxed);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?;
    }
}

fn traced(n: u32) -> IntentDraft {
    let sampled = u8::from(n.is_multiple_of(SAMPLED_EVERY));
    let trace_id = format!("00-{:032x}-{:016x}-{sampled:02x}", u64::from(n) + 1, u64::from(n) + 1);
    IntentDraft { trace_id: Some(trace_id), ..load::draft(n) }
}

/// Runs alternating rounds, each pair in the opposite order of the previous pair.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let collector = TraceCollector::start().await?;
    let (mut without, mut with) =
        (Rounds::new("without traces", Unit::Intent), Rounds::new("with traces", Unit::Intent));
    for round in 1..=scale.rounds {
        println!("traces: round {round} of {}", scale.rounds);
        let mut order = [false, true];
        if round % 2 == 0 {
            order.reverse();
        }
        for is_on in order {
            let dsn = testbed.fresh().await?;
            load::preload_of(&mut testbed.redis().await?, 0, scale.intents, traced).await?;
            let mut service = testbed.service(&dsn);
            if is_on {
                service = service
                    .env("OTEL_TRACES_EXPORTER", "otlp")
                    .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint)
                    .env("OTEL_TRACES_SAMPLER", "parentbased_always_off");
            }
            let before = collector.bytes.load(Ordering::Relaxed);
            let (time, used) = drive_service(testbed, service, &dsn, scale.intents, ROUTES).await?;
            let received = collector.bytes.load(Ordering::Relaxed) > before;
            ensure!(received == is_on, "the collector got something only if traces are on");
            let rounds = if is_on { &mut with } else { &mut without };
            rounds.push(BenchRound::of(scale.intents, time, used));
        }
    }
    let mut figures = vec![without.speed("throughput"), with.speed("throughput")];
    figures.extend(without.cpu());
    figures.extend(with.cpu());
    figures.push(with.times("with traces: ratio to without", &without).at_least(TRACES_RATIO));
    let contenders = [without, with];
    let charts = vec![
        rates("traces", "Throughput with and without traces", &contenders),
        costs("traces-cpu", "Processor time with and without traces", &contenders),
    ];
    let title = format!(
        "Traces: {} intents with {ROUTES} routes each, of which one in {SAMPLED_EVERY} is recorded; {} alternating round(s), medians",
        scale.intents, scale.rounds
    );
    Ok(ReportSection { title, figures, charts })
}
