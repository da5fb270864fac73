//! `state`: serves JSON documents of a PostgreSQL table over HTTP.

use ambient::RandomTokens;
use anyhow::Context;

use super::serve::finish;
use super::{Failure, Vars, load};
use crate::config::{ReplicaId, StateConfig};
use crate::telemetry::Telemetry;
use crate::{open_files, shutdown, wiring};

/// Runs the state store until a signal stops it.
pub async fn run(vars: Vars) -> Result<(), Failure> {
    let config: StateConfig = load(vars)?;
    let stop = shutdown::listen().context("could not listen for signals")?;
    let instance = ReplicaId::of_this_host(&RandomTokens);
    let telemetry = Telemetry::install(&config.telemetry, &instance).context("could not set up telemetry")?;
    open_files::raise_limit();
    let exposition = telemetry.exposition();
    let outcome = wiring::state::run(config, exposition, stop).await.map_err(|error| {
        tracing::error!(
            error = domain::ports::error_chain(error.as_ref()),
            "the state store could not start"
        );
        Failure::Logged { exit_code: 1 }
    });
    finish(telemetry, outcome).await
}
