//! `serve`: runs the service.

use std::time::Duration;

use ambient::RandomTokens;
use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::{Failure, Vars, load};
use crate::config::Config;
use crate::installation::WrongStream;
use crate::telemetry::Telemetry;
use crate::wiring::StoppedProcess;
use crate::{open_files, shutdown, wiring};

/// The time limit for sending the last spans and metrics.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs the service until a signal stops it.
pub async fn run(vars: Vars) -> Result<(), Failure> {
    let config = load(vars)?;
    let stop = shutdown::listen().context("could not listen for signals")?;
    run_service(config, stop).await
}

/// Runs the service with its telemetry until `stop`; errors are in its log.
pub(super) async fn run_service(config: Config, stop: CancellationToken) -> Result<(), Failure> {
    let replica = config.replica(&RandomTokens);
    let telemetry = Telemetry::install(&config.telemetry, &replica).context("could not set up telemetry")?;
    open_files::raise_limit();
    let exposition = telemetry.exposition();
    let outcome = wiring::serve::serve(config, replica, exposition, stop).await.map_err(|error| {
        tracing::error!(error = domain::ports::error_chain(error.as_ref()), "the service could not start");
        // The configuration and the schema contradict each other: a restart would not help.
        Failure::Logged { exit_code: if error.is::<WrongStream>() { 2 } else { 1 } }
    });
    finish(telemetry, outcome).await
}

/// Sends the last telemetry of a stopped process, and returns its outcome.
pub(super) async fn finish(
    telemetry: Telemetry,
    outcome: Result<StoppedProcess, Failure>,
) -> Result<(), Failure> {
    // The flush gets half of the time left for stopping, so that the process ends by itself before the
    // watchdog ends it.
    let left = outcome.as_ref().map_or(FLUSH_TIMEOUT, |stopped| stopped.watchdog.left() / 2);
    telemetry.shutdown(FLUSH_TIMEOUT.min(left)).await;
    match outcome?.failed {
        true => Err(Failure::Logged { exit_code: 1 }),
        false => Ok(()),
    }
}
