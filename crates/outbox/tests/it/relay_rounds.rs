//! Rounds of a comparison and the record of its result, in cases where an event could be missed or sent
//! twice.

use std::pin::pin;
use std::task::{Context, Waker};

use outbox::{EventTypes, NewEvent, Progress, RelaySettings, Storage};

use crate::relay_fixture::{MS, Running, go_on, settings, with_events};
use crate::relay_servers::{Servers, delivered};
use crate::support::{MINUTE, World, event, id, ids};

// O-22
#[tokio::test(start_paused = true)]
async fn a_lost_event_that_is_locked_in_the_first_round_is_sent_by_a_later_one_however_old_it_is() {
    let running = delivered().await;
    go_on(MINUTE * 60).await;
    running.memory.0.lock(&ids([4]));
    running.stand.replace(&ids([4, 5]));
    go_on(MINUTE).await;
    assert_eq!(running.stand.published()[5..], ids([5]));
    let Progress::Unfinished { since, .. } = running.stand.record().1 else { panic!("it is not finished") };
    assert!(
        since < (running.memory.now().await - MINUTE * 59).into(),
        "the next relay would find it: {since:?}"
    );
    running.memory.0.lock(&[]);
    go_on(MINUTE * 3).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([5, 4]));
    assert!(stand.is_settled());
}

#[tokio::test(start_paused = true)]
async fn each_round_looks_for_entries_of_its_own_so_that_a_second_loss_is_found_at_once() {
    let running = delivered().await;
    running.stand.replace(&ids([4, 5]));
    go_on(MINUTE / 12).await;
    running.stand.replace(&ids([4]));
    go_on(MINUTE / 12).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([4, 5, 4]));
    let mut rounds = stand.with(|state| state.rounds.clone());
    rounds.dedup();
    assert_eq!(rounds.len(), 2, "{rounds:?}");
}

/// Returns an event of another type, for another relay.
fn of_other_type(number: u64) -> NewEvent {
    NewEvent { event_type: "other".to_owned(), ..event(number, "") }
}

#[tokio::test(start_paused = true)]
async fn deliveries_of_another_relay_do_not_use_up_the_window_of_this_one() {
    let only = RelaySettings { types: EventTypes::Only(vec!["t".to_owned()]), ..settings() };
    let running = Running::start(with_events(1..=5, "k").await, Servers::default(), only);
    go_on(MINUTE * 2).await;
    let (memory, stand, _) = running.stop().await;
    go_on(MINUTE * 60).await;
    memory.insert(of_other_type(6), memory.now().await).await;
    let (token, claimed) = memory.claim(1).await;
    let _ = memory.deliver(&token, &claimed).await;
    stand.restore(&[], None);
    let only = RelaySettings { types: EventTypes::Only(vec!["t".to_owned()]), ..settings() };
    let running = Running::start(memory, stand, only);
    go_on(MINUTE).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids(1..=5));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_emptied_just_before_the_last_record_is_compared_again() {
    let running = delivered().await;
    running.stand.replace(&[]);
    running.stand.with(|state| {
        state.on_settle = Some(Box::new(|held, records| {
            held.clear();
            records.clear();
        }));
    });
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids(1..=5));
    assert!(stand.is_settled());
}

#[tokio::test(start_paused = true)]
async fn a_comparison_of_another_relay_after_a_later_loss_is_not_ended_by_this_one() {
    let running = delivered().await;
    running.stand.replace(&[]);
    go_on(MINUTE / 2).await;
    running.memory.add(6, "k").await;
    running.stand.with(|state| {
        state.on_settle = Some(Box::new(|held, records| {
            held.remove(&id(6));
            // Another relay detected the loss, began a comparison from the same time, and was killed.
            for (_, progress) in records.values_mut() {
                if let Progress::Unfinished { comparison, .. } = progress {
                    *comparison = 7;
                }
            }
        }));
    });
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_is_made_during_a_round_before_its_event_is_looked_for_is_found_by_a_further_one() {
    let running = delivered().await;
    running.memory.add(6, "late").await;
    let (token, claimed) = running.memory.claim(1).await;
    assert_eq!(claimed, ids([6]));
    running.stand.replace(&ids([5]));
    // The claim is held when the second round begins, and marked while that round reads events that were
    // delivered earlier.
    go_on(MINUTE - MS * 500).await;
    let (storage, mut looks) = (running.memory.storage().clone(), 0);
    running.stand.with(|state| {
        state.on_look = Some(Box::new(move || {
            looks += 1;
            if looks == 1 {
                let mark = pin!(storage.mark_delivered_batch(&token, &claimed));
                assert!(mark.poll(&mut Context::from_waker(Waker::noop())).is_ready());
            }
        }));
    });
    go_on(MINUTE * 4).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([5, 6]));
}

