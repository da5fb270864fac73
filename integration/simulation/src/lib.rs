//! A simulation of the service under faults that a seed determines (ADR 0071).
//!
//! The real workers, election and relay of up to four replicas run on stores in memory, under the paused
//! clock of the runtime. [`Plan::of`] makes the plan of a seed, [`simulate`] runs it and returns what it
//! violates, [`shrink`] makes a failing plan shorter.
//!
//! - `faults.rs` has the faults, `plan.rs` draws them, `world.rs` lets them happen.
//! - `network.rs` has the calls between processes and servers.
//! - `replica.rs` wires the workers, `producers.rs` sends the intents, `operators.rs` changes routes.
//! - `check.rs` has the invariants, `audit.rs` runs the audit of the service.
//!
//! It deliberately lacks the statements and scripts of the real stores: the contract suites of the harness
//! show that the stores in memory follow the same rules.

#![recursion_limit = "256"]

mod audit;
mod check;
mod clock;
mod dice;
mod faults;
mod network;
mod operators;
mod outbox_storage;
mod outbox_streams;
mod plan;
mod process;
mod producers;
mod replica;
mod run;
mod shrink;
mod stores;
mod trace;
mod world;

pub use faults::{DirectoryFault, Fault, FaultKind, PostgresFault, RedisFault, ReplicaFault};
pub use plan::{Operation, Plan, PlannedIntent, PlannedOperation, Way};
pub use run::{Report, simulate};
pub use shrink::{relevant, shrink};
