//! `serve`: the service itself.

use std::time::Duration;

use anyhow::Context;

use super::{Failure, Vars, print_warnings};
use crate::config::Config;
use crate::telemetry::Telemetry;
use crate::{runtime, shutdown};

/// How long the last spans and metrics may take to leave, at most.
const FLUSH_BOUND: Duration = Duration::from_secs(3);

/// Runs the service until it is told to stop.
pub async fn run(vars: Vars) -> Result<(), Failure> {
    let loaded = Config::load(vars)?;
    print_warnings(&loaded.warnings);
    let config = loaded.config;
    let telemetry = Telemetry::install(&config.telemetry).context("could not set up telemetry")?;
    let stop = shutdown::listen().context("could not listen for signals")?;
    let outcome = runtime::serve(config, stop).await.map_err(|error| {
        tracing::error!(error = domain::ports::error_chain(error.as_ref()), "the service could not start");
        Failure::Logged
    });
    // Half of what a stop has left, so that it ends by itself and not by the watchdog, which is kept until then.
    let left = outcome.as_ref().map_or(FLUSH_BOUND, |watchdog| watchdog.left() / 2);
    telemetry.shutdown(FLUSH_BOUND.min(left)).await;
    outcome.map(drop)
}
