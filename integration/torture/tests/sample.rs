//! A sample of the cases, which `make torture` runs by the thousand, and a short soak.

use std::time::Duration;

use torture::{Finished, Soak, run};

/// As many as take some minutes.
const CASES: u64 = 100;
/// Most of the time of a case, it waits.
const SLOTS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn no_promise_is_broken_by_kills_at_boundaries_with_faults_of_stores() {
    let finished = run(0..CASES, SLOTS, None, |_| {}).await;
    let broken: Vec<String> = finished
        .iter()
        .filter_map(|Finished { case, outcome, .. }| Some(format!("{case}: {}", outcome.as_ref().err()?)))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert_eq!(finished.len() as u64, CASES);
}

/// A soak of seconds, with everything that one of hours has.
#[tokio::test(flavor = "multi_thread")]
async fn under_load_nothing_is_lost_or_repeated_although_replicas_are_killed_and_stores_crash() {
    let soak = Soak {
        rate: 100,
        time: Duration::from_secs(40),
        kill_interval: Duration::from_secs(12),
        retention: Duration::from_secs(30),
    };
    let report = soak.run().await;
    // A minute is too short for memory and disk to be flat.
    let broken: Vec<_> = report.broken.iter().filter(|broken| !broken.contains("grew")).collect();
    assert!(broken.is_empty(), "{broken:?}\n{}", report.table);
}
