//! A relay in a backlog: the next claim is made while events are published.

use std::time::Duration;

use outbox::{Publication, RelaySettings};
use tokio::time::Instant;

use crate::relay_fixture::{MS, Running, Stand, go_on, settings, with_events};
use crate::support::{LEASE, Memory, World, id, ids};

/// The duration of a publication.
const TAKES: Duration = Duration::from_millis(100);

/// Starts a relay on 30 events without a key, which it claims in tens, and returns 50 ms after it has begun
/// to publish the first ten.
async fn in_the_first_publication() -> Running {
    let stand = Stand::default();
    stand.with(|state| state.takes = TAKES);
    let running = Running::start(with_events(1..=30, "").await, stand, settings());
    go_on(MS * 50).await;
    running
}

async fn statuses(memory: &Memory, status: &str, attempts: u32) -> usize {
    let mut count = 0;
    for number in 1..=30 {
        let event = memory.get(id(number)).await.expect("it exists");
        count += usize::from(event.status == status && event.attempts == attempts);
    }
    count
}

#[tokio::test(start_paused = true)]
async fn the_next_claim_is_made_while_events_are_published_and_no_further_one() {
    let running = in_the_first_publication().await;
    assert_eq!(running.told.count("claimed 10"), 2);
    assert_eq!(statuses(&running.memory, "DELIVERING", 0).await, 20);
    go_on(TAKES).await;
    assert_eq!(running.told.count("claimed 10"), 3);
    assert_eq!(running.told.count("delivered 10"), 1, "marks are made beside the next publication");
    go_on(TAKES * 2).await;
    let (memory, stand, told) = running.stop().await;
    assert_eq!(stand.published(), ids(1..=30));
    assert_eq!((told.count("delivered 10"), statuses(&memory, "DELIVERED", 0).await), (3, 30));
}

// O-21
#[tokio::test(start_paused = true)]
async fn an_outage_gives_back_what_was_claimed_ahead_at_once() {
    let running = in_the_first_publication().await;
    running.stand.with(|state| state.away = true);
    go_on(TAKES).await;
    assert_eq!(statuses(&running.memory, "PENDING", 0).await, 30);
    assert_eq!(running.told.count("released 10"), 2);
    running.stand.with(|state| state.away = false);
    go_on(Duration::from_secs(3)).await;
    let (memory, stand, _) = running.stop().await;
    assert_eq!(stand.published(), ids(1..=30));
    assert_eq!(statuses(&memory, "DELIVERED", 0).await, 30);
}

// O-22
#[tokio::test(start_paused = true)]
async fn a_stop_gives_back_what_was_claimed_ahead_at_once() {
    let running = in_the_first_publication().await;
    let begun = Instant::now();
    let (memory, stand, _) = running.stop().await;
    assert_eq!(begun.elapsed(), TAKES - MS * 50);
    assert_eq!(stand.published(), ids(1..=10));
    assert_eq!(statuses(&memory, "DELIVERED", 0).await, 10);
    assert_eq!(statuses(&memory, "PENDING", 0).await, 20);
}

#[tokio::test(start_paused = true)]
async fn a_failure_holds_back_its_key_in_what_is_claimed_ahead() {
    let memory = Memory::new();
    for number in 1..=30 {
        memory.add(number, &format!("k{}", number % 15)).await;
    }
    let stand = Stand::default();
    stand.with(|state| {
        state.takes = TAKES;
        state.outcomes.insert(id(1), Publication::Failed("no".to_owned()));
    });
    let running = Running::start(memory, stand, settings());
    go_on(MS * 950).await;
    let held = ids([1, 16]);
    let expected: Vec<_> = ids(1..=30).into_iter().filter(|id| !held.contains(id)).collect();
    let mut published = running.stand.published();
    published.sort();
    assert_eq!(published, expected);
    running.stand.with(|state| state.outcomes.clear());
    go_on(Duration::from_secs(2)).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[28..], held);
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_ahead_is_given_back_if_its_lease_is_nearly_over() {
    let stand = Stand::default();
    stand.with(|state| state.takes = LEASE.mul_f64(0.8));
    let running = Running::start(with_events(1..=30, "").await, stand, settings());
    go_on(LEASE.mul_f64(0.8) + MS).await;
    assert_eq!(running.told.count("released 10"), 1);
    assert_eq!(statuses(&running.memory, "DELIVERED", 0).await, 10);
    running.stand.with(|state| state.takes = Duration::ZERO);
    go_on(LEASE).await;
    let (memory, stand, _) = running.stop().await;
    let mut published = stand.published();
    published.sort();
    assert_eq!(published, ids(1..=30), "each once");
    assert_eq!(statuses(&memory, "DELIVERED", 0).await, 30, "none was reaped");
}

#[tokio::test(start_paused = true)]
async fn events_that_had_failed_are_marked_before_the_next_claim() {
    let stand = Stand::default();
    stand.with(|state| drop(state.outcomes.insert(id(1), Publication::Failed("no".to_owned()))));
    let retry_soon = RelaySettings { batch_size: 1, ..settings() };
    let running = Running::start(with_events(1..=3, "k").await, stand, retry_soon);
    go_on(MS * 900).await;
    running.stand.with(|state| {
        state.outcomes.clear();
        state.takes = TAKES;
    });
    go_on(MS * 200).await;
    assert_eq!(running.told.count("claimed 1"), 2, "the others wait for the mark of the first");
    go_on(Duration::from_secs(1)).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published(), ids(1..=3));
}
