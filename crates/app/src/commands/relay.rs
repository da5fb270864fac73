//! `relay`: moves events from a producer's outbox to the streams.

use ambient::RandomTokens;
use anyhow::Context;

use super::serve::finish;
use super::{Failure, Vars, load};
use crate::config::{RelayProcessConfig, ReplicaId};
use crate::telemetry::Telemetry;
use crate::{shutdown, wiring};

/// Runs the relay until a signal stops it.
pub async fn run(vars: Vars) -> Result<(), Failure> {
    let config: RelayProcessConfig = load(vars)?;
    let stop = shutdown::listen().context("could not listen for signals")?;
    let relay_id = config.relay.relay_id(&RandomTokens);
    // Cannot fail: the id of a relay has the form of a replica's name.
    let instance = ReplicaId::parse(relay_id.as_str()).expect("both have the same form");
    let telemetry = Telemetry::install(&config.telemetry, &instance).context("could not set up telemetry")?;
    let exposition = telemetry.exposition();
    let outcome = wiring::relay::run(config, relay_id, exposition, stop).await.map_err(|error| {
        tracing::error!(error = domain::ports::error_chain(error.as_ref()), "the relay could not start");
        Failure::Logged { exit_code: 1 }
    });
    finish(telemetry, outcome).await
}
