//! The load generator: reports outcomes of routes, in batches, over several connections.
//!
//! It is a process of its own, with one thread, so that its processor time can be separated from the rest.
//! Requests are encoded and connections opened before the time counts. Every route is reported several times,
//! each time with the next higher status, so that each report is recorded: the first report inserts its
//! receipt, later ones replace it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use domain::receipt::ReceiptStatus;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::http::client::{self, ClientConnection};
use crate::http::generator::count;
use crate::measure::percentile;

/// The name with which this program runs as this load generator.
pub(crate) const NAME: &str = "reporter";
/// The step that sends the prepared requests.
pub(crate) const SEND: &str = "send";
/// Reports of one request.
pub(crate) const BATCH: usize = 100;

/// The reports to be sent, and their target.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReportOrder {
    pub(crate) addr: String,
    pub(crate) token: String,
    /// The ids of the routes, as consumers receive them.
    pub(crate) ids: Vec<String>,
    pub(crate) connections: u32,
    /// Reports per second; without a rate, a connection sends the next request as soon as the previous one
    /// has a response.
    pub(crate) rate: Option<u32>,
    pub(crate) seconds: u32,
}

/// The numbers of reports sent and of responses.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Reported {
    /// Recorded reports: all reports.
    pub(crate) reports: u32,
    /// The time until the last response, in seconds.
    pub(crate) seconds: f64,
    /// Percentiles of the time from the due time of a request to its response, in milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Encoded requests, and the connections for them.
struct PreparedReports {
    requests: Vec<Vec<u8>>,
    connections: Vec<ClientConnection>,
    /// The time between two requests, if they have a rate.
    interval: Option<Duration>,
    time: Duration,
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
            let reported = runtime.block_on(send(prepared))?;
            println!("{}", json!({ "phase": "done", "reported": reported }));
        } else {
            let order: ReportOrder = serde_json::from_str(&line).context("neither an order nor a step")?;
            prepared = Some(runtime.block_on(prepare(&order))?);
            println!("{}", json!({ "phase": "prepared" }));
        }
    }
    Ok(())
}

async fn prepare(order: &ReportOrder) -> anyhow::Result<PreparedReports> {
    let connections =
        try_join_all((0..order.connections).map(|_| ClientConnection::open(&order.addr))).await?;
    let batch = Duration::from_secs(BATCH as u64);
    Ok(PreparedReports {
        requests: requests(&order.token, &order.ids),
        connections,
        interval: order.rate.map(|rate| batch / rate),
        time: Duration::from_secs(order.seconds.into()),
    })
}

/// Reports of every route with the lowest status, then with the next one, and so on.
fn requests(token: &str, ids: &[String]) -> Vec<Vec<u8>> {
    let of_status = |status: ReceiptStatus| {
        ids.chunks_exact(BATCH).map(move |ids| {
            let report = |id| json!({ "id": id, "status": status.as_str(), "at": "2026-04-02T09:23:10Z" });
            let body = json!({ "receipts": ids.iter().map(report).collect::<Vec<_>>() });
            client::post("/v1/receipts", token, "", &body.to_string())
        })
    };
    ReceiptStatus::ALL.into_iter().flat_map(of_status).collect()
}

/// Sends requests until the time is over, or none is left.
async fn send(prepared: &mut PreparedReports) -> anyhow::Result<Reported> {
    let PreparedReports { requests, connections, interval, time } = prepared;
    let (next, started) = (Cell::new(0_u32), Instant::now());
    let each = connections.iter_mut().map(async |connection| {
        let mut times = Vec::new();
        loop {
            let place = next.replace(next.get() + 1);
            let due = interval.map_or_else(|| started.elapsed(), |interval| interval * place);
            let Some(request) = requests.get(place as usize).filter(|_| due < *time) else { break };
            tokio::time::sleep_until((started + due).into()).await;
            let answer = connection.exchange(request).await?;
            answer.expect(200)?;
            let recorded = count(answer.body, br#""outcome":"recorded""#) as usize;
            ensure!(
                recorded == BATCH,
                "{recorded} of {BATCH} reports were recorded: {}",
                String::from_utf8_lossy(answer.body)
            );
            times.push((started.elapsed() - due).as_secs_f64() * 1_000.0);
        }
        anyhow::Ok(times)
    });
    let mut times: Vec<f64> = try_join_all(each).await?.into_iter().flatten().collect();
    let seconds = started.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let (p50, p99) = (percentile(&times, 0.5), percentile(&times, 0.99));
    Ok(Reported { reports: u32::try_from(times.len() * BATCH)?, seconds, p50, p99 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_reported_of_once_with_each_status_in_their_order() {
        let ids: Vec<String> = (0..2 * BATCH).map(|n| format!("{n}-0/push:user:u")).collect();
        let requests = requests("t", &ids);
        assert_eq!(requests.len(), 2 * ReceiptStatus::ALL.len());
        for (place, request) in requests.iter().enumerate() {
            let text = std::str::from_utf8(request).expect("text");
            let (_, body) = text.split_once("\r\n\r\n").expect("a head");
            let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
            let reports = body["receipts"].as_array().expect("reports");
            let first = place % 2 * BATCH;
            assert!(reports.iter().map(|report| &report["id"]).eq(&ids[first..first + BATCH]));
            let status = ReceiptStatus::ALL[place / 2].as_str();
            assert!(reports.iter().all(|report| report["status"] == status), "{body}");
        }
    }
}
