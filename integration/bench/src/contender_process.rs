//! The process of a contender that is part of this program.

use anyhow::{Context, bail, ensure};
use serde_json::json;

use crate::baseline::Baseline;
use crate::http::generator;
use crate::naive::Naive;
use crate::outbox;
use crate::receipts::reporter;
use crate::testbed::Servers;

/// Runs this program as contender `name`.
pub(crate) async fn serve(name: &str) -> anyhow::Result<()> {
    if name == generator::NAME {
        // It has a runtime of its own, on one thread.
        return tokio::task::spawn_blocking(generator::serve).await?;
    }
    if name == reporter::NAME {
        return tokio::task::spawn_blocking(reporter::serve).await?;
    }
    let setting = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let servers = Servers { redis: setting("BENCH_REDIS")?, postgres: setting("BENCH_POSTGRES")? };
    let intents: u32 = setting("BENCH_JOBS")?.parse().context("BENCH_JOBS is not a number")?;
    match name {
        "baseline" => {
            let baseline = Baseline::connect(&servers).await?;
            answer("ready", Some("run")).await?;
            baseline.run(intents).await?;
        }
        "naive" => {
            let naive = Naive::connect(&servers).await?;
            answer("ready", Some("run")).await?;
            naive.run(intents).await?;
        }
        outbox::BASELINE => {
            let baseline = outbox::baseline::RelayBaseline::connect(&servers).await?;
            answer("ready", Some("run")).await?;
            baseline.run(intents).await?;
        }
        other => bail!("{other:?} is no contender of this program"),
    }
    // Its processor time is read before it ends.
    answer("done", None).await
}

/// Reports a phase, then waits for the step `expected`, or for the end of the input.
async fn answer(phase: &str, expected: Option<&str>) -> anyhow::Result<()> {
    println!("{}", json!({ "phase": phase }));
    let read = tokio::task::spawn_blocking(|| std::io::stdin().lines().next().transpose());
    let step = read.await??;
    ensure!(step.as_deref() == expected, "expected {expected:?}, got {step:?}");
    Ok(())
}
