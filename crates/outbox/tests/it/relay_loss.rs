//! Events that the relay sends again after the publisher's server was replaced by one that lacks acknowledged
//! events.

use std::time::Duration;

use outbox::{EventTypes, Progress, Publisher, RecordWrite, RelaySettings, ServerRecord};

use crate::relay_fixture::{MS, Running, go_on, settings, with_events};
use crate::relay_servers::{Servers, delivered};
use crate::support::{LEASE, MINUTE, Memory, World, id, ids};

#[tokio::test(start_paused = true)]
async fn what_the_next_server_lacks_is_published_again_once_and_before_what_is_new() {
    let running = delivered().await;
    running.memory.add(6, "k").await;
    running.stand.replace(&ids([4, 5]));
    go_on(MINUTE).await;
    assert_eq!(running.stand.published()[5..], ids([4, 5, 6]));
    go_on(MINUTE * 10).await;
    let (memory, stand, told) = running.stop().await;
    assert_eq!(stand.published().len(), 8, "and not once more");
    assert_eq!(told.count("requeued 2"), 1);
    for number in 1..=6 {
        assert_eq!(memory.status(id(number)).await, "DELIVERED");
    }
}

#[tokio::test(start_paused = true)]
async fn on_a_server_that_lacks_nothing_each_event_is_looked_for_once_and_nothing_is_published() {
    let running = delivered().await;
    let before = running.stand.with(|state| state.looked_for);
    running.stand.replace(&[]);
    go_on(MINUTE * 20).await;
    assert_eq!(running.stand.with(|state| state.looked_for) - before, 5);
    assert_eq!(running.stand.published().len(), 5);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_starts_on_a_server_that_was_compared_looks_for_nothing() {
    let running = delivered().await;
    let (memory, stand, _) = running.stop().await;
    let before = stand.with(|state| state.looked_for);
    stand.with(|state| state.held.clear());
    let running = Running::start(memory, stand, settings());
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.with(|state| state.looked_for), before, "what consumers have taken is not sent again");
}

#[tokio::test(start_paused = true)]
async fn a_loss_while_no_relay_ran_is_noticed_by_the_next_however_late() {
    let (memory, stand, _) = delivered().await.stop().await;
    stand.replace(&ids([5]));
    go_on(MINUTE * 600).await;
    let running = Running::start(memory, stand, settings());
    go_on(MS * 100).await;
    assert_eq!(running.stand.published()[5..], ids([5]));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_outlived_its_server_is_found_by_a_later_round() {
    let running = delivered().await;
    // Another relay has published event 6, and its mark takes as long as its lease.
    running.memory.add(6, "late").await;
    let (token, claimed) = running.memory.claim(1).await;
    assert_eq!(claimed, ids([6]));
    running.stand.replace(&ids([]));
    go_on(MS * 1_500).await;
    let record = running.stand.record();
    assert!(!running.stand.is_settled(), "the first round is over, and the comparison is not: {record:?}");
    go_on(LEASE - MS * 2_000).await;
    running.memory.deliver(&token, &claimed).await;
    go_on(MINUTE * 2).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6]));
}

#[tokio::test(start_paused = true)]
async fn rounds_go_on_while_a_claim_is_held_that_was_made_before_the_change() {
    let long = RelaySettings { lease_timeout: MINUTE * 10, ..settings() };
    let memory = Memory::new();
    memory.add(1, "late").await;
    let (token, claimed) = memory.claim(1).await;
    let running = Running::start(memory, Servers::default(), long);
    go_on(MINUTE * 8).await;
    running.memory.deliver(&token, &claimed).await;
    go_on(MINUTE * 3).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published(), ids([1]), "the server never had it");
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_killed_during_a_comparison_leaves_its_beginning_to_the_next() {
    let running = delivered().await;
    running.task.abort();
    let Running { memory, stand, .. } = running;
    stand.replace(&ids([4, 5]));
    go_on(MINUTE * 30).await;
    // It records the beginning, delivers new events, and is killed.
    let server = stand.server("memory").await.expect("it is there");
    let [ServerRecord { progress: Progress::Settled(since), .. }] = server.records[..] else {
        panic!("it was settled: {server:?}");
    };
    let begun = Progress::Unfinished { since, comparison: 7 };
    let recorded = stand.record_server("memory", &server, &EventTypes::All, begun, since).await;
    assert_eq!(recorded.expect("it is there"), RecordWrite::Written);
    memory.add(6, "new").await;
    let (token, claimed) = memory.claim(1).await;
    stand.with(|state| state.held.insert(id(6)));
    memory.deliver(&token, &claimed).await;
    go_on(MINUTE * 30).await;
    let running = Running::start(memory, stand, settings());
    go_on(MINUTE).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([4, 5]));
}

