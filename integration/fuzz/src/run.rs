//! Checks a target without a fuzzing engine.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::mutation::Mutator;
use crate::{Target, corpus};

/// The variable with the number of seconds for which each target is checked with mutations.
const SECONDS: &str = "FUZZ_SECONDS";
const DEFAULT_SECONDS: u64 = 2;
/// The default of continuous integration, which sets `CI`.
const CI_SECONDS: u64 = 60;
/// The variable with the seed of the mutations. By default it is always the same, so that a run of continuous
/// integration fails because of a change, and not by chance.
const SEED: &str = "FUZZ_SEED";
/// The most bytes of an input that are shown.
const SHOWN_BYTES: usize = 2_000;

/// Checks a target with its corpus, then with mutations of it until the time is over. Panics if a property
/// does not hold, after it has kept and shown the input.
pub fn run(target: &Target) {
    let (kept, tokens) = (corpus::inputs(target), corpus::tokens(target));
    for input in &kept {
        attempt(target, input);
    }
    let seed = number(SEED).unwrap_or_default();
    let mut mutator = Mutator::new(&kept, &tokens, target.max_bytes, seed);
    let (begun, limit, mut count) = (Instant::now(), limit(), 0_u64);
    while begun.elapsed() < limit {
        attempt(target, &mutator.make());
        count += 1;
    }
    println!("{}: {} inputs of the corpus, {count} mutations in {limit:?}", target.name, kept.len());
}

fn limit() -> Duration {
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    Duration::from_secs(number(SECONDS).unwrap_or(if is_ci { CI_SECONDS } else { DEFAULT_SECONDS }))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn attempt(target: &Target, input: &[u8]) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.check)(input))) else { return };
    let path = corpus::keep(target, input);
    let shown = input[..input.len().min(SHOWN_BYTES)].escape_ascii();
    eprintln!("this input breaks the target {}, and is kept in {}:\n{shown}", target.name, path.display());
    resume_unwind(panic);
}
