//! Observes the progress of a run at little cost to it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::testbed::{INTENTS, MAIL, PUSH, Testbed};

/// The time limit of a run.
pub(crate) const BOUND: Duration = Duration::from_secs(300);
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// The interval of queries that may read many rows.
pub(crate) const COARSE_POLL: Duration = Duration::from_millis(50);

/// The number of entries in both outbound streams; reading the lengths is cheap.
pub(crate) async fn entries(redis: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let (push, mail): (u64, u64) =
        redis::pipe().cmd("XLEN").arg(PUSH).cmd("XLEN").arg(MAIL).query_async(redis).await?;
    Ok(push + mail)
}

/// Waits for `expected` entries.
///
/// # Errors
///
/// There are more.
pub(crate) async fn wait_for_entries(redis: &mut MultiplexedConnection, expected: u64) -> anyhow::Result<()> {
    let found = at_least(redis, expected).await?;
    ensure!(found == expected, "{found} entries, not {expected}: a route was appended twice");
    Ok(())
}

/// Waits for `expected` entries in one stream.
pub(crate) async fn wait_for_length(
    redis: &mut MultiplexedConnection,
    stream: &str,
    expected: u64,
) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let found: u64 = redis::cmd("XLEN").arg(stream).query_async(redis).await?;
        ensure!(found <= expected, "{found} entries in {stream}, not {expected}: a route was appended twice");
        if found == expected {
            return Ok(());
        }
        ensure!(started.elapsed() < BOUND, "{found} of {expected} entries in {stream} after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for at least `expected` entries. Returns their number.
pub(crate) async fn at_least(redis: &mut MultiplexedConnection, expected: u64) -> anyhow::Result<u64> {
    let started = Instant::now();
    loop {
        let found = entries(redis).await?;
        if found >= expected {
            return Ok(found);
        }
        ensure!(started.elapsed() < BOUND, "{found} of {expected} entries after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until every intent has its record and every route is published.
pub(crate) async fn wait_for_completions(
    testbed: &Testbed,
    dsn: &str,
    intents: u32,
    routes: u32,
) -> anyhow::Result<()> {
    let client = testbed.postgres(dsn).await?;
    wait_until_none_live(&client).await?;
    confirm(&client, intents, routes).await
}

pub(crate) async fn wait_until_none_live(client: &Client) -> anyhow::Result<()> {
    // An index-only scan: the partial index holds the routes that are not completed.
    let live = "SELECT EXISTS (SELECT FROM routes WHERE next_attempt_at IS NOT NULL)";
    let started = Instant::now();
    while client.query_one(live, &[]).await?.get::<_, bool>(0) {
        ensure!(started.elapsed() < BOUND, "routes are not completed after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Checks that every intent has its record and every route is published. It reads every row, so call it
/// outside of the measured time.
pub(crate) async fn confirm(client: &Client, intents: u32, routes: u32) -> anyhow::Result<()> {
    let records: i64 = count(client, "records").await?;
    let published = published(client).await?;
    ensure!(
        records == i64::from(intents) && published == records * i64::from(routes),
        "{records} records and {published} published routes of {intents} intents"
    );
    Ok(())
}

async fn count(client: &Client, what: &str) -> anyhow::Result<i64> {
    let row = client.query_one(&format!("SELECT count(*) FROM {what}"), &[]).await;
    Ok(row.with_context(|| format!("could not count {what}"))?.get(0))
}

pub(crate) async fn published(client: &Client) -> anyhow::Result<i64> {
    count(client, "routes WHERE status = 'published'").await
}

/// A client whose queries of routes use the primary key, whatever the statistics are, so that they cost the
/// run little.
pub(crate) async fn observer(testbed: &Testbed, dsn: &str) -> anyhow::Result<Client> {
    let client = testbed.postgres(dsn).await?;
    let settings = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";
    client.batch_execute(settings).await?;
    Ok(client)
}

/// Waits until no route of notification `first` or a later one is live.
pub(crate) async fn wait_until_none_live_from(
    client: &Client,
    first: &str,
    poll: Duration,
) -> anyhow::Result<()> {
    // Latest first, where a live route is found at once. By status and not by next_attempt_at, so that the
    // planner cannot use the index of due routes, which has the whole backlog.
    let latest = "SELECT FROM routes WHERE notification_id >= $1 AND status IN ('pending', 'failed')
        ORDER BY notification_id DESC, route_id DESC LIMIT 1";
    let started = Instant::now();
    while client.query_opt(latest, &[&first]).await.context("could not search for live routes")?.is_some() {
        ensure!(started.elapsed() < BOUND, "routes are not completed after {BOUND:?}");
        tokio::time::sleep(poll).await;
    }
    Ok(())
}

/// Waits until the durable checkpoint is at entry `last`.
pub(crate) async fn wait_for_intake(client: &Client, last: &str) -> anyhow::Result<()> {
    let passed = "SELECT EXISTS (SELECT FROM intake WHERE last_entry_id = $1)";
    let started = Instant::now();
    while !client.query_one(passed, &[&last]).await?.get::<_, bool>(0) {
        ensure!(started.elapsed() < BOUND, "intents are not accepted after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// The ids of the first and the last intent in the stream.
pub(crate) async fn ends(redis: &mut MultiplexedConnection) -> anyhow::Result<(String, String)> {
    type Found = Vec<(String, Vec<String>)>;
    let mut pipeline = redis::pipe();
    pipeline.cmd("XRANGE").arg(INTENTS).arg("-").arg("+").arg("COUNT").arg(1);
    pipeline.cmd("XREVRANGE").arg(INTENTS).arg("+").arg("-").arg("COUNT").arg(1);
    let (first, last): (Found, Found) = pipeline.query_async(redis).await?;
    let id = |found: Found| found.into_iter().next().map(|(id, _)| id).context("the stream is empty");
    Ok((id(first)?, id(last)?))
}
