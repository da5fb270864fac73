//! `relay`: moves events from a producer's outbox to the streams.

use ambient::RandomTokens;
use anyhow::Context;

use super::serve::finish;
use super::{Failure, Vars, print_warnings};
use crate::config::{self, RelayProcessConfig, ReplicaId};
use crate::telemetry::Telemetry;
use crate::{shutdown, wiring};

/// Runs the relay until a signal stops it.
pub async fn run(vars: Vars) -> Result<(), Failure> {
    let loaded = config::load::<RelayProcessConfig>(vars)?;
    print_warnings(&loaded.warnings);
    let config = loaded.config;
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
