//! The time from commit to stream at a steady rate, with polling and with LISTEN.
//!
//! Producers insert each event in a transaction of its own when it is due, whether or not earlier ones are
//! committed. The time counts from the moment at which a producer receives the commit to the moment at which
//! a blocked reader has the entry.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ambient::{RandomTokens, Tokens};
use anyhow::Context;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::TABLE;
use super::events::Outbox;
use crate::figure::Figure;
use crate::latency::{Percentiles, observed_entries};
use crate::load;
use crate::measure::median;
use crate::testbed::{INTENTS, Testbed};

/// Events per second.
const RATE: u32 = 500;
/// The highest accepted p99 with LISTEN, in milliseconds.
const LISTEN_P99: f64 = 20.0;
/// Connections of producers, which are used alternately.
const PRODUCERS: usize = 8;

const INSERT: &str = "INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload)
    VALUES ($1::text::uuid, 'game.turn.ready', $2::text, convert_to($3::text, 'UTF8'))";

/// Measures alternating rounds.
pub(super) async fn run(testbed: &mut Testbed, seconds: u32, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let (mut polling, mut listening) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        println!("outbox: {RATE} events/s for {seconds} s, round {round} of {rounds}: polling, then LISTEN");
        polling.push(of(testbed, seconds, false).await?);
        listening.push(of(testbed, seconds, true).await?);
    }
    let shown = |what: &str, rounds: &[Percentiles], of: fn(&Percentiles) -> f64| {
        let name = format!("{RATE} events/s, commit to stream, {what}");
        Figure::shown(name, median(rounds.iter().map(of)), "ms").of_rounds(rounds.iter().map(of))
    };
    Ok(vec![
        shown("polling, p50", &polling, |round| round.p50),
        shown("polling, p99", &polling, |round| round.p99),
        shown("LISTEN, p50", &listening, |round| round.p50),
        shown("LISTEN, p99", &listening, |round| round.p99).under(LISTEN_P99),
        shown("LISTEN, max", &listening, |round| round.max),
    ])
}

async fn of(testbed: &mut Testbed, seconds: u32, listens: bool) -> anyhow::Result<Percentiles> {
    let dsn = testbed.fresh().await?;
    let outbox = Outbox::create(testbed, &dsn, TABLE).await?;
    let outbox = if listens { outbox.listening(testbed).await? } else { outbox };
    let mut producers = Vec::new();
    for _ in 0..PRODUCERS {
        producers.push(Producer::connect(testbed, &dsn).await?);
    }
    let relay = outbox.start(testbed).await;
    let events = RATE * seconds;
    let percentiles =
        observed_entries(testbed, INTENTS, "idempotency_key", insert(&producers, events)).await?;
    outbox.wait_until_marked(&outbox.observer(testbed).await?).await?;
    testbed.stop(relay).await;
    outbox.confirm(testbed, events).await?;
    Ok(percentiles)
}

/// A connection that inserts events.
#[derive(Clone)]
struct Producer {
    client: std::sync::Arc<Client>,
    insert: tokio_postgres::Statement,
}

impl Producer {
    async fn connect(testbed: &Testbed, dsn: &str) -> anyhow::Result<Self> {
        let client = testbed.postgres(dsn).await?;
        let insert = client.prepare(INSERT).await?;
        Ok(Self { client: std::sync::Arc::new(client), insert })
    }

    /// Inserts event `n`. Returns its id, and the time at which its commit was confirmed.
    async fn insert(&self, n: u32) -> anyhow::Result<(String, Instant)> {
        let id = event_id();
        let key = (n % 2 == 1).then(|| format!("game-{}", n % 1_000));
        let payload = payload(n);
        self.client
            .execute(&self.insert, &[&id, &key, &payload])
            .await
            .context("could not insert an event")?;
        Ok((id, Instant::now()))
    }
}

/// An open loop: each event is inserted when it is due. Returns the commit time of each by its id.
async fn insert(producers: &[Producer], events: u32) -> anyhow::Result<HashMap<String, Instant>> {
    let started = tokio::time::Instant::now();
    let (mut inserting, mut committed) = (JoinSet::new(), HashMap::new());
    for (n, producer) in (0..events).zip(producers.iter().cycle()) {
        tokio::time::sleep_until(started + Duration::from_secs(1) * n / RATE).await;
        let producer = producer.clone();
        inserting.spawn(async move { producer.insert(n).await });
        while let Some(done) = inserting.try_join_next() {
            committed.extend([done??]);
        }
    }
    while let Some(done) = inserting.join_next().await {
        committed.extend([done??]);
    }
    Ok(committed)
}

/// Random bytes in the form of a UUID.
fn event_id() -> String {
    let text: String = RandomTokens.next().iter().map(|byte| format!("{byte:02x}")).collect();
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| text[part].to_owned()).join("-")
}

/// The intent of the other scenarios, as the payload of an event.
fn payload(n: u32) -> String {
    let (one, other, draft) = (n % 500, (n + 1) % 500, load::draft(n));
    format!(
        r#"{{"audience_kind":"user","recipient_user_ids":["user-{one}","user-{other}"],"payload":{},"request_id":"request-{n}"}}"#,
        draft.payload_json
    )
}
