//! The dead letters that a change reaches, and the conditions under which it waits, stops and ends.

use std::sync::Arc;

use ambient::ManualClock;
use domain::operations::Budgets;
use domain::ports::{Completion, DueOrder, Published, RowLocks};
use domain::query::DeadLetterFilter;
use domain::route::{Channel, Failed, LiveRoute, RouteKey, RouteStatus};
use memory_stores::{Effect, MemoryDatabase, Scripted};

use super::*;
use crate::fixtures::{World, acknowledged, down, now, route};

const REPLAY: RouteChange = RouteChange::Replay(Budgets { push: 3, email: 7 });

type Bulk = BulkChange<Scripted<MemoryDatabase>, Scripted<MemoryDatabase>, Arc<ManualClock>>;

/// Turns routes into dead letters, at the current time of the world.
async fn fail(world: &World, routes: &[LiveRoute]) {
    for route in routes {
        let failed = Failed {
            key: route.key.clone(),
            version: route.version,
            channel: route.channel,
            attempt_count: route.max_attempts,
            retry_at: None,
            classification: route.channel.publish_failed(),
            message: "WRONGTYPE".to_owned(),
        };
        let at = ambient::Clock::now(&world.clock);
        let done = RouteStore::complete_routes_failed(&*world.database, &[failed], at, RowLocks::Wait).await;
        assert_eq!(done.expect("the store is there"), [Completion::Applied]);
    }
}

/// A world with these dead letters.
async fn world(numbers: impl IntoIterator<Item = u64>) -> World {
    let world = World::new(now());
    let routes: Vec<LiveRoute> = numbers.into_iter().map(|number| route(number, 0)).collect();
    for route in &routes {
        world.database.put_route(route.clone());
    }
    fail(&world, &routes).await;
    world.clock.advance(Duration::from_secs(1));
    world
}

fn bulk(world: &World, change: RouteChange, selection: Selection) -> Bulk {
    let action = OperatorAction {
        actor: "me@here".to_owned(),
        request_id: "r-1".to_owned(),
        idempotency_key: None,
        selection,
    };
    BulkChange {
        operations: world.database.clone(),
        store: world.database.clone(),
        clock: Arc::clone(&world.clock),
        change,
        action,
        wait_for_publishers: true,
    }
}

/// Selects all current dead letters.
fn everything(world: &World) -> Selection {
    let created_before = Some(ambient::Clock::now(&world.clock));
    Selection::DeadLetters(DeadLetterFilter { created_before, ..DeadLetterFilter::default() })
}

async fn due(world: &World) -> Vec<LiveRoute> {
    let now = ambient::Clock::now(&world.clock);
    let store = &*world.database;
    let due = RouteStore::list_due_routes(store, Channel::Push, DueOrder::OldestFirst, now, None, 1_000_000);
    due.await.expect("the store is there").routes
}

async fn publish(world: &World) {
    let routes = due(world).await.into_iter();
    let done: Vec<Published> = routes
        .map(|route| Published { key: route.key, version: route.version, entry: acknowledged("7-0") })
        .collect();
    let at = ambient::Clock::now(&world.clock);
    RouteStore::complete_routes_published(&*world.database, &done, at, RowLocks::Wait)
        .await
        .expect("the store is there");
}

fn with_status(world: &World, status: RouteStatus) -> usize {
    world.database.routes().into_iter().filter(|(_, found)| *found == status).count()
}

fn changed(changed: u64) -> BulkReport {
    BulkReport { changed, ..BulkReport::default() }
}

#[tokio::test(start_paused = true)]
async fn a_selection_of_any_size_is_changed_in_chunks_each_with_its_action() {
    let world = world(1..=2_600).await;
    let bulk = Bulk { wait_for_publishers: false, ..bulk(&world, REPLAY, everything(&world)) };
    let mut told = Vec::new();
    let (report, end) = bulk.run(&CancellationToken::new(), |report| told.push(report.changed)).await;
    assert!(matches!(end, BulkEnd::Finished), "{end:?}");
    assert_eq!((report, with_status(&world, RouteStatus::Pending)), (changed(2_600), 2_600));
    assert_eq!(told, [500, 1_000, 1_500, 2_000, 2_500, 2_600]);
    let actions = world.database.actions();
    assert_eq!(actions.iter().map(|action| action.affected).sum::<u64>(), 2_600);
    assert!(actions.iter().all(|action| action.request_id == "r-1" && action.affected <= 500));
}

#[tokio::test(start_paused = true)]
async fn a_route_that_fails_again_meanwhile_is_not_changed_again() {
    let world = world(1..=1_500).await;
    // The filter has no time bound: the position in the list suffices, regardless of the clocks of replicas.
    let bulk = bulk(&world, REPLAY, Selection::DeadLetters(DeadLetterFilter::default()));
    let (stop, failing) = (CancellationToken::new(), world.clone());
    let again = async {
        loop {
            sleep(Duration::from_millis(10)).await;
            fail(&failing, &due(&failing).await).await;
        }
    };
    let (report, end) = tokio::select! {
        done = bulk.run(&stop, |_| ()) => done,
        () = again => unreachable!("it does not end"),
    };
    assert!(matches!(end, BulkEnd::Finished), "{end:?}");
    assert_eq!(report, changed(1_500));
}