#[tokio::test(start_paused = true)]
async fn two_relays_send_a_lost_event_once() {
    let running = delivered().await;
    let other = Running::start(Memory(running.memory.0.clone()), running.stand.clone(), settings());
    go_on(MINUTE).await;
    running.stand.replace(&ids([2, 3, 4, 5]));
    go_on(MINUTE * 3).await;
    let (_, _, told) = other.stop().await;
    let (_, stand, told_too) = running.stop().await;
    assert_eq!(stand.published().len(), 9);
    assert_eq!(told.count("requeued 4") + told_too.count("requeued 4"), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_window_nothing_is_compared() {
    let without = RelaySettings { republish_window: Duration::ZERO, ..settings() };
    let running = Running::start(with_events(1..=5, "k").await, Servers::default(), without);
    go_on(MINUTE).await;
    running.stand.replace(&ids([5]));
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!((stand.published().len(), stand.with(|state| state.looked_for)), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn without_a_record_what_was_delivered_before_the_window_is_left_alone() {
    let running = delivered().await;
    go_on(MINUTE * 30).await;
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    running.stand.restore(&ids(2..=5), None);
    go_on(MINUTE * 3).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
}

#[tokio::test(start_paused = true)]
async fn servers_that_replace_each_other_quickly_make_the_comparison_no_longer() {
    let running = delivered().await;
    go_on(MINUTE * 60).await;
    for _ in 0..100 {
        running.stand.with(|state| state.server += 1);
        go_on(MINUTE / 2).await;
    }
    let Progress::Unfinished { since, .. } = running.stand.record().1 else { panic!("it is not finished") };
    let begun = running.memory.now().await - MINUTE * 60 - MINUTE * 50;
    assert!(since >= begun.into(), "{since:?}");
    let looked_for = running.stand.with(|state| state.looked_for);
    running.stand.with(|state| state.server += 1);
    go_on(MINUTE / 2).await;
    assert_eq!(running.stand.with(|state| state.looked_for), looked_for, "all was settled before");
    running.stop().await;
}

fn only(name: &str) -> RelaySettings {
    RelaySettings { types: EventTypes::Only(vec![name.to_owned()]), ..settings() }
}

#[tokio::test(start_paused = true)]
async fn what_consumers_have_taken_is_not_sent_again_after_a_change_of_types_and_back() {
    let (memory, stand, _) = delivered().await.stop().await;
    go_on(MINUTE * 60).await;
    let running = Running::start(memory, stand, only("t"));
    running.memory.add(6, "k").await;
    go_on(MINUTE * 60).await;
    let (memory, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6]));
    // Consumers have taken everything, published markers have expired, and Redis restarts without a loss.
    stand.with(|state| {
        state.held.clear();
        state.server += 1;
    });
    let running = Running::start(memory, stand, settings());
    go_on(MINUTE * 10).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6]));
}

