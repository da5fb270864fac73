//! The simulation over many seeds: 10,000 in continuous integration, fewer elsewhere.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use simulation::{Plan, simulate};

/// The number of seeds if `CI` is set, and otherwise.
const SEEDS_IN_CI: u64 = 10_000;
const SEEDS: u64 = 1_000;

#[test]
fn whatever_fails_every_intent_is_accepted_once_and_every_route_is_published_once() {
    let seeds = if std::env::var_os("CI").is_some() { SEEDS_IN_CI } else { SEEDS };
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let report = simulate(&Plan::of(seed), false);
                    if !report.violations.is_empty() {
                        failed.lock().expect("no thread panics").push((seed, report.violations));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no thread panicked");
    assert!(failed.is_empty(), "replay with `cargo run --release -p simulation -- --seed SEED`: {failed:#?}");
}

#[test]
fn a_seed_determines_everything_that_happens() {
    for seed in 0..40 {
        let plan = Plan::of(seed);
        let (one, other) = (simulate(&plan, true), simulate(&plan, true));
        let differing = one.trace.iter().zip(&other.trace).find(|(one, other)| one != other);
        assert_eq!(differing, None, "seed {seed}");
        assert_eq!(one.hash, other.hash, "seed {seed}");
    }
}

#[test]
fn in_a_third_of_all_plans_faults_of_both_stores_overlap() {
    let overlapping = (0..3_000).filter(|seed| Plan::of(*seed).has_overlapping_stores()).count();
    assert!(overlapping >= 1_000, "{overlapping} of 3,000 plans");
}

#[test]
fn every_mutation_can_be_applied() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutations");
    let mut patches = 0;
    for patch in std::fs::read_dir(&folder).expect("the folder of the mutations") {
        let patch = patch.expect("a file").path();
        let root = folder.join("../../..");
        let checked = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(root).output();
        let checked = checked.expect("git runs");
        let error = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{} no longer fits the code: {error}", patch.display());
        patches += 1;
    }
    assert!(patches >= 25, "{patches} patches");
}
