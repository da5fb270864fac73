//! The contract of every storage. Each test runs in memory, on PostgreSQL, and on a table without the
//! indexes.

mod claims;
mod delivered;

use std::collections::HashSet;
use std::time::Duration;

use outbox::{
    BatchClaim, ClaimedRows, EventContent, EventTypes, FailureKind, Marked, NewEvent, ReapRequest, Stats,
    Storage,
};
use tokio::task::JoinSet;
use uuid::Uuid;

use self::claims::{
    a_claim_ends_at_its_bytes_and_takes_its_first_event_whole,
    a_claim_looks_at_no_more_events_than_its_limit_and_says_how_far, a_key_is_held_by_one_claim,
    an_event_that_is_scheduled_and_was_never_tried_blocks_nothing,
    an_event_that_is_set_aside_holds_back_its_key_and_nothing_else,
    an_event_that_is_too_large_is_claimed_without_its_payload,
    an_event_that_waits_for_its_retry_blocks_its_key_and_no_other,
    events_of_a_key_go_by_creation_whenever_they_fell_due, other_types_are_left_alone_and_block_nothing,
    reaped_events_are_claimed_together_and_fewer_each_time,
};
use self::delivered::{
    only_what_is_delivered_as_it_was_read_is_pending_again,
    the_newest_delivered_event_is_the_newest_of_the_types,
    the_oldest_claim_that_was_made_before_a_time_is_seen_until_its_mark,
    what_was_delivered_is_listed_in_parts_to_the_end,
};
use crate::support::{LEASE, MINUTE, TICK, World, event, id, ids, kind, next_token, request};

/// Expands each function to a test on the storage in memory and to tests on PostgreSQL.
macro_rules! on_all_storages {
    ($($name:ident)+) => {
        mod memory {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(&crate::support::Memory::new()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&crate::support::Db::new().await).await;
            })+
        }
        mod postgres_without_indexes {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&crate::support::Db::without_indexes().await).await;
            })+
        }
    };
}

on_all_storages! {
    claims_respect_the_batch_size_and_the_order
    what_is_claimed_is_claimed_by_no_other
    what_is_available_later_is_claimed_later
    what_is_delivered_is_claimed_no_more
    a_failed_event_is_claimed_after_its_delay_and_has_one_attempt_more
    a_dead_event_is_claimed_no_more
    an_expired_lease_is_reaped_and_the_event_claimed_by_another
    the_counts_are_those_of_the_rows
    a_claim_of_none_takes_nothing
    an_empty_outbox_has_nothing_to_claim
    a_lease_is_reaped_once
    a_lost_claim_marks_nothing
    the_last_claim_of_the_same_relay_marks_nothing_either
    a_released_event_is_as_it_was_before_the_claim
    claims_at_once_share_the_events
    the_order_of_a_large_claim_is_that_of_the_queue
    events_of_a_key_go_by_creation_whenever_they_fell_due
    a_key_is_held_by_one_claim
    an_event_that_waits_for_its_retry_blocks_its_key_and_no_other
    an_event_that_is_scheduled_and_was_never_tried_blocks_nothing
    a_claim_looks_at_no_more_events_than_its_limit_and_says_how_far
    other_types_are_left_alone_and_block_nothing
    a_claim_ends_at_its_bytes_and_takes_its_first_event_whole
    an_event_that_is_too_large_is_claimed_without_its_payload
    a_reaped_event_is_claimed_alone_until_it_is_done
    reaped_events_are_claimed_together_and_fewer_each_time
    an_event_that_is_set_aside_holds_back_its_key_and_nothing_else
    a_poison_event_is_dead_after_its_last_attempt
    the_next_due_event_tells_how_long_to_wait
    what_was_delivered_is_listed_in_parts_to_the_end
    only_what_is_delivered_as_it_was_read_is_pending_again
    the_newest_delivered_event_is_the_newest_of_the_types
    the_oldest_claim_that_was_made_before_a_time_is_seen_until_its_mark
}

fn found(claim: &ClaimedRows) -> Vec<Uuid> {
    claim.events.iter().map(|event| event.event_id).collect()
}

// O-01
async fn claims_respect_the_batch_size_and_the_order(world: &impl World) {
    let now = world.now().await;
    for (number, created, available) in [(1, 10, 10), (2, 5, 5), (3, 2, 1), (4, 2, 5)] {
        let event = NewEvent { available_at: Some(now - MINUTE * available), ..event(number, "") };
        world.insert(event, now - MINUTE * created).await;
    }
    assert_eq!(world.claim(2).await.1, ids([1, 2]));
    assert_eq!(world.claim(2).await.1, ids([4, 3]));
}

