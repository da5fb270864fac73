//! Closed loops: each connection sends the next element as soon as the previous one has a response.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::try_join_all;
use harness::Service;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::operations::{ExpectedRequest, OperationStatements};
use crate::http::client::ClientConnection;
use crate::measure::{Cpu, percentile};
use crate::testbed::{Testbed, connect_postgres};

/// The results of a loop. Processor time is in microseconds for each element.
pub(super) struct Driven {
    /// Elements per second.
    pub(super) rate: f64,
    /// Percentiles of the time to a response, in milliseconds.
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) postgres: f64,
    pub(super) service: f64,
    /// The processor time of this process.
    pub(super) sender: f64,
}

/// Opens connections as the superuser.
pub(super) async fn clients(testbed: &Testbed, dsn: &str, connections: u32) -> anyhow::Result<Vec<Client>> {
    let dsn = testbed.postgres.superuser_dsn(Testbed::database_of(dsn));
    try_join_all((0..connections).map(|_| connect_postgres(&dsn))).await
}

/// Sends statements, prepared unless their text changes with their values.
pub(super) async fn bare(
    testbed: &Testbed,
    clients: Vec<Client>,
    statements: &OperationStatements,
    time: Duration,
) -> anyhow::Result<Driven> {
    let next = AtomicUsize::new(0);
    let sender = std::process::id();
    let prepared = async |client: &Client| match statements {
        OperationStatements::Prepared { text, .. } => client.prepare(text).await.map(Some),
        OperationStatements::Planned(_) => Ok(None),
    };
    let prepared = try_join_all(clients.iter().map(prepared)).await?;
    let (before, began) = (testbed.cpu(sender), Instant::now());
    let each = clients.iter().zip(&prepared).map(async |(client, prepared)| {
        let mut times = Vec::new();
        while began.elapsed() < time {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let started = Instant::now();
            match (statements, prepared) {
                (OperationStatements::Prepared { parameters, .. }, Some(statement)) => {
                    let parameters = &parameters[place % parameters.len()];
                    let parameters: Vec<&(dyn ToSql + Sync)> =
                        parameters.iter().map(|one| &**one as &(dyn ToSql + Sync)).collect();
                    client.query(statement, &parameters).await?;
                }
                (OperationStatements::Prepared { .. }, None) => {
                    anyhow::bail!("the statement is not prepared")
                }
                (OperationStatements::Planned(queries), _) => {
                    let (text, parameters) = &queries[place % queries.len()];
                    let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
                        parameters.iter().map(|one| (one as _, one.of_type())).collect();
                    client.query_typed(text, &parameters).await?;
                }
            }
            times.push(started.elapsed());
        }
        anyhow::Ok(times)
    });
    let times = try_join_all(each).await?.concat();
    Ok(driven(times, began.elapsed(), testbed.cpu(sender).since(before), 0))
}

/// Sends requests to the state store.
pub(super) async fn http(
    testbed: &Testbed,
    service: &Service,
    connections: u32,
    requests: &[ExpectedRequest],
    time: Duration,
) -> anyhow::Result<Driven> {
    let addr = service.state_addr();
    let mut connections = try_join_all((0..connections).map(|_| ClientConnection::open(&addr))).await?;
    let next = AtomicUsize::new(0);
    let sender = std::process::id();
    let (before, of_service, began) = (testbed.cpu(sender), own(service), Instant::now());
    let each = connections.iter_mut().map(async |connection| {
        let mut times = Vec::new();
        while began.elapsed() < time {
            let request = &requests[next.fetch_add(1, Ordering::Relaxed) % requests.len()];
            let started = Instant::now();
            connection.exchange(&request.bytes).await?.expect(request.status)?;
            times.push(started.elapsed());
        }
        anyhow::Ok(times)
    });
    let times = try_join_all(each).await.context("a request to the state store failed")?.concat();
    let spent = testbed.cpu(sender).since(before);
    Ok(driven(times, began.elapsed(), spent, own(service) - of_service))
}

/// The processor time of the state store so far.
fn own(service: &Service) -> u64 {
    Cpu::now(None, None, service.pid()).own
}

fn driven(times: Vec<Duration>, took: Duration, spent: Cpu, service: u64) -> Driven {
    let mut millis: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1_000.0).collect();
    millis.sort_by(f64::total_cmp);
    let each = |micros: u64| micros as f64 / millis.len().max(1) as f64;
    Driven {
        rate: millis.len() as f64 / took.as_secs_f64(),
        p50: percentile(&millis, 0.5),
        p99: percentile(&millis, 0.99),
        postgres: each(spent.postgres),
        service: each(service),
        sender: each(spent.own),
    }
}
