//! The named tasks of the service, in stages that stop one after the other.
//!
//! A task may end only after its stage is stopped. A task that panics or returns before that is a
//! [`TaskFailure`]: the process stops in order and exits with 1, so that the orchestrator restarts it. A
//! process that continued without one of its loops would look healthy while it does half of its work.
//!
//! A task that panics leaves the same state as a crash of the process at that point (ARCHITECTURE.md). The
//! other stages still finish their work.

use std::any::Any;
use std::collections::HashMap;

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::shutdown::Parts;

/// The stage of a task. A stage is stopped after every task of the earlier stages has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Serves requests.
    Api,
    /// Reads and accepts intents.
    Intake,
    /// Publishes accepted intents.
    Publishing,
    /// Runs beside intake and publishing: retention, republishing, gauges.
    Background,
    /// Reports the state of the service.
    Probes,
}

impl Stage {
    /// All stages in the order in which they stop.
    const ALL: [Self; 5] = [Self::Api, Self::Intake, Self::Publishing, Self::Background, Self::Probes];
}

/// A task panicked, or ended before its stage was stopped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{cause}")]
pub struct TaskFailure {
    /// The name of the task.
    pub task: &'static str,
    /// `panicked: ` and the message, or a text about the early end.
    pub cause: String,
}

/// The running tasks.
#[derive(Debug, Default)]
pub struct Supervisor {
    parts: Parts,
    tasks: JoinSet<()>,
    names: HashMap<Id, (Stage, &'static str)>,
    stops: [CancellationToken; Stage::ALL.len()],
}

impl Supervisor {
    /// Creates a supervisor without tasks. Its tasks are counted in `parts`.
    pub fn new(parts: Parts) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Runs the future that `task` returns. The argument of `task` is the token that stops its stage.
    pub fn spawn<F>(&mut self, stage: Stage, name: &'static str, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let part = self.parts.enter(name);
        let running = task(self.stops[stage as usize].clone());
        let handle = self.tasks.spawn(async move {
            let _part = part;
            running.await;
        });
        self.names.insert(handle.id(), (stage, name));
    }

    /// Waits until a task fails. Does not stop anything.
    pub async fn failed(&mut self) -> TaskFailure {
        loop {
            match self.next_failure().await {
                Some(Some(failure)) => return failure,
                Some(None) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Stops the stages one after the other, and waits for each. Returns the first failure, if there is one.
    pub async fn stop(mut self) -> Result<(), TaskFailure> {
        let mut first = Ok(());
        for stage in Stage::ALL {
            self.stops[stage as usize].cancel();
            while self.names.values().any(|(running, _)| *running == stage) {
                match self.next_failure().await {
                    Some(Some(failure)) => first = first.and(Err(failure)),
                    Some(None) => {}
                    None => break,
                }
            }
        }
        first
    }

    /// Waits for the next task to end. Returns its failure, if any; `None` if no task runs.
    async fn next_failure(&mut self) -> Option<Option<TaskFailure>> {
        let ended = self.tasks.join_next_with_id().await?;
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, ())| *id);
        let (stage, task) = self.names.remove(&id)?;
        let cause = match ended {
            Err(error) => match error.try_into_panic() {
                Ok(panic) => format!("panicked: {}", text_of(&*panic)),
                Err(error) => error.to_string(),
            },
            Ok(_) if self.stops[stage as usize].is_cancelled() => return Some(None),
            Ok(_) => "ended before it was stopped".to_owned(),
        };
        Some(Some(TaskFailure { task, cause }))
    }
}

/// The message of a panic, if it is text.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use ambient::SystemClock;
    use domain::ports::{Activity, ReplicaReport, ReplicaStore, StoreError};
    use domain::replica::{ActivityPart, PartActivity};
    use workers::{Health, ReplicaHealth, Reporter};

    use super::*;

    /// Waits for `stop`, then adds `name` to `ended`.
    async fn until_stopped(
        stop: CancellationToken,
        name: &'static str,
        ended: Arc<Mutex<Vec<&'static str>>>,
    ) {
        stop.cancelled().await;
        ended.lock().expect("not poisoned").push(name);
    }

