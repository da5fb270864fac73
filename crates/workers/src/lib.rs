//! What the service does all day: three kinds of loops over the ports of [`domain::ports`].
//!
//! A worker reads, asks the domain what should happen, and tells a store. It never sees a store's type, and it never
//! ends before it is told to: whatever fails is logged once, waited out and tried again.

#[cfg(test)]
mod fakes;
mod gauges;
mod handover;
mod intent_consumer;
pub mod metrics;
mod route_publisher;
mod sql_retention;
pub mod status;
mod worker;

pub use gauges::Gauges;
pub use handover::{Handover, Inbox, handover};
pub use intent_consumer::{IntakeSettings, IntentConsumer};
pub use metrics::Metrics;
pub use route_publisher::{PublishSettings, RoutePublisher};
pub use sql_retention::{RetentionSettings, SqlRetention};
pub use worker::SPANS;
