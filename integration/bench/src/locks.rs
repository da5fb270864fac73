//! The fenced lock, compared with a minimal transaction on the same server.

use std::time::{Duration, Instant};

use anyhow::Context;
use lock::{Acquisition, Backoff, LockManager, LockOptions, Retry, RetryJitter, TableNames};
use pg::{Dsn, PgPool, PoolSettings, SessionSettings};

use crate::Scale;
use crate::figure::{Figure, ReportSection};
use crate::measure::percentile;
use crate::testbed::Testbed;

/// Clients that compete for one key.
const CLIENTS: usize = 50;
const TTL: Duration = Duration::from_secs(30);

/// Measures a minimal transaction, then uncontended pairs of acquire and release, then many clients on one
/// key.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    println!("locks");
    let dsn = testbed.fresh().await?;
    let time = Duration::from_secs(scale.seconds.min(5).into());
    let mut figures = Vec::new();
    let minimal = minimal_transactions(testbed, &dsn, time).await?;
    report(&mut figures, "minimal transaction", &minimal, time);
    let alone = uncontended(&manager(&dsn, 1)?, time).await?;
    report(&mut figures, "acquire and release, one connection", &alone, time);
    let crowd = contended(&manager(&dsn, CLIENTS)?, time).await?;
    let name = format!("acquire and release, {CLIENTS} clients on one key, waiting included");
    report(&mut figures, &name, &crowd, time);
    let title = format!("Locks: pairs of acquire and release, {} s each", time.as_secs());
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

fn manager(dsn: &str, connections: usize) -> anyhow::Result<LockManager> {
    let session = SessionSettings { application_name: "bench", parameters: lock::PLANNER_PARAMETERS };
    let settings =
        PoolSettings { max_connections: connections, operation_timeout: Duration::from_secs(5), session };
    Ok(LockManager::new(PgPool::new(&Dsn::parse(dsn)?, settings)?, TableNames::default()))
}

fn report(figures: &mut Vec<Figure>, name: &str, millis: &[f64], time: Duration) {
    let mut sorted = millis.to_vec();
    sorted.sort_by(f64::total_cmp);
    figures.push(Figure::shown(
        format!("{name}: rate"),
        sorted.len() as f64 / time.as_secs_f64(),
        "per second",
    ));
    figures.push(Figure::shown(format!("{name}: p50"), percentile(&sorted, 0.5), "ms"));
    figures.push(Figure::shown(format!("{name}: p99"), percentile(&sorted, 0.99), "ms"));
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1_000.0
}

/// One row, one statement, one commit that reaches the disk, all in one pipeline.
async fn minimal_transactions(testbed: &Testbed, dsn: &str, time: Duration) -> anyhow::Result<Vec<f64>> {
    let client = testbed.postgres(dsn).await?;
    client.batch_execute("CREATE TABLE bare (n bigint); INSERT INTO bare VALUES (0)").await?;
    let update = client.prepare("UPDATE bare SET n = n + 1").await?;
    let (mut taken, started) = (Vec::new(), Instant::now());
    while started.elapsed() < time {
        let asked = Instant::now();
        let (begin, updated, commit) = tokio::join!(
            client.batch_execute("BEGIN"),
            client.execute(&update, &[]),
            client.batch_execute("COMMIT"),
        );
        begin?;
        updated?;
        commit?;
        taken.push(millis(asked));
    }
    Ok(taken)
}

async fn uncontended(locks: &LockManager, time: Duration) -> anyhow::Result<Vec<f64>> {
    let (mut taken, started) = (Vec::new(), Instant::now());
    while started.elapsed() < time {
        let asked = Instant::now();
        let Acquisition::Acquired(grant) = locks.try_acquire("bench:alone", TTL).await? else {
            anyhow::bail!("another client holds the lock of the benchmark");
        };
        locks.release(&grant.lock_id).await.map(drop)?;
        taken.push(millis(asked));
    }
    Ok(taken)
}

/// The time of each client includes waiting for the others.
async fn contended(locks: &LockManager, time: Duration) -> anyhow::Result<Vec<f64>> {
    let retry = Retry {
        max_retries: u32::MAX,
        delay: Duration::from_millis(2),
        timeout: Duration::from_secs(60),
        backoff: Backoff::Fixed,
        jitter: RetryJitter::Full,
    };
    let options = LockOptions { ttl: TTL, retry };
    let started = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let locks = locks.clone();
        clients.spawn(async move {
            let mut taken = Vec::new();
            while started.elapsed() < time {
                let asked = Instant::now();
                let guard = locks.hold("bench:crowd", options).await?;
                guard.release().await.map(drop)?;
                taken.push(millis(asked));
            }
            anyhow::Ok(taken)
        });
    }
    let mut all = Vec::new();
    while let Some(taken) = clients.join_next().await {
        all.extend(taken.context("a client panicked")??);
    }
    Ok(all)
}
