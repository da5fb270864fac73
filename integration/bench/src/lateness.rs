//! The delay after their due time with which routes are published that were not dispatched in memory.
//!
//! Routes of a replica that crashed after accepting them are rows that become due one lease TTL after their
//! acceptance; this scenario inserts such rows beside a replica that has not dispatched them. Routes whose
//! attempt failed are retried by the replica that saw the failure; this scenario gives the outbound stream a
//! wrong type for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use tokio_postgres::Client;

use crate::figure::{Figure, ReportSection};
use crate::load::{self, ROUTES};
use crate::rows::{RouteState, Rows};
use crate::testbed::{PUSH, Testbed};
use crate::watch::wait_until_none_live;

/// The longest accepted delay of a route after its due time, in milliseconds.
const LATE_MILLIS: f64 = 250.0;
/// Records of four routes that are inserted at once, and the number of insertions, which are spread between
/// the due scans of an idle replica, one every five seconds.
const RECORDS: u32 = 20;
const INSERTIONS: u32 = 12;
const INSERTION_INTERVAL: Duration = Duration::from_millis(450);
/// Push routes of one intent, all of which fail.
const FAILING: usize = 2;
const BOUND: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Measures both kinds of routes.
pub(crate) async fn run(testbed: &mut Testbed) -> anyhow::Result<ReportSection> {
    println!("lateness: of {} records of another replica, and of a retry", RECORDS * INSERTIONS);
    let dsn = testbed.fresh().await?;
    let service = testbed.service(&dsn).start().await;
    let client = testbed.postgres(&dsn).await?;
    let others = of_another_replica(testbed, &dsn, &client).await?;
    let retried = of_a_retry(testbed, &client).await?;
    testbed.stop(service).await;
    let figures = vec![
        Figure::shown("another replica's routes, the latest", others, "ms").at_most(LATE_MILLIS),
        Figure::shown("routes that failed once, the latest", retried, "ms").at_most(LATE_MILLIS),
    ];
    let title = "Lateness: from being due to being published, without dispatch in memory".to_owned();
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

async fn of_another_replica(testbed: &Testbed, dsn: &str, client: &Client) -> anyhow::Result<f64> {
    for _ in 0..INSERTIONS {
        Rows { records: RECORDS, age: "0 s", state: RouteState::Due }.insert(testbed, dsn).await?;
        // Insertions are spread over time; there is no event to wait for.
        tokio::time::sleep(INSERTION_INTERVAL).await;
    }
    wait_until_none_live(client).await?;
    // `insert` makes them due five seconds after their acceptance, as a replica would.
    let latest = "SELECT max(extract(epoch FROM published_at - created_at - interval '5 s') * 1000)::float8,
        count(*) FROM routes WHERE status = 'published'";
    let row = client.query_one(latest, &[]).await.context("could not read how late they were")?;
    let published: i64 = row.get(1);
    ensure!(published == i64::from(RECORDS * INSERTIONS * ROUTES), "{published} routes were published");
    Ok(row.get(0))
}

async fn of_a_retry(testbed: &Testbed, client: &Client) -> anyhow::Result<f64> {
    let mut redis = testbed.redis().await?;
    redis::cmd("SET").arg(PUSH).arg("no stream").query_async::<()>(&mut redis).await?;
    load::preload(&mut redis, 0, 1, ROUTES).await?;
    let due = until_failed(client).await?;
    redis::cmd("DEL").arg(PUSH).query_async::<()>(&mut redis).await?;
    wait_until_none_live(client).await?;
    let published = "SELECT notification_id, route_id, published_at FROM routes WHERE attempt_count = 1";
    let rows = client.query(published, &[]).await.context("could not read how late they were")?;
    ensure!(rows.len() == FAILING, "{} routes were retried, not {FAILING}", rows.len());
    let mut latest: f64 = 0.0;
    for row in rows {
        let published_at: SystemTime = row.get(2);
        let due = due.get(&(row.get(0), row.get(1))).context("a route that had not failed")?;
        let late = published_at.duration_since(*due).unwrap_or_default();
        latest = latest.max(late.as_secs_f64() * 1_000.0);
    }
    Ok(latest)
}

/// Waits for the failures. Returns the next due time of each failed route.
async fn until_failed(client: &Client) -> anyhow::Result<HashMap<(String, String), SystemTime>> {
    let started = Instant::now();
    let failed = "SELECT notification_id, route_id, next_attempt_at FROM routes WHERE status = 'failed'";
    loop {
        let rows = client.query(failed, &[]).await.context("could not list failed routes")?;
        if rows.len() == FAILING {
            return Ok(rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect());
        }
        ensure!(started.elapsed() < BOUND, "{} routes have failed, not {FAILING}", rows.len());
        tokio::time::sleep(POLL).await;
    }
}
