//! Which changes of a server or a stream are noticed, when, and by which replica.

use super::*;

#[tokio::test(start_paused = true)]
async fn nothing_is_compared_before_completions_had_time_to_be_committed() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(6);
    replica.look().await.expect("the stores are there");
    tokio::time::advance(COMPARISON_DELAY / 2).await;
    replica.look().await.expect("the stores are there");
    assert!(fixture.listings().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_lost_nothing_is_compared_and_appends_nothing() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.restart();
    replica.notice().await.expect("the stores are there");
    replica.look().await.expect("the stores are there");
    assert_eq!((fixture.listings().len(), fixture.counts()), (1, vec![1; 10]));
    assert_eq!(fixture.saved().await[0].run_id, "1");
}

#[tokio::test(start_paused = true)]
async fn a_last_id_that_fell_on_the_same_server_is_compared() {
    let (fixture, mut replica) = published().await;
    // Later entries are seen but not saved yet.
    fixture.publish(11).await;
    replica.look().await.expect("the stores are there");
    assert_eq!(fixture.saved().await[0].last_generated, fixture.ids()[9]);
    fixture.world.publishing.lose_tail(Channel::Push, 1);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 11]);
    assert!(fixture.is_consistent());
}

#[tokio::test(start_paused = true)]
async fn a_loss_while_no_replica_ran_is_noticed_by_the_next_one() {
    let (fixture, first) = published().await;
    drop(first);
    fixture.world.publishing.fail_over(0);
    fixture.publish(11).await;
    fixture.world.publishing.fail_over(1);
    // The first entry stays: entries before it would count as trimmed.
    Replica::of(&fixture).notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_window_is_counted_from_when_the_former_server_was_seen_and_records_are_an_hour_older() {
    let (fixture, mut replica) = published().await;
    let seen_at = fixture.saved().await[0].seen_at;
    fixture.world.clock.advance(Duration::from_secs(7_200));
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    let since = seen_at - WINDOW;
    let bounds = [since, since - Duration::from_secs(3_600)].map(|bound| bound.to_string());
    assert_eq!(fixture.listings(), [bounds]);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn of_two_replicas_one_compares() {
    let (fixture, mut one) = published().await;
    let mut two = Replica::of(&fixture);
    two.look().await.expect("the stores are there");
    fixture.world.publishing.fail_over(6);
    two.look().await.expect("the stores are there");
    one.notice().await.expect("the stores are there");
    two.look().await.expect("the stores are there");
    two.look().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), 1);
    assert_eq!(fixture.counts(), [1; 10]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_not_elected_compares_and_saves_nothing_and_takes_over_later() {
    let (fixture, mut replica) = published().await;
    fixture.world.election.let_another_lead();
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), 0);
    assert_eq!(fixture.saved().await[0].run_id, "0");
    fixture.world.election.end_term();
    replica.look().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
}

#[tokio::test(start_paused = true)]
async fn while_nothing_changes_neither_an_election_nor_a_write_follows() {
    let (fixture, mut replica) = published().await;
    let before = fixture.campaigns();
    for _ in 0..100 {
        tokio::time::advance(OBSERVE_INTERVAL).await;
        replica.look().await.expect("the stores are there");
    }
    assert_eq!(fixture.campaigns(), before);
}

#[tokio::test(start_paused = true)]
async fn under_traffic_the_streams_are_saved_every_ten_seconds_at_most() {
    let (fixture, mut replica) = published().await;
    let before = fixture.campaigns();
    for number in 0..20 {
        fixture.publish(100 + number).await;
        tokio::time::advance(OBSERVE_INTERVAL).await;
        replica.look().await.expect("the stores are there");
    }
    let elections = fixture.campaigns() - before;
    assert!((3..=4).contains(&elections), "{elections} in 40 s");
}
