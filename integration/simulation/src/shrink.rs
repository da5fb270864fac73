//! Makes a failing plan shorter: what can be left out without the failure going away is left out.

use crate::plan::Plan;
use crate::run::{Report, simulate};

/// The most simulations of one shrinking.
const MAX_RUNS: usize = 150;

/// Removes the element at a place from a list of a plan.
type Remove = fn(&mut Plan, usize);

/// The invariant that a violation is about.
fn invariant(violation: &str) -> &str {
    violation.split(' ').next().unwrap_or_default()
}

/// Returns a shorter plan that violates one of the same invariants as `report`, with its own report.
pub fn shrink(plan: &Plan, report: &Report) -> (Plan, Report) {
    let invariants: Vec<&str> = report.violations.iter().map(|violation| invariant(violation)).collect();
    let (mut plan, mut shortest, mut runs) = (plan.clone(), report.clone(), 0);
    let mut try_plan = |plan: &mut Plan, shortest: &mut Report, shorter: Plan| {
        runs += 1;
        let report = if runs <= MAX_RUNS { Some(simulate(&shorter, true)) } else { None };
        let fails = |report: &Report| {
            report.violations.iter().any(|violation| invariants.contains(&invariant(violation)))
        };
        let failing = report.filter(fails);
        let is_shorter = failing.is_some();
        if let Some(report) = failing {
            (*plan, *shortest) = (shorter, report);
        }
        is_shorter
    };
    let parts: [(usize, Remove); 2] = [
        (plan.faults.len(), |plan, at| {
            plan.faults.remove(at);
        }),
        (plan.operations.len(), |plan, at| {
            plan.operations.remove(at);
        }),
    ];
    for (length, remove) in parts {
        // From the last to the first, so that the others keep their places.
        for at in (0..length).rev() {
            let mut shorter = plan.clone();
            remove(&mut shorter, at);
            try_plan(&mut plan, &mut shortest, shorter);
        }
    }
    let mut step = plan.intents.len() / 2;
    while step > 0 {
        let mut at = 0;
        while at < plan.intents.len() {
            let mut shorter = plan.clone();
            shorter.intents.drain(at..(at + step).min(plan.intents.len()));
            if !try_plan(&mut plan, &mut shortest, shorter) {
                at += step;
            }
        }
        step /= 2;
    }
    for replica in 0..plan.replicas.len() {
        if plan.replicas[replica] != 0 {
            let mut shorter = plan.clone();
            shorter.replicas[replica] = 0;
            try_plan(&mut plan, &mut shortest, shorter);
        }
    }
    (plan, shortest)
}

/// The lines of a trace that are about what a violation names, and the faults.
pub fn relevant(report: &Report) -> Vec<&str> {
    let named = |word: &&str| word.len() > 6 && word.contains(['-', '/']) && !word.starts_with("INV");
    let words = report.violations.iter().flat_map(|violation| violation.split([' ', '"', '[', ']', ',']));
    let mut names: Vec<&str> = words.filter(named).collect();
    names.sort_unstable();
    names.dedup();
    // A route is also named by the notification that it belongs to.
    let of_route = names.iter().filter_map(|name| name.split_once('/')).map(|(notification, _)| notification);
    let mut all: Vec<&str> = of_route.collect();
    all.extend(&names);
    let is_relevant = |line: &&String| line.contains(" ** ") || all.iter().any(|name| line.contains(name));
    report.trace.iter().filter(is_relevant).map(String::as_str).collect()
}