// O-02
async fn what_is_claimed_is_claimed_by_no_other(world: &impl World) {
    world.add(1, "").await;
    world.add(2, "k").await;
    let claimed = world.claim_with(&request(10)).await;
    assert_eq!(found(&claimed), ids([1, 2]));
    let first = &claimed.events[0];
    assert_eq!((&*first.event_type, &*first.partition_key, first.attempts), ("t", "", 0));
    assert_eq!(first.created_at, Some(world.now().await));
    let content = EventContent::Whole { payload: "payload 1".into(), headers: "{}".to_owned() };
    assert_eq!((&first.content, &*claimed.events[1].partition_key), (&content, "k"));
    assert_eq!(world.claim(10).await.1, ids([]));
    assert_eq!(world.storage().stats(&EventTypes::All, 10).await.expect("counted").pending, 0);
}

// O-03
async fn what_is_available_later_is_claimed_later(world: &impl World) {
    let now = world.now().await;
    world.insert(NewEvent { available_at: Some(now + MINUTE), ..event(1, "") }, now).await;
    world.pass(MINUTE - TICK).await;
    assert_eq!(world.claim(10).await.1, ids([]));
    world.pass(TICK).await;
    assert_eq!(world.claim(10).await.1, ids([1]));
}

// O-04
async fn what_is_delivered_is_claimed_no_more(world: &impl World) {
    world.add(1, "k").await;
    let (token, claimed) = world.claim(10).await;
    assert_eq!(world.deliver(&token, &claimed).await, [Marked::Applied]);
    assert_eq!(world.status(id(1)).await, "DELIVERED");
    world.pass(LEASE * 2).await;
    assert_eq!(world.reap().await, 0);
    assert_eq!(world.claim(10).await.1, ids([]));
    assert_eq!(world.deliver(&token, &claimed).await, [Marked::Lost], "once");
}

// O-05
async fn a_failed_event_is_claimed_after_its_delay_and_has_one_attempt_more(world: &impl World) {
    world.add(1, "").await;
    let (token, claimed) = world.claim(10).await;
    let delay = Duration::from_millis(50);
    assert_eq!(world.fail(&token, &claimed, FailureKind::Retry(delay)).await, [Marked::Applied]);
    world.pass(delay - TICK).await;
    assert_eq!(world.claim(10).await.1, ids([]));
    world.pass(TICK).await;
    let claim = world.claim_with(&request(10)).await;
    assert_eq!(claim.events[0].attempts, 1);
    assert_eq!(world.get(id(1)).await.expect("it exists").last_error, "it broke");
}

// O-06
async fn a_dead_event_is_claimed_no_more(world: &impl World) {
    world.add(1, "k").await;
    world.add(2, "k").await;
    let (token, _) = world.claim(1).await;
    assert_eq!(world.fail(&token, &ids([1]), FailureKind::Dead).await, [Marked::Applied]);
    assert_eq!(world.status(id(1)).await, "DEAD");
    world.pass(LEASE * 2).await;
    assert_eq!(world.reap().await, 0);
    assert_eq!(world.claim(10).await.1, ids([2]), "it blocks its key no more");
}

// O-07
async fn an_expired_lease_is_reaped_and_the_event_claimed_by_another(world: &impl World) {
    world.add(1, "").await;
    let (lost, _) = world.claim(10).await;
    world.pass(LEASE).await;
    assert_eq!(world.reap().await, 0, "at its very end it counts");
    world.pass(TICK).await;
    assert_eq!(world.reap().await, 1);
    let reaped = world.get(id(1)).await.expect("it exists");
    assert_eq!((&*reaped.status, reaped.attempts, &*reaped.last_error), ("PENDING", 1, "lease expired"));
    assert_eq!(world.claim(10).await.1, ids([]), "its back-off comes first");
    world.pass(Duration::from_secs(1)).await;
    let (token, claimed) = world.claim(10).await;
    assert_eq!(claimed, ids([1]));
    assert_eq!(world.deliver(&lost, &claimed).await, [Marked::Lost]);
    assert_eq!(world.deliver(&token, &claimed).await, [Marked::Applied]);
}

