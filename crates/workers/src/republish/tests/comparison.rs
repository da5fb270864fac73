//! The entries that a comparison appends again, and what remains when it fails, is slow or is stopped.

use super::*;

// INV-13
#[tokio::test(start_paused = true)]
async fn a_lost_tail_is_appended_again_once_with_the_same_attempt() {
    let (fixture, mut replica) = published_after(2).await;
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
    assert!(fixture.is_consistent());
    assert_eq!(fixture.attempts()[6..], ["1", "1", "1", "3"]);
    let marker = fixture.world.publishing.remaining(&key(10));
    assert_eq!(marker, Some(WINDOW), "a marker outlives an outage of PostgreSQL as long as the window");
    assert_eq!(fixture.saved_run_id().await, "1", "the new server is saved");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_resent_route_whose_new_entry_is_lost_is_not_completed_with_the_one_that_it_replaced() {
    let fixture = Fixture::new();
    fixture.publish(1).await;
    let first = fixture.published_entry_id(1);
    fixture.resend(1).await;
    fixture.publish(2).await;
    let mut replica = Replica::of(&fixture);
    replica.look().await.expect("the stores are there");
    fixture.world.publishing.fail_over(1);
    // The server has the marker of the time that it went back to.
    fixture.world.publishing.write_marker(&key(1), &first, WINDOW);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.attempts(), ["1", "2", "1"]);
    assert!(fixture.is_consistent() && fixture.published_entry_id(1) != first);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn trimmed_and_deleted_entries_are_not_appended_again() {
    let (fixture, mut replica) = published().await;
    let ids = fixture.ids();
    fixture.world.publishing.trim(Channel::Push, ids[2]);
    fixture.world.publishing.delete_entry(Channel::Push, ids[3]);
    fixture.world.publishing.fail_over(5);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [0, 0, 1, 0, 1, 1, 1, 1, 1, 1]);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn an_absent_or_empty_stream_is_never_filled() {
    for is_absent in [true, false] {
        let (fixture, mut replica) = published().await;
        fixture.world.publishing.fail_over(0);
        if is_absent {
            fixture.world.publishing.delete_stream(Channel::Push);
        }
        replica.notice().await.expect("the stores are there");
        assert_eq!((fixture.listings().len(), fixture.counts()), (1, vec![0; 10]));
        assert_eq!(fixture.saved_run_id().await, "1", "it is reported once");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_appended_but_not_written_down_is_completed_and_not_appended_twice() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(6);
    fixture.world.script.fail(REPLACE, down(REPLACE));
    replica.notice().await.expect_err("PostgreSQL is down");
    assert_eq!(fixture.saved_run_id().await, "0", "the change is not forgotten");
    // Another replica continues.
    Replica::of(&fixture).notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
    assert!(fixture.is_consistent());
}

#[tokio::test(start_paused = true)]
async fn a_route_that_a_publisher_holds_is_compared_again_when_it_is_free() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(6);
    let (held, token) = (key(10), LeaseToken("a publisher".to_owned()));
    let leases = fixture.world.publishing.acquire_leases(&[&held], &token, WINDOW).await;
    assert_eq!(leases.expect("the stores are there"), [LeaseOutcome::Won]);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(fixture.saved_run_id().await, "0");
    let released = fixture.world.publishing.release_leases(&[&held], &token).await;
    released.expect("the stores are there");
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
    assert_eq!(fixture.saved_run_id().await, "1");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn an_entry_that_a_consumer_takes_while_its_row_is_locked_is_not_appended_a_third_time() {
    let (fixture, mut replica) = published().await;
    let lock = fixture.world.database.lock_route(&key(10));
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    let again = *fixture.ids().last().expect("it was appended again");
    fixture.world.publishing.delete_entry(Channel::Push, again);
    drop(lock);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(fixture.published_entry_id(10), again.to_string());
}

#[tokio::test(start_paused = true)]
async fn a_refused_entry_harms_no_other_and_ends_the_comparison() {
    let (fixture, mut replica) = published().await;
    fixture.world.publishing.fail_over(6);
    fixture.world.publishing.set_refusing(Channel::Push, true);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(fixture.saved_run_id().await, "1", "the comparison does not begin again for ever");
}

#[tokio::test(start_paused = true)]
async fn a_slow_replacement_is_bisected_and_one_that_waits_for_a_lock_is_left_for_later() {
    let (fixture, mut replica) = published().await;
    for _ in 0..2 {
        fixture.world.script.fail(REPLACE, timed_out(REPLACE));
    }
    fixture.world.publishing.fail_over(2);
    replica.notice().await.expect("the stores are there");
    assert!(fixture.is_consistent());
    // Another transaction has locked the table.
    fixture.world.script.fail(REPLACE, locked(REPLACE));
    fixture.world.publishing.fail_over(6);
    let before = fixture.world.script.count(REPLACE);
    replica.notice().await.expect("the stores are there");
    assert!(!fixture.is_consistent());
    assert_eq!(fixture.world.script.count(REPLACE), before + 1, "halves would wait as long");
    replica.notice().await.expect("the stores are there");
    assert!(fixture.is_consistent(), "the rows were compared again");
    assert_eq!(fixture.counts(), [1; 10]);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_always_slow_does_not_stop_the_comparison() {
    let (fixture, mut replica) = published().await;
    let slow = key(8).to_string();
    fixture.world.script.on(REPLACE, move |call| match call.elements.contains(&slow) {
        true => Effect::Fail(timed_out(REPLACE)),
        false => Effect::Pass,
    });
    fixture.world.publishing.fail_over(2);
    replica.notice().await.expect("the others are compared");
    assert_eq!(fixture.saved_run_id().await, "0", "it is compared again");
    fixture.world.script.off(REPLACE);
    replica.notice().await.expect("the stores are there");
    assert_eq!((fixture.is_consistent(), fixture.counts()), (true, vec![1; 10]));
}

// INV-13
#[tokio::test(start_paused = true)]
async fn rows_that_a_transaction_has_locked_delay_neither_the_others_nor_the_comparison() {
    let (fixture, mut replica) = published().await;
    for number in 11..=200 {
        fixture.publish(number).await;
    }
    replica.look().await.expect("the stores are there");
    let locks: Vec<_> = (51..=170).map(|number| fixture.world.database.lock_route(&key(number))).collect();
    fixture.world.publishing.fail_over(2);
    replica.notice().await.expect("the stores are there");
    let replacements = fixture.world.script.count(REPLACE);
    assert!(replacements <= 5, "{replacements} statements for 198 routes, each with a wait for a lock");
    assert_eq!(fixture.saved_run_id().await, "0", "the locked rows are compared again");
    let is_replaced = |number: u64| {
        let id = fixture.published_entry_id(number);
        fixture.ids().iter().any(|entry| entry.to_string() == id)
    };
    assert!((1..=50).chain(171..=200).all(is_replaced), "the others have their new ids");
    drop(locks);
    replica.notice().await.expect("the stores are there");
    assert!(fixture.is_consistent());
    assert_eq!(fixture.saved_run_id().await, "1");
}

#[tokio::test(start_paused = true)]
async fn a_refused_replacement_harms_no_other_and_ends_the_comparison() {
    let (fixture, mut replica) = published().await;
    let (before, refused_key) = (fixture.published_entry_id(8), key(8).to_string());
    fixture.world.script.on(REPLACE, move |call| match call.elements.contains(&refused_key) {
        true => Effect::Fail(refused(REPLACE)),
        false => Effect::Pass,
    });
    fixture.world.publishing.fail_over(6);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.counts(), [1; 10]);
    assert_eq!(fixture.published_entry_id(8), before, "its old id");
    assert_eq!(fixture.saved_run_id().await, "1", "it is not appended for ever");
}

#[tokio::test(start_paused = true)]
async fn while_a_comparison_fails_the_worker_does_not_say_that_it_has_recovered() {
    let (fixture, Replica { republisher, .. }) = published().await;
    fixture.world.script.on(REPLACE, |_| Effect::Fail(down(REPLACE)));
    fixture.world.publishing.fail_over(6);
    let (health, stop) = (republisher.health.clone(), CancellationToken::new());
    let running = tokio::spawn(republisher.run(stop.clone()));
    let mut blocked = 0;
    for _ in 0..60 {
        fixture.pass(Duration::from_secs(1)).await;
        blocked += u32::from(health.status().blocked.is_some());
        assert_eq!(health.recoveries(), 0);
    }
    assert!(blocked >= 50, "blocked for {blocked} of 60 s");
    fixture.world.script.off(REPLACE);
    fixture.pass(SETTLE_TIME * 2).await;
    assert_eq!((health.recoveries(), fixture.is_consistent()), (1, true));
    stop.cancel();
    running.await.expect("it does not panic");
}

// INV-12
#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_comparison_between_two_locked_rows() {
    let (fixture, mut replica) = published().await;
    for number in 11..=400 {
        fixture.publish(number).await;
    }
    replica.look().await.expect("the stores are there");
    let _locks: Vec<_> = (1..=400).map(|number| fixture.world.database.lock_route(&key(number))).collect();
    fixture.world.script.on(REPLACE, |_| Effect::Delay(Duration::from_millis(500)));
    fixture.world.publishing.fail_over(2);
    let stop = CancellationToken::new();
    let running = tokio::spawn(replica.republisher.run(stop.clone()));
    fixture.pass(SETTLE_TIME * 2).await;
    let before = fixture.world.script.count(REPLACE);
    assert!(before > 0, "the comparison is under way");
    stop.cancel();
    running.await.expect("it does not panic");
    let after = fixture.world.script.count(REPLACE) - before;
    assert!(after <= 1, "{after} statements after the stop");
}
