//! The service as a process: command line, configuration, telemetry, probes, start and stop.

pub mod cli;
pub mod commands;
pub mod config;
pub mod election;
pub mod probes;
pub mod runtime;
pub mod shutdown;
pub mod telemetry;

/// Makes ring the one provider of cryptography, for PostgreSQL, Redis and HTTP. Must precede every connection.
pub fn install_crypto() {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a provider of cryptography was installed before");
    }
}