// O-22
#[tokio::test(start_paused = true)]
async fn a_lost_event_whose_mark_waits_for_longer_than_a_lease_is_sent_again_when_the_mark_is_committed() {
    let running = delivered().await;
    running.memory.add(6, "late").await;
    let (token, claimed) = running.memory.claim(1).await;
    let begun = running.memory.now().await + MS;
    running.memory.0.lock(&claimed);
    running.stand.replace(&[]);
    go_on(MINUTE * 7 / 2).await;
    let Progress::Unfinished { since, .. } = running.stand.record().1 else { panic!("it is not finished") };
    assert!(since <= begun.into(), "the next relay would find it: {since:?}");
    running.memory.0.lock(&[]);
    let _ = running.memory.0.commit_mark(&token, &claimed, begun);
    go_on(MINUTE * 2).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6]));
    assert!(stand.is_settled());
}

#[tokio::test(start_paused = true)]
async fn events_that_were_requeued_before_a_stop_in_the_middle_of_a_round_are_reported() {
    let running = Running::start(with_events(1..=2_500, "k").await, Servers::default(), settings());
    go_on(MINUTE * 5).await;
    assert_eq!(running.stand.published().len(), 2_500);
    running.stand.replace(&ids(1..=2_500));
    let (stop, mut looks) = (running.stop.clone(), 0);
    running.stand.with(|state| {
        state.on_look = Some(Box::new(move || {
            looks += 1;
            if looks == 2 {
                stop.cancel();
            }
        }));
    });
    go_on(MINUTE).await;
    let (_, _, told) = running.stop().await;
    assert_eq!(told.count("requeued 1000"), 1);
}

#[tokio::test(start_paused = true)]
async fn new_events_do_not_wait_for_a_comparison_that_fails() {
    let running = delivered().await;
    running.stand.with(|state| state.fails_to_look = true);
    running.stand.replace(&ids([5]));
    running.memory.add(6, "another").await;
    go_on(MINUTE).await;
    assert_eq!(running.stand.published()[5..], ids([6]));
    running.stand.with(|state| state.fails_to_look = false);
    go_on(MINUTE).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[6..], ids([5]));
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_without_a_loss_only_what_was_delivered_since_the_last_record_is_looked_for() {
    let running = delivered().await;
    running.memory.add(6, "k").await;
    go_on(MINUTE * 60).await;
    let before = running.stand.with(|state| state.looked_for);
    // Consumers have taken everything, and the published markers have expired.
    running.stand.with(|state| {
        state.held.clear();
        state.server += 1;
    });
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!((stand.published().len(), stand.with(|state| state.looked_for)), (6, before));
}

#[tokio::test(start_paused = true)]
async fn everything_after_the_record_of_the_older_state_is_compared_however_long_ago_it_was() {
    let running = delivered().await;
    let record = running.stand.record();
    running.memory.add(6, "k").await;
    go_on(MINUTE * 60).await;
    running.memory.add(7, "k").await;
    go_on(MINUTE).await;
    running.stand.restore(&ids(1..=5), Some(record));
    go_on(MINUTE * 3).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[7..], ids([6, 7]));
}

#[tokio::test(start_paused = true)]
async fn a_record_from_the_future_counts_as_none() {
    let running = delivered().await;
    let future = running.memory.now().await + MINUTE * 60;
    running.stand.restore(&[], Some((0, Progress::Settled(future.into()))));
    go_on(MINUTE * 3).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids(1..=5));
}

#[tokio::test(start_paused = true)]
async fn the_record_is_written_at_most_every_ten_seconds_and_at_the_stop_and_not_while_idle() {
    let running = delivered().await;
    go_on(MINUTE).await;
    let before = running.stand.with(|state| state.recorded);
    for number in 10..=39 {
        running.memory.add(number, "").await;
        go_on(MS * 1_000).await;
    }
    let written = running.stand.with(|state| state.recorded) - before;
    assert!((3..=4).contains(&written), "{written}");
    go_on(MINUTE).await;
    let before = running.stand.with(|state| state.recorded);
    go_on(MINUTE * 60).await;
    assert_eq!(running.stand.with(|state| state.recorded), before);
    running.memory.add(40, "").await;
    go_on(MS * 1_000).await;
    running.memory.add(41, "").await;
    go_on(MS * 1_000).await;
    let (memory, stand, _) = running.stop().await;
    assert_eq!(
        stand.record(),
        (0, Progress::Settled(memory.now().await.into())),
        "the last is from the stop"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_relay_has_delivered_is_settled_when_the_next_one_has_started() {
    let running = delivered().await;
    // The second event comes less than ten seconds after a record.
    for number in [6, 7] {
        running.memory.add(number, "k").await;
        go_on(MS * 1_000).await;
    }
    running.task.abort();
    let (memory, stand) = (running.memory, running.stand);
    let running = Running::start(memory, stand, settings());
    go_on(MINUTE * 60).await;
    // Consumers have taken everything, and the published markers have expired.
    running.stand.with(|state| {
        state.held.clear();
        state.server += 1;
    });
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published(), ids(1..=7));
}
