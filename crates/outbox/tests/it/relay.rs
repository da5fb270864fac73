//! The relay on the storage in memory, with a publisher that the test controls.

use std::time::Duration;

use outbox::{NewEvent, Publication, RelaySettings, RetryPolicy};
use tokio::time::Instant;

use crate::relay_fixture::*;
use crate::support::{LEASE, Memory, World, event, id, ids};

#[tokio::test(start_paused = true)]
async fn a_backlog_is_drained_without_a_pause_and_what_comes_later_within_an_interval() {
    let memory = with_events(1..=25, "").await;
    let running = Running::start(memory, Stand::default(), settings());
    go_on(MS * 10).await;
    assert_eq!(running.stand.published(), ids(1..=25));
    assert_eq!(running.stand.with(|state| state.calls.clone()), [10, 10, 5]);
    running.memory.add(26, "").await;
    go_on(MS * 500).await;
    assert_eq!(running.stand.published().len(), 26);
    let (memory, _, told) = running.stop().await;
    for number in 1..=26 {
        assert_eq!(memory.status(id(number)).await, "DELIVERED");
    }
    assert_eq!((told.count("delivered 10"), told.count("delivered 5"), told.count("delivered 1")), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_idle_relay_looks_once_an_interval() {
    let running = Running::start(Memory::new(), Stand::default(), settings());
    go_on(Duration::from_millis(2_100)).await;
    let looks = running.stand.with(|state| state.deadlines);
    assert_eq!(looks, 5);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_event_and_a_retry_are_published_when_they_fall_due() {
    let memory = Memory::new();
    let now = memory.now().await;
    memory.insert(NewEvent { available_at: Some(now + MS * 1_230), ..event(1, "") }, now).await;
    let begun = Instant::now();
    let running = Running::start(memory, Stand::default(), settings());
    while running.stand.published().is_empty() {
        go_on(MS).await;
    }
    assert!(begun.elapsed() < MS * 1_240, "{:?}", begun.elapsed());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_holds_back_its_key_until_it_is_delivered_and_nothing_else() {
    let memory = with_events(1..=3, "k").await;
    memory.add(4, "l").await;
    let stand = Stand::default();
    stand.with(|state| drop(state.outcomes.insert(id(1), Publication::Failed("WRONGTYPE".to_owned()))));
    let running = Running::start(memory, stand, settings());
    go_on(MS * 900).await;
    assert_eq!(running.stand.published(), ids([4]));
    let failed = running.memory.get(id(1)).await.expect("it exists");
    assert_eq!((failed.attempts, &*failed.last_error), (1, "WRONGTYPE"));
    assert_eq!(running.memory.get(id(2)).await.expect("it exists").attempts, 0);
    running.stand.with(|state| state.outcomes.clear());
    go_on(MS * 200).await;
    assert_eq!(running.stand.published(), ids([4, 1, 2, 3]));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_rejected_or_too_large_is_dead_at_once_and_blocks_nothing() {
    let memory = with_events(1..=1, "k").await;
    let now = memory.now().await;
    memory.insert(NewEvent { payload: vec![b'x'; 1_001].into(), ..event(2, "k") }, now).await;
    memory.add(3, "k").await;
    let stand = Stand::default();
    stand.with(|state| {
        drop(state.outcomes.insert(id(1), Publication::Rejected("INVALID_HEADERS".to_owned())))
    });
    let running = Running::start(memory, stand, settings());
    go_on(MS).await;
    let (memory, stand, told) = running.stop().await;
    assert_eq!(stand.published(), ids([3]));
    let dead = memory.get(id(1)).await.expect("it exists");
    assert_eq!((&*dead.status, dead.attempts, &*dead.last_error), ("DEAD", 1, "INVALID_HEADERS"));
    let dead = memory.get(id(2)).await.expect("it exists");
    assert_eq!((&*dead.status, &*dead.last_error), ("DEAD", "entry_too_large: it has 1001 bytes"));
    assert_eq!(told.count("dead 2"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_too_large_waits_for_those_before_it() {
    let memory = with_events(1..=1, "k").await;
    let now = memory.now().await;
    memory.insert(NewEvent { payload: vec![b'x'; 1_001].into(), ..event(2, "k") }, now).await;
    let stand = Stand::default();
    stand.with(|state| drop(state.outcomes.insert(id(1), Publication::Failed("no".to_owned()))));
    let running = Running::start(memory, stand, settings());
    go_on(MS).await;
    assert_eq!(running.memory.status(id(2)).await, "PENDING");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_is_dead_after_its_last_attempt() {
    let stand = Stand::default();
    stand.with(|state| drop(state.outcomes.insert(id(1), Publication::Failed("no".to_owned()))));
    let retry = RetryPolicy { max_attempts: 3, jitter: 0.0, ..RetryPolicy::default() };
    let running = Running::start(with_events([1], "").await, stand, RelaySettings { retry, ..settings() });
    go_on(MS * 10_000).await;
    let dead = running.memory.get(id(1)).await.expect("it exists");
    assert_eq!((&*dead.status, dead.attempts), ("DEAD", 3));
    assert_eq!((running.told.count("failed 1"), running.told.count("dead 1")), (2, 1));
    running.stop().await;
}

// O-21
#[tokio::test(start_paused = true)]
async fn while_the_publisher_is_unavailable_nothing_is_claimed_and_no_attempt_is_counted() {
    let stand = Stand::default();
    stand.with(|state| state.away = true);
    let running = Running::start(with_events(1..=3, "k").await, stand, settings());
    go_on(Duration::from_secs(600)).await;
    assert_eq!(running.told.count("claimed 3"), 0);
    running.stand.with(|state| state.away = false);
    go_on(Duration::from_secs(2)).await;
    let (memory, stand, told) = running.stop().await;
    assert_eq!(stand.published(), ids(1..=3));
    assert_eq!(memory.get(id(1)).await.expect("it exists").attempts, 0);
    assert_eq!(told.states(), ["state 1", "state 2", "state 1"]);
}

// O-21
#[tokio::test(start_paused = true)]
async fn a_reply_that_was_lost_is_no_attempt_and_gives_the_events_back() {
    let stand = Stand::default();
    stand.with(|state| state.silent = true);
    let running = Running::start(with_events(1..=3, "").await, stand, settings());
    go_on(MS * 10).await;
    assert_eq!(running.memory.status(id(1)).await, "PENDING");
    assert_eq!(running.told.count("released 3"), 1);
    running.stand.with(|state| state.silent = false);
    go_on(Duration::from_secs(2)).await;
    let (memory, _, told) = running.stop().await;
    assert_eq!(
        memory.get(id(1)).await.map(|event| (event.status, event.attempts)),
        Some(("DELIVERED".to_owned(), 0))
    );
    assert_eq!(told.states(), ["state 1", "state 2", "state 1"]);
}

// O-22
#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_chunk_that_is_published_and_releases_the_rest_at_once() {
    let memory = with_events(1..=700, "").await;
    let stand = Stand::default();
    stand.with(|state| state.takes = Duration::from_secs(3));
    let running = Running::start(memory, stand.clone(), RelaySettings { batch_size: 700, ..settings() });
    stand.1.notified().await;
    let begun = Instant::now();
    let (memory, stand, told) = running.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(stand.published(), ids(1..=512));
    for number in 1..=700 {
        let expected = if number <= 512 { "DELIVERED" } else { "PENDING" };
        assert_eq!(memory.status(id(number)).await, expected, "{number}");
    }
    assert_eq!((told.count("delivered 512"), told.count("released 188")), (1, 1));
}

// O-23
#[tokio::test(start_paused = true)]
async fn what_a_killed_relay_had_claimed_is_published_after_its_lease_and_none_is_lost() {
    let memory = with_events(1..=10, "").await;
    let stand = Stand::default();
    stand.with(|state| state.takes = Duration::from_secs(3));
    let killed = Running::start(memory, stand.clone(), settings());
    stand.1.notified().await;
    killed.task.abort();
    stand.with(|state| state.takes = Duration::ZERO);
    let running = Running::start(killed.memory, stand, settings());
    go_on(LEASE).await;
    assert_eq!(running.stand.published(), ids([]));
    go_on(LEASE / 3 + Duration::from_secs(2)).await;
    assert_eq!(running.stand.published(), ids(1..=10));
    assert_eq!(
        running.stand.with(|state| state.calls.clone()),
        [1; 10],
        "each by itself, as a claim takes ten"
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_lease_is_nearly_over_is_given_back() {
    let memory = with_events(1..=1_100, "").await;
    let stand = Stand::default();
    stand.with(|state| state.takes = LEASE.mul_f64(0.36));
    let running = Running::start(memory, stand, RelaySettings { batch_size: 1_100, ..settings() });
    go_on(LEASE.mul_f64(0.73)).await;
    assert_eq!((running.told.count("delivered 1024"), running.told.count("released 76")), (1, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_chunk_ends_at_its_bytes_and_a_larger_event_is_published_alone() {
    let memory = Memory::new();
    let now = memory.now().await;
    for (number, mib) in [(1, 2), (2, 0), (3, 0), (4, 2), (5, 0)] {
        let payload = vec![b'x'; mib * 1024 * 1024 + 1].into();
        memory.insert(NewEvent { payload, ..event(number, "k") }, now).await;
    }
    let settings = RelaySettings { max_event_bytes: 1 << 30, ..settings() };
    let running = Running::start(memory, Stand::default(), settings);
    go_on(MS).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.with(|state| state.calls.clone()), [1, 2, 1, 1]);
    assert_eq!(stand.published(), ids(1..=5));
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_blocked_do_not_keep_later_events_waiting() {
    // 200 events of a key that waits for its retry, more than a claim examines.
    let memory = with_events(1..=200, "k").await;
    let stand = Stand::default();
    stand.with(|state| drop(state.outcomes.insert(id(1), Publication::Failed("no".to_owned()))));
    let running = Running::start(memory, stand, settings());
    go_on(MS * 10).await;
    running.memory.add(201, "").await;
    running.memory.add(202, "l").await;
    go_on(MS * 500).await;
    assert_eq!(running.stand.published(), ids([201, 202]));
    running.stand.with(|state| state.outcomes.clear());
    go_on(MS * 1_500).await;
    assert_eq!(running.stand.published().len(), 202);
    running.stop().await;
}

// O-24
#[tokio::test(start_paused = true)]
async fn what_is_new_does_not_wait_for_what_a_killed_relay_has_left() {
    let large = RelaySettings { batch_size: 320, ..settings() };
    let memory = with_events(1..=320, "").await;
    let stand = Stand::default();
    stand.with(|state| state.takes = Duration::from_secs(3));
    let killed = Running::start(memory, stand.clone(), large.clone());
    stand.1.notified().await;
    killed.task.abort();
    // Reaped events are not tried again for a second.
    let memory = killed.memory;
    go_on(LEASE + MS).await;
    assert_eq!(memory.reap().await, 320);
    go_on(MS * 1_100).await;
    memory.add(321, "").await;
    stand.with(|state| state.takes = MS * 100);
    let running = Running::start(memory, stand, large);
    go_on(MS * 250).await;
    assert!(running.stand.published().contains(&id(321)), "{:?}", running.stand.published());
    go_on(MS * 2_500).await;
    assert_eq!(running.stand.published().len(), 321, "sixteen groups, a tenth of a second each");
    running.stop().await;
}
