//! Runs the simulation of a plan.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::time::{sleep, sleep_until};

use crate::audit::discrepancies;
use crate::check::{may_be_cancelled_late, violations};
use crate::operators::operate;
use crate::plan::Plan;
use crate::producers::produce;
use crate::world::World;

/// The time after the last fault in which the service comes to rest: until leases and terms have ended.
const SETTLE: Duration = Duration::from_secs(22);
/// The same if streams are compared: until the repeated comparison, which another replica may take over.
const SETTLE_COMPARED: Duration = Duration::from_secs(105);
/// The time after which the service must have come to rest.
const SETTLED_WITHIN: Duration = Duration::from_secs(400);
/// The interval of checks until then.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The result of a simulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The violated invariants. Empty: all is well.
    pub violations: Vec<String>,
    /// The hash of everything that happened: two runs of a plan have the same.
    pub hash: u64,
    /// Everything that happened, if it was kept.
    pub trace: Vec<String>,
}

/// Simulates `plan`. `keeps_trace` is true if everything that happens is to be in the report.
///
/// # Panics
///
/// Panics if no runtime can be created.
pub fn simulate(plan: &Plan, keeps_trace: bool) -> Report {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(run(plan.clone(), keeps_trace))
}

async fn run(plan: Plan, keeps_trace: bool) -> Report {
    let world = World::new(plan, keeps_trace);
    world.start_all();
    let faults = world.plan.faults.clone().into_iter().map(|fault| Arc::clone(&world).suffer(fault));
    let faults = tokio::spawn(join_all(faults.collect::<Vec<_>>()));
    for intent in world.plan.intents.clone() {
        tokio::spawn(produce(Arc::clone(&world), intent));
    }
    for (number, operation) in world.plan.operations.clone().into_iter().enumerate() {
        tokio::spawn(operate(Arc::clone(&world), number, operation));
    }
    // Cannot fail: no fault panics.
    faults.await.expect("all faults have ended");
    let calm = world.started + world.plan.calm_begins();
    sleep_until(calm + if world.plan.replaces_redis() { SETTLE_COMPARED } else { SETTLE }).await;
    let mut found = violations(&world);
    let checked_until = calm + SETTLED_WITHIN;
    while !found.is_empty() && tokio::time::Instant::now() < checked_until {
        sleep(CHECK_INTERVAL).await;
        found = violations(&world);
    }
    // What no service can recover, an audit still finds.
    if found.is_empty() && world.ledger.state().excused.is_empty() {
        found = discrepancies(&world).await;
        // Above, each entry that is repeated was excused.
        found.retain(|found| !found.contains("DuplicateOutboundEntry"));
        if world.plan.cancels() && may_be_cancelled_late(&world) {
            found.retain(|found| !found.contains("OutboundEntryNotPublished"));
        }
    }
    Report { violations: found, hash: world.trace.hash(), trace: world.trace.lines() }
}
