//! The detection of changes of a server or a stream: which ones, when, and by which replica.

use domain::republish::{EntryState, entry_state};

use super::*;

#[tokio::test(start_paused = true)]
async fn nothing_is_compared_before_completions_had_time_to_be_committed() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(6);
    replica.look().await.expect("the stores are there");
    tokio::time::advance(SETTLE_TIME / 2).await;
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
    assert_eq!(fixture.saved_run_id().await, "1");
}

#[tokio::test(start_paused = true)]
async fn a_last_id_that_fell_on_the_same_server_is_compared() {
    let (fixture, mut replica) = published().await;
    // The later entry is observed but not saved yet.
    fixture.publish(11).await;
    replica.look().await.expect("the stores are there");
    assert_eq!(fixture.saved().await[0].seen.last_generated, fixture.ids()[9]);
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
    // The first entry stays, because entries before it would count as trimmed.
    Replica::of(&fixture).notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_window_is_counted_from_when_the_former_server_was_saved_and_records_are_an_hour_older() {
    let (fixture, mut replica) = published().await;
    let seen_at = fixture.saved().await[0].seen_at;
    fixture.world.clock.advance(Duration::from_secs(7_200));
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    let since = seen_at - WINDOW - Duration::from_secs(3_600);
    assert_eq!(fixture.listings()[0][1], since.to_string());
}

// INV-13
#[tokio::test(start_paused = true)]
async fn records_that_a_replica_with_a_fast_clock_accepted_are_compared() {
    let (fixture, mut replica) = published().await;
    let now = fixture.world.clock.now();
    for number in 11..=20 {
        fixture.world.clock.set(now + Duration::from_secs(3_000));
        fixture.publish(number).await;
    }
    fixture.world.clock.set(now);
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 20]);
    assert!(fixture.is_consistent());
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_committed_after_the_comparison_is_compared_a_minute_later() {
    let (fixture, mut replica) = published().await;
    let late = fixture.append(11).await;
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    fixture.complete(late).await;
    assert_eq!(fixture.counts()[10], 0, "it was not there to be compared");
    assert!(fixture.saved().await[0].compare_again_since.is_some());
    for _ in 0..40 {
        fixture.pass(OBSERVE_INTERVAL).await;
        replica.look().await.expect("the stores are there");
    }
    assert_eq!((fixture.counts(), fixture.listings().len()), (vec![1; 11], 2));
    assert_eq!(fixture.saved().await[0].compare_again_since, None, "it is repeated once");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_comparison_is_repeated_by_another_replica_if_the_first_one_dies() {
    let (fixture, mut replica) = published().await;
    let late = fixture.append(11).await;
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    drop(replica);
    fixture.complete(late).await;
    let mut next = Replica::of(&fixture);
    for _ in 0..50 {
        next.look().await.expect("the stores are there");
        fixture.pass(OBSERVE_INTERVAL).await;
    }
    assert_eq!(fixture.counts(), [1; 11]);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn the_repetition_for_an_earlier_change_does_not_take_the_place_of_that_for_a_later_one() {
    let (fixture, mut first) = published().await;
    let mut second = Replica::of(&fixture);
    second.look().await.expect("the stores are there");
    fixture.world.publishing.restart();
    first.notice().await.expect("the stores are there");
    second.notice().await.expect("the stores are there");
    fixture.pass(REPEAT_DELAY - SETTLE_TIME).await;
    let late = fixture.append(11).await;
    fixture.world.publishing.fail_over(6);
    first.notice().await.expect("the stores are there");
    second.notice().await.expect("the stores are there");
    fixture.pass(TAKEOVER_DELAY).await;
    second.look().await.expect("the stores are there");
    assert!(fixture.saved().await[0].compare_again_since.is_some(), "the later one is not due yet");
    fixture.complete(late).await;
    fixture.pass(REPEAT_DELAY).await;
    first.look().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 11]);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_failure_of_postgresql_after_the_change_gives_completions_their_time_again() {
    const LOAD: &str = "load_outbound_streams";
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(6);
    replica.look().await.expect("the stores are there");
    for _ in 0..10 {
        fixture.world.script.fail(LOAD, down(LOAD));
        fixture.pass(OBSERVE_INTERVAL).await;
        let mut passes = RepublishLoop { republisher: &replica.republisher, watch: replica.watch };
        passes.run_once(&CancellationToken::new()).await.expect_err("PostgreSQL is down");
        replica.watch = passes.watch;
    }
    replica.look().await.expect("the stores are there");
    fixture.pass(SETTLE_TIME / 2).await;
    replica.look().await.expect("the stores are there");
    assert!(fixture.listings().is_empty(), "the stores have answered for {:?} only", SETTLE_TIME / 2);
    fixture.pass(SETTLE_TIME / 2).await;
    replica.look().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_channel_that_was_published_to_another_stream_is_not_compared() {
    let (fixture, mut replica) = published().await;
    let former = [(Channel::Push, "the former name")];
    fixture.world.database.touch_outbound_names(&former).await.expect("it is there");
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.ids().len(), 6, "nothing is appended: the routes do not say which stream they are in");
    assert_eq!(fixture.saved_run_id().await, "1", "it is dealt with");
    let again = fixture.saved().await[0].compare_again_since;
    assert_eq!(again, None, "a repetition would find the same names and report them again");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn entries_of_a_stream_that_came_back_empty_are_reported_and_not_appended_again() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(0);
    // A new entry is appended before the server is observed.
    fixture.world.clock.advance(Duration::from_secs(1));
    fixture.publish(11).await;
    replica.notice().await.expect("the stores are there");
    let (stream, ids) = (fixture.world.publishing.outbound_state(Channel::Push), fixture.ids());
    assert_eq!(ids.len(), 1, "nothing is appended again");
    let fate = |id: EntryId| entry_state(id, false, stream.as_ref());
    let lost = fixture.published_entry_id(1).parse().expect("an id");
    assert_eq!(fate(lost), EntryState::Lost, "and nobody trimmed it");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_deleted_between_two_observations_is_compared_although_no_id_fell() {
    for with_changes in [false, true] {
        let (fixture, mut replica) = published().await;
        fixture.world.publishing.delete_stream(Channel::Push);
        if with_changes {
            fixture.world.publishing.forget_changes(Channel::Push);
        }
        fixture.world.clock.advance(Duration::from_secs(1));
        fixture.publish(11).await;
        replica.notice().await.expect("the stores are there");
        assert_eq!((fixture.listings().len(), fixture.ids().len()), (1, 1), "nothing is appended again");
        replica.notice().await.expect("the stores are there");
        assert_eq!(fixture.listings().len(), 1, "it is dealt with");
    }
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
    assert_eq!(fixture.saved_run_id().await, "0");
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

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_new_because_of_a_new_name_is_reported_if_redis_changed_since_the_former_was_saved()
{
    let (fixture, replica) = published().await;
    let names = async |fixture: &Fixture| {
        let store = &replica.republisher.store;
        let mut former = fixture.saved().await[0].seen.clone();
        "under the former name".clone_into(&mut former.stream);
        store.save_outbound_streams(&[(former, None)]).await.expect("it is there");
        let used = [(Channel::Push, "under the former name"), (Channel::Push, "push")];
        store.touch_outbound_names(&used).await.expect("it is there");
        let seen = fixture.world.publishing.observe(Channel::Push).await.expect("it is there");
        let renamed = replica.republisher.renamed_during_a_change(&[seen.into()], &[]).await;
        renamed.expect("it is there").len()
    };
    assert_eq!(names(&fixture).await, 0, "it is the same server");
    fixture.world.publishing.restart();
    assert_eq!(names(&fixture).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_cannot_be_observed_does_not_delay_the_comparison_of_the_other() {
    let (fixture, mut replica) = published().await;
    let email = Channel::Email.to_string();
    fixture.world.script.on("observe", move |call| match call.elements.contains(&email) {
        true => Effect::Fail(down("observe")),
        false => Effect::Pass,
    });
    fixture.world.publishing.lose_tail(Channel::Push, 3);
    let look = async |replica: &mut Replica| {
        let done = replica.republisher.run_once(&mut replica.watch, &CancellationToken::new()).await;
        assert!(done.expect("one stream is there").is_some(), "the other one is named");
    };
    look(&mut replica).await;
    tokio::time::advance(SETTLE_TIME).await;
    look(&mut replica).await;
    assert_eq!(fixture.counts(), [1; 10]);
    // The other stream is compared with what was known before.
    fixture.world.script.on("observe", |_| Effect::Pass);
    fixture.world.publishing.restart();
    let before = fixture.listings().len();
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), before + 1);
    assert_eq!(fixture.saved_run_id().await, "1");
}
