//! The service as a process: configuration, telemetry, probes, start and stop.

pub mod config;