#[tokio::test(start_paused = true)]
async fn a_replay_adds_no_chunk_while_many_routes_are_due_and_a_discard_does() {
    let world = world(1..=3_000).await;
    let bulk = bulk(&world, REPLAY, everything(&world));
    let (stop, publishers) = (CancellationToken::new(), world.clone());
    let mut most = 0;
    let publishing = async {
        loop {
            sleep(Duration::from_secs(1)).await;
            most = most.max(due(&publishers).await.len());
            publish(&publishers).await;
        }
    };
    let mut waited = false;
    let (report, end) = tokio::select! {
        done = bulk.run(&stop, |report| waited |= report.waiting) => done,
        () = publishing => unreachable!("it does not end"),
    };
    assert!(matches!(end, BulkEnd::Finished), "{end:?}");
    assert_eq!((report, waited), (changed(3_000), true));
    assert!((1..MAX_DUE_ROUTES + CHUNK_ROUTES).contains(&most), "{most}");
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_no_publisher_follows_ends_and_another_continues() {
    let world = world(1..=3_000).await;
    let begun = Instant::now();
    let (report, end) = bulk(&world, REPLAY, everything(&world)).run(&CancellationToken::new(), |_| ()).await;
    assert!(matches!(end, BulkEnd::Backlog), "{end:?}");
    assert_eq!(report, changed(1_000));
    assert!(begun.elapsed() >= MAX_DUE_WAIT);
    let discard = RouteChange::Discard { reason: "old".to_owned() };
    let (report, end) =
        bulk(&world, discard, everything(&world)).run(&CancellationToken::new(), |_| ()).await;
    assert!(matches!(end, BulkEnd::Finished), "{end:?}");
    assert_eq!(report, changed(2_000));
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_change_after_its_chunk_and_the_same_change_continues() {
    let world = world(1..=1_200).await;
    let (stop, cancel) = (CancellationToken::new(), CancellationToken::new());
    let bulk = bulk(&world, REPLAY, everything(&world));
    cancel.cancel();
    let (report, end) = bulk.run(&cancel, |_| ()).await;
    assert!(matches!((report.changed, end), (0, BulkEnd::Stopped)));
    let (report, end) = bulk.run(&stop, |_| stop.cancel()).await;
    assert!(matches!((report.changed, end), (500, BulkEnd::Stopped)));
    publish(&world).await;
    let (report, end) = bulk.run(&CancellationToken::new(), |_| ()).await;
    assert!(matches!((report.changed, end), (700, BulkEnd::Finished)));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_ends_the_change_with_what_was_done() {
    let world = world(1..=1_200).await;
    let mut calls = 0;
    world.script.on("change_routes", move |_| {
        calls += 1;
        if calls == 2 { Effect::Fail(down("change")) } else { Effect::Pass }
    });
    let (report, end) = bulk(&world, REPLAY, everything(&world)).run(&CancellationToken::new(), |_| ()).await;
    assert!(matches!(end, BulkEnd::Failed(_)), "{end:?}");
    assert_eq!(report, changed(500));
}

#[tokio::test(start_paused = true)]
async fn what_is_locked_is_tried_again_a_bounded_number_of_times() {
    for (release_after, expected) in [
        (Some(Duration::from_secs(3)), changed(10)),
        (None, BulkReport { changed: 9, locked: 1, ..BulkReport::default() }),
    ] {
        let world = world(1..=10).await;
        let lock = world.database.lock_route(&route(5, 0).key);
        let held = async {
            match release_after {
                Some(time) => sleep(time).await,
                None => std::future::pending().await,
            }
            drop(lock);
        };
        let bulk = bulk(&world, REPLAY, everything(&world));
        let (stop, begun) = (CancellationToken::new(), Instant::now());
        let running = bulk.run(&stop, |_| ());
        tokio::pin!(running);
        let (report, end) = tokio::select! {
            done = &mut running => done,
            () = held => running.await,
        };
        assert!(matches!(end, BulkEnd::Finished), "{end:?}");
        assert_eq!(report, expected);
        assert!(begun.elapsed() <= LOCK_PAUSE * 6);
    }
}

#[tokio::test(start_paused = true)]
async fn named_dead_letters_are_changed_and_the_others_reported() {
    let world = world(1..=3).await;
    let ids = [1_u64, 2].map(|number| route(number, 0).key.to_string());
    let ids = ids.into_iter().chain(["9-0/push:user:u-1".to_owned()]).collect();
    let bulk = bulk(&world, REPLAY, Selection::Ids(ids));
    let (report, _) = bulk.run(&CancellationToken::new(), |_| ()).await;
    let unknown = vec!["9-0/push:user:u-1".to_owned()];
    assert_eq!(report, BulkReport { changed: 2, unknown: unknown.clone(), ..BulkReport::default() });
    let (report, _) = bulk.run(&CancellationToken::new(), |_| ()).await;
    assert_eq!(report, BulkReport { unchanged: 2, unknown, ..BulkReport::default() });
}

#[tokio::test(start_paused = true)]
async fn what_another_operator_changed_meanwhile_is_a_conflict() {
    let world = world(1..=10).await;
    let other = world.clone();
    let key: RouteKey = route(5, 0).key;
    let theirs = other.database.clone();
    let mut once = true;
    world.script.on("change_routes", move |_| {
        if std::mem::take(&mut once) {
            theirs.touch_route(&key);
        }
        Effect::Pass
    });
    let (report, _) = bulk(&world, REPLAY, everything(&world)).run(&CancellationToken::new(), |_| ()).await;
    assert_eq!(report, BulkReport { changed: 9, conflicts: 1, ..BulkReport::default() });
}