// O-08
async fn the_counts_are_those_of_the_rows(world: &impl World) {
    let now = world.now().await;
    world.insert(event(1, ""), now - MINUTE * 10).await;
    world.insert(event(2, ""), now - MINUTE).await;
    world.insert(NewEvent { available_at: Some(now + MINUTE), ..event(3, "") }, now - MINUTE * 20).await;
    let count = async || world.storage().stats(&EventTypes::All, 100).await.expect("counted");
    let expected = Stats { pending: 2, scheduled: 1, oldest_age: MINUTE * 10, ..Stats::default() };
    assert_eq!(count().await, expected);
    let (token, claimed) = world.claim(10).await;
    assert_eq!(count().await, Stats { scheduled: 1, delivering: 2, ..Stats::default() });
    assert_eq!(world.fail(&token, &claimed[..1], FailureKind::Dead).await, [Marked::Applied]);
    assert_eq!(world.fail(&token, &claimed[1..], FailureKind::Retry(MINUTE * 2)).await, [Marked::Applied]);
    let counted = count().await;
    assert_eq!((counted.retrying, counted.scheduled, counted.delivering), (1, 1, 0));
    world.pass(MINUTE * 2).await;
    let counted = count().await;
    assert_eq!((counted.pending, counted.retrying, counted.scheduled), (1, 1, 0));
    assert_eq!(counted.oldest_age, MINUTE * 22);
    let other = EventTypes::Only(vec!["other".to_owned()]);
    assert_eq!(world.storage().stats(&other, 100).await.expect("counted"), Stats::default());
}

// O-10
async fn a_claim_of_none_takes_nothing(world: &impl World) {
    world.add(1, "").await;
    assert_eq!(world.claim(0).await.1, ids([]));
    let token = next_token();
    assert_eq!(world.deliver(&token, &[]).await, []);
    assert_eq!(world.fail(&token, &[], FailureKind::Dead).await, []);
    assert_eq!(world.release(&token, &[]).await, []);
    assert_eq!(world.deliver(&token, &ids([1, 99])).await, [Marked::Lost, Marked::Lost]);
}

// O-11
async fn an_empty_outbox_has_nothing_to_claim(world: &impl World) {
    let claim = world.claim_with(&request(10)).await;
    let nothing = ClaimedRows { events: Vec::new(), unchanged: Vec::new(), next: None, of_reaped: false };
    assert_eq!(claim, nothing);
    assert_eq!(world.reap().await, 0);
    assert_eq!(world.storage().stats(&EventTypes::All, 10).await.expect("counted"), Stats::default());
}

// O-12
async fn a_lease_is_reaped_once(world: &impl World) {
    world.add(1, "").await;
    assert_eq!(world.claim(10).await.1, ids([1]));
    assert_eq!(world.reap().await, 0);
    world.pass(LEASE + TICK).await;
    assert_eq!(world.reap().await, 1);
    assert_eq!(world.reap().await, 0);
}

// O-15
async fn a_lost_claim_marks_nothing(world: &impl World) {
    world.add(1, "k").await;
    let (lost, claimed) = world.claim(10).await;
    world.pass(LEASE + TICK).await;
    assert_eq!(world.reap().await, 1);
    world.pass(Duration::from_secs(1)).await;
    let (token, _) = world.claim(10).await;
    let before = world.get(id(1)).await;
    assert_eq!(world.deliver(&lost, &claimed).await, [Marked::Lost]);
    assert_eq!(world.fail(&lost, &claimed, FailureKind::Dead).await, [Marked::Lost]);
    assert_eq!(world.release(&lost, &claimed).await, [Marked::Lost]);
    assert_eq!(world.get(id(1)).await, before);
    assert_eq!(world.deliver(&token, &claimed).await, [Marked::Applied]);
}

// O-16
async fn the_last_claim_of_the_same_relay_marks_nothing_either(world: &impl World) {
    world.add(1, "").await;
    let (first, claimed) = world.claim(10).await;
    assert_eq!(world.release(&first, &claimed).await, [Marked::Applied]);
    let (second, again) = world.claim(10).await;
    assert_eq!((&again, first.as_str().split('#').next()), (&claimed, second.as_str().split('#').next()));
    assert_eq!(world.deliver(&first, &claimed).await, [Marked::Lost]);
    assert_eq!(world.deliver(&second, &claimed).await, [Marked::Applied]);
}

async fn a_released_event_is_as_it_was_before_the_claim(world: &impl World) {
    world.add(1, "k").await;
    let before = world.get(id(1)).await;
    let (token, claimed) = world.claim(10).await;
    assert_eq!(world.release(&token, &claimed).await, [Marked::Applied]);
    assert_eq!(world.get(id(1)).await, before);
    assert_eq!(world.claim(10).await.1, claimed);
}

