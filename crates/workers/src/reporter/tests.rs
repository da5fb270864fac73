//! When a replica reports itself, and what.

use ambient::ManualClock;
use domain::entry::EntryId;
use tokio::time::advance;

use super::*;

/// What was written, and calls that fail.
#[derive(Clone, Debug, Default)]
struct Tables(Arc<Mutex<Written>>);

#[derive(Debug, Default)]
struct Written {
    reports: Vec<(Instant, ReplicaReport)>,
    activity: Activity,
    cleanups: usize,
    failing: Option<&'static str>,
}

impl Tables {
    fn call(&self, name: &'static str, write: impl FnOnce(&mut Written)) -> Result<(), StoreError> {
        let mut written = self.0.lock().expect("no test panics while it holds the tables");
        if written.failing == Some(name) {
            return Err(crate::fakes::down(name));
        }
        write(&mut written);
        Ok(())
    }

    fn read<T>(&self, read: impl FnOnce(&Written) -> T) -> T {
        read(&self.0.lock().expect("no test panics while it holds the tables"))
    }

    fn fail(&self, name: Option<&'static str>) {
        self.0.lock().expect("no test panics while it holds the tables").failing = name;
    }
}

impl ReplicaStore for Tables {
    async fn save_replica(&self, report: &ReplicaReport) -> Result<(), StoreError> {
        self.call("save_replica", |written| written.reports.push((Instant::now(), report.clone())))
    }

    async fn add_activity(&self, _: &str, activity: &Activity) -> Result<(), StoreError> {
        self.call("add_activity", |written| {
            written.activity.accepted += activity.accepted;
            written.activity.published += activity.published;
        })
    }

    async fn delete_replicas(&self, age: Duration, _: usize) -> Result<u64, StoreError> {
        assert_eq!(age, REPLICA_RETENTION);
        self.call("delete_replicas", |written| written.cleanups += 1).map(|()| 0)
    }

    async fn delete_activity(&self, age: Duration, _: usize) -> Result<u64, StoreError> {
        assert_eq!(age, ACTIVITY_RETENTION);
        self.call("delete_activity", |_| {}).map(|()| 0)
    }
}

/// Starts a reporter; returns what it writes to, what it reports, and its stop.
fn start() -> (Tables, ReplicaHealth, CancellationToken, tokio::task::JoinHandle<()>) {
    let (tables, workers, stop) = (Tables::default(), ReplicaHealth::default(), CancellationToken::new());
    let reporter = Reporter {
        store: tables.clone(),
        clock: ManualClock::new(Timestamp::from_millis(1_000_000).expect("in range")),
        replica: "a".to_owned(),
        version: "0.1.0",
        workers: workers.clone(),
        health: Health::new("reporter"),
    };
    let running = tokio::spawn(reporter.run(stop.clone()));
    (tables, workers, stop, running)
}

/// Lets the reporter do what is due.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_is_reported_at_start_every_ten_seconds_and_soon_after_a_change() {
    let (tables, workers, _stop, _running) = start();
    let (intake, begun) = (workers.add_worker("intake"), Instant::now());
    pass(Duration::from_secs(25)).await;
    intake.set_leader(true);
    intake.mark_blocked("down");
    pass(Duration::from_secs(2)).await;
    let written: Vec<u64> =
        tables.read(|written| written.reports.iter().map(|(at, _)| (*at - begun).as_secs()).collect());
    assert_eq!(written, [0, 10, 20, 26]);
    let last = tables.read(|written| written.reports[3].1.clone());
    assert_eq!((last.leader_of, last.workers[0].worker.as_str()), (vec!["intake".to_owned()], "intake"));
    assert_eq!(last.workers[0].blocked.as_ref().map(|blocked| blocked.cause.as_str()), Some("down"));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_and_recovers_all_the_time_is_reported_once_a_second_at_most() {
    let (tables, workers, _stop, _running) = start();
    let worker = workers.add_worker("push");
    for _ in 0..100 {
        worker.mark_blocked("down");
        pass(Duration::from_millis(50)).await;
        worker.mark_healthy();
        pass(Duration::from_millis(50)).await;
    }
    assert!(tables.read(|written| written.reports.len()) <= 11);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_leads_for_a_moment_is_no_reason_for_a_report() {
    let (tables, workers, _stop, _running) = start();
    let retention = workers.add_worker("retention");
    pass(Duration::from_secs(1)).await;
    retention.set_leader(true);
    pass(Duration::from_millis(100)).await;
    retention.set_leader(false);
    pass(Duration::from_secs(5)).await;
    assert_eq!(tables.read(|written| written.reports.len()), 1);
}

#[tokio::test(start_paused = true)]
async fn times_of_a_worker_are_told_by_the_clock_of_the_replica() {
    let (tables, workers, _stop, _running) = start();
    let worker = workers.add_worker("intake");
    let entry_id = EntryId::new(7, 0);
    worker.mark_waiting(&domain::accept::Wait { entry_id, cause: "slow".into() });
    advance(Duration::from_secs(4)).await;
    pass(Duration::from_secs(10)).await;
    let blocked = tables.read(|written| {
        let last = written.reports.last().expect("it was reported");
        last.1.workers[0].blocked.clone().expect("it is blocked")
    });
    let age = Timestamp::from_millis(1_000_000).expect("in range").saturating_since(blocked.since);
    assert_eq!(blocked.entry_id, Some(entry_id));
    assert!(age >= Duration::from_secs(4), "{age:?}");
}

#[tokio::test(start_paused = true)]
async fn counts_that_could_not_be_added_are_added_later_and_the_last_ones_at_the_stop() {
    let (tables, workers, stop, running) = start();
    let worker = workers.add_worker("intake");
    tables.fail(Some("add_activity"));
    worker.count(&Activity { accepted: 3, ..Activity::default() });
    pass(Duration::from_secs(15)).await;
    assert_eq!(tables.read(|written| written.activity.accepted), 0);
    tables.fail(None);
    worker.count(&Activity { accepted: 4, ..Activity::default() });
    pass(Duration::from_secs(15)).await;
    assert_eq!(tables.read(|written| written.activity.accepted), 7);
    worker.count(&Activity { published: 5, ..Activity::default() });
    stop.cancel();
    running.await.expect("it does not panic");
    assert_eq!(tables.read(|written| written.activity.published), 5);
}

#[tokio::test(start_paused = true)]
async fn old_rows_are_deleted_at_start_and_every_ten_minutes() {
    let (tables, _workers, _stop, _running) = start();
    pass(Duration::from_secs(1_300)).await;
    assert_eq!(tables.read(|written| written.cleanups), 3);
}
