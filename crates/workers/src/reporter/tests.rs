//! The times at which a replica reports itself, and the content of its reports.

use domain::entry::EntryId;
use memory_stores::Effect;
use tokio::time::advance;

use super::*;
use crate::fixtures::{World, down};

/// Starts a reporter. Returns the stores, the workers that it reports, and its stop.
fn start() -> (World, ReplicaHealth, CancellationToken, tokio::task::JoinHandle<()>) {
    let world = World::new(Timestamp::from_millis(1_000_000).expect("in range"));
    let (workers, stop) = (ReplicaHealth::default(), CancellationToken::new());
    let reporter = Reporter {
        store: world.replicas.clone(),
        clock: Arc::clone(&world.clock),
        replica: "a".to_owned(),
        version: "0.1.0",
        workers: workers.clone(),
        health: Health::new("reporter"),
    };
    let running = tokio::spawn(reporter.run(stop.clone()));
    (world, workers, stop, running)
}

/// The reported activity of the replica.
fn activity(world: &World) -> Activity {
    world.replicas.activity().remove("a").unwrap_or_default()
}

/// Waits, so that the reporter does its due work.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_is_reported_at_start_every_ten_seconds_and_soon_after_a_change() {
    let (world, workers, _stop, _running) = start();
    let (intake, begun) = (workers.add_worker("intake"), Instant::now());
    pass(Duration::from_secs(25)).await;
    intake.set_leader(true);
    intake.mark_blocked("down");
    pass(Duration::from_secs(2)).await;
    let written = world.script.calls_of("save_replica");
    let written: Vec<u64> = written.iter().map(|call| (call.at - begun).as_secs()).collect();
    assert_eq!(written, [0, 10, 20, 25]);
    let last = world.replicas.replicas().remove(0);
    assert_eq!((last.leader_of, last.workers[0].worker.as_str()), (vec!["intake".to_owned()], "intake"));
    assert_eq!(last.workers[0].blocked.as_ref().map(|blocked| blocked.cause.as_str()), Some("down"));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_and_recovers_all_the_time_is_reported_once_a_second_at_most() {
    let (world, workers, _stop, _running) = start();
    let worker = workers.add_worker("push");
    for _ in 0..100 {
        worker.mark_blocked("down");
        pass(Duration::from_millis(50)).await;
        worker.mark_healthy();
        pass(Duration::from_millis(50)).await;
    }
    assert!(world.script.count("save_replica") <= 11);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_leads_for_a_moment_is_no_reason_for_a_report() {
    let (world, workers, _stop, _running) = start();
    let retention = workers.add_worker("retention");
    pass(Duration::from_secs(1)).await;
    retention.set_leader(true);
    pass(Duration::from_millis(100)).await;
    retention.set_leader(false);
    pass(Duration::from_secs(5)).await;
    assert_eq!(world.script.count("save_replica"), 1);
}

#[tokio::test(start_paused = true)]
async fn times_of_a_worker_are_told_by_the_clock_of_the_replica() {
    let (world, workers, _stop, _running) = start();
    let worker = workers.add_worker("intake");
    let entry_id = EntryId::new(7, 0);
    worker.mark_waiting(&domain::accept::Wait { entry_id, cause: "slow".into() });
    advance(Duration::from_secs(4)).await;
    pass(Duration::from_secs(10)).await;
    let blocked = world.replicas.replicas()[0].workers[0].blocked.clone().expect("it is blocked");
    let age = Timestamp::from_millis(1_000_000).expect("in range").saturating_since(blocked.since);
    assert_eq!(blocked.entry_id, Some(entry_id));
    assert!(age >= Duration::from_secs(4), "{age:?}");
}

#[tokio::test(start_paused = true)]
async fn counts_that_could_not_be_added_are_added_later_and_the_last_ones_at_the_stop() {
    let (world, workers, stop, running) = start();
    let worker = workers.add_worker("intake");
    world.script.on("add_activity", |_| Effect::Fail(down("add_activity")));
    worker.count(&Activity { accepted: 3, ..Activity::default() });
    pass(Duration::from_secs(15)).await;
    assert_eq!(activity(&world), Activity::default());
    world.script.off("add_activity");
    worker.count(&Activity { accepted: 4, ..Activity::default() });
    pass(Duration::from_secs(15)).await;
    assert_eq!(activity(&world).accepted, 7);
    worker.count(&Activity { published: 5, ..Activity::default() });
    stop.cancel();
    running.await.expect("it does not panic");
    assert_eq!(activity(&world).published, 5);
    assert!(world.replicas.replicas()[0].stopped, "the last report says that it stopped");
}

#[tokio::test(start_paused = true)]
async fn attempts_and_deferred_completions_of_a_publisher_are_reported() {
    let (world, workers, _stop, _running) = start();
    let push = workers.add_worker("push");
    let route = crate::fixtures::route(1, 0).key;
    push.count_attempts(1, 30, Some("why"));
    let first = FirstDeferred {
        route: route.clone(),
        since: Instant::now(),
        is_published: true,
        cause: "locked".into(),
    };
    push.set_deferred(3, Some(first));
    pass(Duration::from_secs(15)).await;
    let report = world.replicas.replicas().remove(0);
    assert!(!report.stopped);
    let worker = &report.workers[0];
    let attempts = worker.attempts.as_ref().expect("it tried");
    assert_eq!((attempts.succeeded, attempts.failed, &*attempts.cause), (1, 30, "why"));
    let deferred = worker.deferred.as_ref().expect("it waits");
    assert_eq!((deferred.completions, &deferred.first, &*deferred.cause), (3, &route, "locked"));
    assert_eq!(attempts.failing_since, Some(deferred.since));
    pass(Duration::from_secs(60)).await;
    assert_eq!(world.replicas.replicas()[0].workers[0].attempts, None);
}

#[tokio::test(start_paused = true)]
async fn the_activity_of_parts_is_added_once() {
    let (world, workers, _stop, _running) = start();
    let worker = workers.add_worker("intake");
    world.script.on("add_part_activity", |_| Effect::Fail(down("add_part_activity")));
    worker.count_intents("p", Activity { accepted: 3, ..Activity::default() });
    pass(Duration::from_secs(15)).await;
    world.script.off("add_part_activity");
    worker.count_intents("p", Activity { malformed: 4, ..Activity::default() });
    pass(Duration::from_secs(15)).await;
    let parts = world.replicas.parts();
    let of_producer = parts[&domain::replica::ActivityPart::Producer("p".to_owned())].activity;
    assert_eq!((of_producer.accepted, of_producer.malformed), (3, 4));
    assert_eq!(activity(&world), of_producer, "both are added once");
}

#[tokio::test(start_paused = true)]
async fn old_rows_are_deleted_at_start_and_every_ten_minutes() {
    let (world, _workers, _stop, _running) = start();
    pass(Duration::from_secs(1_300)).await;
    for (operation, age) in [("delete_replicas", REPLICA_RETENTION), ("delete_activity", ACTIVITY_RETENTION)]
    {
        let calls = world.script.calls_of(operation);
        let ages: Vec<&str> = calls.iter().map(|call| call.elements[0].as_str()).collect();
        assert_eq!(ages, [age.as_secs().to_string().as_str(); 3], "{operation}");
    }
}
