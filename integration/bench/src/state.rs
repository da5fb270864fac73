//! The state store compared with bare SQL, with a million documents.
//!
//! Each operation runs in a closed loop over 1, 8 and 64 connections: as requests to `notification state`
//! over TCP, and as the statement that it sends, from a minimal client. Both use the same documents in
//! alternating rounds. Requests and parameters are encoded before the time counts. The processor time of this
//! process, which sends both, is shown.

mod drive;
mod operations;

use std::time::Duration;

use anyhow::Context;
use harness::{Service, ServiceBuilder};

use self::drive::{Driven, bare, http};
use self::operations::{DocumentOperation, INDEXES};
use crate::Scale;
use crate::figure::{Figure, ReportSection};
use crate::measure::median;
use crate::testbed::Testbed;

/// The lowest accepted ratio of the rates of `get` and `put` to those of bare SQL, over [`MANY`] connections.
const RATE_RATIO: f64 = 0.5;
/// The most time that a query may add to that of its statement, in milliseconds.
const ADDED_MILLIS: f64 = 0.3;
/// Connections.
const CONNECTIONS: [u32; 3] = [1, 8, MANY];
const MANY: u32 = 64;

/// The amounts of a run.
struct StateSize {
    documents: u32,
    rounds: usize,
    time: Duration,
}

impl StateSize {
    fn of(scale: Scale) -> Self {
        if scale.smoke {
            Self { documents: 5_000, rounds: 1, time: Duration::from_millis(50) }
        } else {
            Self { documents: 1_000_000, rounds: 3, time: Duration::from_millis(1_500) }
        }
    }

    /// The number and the duration of the rounds. One connection needs more and shorter ones: the added time
    /// is smaller than the variation of a machine's speed within half a second.
    fn rounds_over(&self, connections: u32) -> (usize, Duration) {
        const SHORTER: u32 = 15;
        if connections == 1 {
            (self.rounds * SHORTER as usize, self.time / SHORTER)
        } else {
            (self.rounds, self.time)
        }
    }
}

/// Measures every operation over every number of connections.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let size = StateSize::of(scale);
    println!("state: {} documents", size.documents);
    let dsn = testbed.fresh().await?;
    let service = start(&dsn).await;
    fill(testbed, &dsn, size.documents).await?;
    let mut figures = Vec::new();
    for operation in DocumentOperation::ALL {
        println!("state: {}", operation.name());
        for connections in CONNECTIONS {
            figures.extend(measure(testbed, &dsn, &service, operation, connections, &size).await?);
        }
    }
    testbed.stop(service).await;
    let title = format!(
        "State: requests beside the same statements by bare SQL, {} documents, {} alternating round(s) of {:?} each, over one connection {} \
         of {:?}, medians",
        size.documents,
        size.rounds,
        size.time,
        size.rounds_over(1).0,
        size.rounds_over(1).1
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

async fn start(dsn: &str) -> Service {
    ServiceBuilder::default()
        .arguments(["state"])
        .env("STATE_PROXY_PG_URL", dsn)
        .env("STATE_PROXY_HTTP_ADDR", "127.0.0.1:0")
        .env("STATE_PROXY_PG_INDEXES", INDEXES)
        .start()
        .await
}

/// Inserts the documents, in the order of their keys.
async fn fill(testbed: &Testbed, dsn: &str, documents: u32) -> anyhow::Result<()> {
    let client = testbed.superuser(dsn).await?;
    client
        .batch_execute(&operations::documents_sql(documents))
        .await
        .context("could not insert documents")?;
    client.batch_execute("VACUUM ANALYZE kv").await.context("could not vacuum")?;
    testbed.checkpoint().await
}

/// Alternating rounds of one operation.
async fn measure(
    testbed: &Testbed,
    dsn: &str,
    service: &Service,
    operation: DocumentOperation,
    connections: u32,
    size: &StateSize,
) -> anyhow::Result<Vec<Figure>> {
    let (mut by_sql, mut by_http) = (Vec::new(), Vec::new());
    let (statements, requests) = (operation.statements(size.documents)?, operation.requests(size.documents));
    let (rounds, time) = size.rounds_over(connections);
    for _ in 0..rounds {
        let clients = drive::clients(testbed, dsn, connections).await?;
        by_sql.push(bare(testbed, clients, &statements, time).await?);
        by_http.push(http(testbed, service, connections, &requests, time).await?);
    }
    Ok(figures(operation, connections, &by_sql, &by_http))
}

fn figures(
    operation: DocumentOperation,
    connections: u32,
    by_sql: &[Driven],
    by_http: &[Driven],
) -> Vec<Figure> {
    let name = |what: &str| format!("{}, {connections} connection(s): {what}", operation.name());
    let shown = |what: &str, unit, rounds: &[Driven], of: fn(&Driven) -> f64| {
        Figure::shown(name(what), median(rounds.iter().map(of)), unit).of_rounds(rounds.iter().map(of))
    };
    let paired = |what: &str, unit, of: fn(&Driven, &Driven) -> f64| {
        let each = || by_http.iter().zip(by_sql).map(|(http, sql)| of(http, sql));
        Figure::shown(name(what), median(each()), unit).of_rounds(each())
    };
    let ratio = paired("rate to that of bare SQL", "x", |http, sql| http.rate / sql.rate);
    let added = paired("added to p50 of bare SQL", "ms", |http, sql| http.p50 - sql.p50);
    let of_goal = matches!(operation, DocumentOperation::Get | DocumentOperation::Put) && connections == MANY;
    vec![
        shown("bare SQL, rate", "per second", by_sql, |driven| driven.rate),
        shown("bare SQL, p50", "ms", by_sql, |driven| driven.p50),
        shown("bare SQL, p99", "ms", by_sql, |driven| driven.p99),
        shown("requests, rate", "per second", by_http, |driven| driven.rate),
        shown("requests, p50", "ms", by_http, |driven| driven.p50),
        shown("requests, p99", "ms", by_http, |driven| driven.p99),
        shown("CPU of PostgreSQL, bare SQL", "µs", by_sql, |driven| driven.postgres),
        shown("CPU of PostgreSQL, requests", "µs", by_http, |driven| driven.postgres),
        shown("CPU of the state store", "µs", by_http, |driven| driven.service),
        shown("CPU of the sender, bare SQL", "µs", by_sql, |driven| driven.sender),
        shown("CPU of the sender, requests", "µs", by_http, |driven| driven.sender),
        if of_goal { ratio.at_least(RATE_RATIO) } else { ratio },
        if operation.is_query() && connections == 1 { added.under(ADDED_MILLIS) } else { added },
    ]
}
