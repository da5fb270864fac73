//! What the service does all day: loops over the ports of [`domain::ports`].
//!
//! A worker reads, asks the domain what should happen, and tells a store. It never sees a store's type, and it never
//! ends before it is told to: a failure is logged once and retried after a pause.

mod activity;
mod batch_limit;
mod dispatch;
#[cfg(test)]
mod fixtures;
mod gauges;
mod health;
mod intake;
mod log_limiter;
pub mod metrics;
mod passes;
mod publish;
mod reporter;
mod republish;
mod retention;

pub use dispatch::{Dispatcher, Receiver, dispatch};
pub use gauges::Gauges;
pub use health::{Blocked, Health, WorkerStatus};
pub use intake::{Intake, IntakeSettings};
pub use metrics::Metrics;
pub use publish::{PublishSettings, RoutePublisher};
pub use reporter::{ReplicaHealth, Reporter};
pub use republish::{RepublishSettings, Republisher};
pub use retention::{Retention, RetentionSettings};

/// The target of spans that are meant for traces and not for the log.
pub const SPANS: &str = "notification::spans";