#[tokio::test(start_paused = true)]
async fn a_loss_during_a_change_of_types_is_compared_from_the_record_of_all_types_on() {
    let (memory, stand, _) = delivered().await.stop().await;
    let record = stand.record();
    go_on(MINUTE * 60).await;
    let running = Running::start(memory, stand, settings());
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    let (memory, stand, _) = running.stop().await;
    stand.restore(&ids(1..=5), Some(record));
    go_on(MINUTE * 60).await;
    let running = Running::start(memory, stand, only("t"));
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_restored_in_place_is_compared() {
    let running = delivered().await;
    let before = running.stand.with(|state| (state.held.clone(), state.records.clone()));
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    assert_eq!(running.stand.published()[5..], ids([6]));
    running.stand.with(|state| (state.held, state.records) = before);
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
    assert!(stand.is_settled());
}

/// A relay starts with these settings after the server was restored in place while no relay ran.
async fn started_after_a_restore_in_place(settings: RelaySettings) -> Servers {
    let running = delivered().await;
    let before = running.stand.with(|state| (state.held.clone(), state.records.clone()));
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    let (memory, stand, _) = running.stop().await;
    stand.with(|state| (state.held, state.records) = before);
    let next = Running::start(memory, stand, settings);
    go_on(MINUTE * 5).await;
    let (_, stand, _) = next.stop().await;
    stand
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_restored_in_place_while_no_relay_ran_is_compared() {
    let stand = started_after_a_restore_in_place(settings()).await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
    assert!(stand.is_settled());
}

#[tokio::test(start_paused = true)]
async fn a_relay_of_fewer_types_notices_at_its_start_that_the_server_was_restored_in_place() {
    let stand = started_after_a_restore_in_place(only("t")).await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
}

#[tokio::test(start_paused = true)]
async fn a_start_whose_events_all_have_markers_begins_no_comparison() {
    let running = delivered().await;
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    let (memory, stand, _) = running.stop().await;
    let looked_for = stand.with(|state| state.rounds.len());
    let next = Running::start(memory, stand, settings());
    go_on(MINUTE).await;
    let (_, stand, _) = next.stop().await;
    assert_eq!(stand.with(|state| state.rounds.len()), looked_for);
    assert_eq!(stand.published(), ids(1..=6));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_restored_to_before_a_record_of_another_relay_is_compared() {
    let running = delivered().await;
    running.memory.add(6, "k").await;
    go_on(MS * 1_000).await;
    let own = running.stand.with(|state| (state.held.clone(), state.records.clone()));
    running.memory.add(7, "k").await;
    go_on(MS * 1_000).await;
    assert_eq!(running.stand.published()[5..], ids([6, 7]));
    let until = Progress::Settled(running.memory.now().await.into());
    running.stand.with(|state| {
        assert_eq!(state.records, own.1, "this relay has recorded nothing since");
        state.records.insert(Vec::new(), (state.server, until))
    });
    go_on(MS * 1_000).await;
    running.stand.with(|state| (state.held, state.records) = own);
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 7, 7]));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_restored_in_place_to_a_record_of_other_types_is_compared() {
    let (memory, stand, _) = delivered().await.stop().await;
    let before = stand.with(|state| (state.held.clone(), state.records.clone()));
    let running = Running::start(memory, stand, only("t"));
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    assert_eq!(running.stand.published()[5..], ids([6]));
    running.stand.with(|state| (state.held, state.records) = before);
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
}

/// A relay of `t` has recorded that event 6 was delivered, has delivered event 7 and has stopped. Then the
/// server was restored in place to the state of the record.
async fn restored_to_a_record_of_fewer_types() -> (Memory, Servers) {
    let (memory, stand, _) = delivered().await.stop().await;
    go_on(MINUTE * 20).await;
    let running = Running::start(memory, stand, only("t"));
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    let before = running.stand.with(|state| (state.held.clone(), state.records.clone()));
    running.memory.add(7, "k").await;
    go_on(MINUTE).await;
    let (memory, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 7]));
    stand.with(|state| (state.held, state.records) = before);
    (memory, stand)
}

/// Records for these types that all is settled now, as a relay does that did not notice the restore.
async fn record_settled(memory: &Memory, stand: &Servers, types: &[&str]) {
    let until = Progress::Settled(memory.now().await.into());
    let types = types.iter().copied().map(str::to_owned).collect();
    stand.with(|state| state.records.insert(types, (state.server, until)));
}

async fn started(memory: Memory, stand: Servers, settings: RelaySettings) -> Servers {
    let running = Running::start(memory, stand, settings);
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    stand
}

#[tokio::test(start_paused = true)]
async fn a_relay_whose_own_record_is_old_looks_for_markers_since_a_newer_record_of_other_types() {
    let (memory, stand) = restored_to_a_record_of_fewer_types().await;
    let stand = started(memory, stand, settings()).await;
    assert_eq!(stand.published()[5..], ids([6, 7, 7]));
}

#[tokio::test(start_paused = true)]
async fn a_relay_of_two_lists_looks_for_markers_although_one_of_them_has_an_old_record() {
    let (memory, stand) = restored_to_a_record_of_fewer_types().await;
    stand.with(|state| {
        let old = state.records[&Vec::new()];
        state.records.insert(vec!["u".to_owned()], old)
    });
    let types = EventTypes::Only(vec!["t".to_owned(), "u".to_owned()]);
    let stand = started(memory, stand, RelaySettings { types, ..settings() }).await;
    assert_eq!(stand.published()[5..], ids([6, 7, 7]));
}

#[tokio::test(start_paused = true)]
async fn a_later_record_of_another_relay_hides_no_loss_from_a_relay_that_starts() {
    let (memory, stand) = restored_to_a_record_of_fewer_types().await;
    record_settled(&memory, &stand, &[]).await;
    let stand = started(memory, stand, only("t")).await;
    assert_eq!(stand.published()[5..], ids([6, 7, 7]));
}

#[tokio::test(start_paused = true)]
async fn a_later_record_of_another_relay_hides_no_loss_from_a_running_relay() {
    let (memory, stand, _) = delivered().await.stop().await;
    let running = Running::start(memory, stand, only("t"));
    go_on(MINUTE).await;
    let before = running.stand.with(|state| (state.held.clone(), state.records.clone()));
    running.memory.add(6, "k").await;
    go_on(MINUTE).await;
    running.stand.with(|state| (state.held, state.records) = before);
    record_settled(&running.memory, &running.stand, &[]).await;
    go_on(MINUTE * 5).await;
    let (_, stand, _) = running.stop().await;
    assert_eq!(stand.published()[5..], ids([6, 6]));
}
