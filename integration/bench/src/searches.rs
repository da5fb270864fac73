//! Searches through the API among a million records, and the cost of their indexes for the stream.
//!
//! The rows are inserted with SQL. Searches are sequential requests without other load; the first of each
//! kind is included. Then intents run through the stream into the same tables, with the indexes and without
//! them, in alternating order.

use std::time::Instant;

use anyhow::{Context, ensure};
use tokio_postgres::Client;

use crate::Scale;
use crate::figure::{Figure, ReportSection};
use crate::growth::{Drain, drain};
use crate::http::ApiService;
use crate::http::client::{self, ClientConnection};
use crate::load::ROUTES;
use crate::measure::{median, percentile};
use crate::rows::{RouteState, Rows};
use crate::testbed::Testbed;

/// The time limit of a search, in milliseconds.
const SEARCH_MILLIS: f64 = 50.0;
/// The lowest accepted ratio of the stream's rate with the indexes to its rate without.
const RATE_RATIO: f64 = 0.95;
/// Requests of each search.
const REQUESTS: usize = 11;
/// Notifications in one page, as in the API's defaults.
const PAGE: usize = 50;
/// Notifications of the user with few, and routes in each rare status.
const FEW: u32 = 20;
/// The interval of records for the user with many: one in so many.
const OFTEN: u32 = 10;

/// The indexes that only searches use (ADR 0029).
const INDEXES: [&str; 5] = [
    "records_recipients_idx",
    "routes_unpublished_idx",
    "routes_admin_idx",
    "dead_letters_open_idx",
    "dead_letters_discarded_idx",
];

/// The amounts of a run.
struct SearchesSize {
    records: u32,
    /// Intents through the stream in each round.
    intents: u32,
    rounds: usize,
}

impl SearchesSize {
    fn of(scale: Scale) -> Self {
        if scale.smoke {
            Self { records: 10_000, intents: 500, rounds: 1 }
        } else {
            Self { records: 1_000_000, intents: 20_000, rounds: scale.rounds }
        }
    }
}