// O-14
async fn claims_at_once_share_the_events(world: &impl World) {
    let now = world.now().await;
    for number in 0..400 {
        world.insert(event(number, &format!("k{}", number % 7)), now).await;
    }
    let mut claimers = JoinSet::new();
    for _ in 0..8 {
        let storage = world.storage().clone();
        claimers.spawn(async move {
            let mut mine = Vec::new();
            loop {
                let request = request(20);
                let claim = storage.claim_batch(&request).await.expect("no failure");
                if claim.events.is_empty() && claim.next.is_none() {
                    let stats = storage.stats(&EventTypes::All, 1).await.expect("counted");
                    if (stats.pending, stats.delivering) == (0, 0) {
                        return mine;
                    }
                    tokio::task::yield_now().await;
                }
                let claimed = found(&claim);
                mine.extend(claimed.iter().copied());
                let marked =
                    storage.mark_delivered_batch(&request.token, &claimed).await.expect("no failure");
                assert!(marked.iter().all(|marked| *marked == Marked::Applied), "{marked:?}");
            }
        });
    }
    let all = claimers.join_all().await.concat();
    assert_eq!(all.len(), 400);
    assert_eq!(all.into_iter().collect::<HashSet<_>>(), ids(0..400).into_iter().collect());
}

// O-17
async fn the_order_of_a_large_claim_is_that_of_the_queue(world: &impl World) {
    let now = world.now().await;
    let mut expected = Vec::new();
    for number in 0..300_u64 {
        // A permutation of the numbers, so that creation order differs from id order.
        let (created, key) = (number * 7_919 % 300, if number % 3 == 0 { "k" } else { "" });
        let event = NewEvent { available_at: Some(now), ..event(number, key) };
        world.insert(event, now - Duration::from_secs(created)).await;
        expected.push((now - Duration::from_secs(created), id(number)));
    }
    expected.sort();
    let claimed = world.claim(300).await.1;
    assert_eq!(claimed, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}

// O-24
async fn a_reaped_event_is_claimed_alone_until_it_is_done(world: &impl World) {
    for number in 1..=3 {
        world.add(number, if number == 2 { "k" } else { "" }).await;
    }
    assert_eq!(world.claim(10).await.1, ids([1, 2, 3]));
    world.pass(LEASE + TICK).await;
    assert_eq!(world.reap().await, 3);
    world.pass(MINUTE).await;
    world.add(4, "").await;
    world.insert(event(5, ""), world.now().await - MINUTE * 9).await;
    // The events before and after the reaped ones are claimed without them.
    assert_eq!(world.claim(10).await.1, ids([5, 4]));
    let mut alone = Vec::new();
    for _ in 0..3 {
        let (token, claimed) = world.claim(10).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        let failed = world.fail(&token, &claimed, FailureKind::Retry(MINUTE)).await;
        assert_eq!(failed, [Marked::Applied]);
        alone.extend(claimed);
    }
    assert_eq!(alone, ids([1, 2, 3]));
    assert_eq!(world.get(id(1)).await.expect("it exists").last_error, "lease expired; it broke");
    world.pass(MINUTE).await;
    assert_eq!(world.claim(10).await.1, ids([1]), "although it failed in another way since");
}

// O-24
async fn a_poison_event_is_dead_after_its_last_attempt(world: &impl World) {
    world.add(1, "").await;
    for attempt in 1..=25 {
        assert_eq!(world.claim(10).await.1, ids([1]), "attempt {attempt}");
        world.pass(LEASE + TICK).await;
        assert_eq!(world.reap().await, 1);
        world.pass(Duration::from_secs(24 * 60 * 60)).await;
    }
    let dead = world.get(id(1)).await.expect("it exists");
    assert_eq!((&*dead.status, dead.attempts, &*dead.last_error), ("DEAD", 25, "lease expired"));
}

async fn the_next_due_event_tells_how_long_to_wait(world: &impl World) {
    let due_in = async |types: &EventTypes| world.storage().due_in(types, None).await.expect("no failure");
    let (all, other) = (EventTypes::All, EventTypes::Only(vec!["other".to_owned()]));
    assert_eq!(due_in(&all).await, None);
    let now = world.now().await;
    world.insert(NewEvent { available_at: Some(now + MINUTE), ..event(1, "k") }, now).await;
    assert_eq!((due_in(&all).await, due_in(&other).await), (Some(MINUTE), None));
    world.pass(MINUTE * 2).await;
    assert_eq!(due_in(&all).await, Some(Duration::ZERO));
    let claim = world.claim_with(&request(1)).await;
    assert_eq!(found(&claim), ids([1]));
    assert_eq!(due_in(&all).await, None, "it is claimed");
}
