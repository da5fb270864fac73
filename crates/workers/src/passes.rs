//! The two loops of the workers: one pass after another, and work during one term of leadership.

use std::time::Duration;

use domain::accept::Wait;
use domain::ports::{Election, Fence, StoreError, Term, TermEnd};
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::pause::pause;

/// The end of a pass that did not fail.
#[derive(Debug)]
pub(crate) enum Pass {
    /// The pass succeeded; the next one follows at once.
    Continue,
    /// The pass succeeded; the next one follows after this pause.
    PauseFor(Duration),
    /// The next pass follows at once, and shows whether the worker is healthy.
    Undecided,
    /// A stream entry must wait.
    Waiting(Wait),
    /// The worker cannot continue for now, for this reason.
    Blocked(String),
    /// There is no next pass.
    Done,
}

/// Work that runs in bounded passes. It is a trait and not a closure because the future of a closure cannot
/// be proved `Send`.
pub(crate) trait Passes: Send {
    /// Runs one pass. Its waits end at `stop`.
    fn run_once(&mut self, stop: &CancellationToken)
    -> impl Future<Output = Result<Pass, StoreError>> + Send;
}

/// Runs one pass after another, until `stop` or until a pass is the last one. The loop stops between passes.
/// After a failure it pauses for at least `min_pause`.
pub(crate) async fn run_passes(
    health: &Health,
    stop: &CancellationToken,
    min_pause: Duration,
    mut passes: impl Passes,
) {
    while !stop.is_cancelled() {
        let wait = match passes.run_once(stop).await {
            Ok(Pass::Continue) => {
                health.mark_healthy();
                continue;
            }
            Ok(Pass::PauseFor(wait)) => {
                health.mark_healthy();
                wait
            }
            Ok(Pass::Undecided) => continue,
            Ok(Pass::Done) => break,
            Ok(Pass::Waiting(wait)) => health.mark_waiting(&wait).max(min_pause),
            Ok(Pass::Blocked(cause)) => health.mark_blocked(&cause).max(min_pause),
            Err(error) => health.mark_failed(&error).max(min_pause),
        };
        pause(stop, wait).await;
    }
}

/// The leadership of this replica.
#[derive(Debug)]
pub(crate) struct CurrentTerm {
    /// The fence of the term.
    pub(crate) fence: Fence,
    /// Cancelled when the service stops, or when the term is lost or to be handed over.
    pub(crate) over: CancellationToken,
}

