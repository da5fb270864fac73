//! The service as a process: command line, configuration, telemetry, probes, start and stop.
//!
//! `cli.rs` parses the command line, and `commands` has a file for each subcommand. `config` reads the
//! environment once. `wiring` connects stores, workers and listeners, with a file for each mode, after the
//! checks of `start.rs`. `supervisor.rs` runs and stops the tasks in stages, `shutdown.rs` limits the time of
//! that. `probes.rs` and `telemetry.rs` are what an operator observes.

pub mod allocator;
pub mod capacity;
pub mod cli;
pub mod commands;
pub mod config;
mod grants;
mod installation;
pub mod migrations;
mod open_files;
pub mod probes;
pub mod relay;
pub mod shutdown;
mod start;
pub mod supervisor;
pub mod telemetry;
mod topology;
mod versions;
pub mod wiring;

/// Installs ring as the only provider of cryptography, for PostgreSQL, Redis and HTTP. Must run before the
/// first connection.
pub fn install_crypto() {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a provider of cryptography was installed before");
    }
}
