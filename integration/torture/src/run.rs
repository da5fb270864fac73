//! Many cases at a time.

use std::any::Any;
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use crate::Case;
use crate::clock::remove_library;
use crate::site::stop_free_servers;

/// The time within which a case ends, whatever hangs.
const CASE_BOUND: Duration = Duration::from_secs(600);

/// A case that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The case.
    pub case: Case,
    /// The number of processes that were killed, or the promise that was broken.
    pub outcome: Result<u32, String>,
    /// The time that it took.
    pub took: Duration,
}

/// Runs cases, `slots` at a time, until there are no more or the time is up, and calls `done` after each.
pub async fn run(
    cases: impl IntoIterator<Item = u64>,
    slots: usize,
    until: Option<Instant>,
    mut done: impl FnMut(&Finished),
) -> Vec<Finished> {
    let (mut running, mut finished) = (JoinSet::new(), Vec::new());
    let mut cases = cases.into_iter().take_while(|_| until.is_none_or(|until| Instant::now() < until));
    loop {
        while running.len() < slots
            && let Some(number) = cases.next()
        {
            running.spawn_blocking(move || one(Case::of(number)));
        }
        let Some(ended) = running.join_next().await else { break };
        let ended = ended.expect("the panic of a case is caught");
        done(&ended);
        finished.push(ended);
    }
    stop_free_servers();
    remove_library();
    finished
}

/// Runs a case on a thread of its own, whose panic is a result.
fn one(case: Case) -> Finished {
    let started = Instant::now();
    let running = case.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        LocalSet::new().block_on(&runtime.expect("a runtime"), async {
            let killed = timeout(CASE_BOUND, running.run()).await;
            killed.unwrap_or_else(|_| panic!("the case has not ended after {CASE_BOUND:?}"))
        })
    });
    let outcome = thread.join().map_err(|panic| message(&*panic));
    Finished { case, outcome, took: started.elapsed() }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