/// Campaigns, and if this replica is elected, runs `work` and then steps down. Returns `None` if another
/// replica leads, or if the service stops before the result of the campaign.
///
/// `work` is notified when the term is over and ends by itself, so that a running transaction is finished;
/// every call to a store has a timeout. Until then, fences stop it from overwriting what the next leader
/// wrote.
pub(crate) async fn while_leading<E: Election, F: Future>(
    election: &E,
    health: &Health,
    stop: &CancellationToken,
    work: impl FnOnce(CurrentTerm) -> F,
) -> Result<Option<F::Output>, StoreError> {
    let Some(term) = stop.run_until_cancelled(election.campaign()).await.transpose()?.flatten() else {
        return Ok(None);
    };
    let (fence, over) = (term.fence(), stop.child_token());
    health.set_leader(true);
    let value = {
        let work = work(CurrentTerm { fence, over: over.clone() });
        tokio::pin!(work);
        tokio::select! {
            biased;
            value = &mut work => value,
            end = term.over() => {
                let worker = health.worker();
                match end {
                    TermEnd::Lost => tracing::warn!(worker, fence, "leadership lost; stopping"),
                    TermEnd::StepDownRequested => {
                        tracing::info!(worker, fence, "stepping down at the request of an operator");
                    }
                }
                over.cancel();
                work.await
            }
        }
    };
    health.set_leader(false);
    term.step_down().await;
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use memory_stores::{MemoryElection, Scripted};

    use crate::fixtures::down;

    /// Ends passes as scripted, and records when each began.
    struct Script {
        ends: std::vec::IntoIter<Result<Pass, StoreError>>,
        begun: Vec<Duration>,
        started: Instant,
    }

    impl Passes for &mut Script {
        async fn run_once(&mut self, _: &CancellationToken) -> Result<Pass, StoreError> {
            self.begun.push(self.started.elapsed());
            self.ends.next().unwrap_or(Ok(Pass::Done))
        }
    }

    /// Returns the time at which each pass began, in milliseconds. The last pass follows after all of `ends`.
    async fn run(
        health: &Health,
        min_pause: u64,
        ends: impl IntoIterator<Item = Result<Pass, StoreError>>,
    ) -> Vec<u128> {
        let ends = ends.into_iter().collect::<Vec<_>>().into_iter();
        let mut script = Script { ends, begun: Vec::new(), started: Instant::now() };
        let min_pause = Duration::from_millis(min_pause);
        run_passes(health, &CancellationToken::new(), min_pause, &mut script).await;
        script.begun.iter().map(Duration::as_millis).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn passes_follow_at_once_after_a_pause_or_after_the_pause_of_a_failure() {
        let health = Health::new("test");
        let ends = [
            Ok(Pass::Continue),
            Ok(Pass::PauseFor(Duration::from_millis(700))),
            Err(down("pass")),
            Ok(Pass::Blocked("absent".into())),
            Ok(Pass::Undecided),
            Err(down("pass")),
            Ok(Pass::Continue),
        ];
        assert_eq!(run(&health, 0, ends).await, [0, 0, 700, 750, 850, 850, 1_050, 1_050]);
        assert_eq!((health.status().blocked, health.recoveries()), (None, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_failure_the_pause_is_at_least_the_shortest_one() {
        let health = Health::new("test");
        let ends = [Err(down("pass")), Ok(Pass::Undecided)];
        assert_eq!(run(&health, 2_000, ends).await, [0, 2_000, 2_000]);
        assert!(health.status().blocked.is_some(), "no pass has shown that it recovered");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_pause_between_two_passes() {
        let (health, stop) = (Health::new("test"), CancellationToken::new());
        let ends = vec![Ok(Pass::PauseFor(Duration::MAX))].into_iter();
        let mut script = Script { ends, begun: Vec::new(), started: Instant::now() };
        let stopping = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            stop.cancel();
        };
        tokio::join!(run_passes(&health, &stop, Duration::ZERO, &mut script), stopping);
        assert_eq!(script.begun.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn work_learns_that_the_term_is_lost_and_finishes_what_it_has_begun() {
        let (health, stop, started) = (Health::new("test"), CancellationToken::new(), Instant::now());
        let election = MemoryElection::default();
        let ending = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            election.end_term();
        };
        let work = |leadership: CurrentTerm| {
            let health = health.clone();
            async move {
                assert!(health.status().leader);
                leadership.over.cancelled().await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                leadership.fence
            }
        };
        let (led, ()) = tokio::join!(while_leading(&election, &health, &stop, work), ending);
        assert!(matches!(led, Ok(Some(1))), "{led:?}");
        assert_eq!(started.elapsed(), Duration::from_secs(3));
        assert!(!health.status().leader && !stop.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_campaign_that_fails_is_an_error_and_a_stop_is_none() {
        let (health, stop, script) =
            (Health::new("test"), CancellationToken::new(), memory_stores::Script::default());
        let election = Scripted::new(MemoryElection::default(), &script);
        let work = |leadership: CurrentTerm| async move { leadership.fence };
        script.fail("campaign", down("campaign"));
        while_leading(&election, &health, &stop, work).await.expect_err("the campaign failed");
        let led = while_leading(&election, &health, &stop, work).await.expect("the campaign succeeds");
        assert_eq!(led, Some(1));
        stop.cancel();
        let led = while_leading(&election, &health, &stop, work).await.expect("nothing was asked");
        assert_eq!(led, None);
    }
}