/// Measures the searches, then the cost of the indexes.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let size = SearchesSize::of(scale);
    println!("searches: among {} records", size.records);
    let dsn = testbed.fresh().await?;
    let client = testbed.superuser(&dsn).await?;
    fill(testbed, &dsn, &client, &size).await?;
    let mut figures = search(testbed, &dsn, &size).await?;
    let (with, without) = alternate(testbed, &dsn, &client, &size).await?;
    figures.extend(compared(&with, &without));
    let title = format!(
        "Searches among {} records of {ROUTES} routes, {REQUESTS} requests each; then {} intents with the indexes of searches and \
         without in each of {} round(s), medians",
        size.records, size.intents, size.rounds
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

/// Inserts records of 500 users, changes some of them to other users, and a few routes to other states, all
/// spread evenly.
async fn fill(testbed: &Testbed, dsn: &str, client: &Client, size: &SearchesSize) -> anyhow::Result<()> {
    Rows { records: size.records, age: "1 day", state: RouteState::Published }.insert(testbed, dsn).await?;
    let every = size.records / FEW;
    // The number of a record is part of its key. Failed routes are not due during the run.
    let sql = format!(
        "CREATE FUNCTION number(text) RETURNS bigint LANGUAGE sql IMMUTABLE RETURN split_part(split_part($1, 'turn-', 2), '-', 1)::bigint;
         UPDATE records SET recipient_user_ids = '[\"often\"]' WHERE number(idempotency_key) % {OFTEN} = 1;
         UPDATE records SET recipient_user_ids = '[\"rare\"]' WHERE number(idempotency_key) % {every} = 0;
         UPDATE routes SET status = 'failed', next_attempt_at = now() + interval '1 day', published_at = NULL
         FROM records WHERE records.notification_id = routes.notification_id
         AND number(idempotency_key) % {every} = 2 AND channel = 'push';
         UPDATE routes SET status = 'dead_letter', dead_lettered_at = now(), published_at = NULL
         FROM records WHERE records.notification_id = routes.notification_id
         AND number(idempotency_key) % {every} = 3 AND channel = 'push';
         DROP FUNCTION number(text)"
    );
    client.batch_execute(&sql).await.context("could not prepare the records")?;
    for table in ["records", "routes"] {
        client.batch_execute(&format!("VACUUM ANALYZE {table}")).await.context("could not vacuum")?;
    }
    testbed.checkpoint().await
}

/// Sends every search several times.
async fn search(testbed: &mut Testbed, dsn: &str, size: &SearchesSize) -> anyhow::Result<Vec<Figure>> {
    let api = ApiService::start(testbed, dsn).await?;
    let mut connection = ClientConnection::open(&api.addr).await?;
    let few = FEW as usize;
    let of_each_user = 2 * size.records / 500;
    let searches = [
        (format!("recipient of {FEW} records"), "recipient=rare", few),
        (format!("recipient of about {of_each_user} records"), "recipient=user-10", 1),
        (format!("recipient of {} records", size.records / OFTEN), "recipient=often", PAGE),
        ("recipient of none".to_owned(), "recipient=nobody", 0),
        (format!("status failed, {FEW} records"), "status=failed", few),
        (format!("status dead_letter, {FEW} records"), "status=dead_letter", few),
        ("status skipped, none".to_owned(), "status=skipped", 0),
        ("status pending, none".to_owned(), "status=pending", 0),
        ("status published, all".to_owned(), "status=published", PAGE),
    ];
    let (mut figures, mut longest) = (Vec::new(), 0.0_f64);
    for (name, query, at_least) in searches {
        let request = client::get(&format!("/v1/notifications?{query}"), &api.operator);
        let mut times = Vec::new();
        for _ in 0..REQUESTS {
            let started = Instant::now();
            let answer = connection.exchange(&request).await?;
            times.push(started.elapsed().as_secs_f64() * 1_000.0);
            answer.expect(200)?;
            let page = answer.json()?;
            let found = page["notifications"].as_array().map_or(0, Vec::len);
            ensure!(found >= at_least, "{name}: one request found {found} notifications, not {at_least}");
        }
        times.sort_by(f64::total_cmp);
        longest = times.last().map_or(longest, |last| longest.max(*last));
        let p50 = percentile(&times, 0.5);
        figures.push(Figure::shown(format!("{name}: p50"), p50, "ms").of_rounds(times).under(SEARCH_MILLIS));
    }
    figures.push(Figure::shown("the longest of all", longest, "ms").under(SEARCH_MILLIS));
    api.stop(testbed).await;
    Ok(figures)
}

/// Alternates rounds with the indexes and without, into the same tables. The order changes with each round.
async fn alternate(
    testbed: &mut Testbed,
    dsn: &str,
    client: &Client,
    size: &SearchesSize,
) -> anyhow::Result<(Vec<Drain>, Vec<Drain>)> {
    let names: Vec<&str> = INDEXES.to_vec();
    let found = "SELECT indexdef FROM pg_indexes WHERE indexname = ANY($1)";
    let definitions = client.query(found, &[&names]).await.context("could not read the indexes")?;
    ensure!(definitions.len() == INDEXES.len(), "{} of the indexes exist", definitions.len());
    let create: Vec<String> = definitions.iter().map(|row| row.get(0)).collect();
    let create = create.join("; ");
    let drop = format!("DROP INDEX {}", INDEXES.join(", "));
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut first = 0;
    for round in 1..=size.rounds {
        println!("searches: {} intents with the indexes and without, round {round}", size.intents);
        let is_first_with = round % 2 == 1;
        for has_indexes in [is_first_with, !is_first_with] {
            // The indexes exist at the start, and change between the two halves of each round.
            if has_indexes != is_first_with {
                let change = if has_indexes { &create } else { &drop };
                client.batch_execute(change).await.context("could not change the indexes")?;
            }
            testbed.checkpoint().await?;
            let drains = if has_indexes { &mut with } else { &mut without };
            drains.push(drain(testbed, dsn, first, size.intents, ROUTES).await?);
            first += size.intents;
        }
    }
    Ok((with, without))
}

fn compared(with: &[Drain], without: &[Drain]) -> Vec<Figure> {
    let shown = |name: &str, drains: &[Drain], unit: &'static str, of: fn(&Drain) -> f64| {
        Figure::shown(name, median(drains.iter().map(of)), unit).of_rounds(drains.iter().map(of))
    };
    let ratio = |name: &str, of: fn(&Drain) -> f64| {
        let each = with.iter().zip(without).map(|(with, without)| of(with) / of(without));
        let value = median(with.iter().map(of)) / median(without.iter().map(of));
        Figure::shown(name, value, "x").of_rounds(each)
    };
    vec![
        shown("stream with the indexes", with, "intents/s", Drain::intents_per_second),
        shown("stream without them", without, "intents/s", Drain::intents_per_second),
        ratio("rate with the indexes, to without", Drain::intents_per_second).at_least(RATE_RATIO),
        shown("CPU per intent with the indexes", with, "µs", Drain::cpu_per_intent),
        shown("CPU per intent without them", without, "µs", Drain::cpu_per_intent),
        ratio("CPU per intent with the indexes, to without", Drain::cpu_per_intent),
    ]
}
