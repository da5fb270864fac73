//! Routes that nobody handed over: how long after they were due they are published.
//!
//! Routes of another replica, which died after accepting them, are rows that become due one lease TTL after their
//! acceptance; here they are written by hand beside a replica that knows nothing of them. Routes that failed are tried
//! again by whoever saw them fail; here the outbound stream is of the wrong type for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use tokio_postgres::Client;

use crate::figure::{Figure, Section};
use crate::load::{self, ROUTES};
use crate::rows::Rows;
use crate::watch::wait_until_none_live;
use crate::world::{PUSH, World};

/// The most that a route may be late, in milliseconds.
const LATE_MILLIS: f64 = 250.0;
/// Records that a replica accepts before it is gone, of four routes each, and at how many moments: an idle replica looks
/// every five seconds, and they fall between its looks.
const RECORDS: u32 = 20;
const MOMENTS: u32 = 12;
const BETWEEN: Duration = Duration::from_millis(450);
/// Push routes of one intent: those that fail.
const FAILING: usize = 2;
const BOUND: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Both.
pub(crate) async fn run(world: &mut World) -> anyhow::Result<Section> {
    println!("lateness: of {} records of another replica, and of a retry", RECORDS * MOMENTS);
    let dsn = world.fresh().await?;
    let service = world.service(&dsn).start().await;
    let client = world.postgres(&dsn).await?;
    let others = of_another_replica(world, &dsn, &client).await?;
    let retried = of_a_retry(world, &client).await?;
    world.stop(service).await;
    let figures = vec![
        Figure::shown("another replica's routes, the latest", others, "ms").at_most(LATE_MILLIS),
        Figure::shown("routes that failed once, the latest", retried, "ms").at_most(LATE_MILLIS),
    ];
    let title = "Lateness: from being due to being published, without a hand-over".to_owned();
    Ok(Section { title, figures, charts: Vec::new() })
}

async fn of_another_replica(world: &World, dsn: &str, client: &Client) -> anyhow::Result<f64> {
    for _ in 0..MOMENTS {
        Rows { records: RECORDS, age: "0 s", due: true }.insert(world, dsn).await?;
        // Moments are apart; there is no event to wait for.
        tokio::time::sleep(BETWEEN).await;
    }
    wait_until_none_live(client).await?;
    // `insert` makes them due five seconds after their acceptance, as a replica would.
    let latest = "SELECT max(extract(epoch FROM published_at - created_at - interval '5 s') * 1000)::float8,
        count(*) FROM routes WHERE status = 'published'";
    let row = client.query_one(latest, &[]).await.context("could not ask how late they were")?;
    let published: i64 = row.get(1);
    ensure!(published == i64::from(RECORDS * MOMENTS * ROUTES), "{published} routes were published");
    Ok(row.get(0))
}

async fn of_a_retry(world: &World, client: &Client) -> anyhow::Result<f64> {
    let mut redis = world.redis().await?;
    redis::cmd("SET").arg(PUSH).arg("no stream").query_async::<()>(&mut redis).await?;
    load::preload(&mut redis, 0, 1, ROUTES).await?;
    let due = until_failed(client).await?;
    redis::cmd("DEL").arg(PUSH).query_async::<()>(&mut redis).await?;
    wait_until_none_live(client).await?;
    let published = "SELECT notification_id, route_id, published_at FROM routes WHERE attempt_count = 1";
    let rows = client.query(published, &[]).await.context("could not ask how late they were")?;
    ensure!(rows.len() == FAILING, "{} routes were tried again, not {FAILING}", rows.len());
    let mut latest: f64 = 0.0;
    for row in rows {
        let published_at: SystemTime = row.get(2);
        let due = due.get(&(row.get(0), row.get(1))).context("a route that had not failed")?;
        let late = published_at.duration_since(*due).unwrap_or_default();
        latest = latest.max(late.as_secs_f64() * 1_000.0);
    }
    Ok(latest)
}

/// When each of the routes that failed is due again.
async fn until_failed(client: &Client) -> anyhow::Result<HashMap<(String, String), SystemTime>> {
    let started = Instant::now();
    let failed = "SELECT notification_id, route_id, next_attempt_at FROM routes WHERE status = 'failed'";
    loop {
        let rows = client.query(failed, &[]).await.context("could not look for failed routes")?;
        if rows.len() == FAILING {
            return Ok(rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect());
        }
        ensure!(started.elapsed() < BOUND, "{} routes have failed, not {FAILING}", rows.len());
        tokio::time::sleep(POLL).await;
    }
}
