//! The workers of the service: loops over the ports of [`domain::ports`].
//!
//! A worker reads, lets the domain decide, and writes the result to a store. It never depends on the type of
//! a store, and it does not end before the service is stopped: a failure is logged once and retried after a
//! pause.
//!
//! - [`Intake`] accepts the entries of the stream, and [`SubmissionIntake`] the intents of the API, both by
//!   the engine in `accept.rs`. [`dispatch()`] sends new routes to the publishers.
//! - [`RoutePublisher`] publishes the routes of a channel: leases, appends, completions, the scan of due
//!   ones.
//! - [`Republisher`] appends again what Redis lost, [`RetentionWorker`] deletes expired rows, [`HoldRelease`]
//!   makes released routes due, [`Gauges`] and [`Reporter`] measure and report.
//! - At the request of an operator: [`LeasedChanges`] and [`BulkChange`] change routes, [`Resubmission`]
//!   resubmits, [`Eraser`] erases a person, [`Search`] finds, [`Audit`] compares, [`StepDownElection`] hands
//!   over.
//! - `passes.rs` has the loop of all workers, `health.rs` their status.

mod accept;
mod activity;
mod attempts;
mod audit;
mod batch_limit;
mod bulk_change;
mod cancel;
mod dispatch;
mod erase;
mod find;
#[cfg(test)]
mod fixtures;
mod gauges;
mod health;
mod intake;
mod log_limiter;
pub mod metrics;
mod passes;
mod pause;
mod ports;
mod publish;
mod release;
mod reporter;
mod republish;
mod resubmit;
mod retention;
mod step_down;
mod submissions;
mod traces;

pub use attempts::RecentAttempts;
pub use audit::{Audit, AuditReport, AuditSettings, AuditStores};
pub use bulk_change::{BulkChange, BulkEnd, BulkReport};
pub use cancel::{LeaseTimes, LeasedChanges};
pub use dispatch::{Dispatcher, Receiver, dispatch};
pub use erase::{Eraser, ErasureSettings, ErasureStores};
pub use find::{NamedStream, Search};
pub use gauges::{GaugeStore, Gauges};
pub use health::{BlockedWorker, FirstDeferred, Health, WorkerStatus};
pub use intake::{Intake, IntakeSettings};
pub use metrics::Metrics;
pub use ports::Ports;
pub use publish::{CurrentHolds, NextDue, PublishSettings, RoutePublisher};
pub use release::HoldRelease;
pub use reporter::{ReplicaHealth, Reporter};
pub use republish::{RepublishSettings, Republisher};
pub use resubmit::Resubmission;
pub use retention::{RetentionSettings, RetentionWorker};
pub use step_down::{StepDownElection, StepDownTerm};
pub use submissions::{SubmissionIntake, SubmissionQueue, SubmissionReceiver, submission_queue};
pub use traces::{MAX_LINKS, TracedStreams, Traces};
