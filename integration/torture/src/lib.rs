//! Kills of the real program, on real servers, at the requests of each protocol (ADR 0075).
//!
//! Two replicas and, where it matters, a relay run beside producers and operators who repeat what failed. A
//! [`Case`] holds a request at a proxy, kills the process that sent it there, lets a store fail, and checks
//! the promises and the audit once everything has settled. In every second case another process is killed
//! during the recovery, if it reaches a second boundary.
//!
//! - `boundary.rs` has the boundaries, `fault.rs` the faults, `case.rs` what happens when.
//! - `site.rs` has the servers and processes, `clients.rs` what is asked of them, `clock.rs` their clocks.
//! - `check.rs` has the promises, `table.rs` the table for docs/reliability.md.
//!
//! `soak.rs` is another kind of run: hours of a steady load beside kills and crashes.

mod boundary;
mod case;
mod check;
mod clients;
mod clock;
mod fault;
mod run;
mod site;
mod soak;
mod table;

pub use case::Case;
pub use run::{Finished, run};
pub use soak::{Soak, SoakReport};
pub use table::{Table, write_into};