    #[tokio::test]
    async fn stages_stop_one_after_the_other_whatever_the_order_in_which_they_started() {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let mut supervisor = Supervisor::default();
        for (stage, name) in [
            (Stage::Probes, "probes"),
            (Stage::Background, "retention"),
            (Stage::Publishing, "push"),
            (Stage::Intake, "intake"),
        ] {
            supervisor.spawn(stage, name, |stop| until_stopped(stop, name, Arc::clone(&ended)));
        }
        assert_eq!(supervisor.stop().await, Ok(()));
        assert_eq!(*ended.lock().expect("not poisoned"), ["intake", "push", "retention", "probes"]);
    }

    #[tokio::test]
    async fn a_task_that_panics_is_a_failure_with_its_name_and_the_message() {
        let mut supervisor = Supervisor::default();
        supervisor.spawn(Stage::Background, "retention", |stop| async move { stop.cancelled().await });
        supervisor.spawn(Stage::Intake, "intake", |_| async { panic!("the sky is {}", "falling") });
        let failure = supervisor.failed().await;
        assert_eq!((failure.task, failure.cause.as_str()), ("intake", "panicked: the sky is falling"));
        // The other tasks can still be stopped in order.
        assert_eq!(supervisor.stop().await, Ok(()));
    }

    /// A store whose rows make a worker panic.
    struct Panics;

    impl ReplicaStore for Panics {
        async fn save_replica(&self, report: &ReplicaReport) -> Result<(), StoreError> {
            panic!("no row for {}", report.replica)
        }

        async fn add_activity(&self, _: &str, _: &Activity) -> Result<(), StoreError> {
            Ok(())
        }

        async fn add_part_activity(
            &self,
            _: &str,
            _: &BTreeMap<ActivityPart, PartActivity>,
        ) -> Result<(), StoreError> {
            Ok(())
        }

        async fn delete_replicas(&self, _: Duration, _: usize) -> Result<u64, StoreError> {
            Ok(0)
        }

        async fn delete_activity(&self, _: Duration, _: usize) -> Result<u64, StoreError> {
            Ok(0)
        }
    }

    #[tokio::test]
    async fn a_worker_that_panics_in_one_of_its_passes_is_a_failure_with_its_name() {
        let reporter = Reporter {
            store: Panics,
            clock: SystemClock,
            replica: "web-1".to_owned(),
            version: "0",
            workers: ReplicaHealth::default(),
            health: Health::new("reporter"),
        };
        let mut supervisor = Supervisor::default();
        supervisor.spawn(Stage::Background, "reporter", |stop| reporter.run(stop));
        supervisor.spawn(Stage::Probes, "probes", |stop| async move { stop.cancelled().await });
        let failure = supervisor.failed().await;
        assert_eq!((failure.task, failure.cause.as_str()), ("reporter", "panicked: no row for web-1"));
        assert_eq!(supervisor.stop().await, Ok(()));
    }

    #[tokio::test]
    async fn a_task_that_ends_before_its_stage_was_stopped_is_a_failure() {
        let mut supervisor = Supervisor::default();
        supervisor.spawn(Stage::Publishing, "push", |_| async {});
        let failure = supervisor.failed().await;
        assert_eq!((failure.task, failure.cause.as_str()), ("push", "ended before it was stopped"));
    }

    #[tokio::test]
    async fn a_task_that_panics_while_it_stops_is_a_failure_and_keeps_no_other_from_stopping() {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let mut supervisor = Supervisor::default();
        supervisor.spawn(Stage::Intake, "intake", |stop| async move {
            stop.cancelled().await;
            panic!("too late");
        });
        supervisor.spawn(Stage::Probes, "probes", |stop| until_stopped(stop, "probes", Arc::clone(&ended)));
        let failure = supervisor.stop().await.expect_err("a task panicked");
        assert_eq!((failure.task, failure.cause.as_str()), ("intake", "panicked: too late"));
        assert_eq!(*ended.lock().expect("not poisoned"), ["probes"]);
    }

    #[tokio::test]
    async fn what_runs_is_counted_until_it_has_ended() {
        let parts = Parts::default();
        let mut supervisor = Supervisor::new(parts.clone());
        supervisor.spawn(Stage::Intake, "intake", |stop| async move { stop.cancelled().await });
        assert_eq!(parts.running(), ["intake"]);
        assert_eq!(supervisor.stop().await, Ok(()));
        assert_eq!(parts.running(), Vec::<&str>::new());
    }
}
