//! The order in which a comparison reads published routes, and where it continues after an error.

use super::*;

const LIST: &str = "list_published_entries";
/// The records and the pages of a comparison without an error.
const RECORDS: u64 = 600;
const PAGES: usize = 3;

/// Creates [`RECORDS`] published entries, accepted a millisecond apart and observed by a replica.
async fn many_published() -> (Fixture, Replica) {
    let (fixture, mut replica) = published().await;
    for number in 11..=RECORDS {
        fixture.world.clock.advance(Duration::from_millis(1));
        fixture.publish(number).await;
    }
    replica.look().await.expect("the stores are there");
    (fixture, replica)
}

impl Fixture {
    /// Makes the call of this operation with this number fail, counted from 1.
    fn fail_call(&self, operation: &'static str, number: usize) {
        let mut calls = 0;
        self.world.script.on(operation, move |_| {
            calls += 1;
            if calls == number { Effect::Fail(down(operation)) } else { Effect::Pass }
        });
    }

    /// True if each published route is in the stream once.
    fn is_each_there_once(&self) -> bool {
        self.counts().iter().all(|count| *count == 1)
    }
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_lost_tail_is_appended_again_before_the_older_part_of_the_window_is_read() {
    let (fixture, mut replica) = many_published().await;
    fixture.world.publishing.fail_over(RECORDS as usize - 200);
    fixture.fail_call(LIST, 2);
    replica.notice().await.expect_err("PostgreSQL is down after the first page");
    assert!(fixture.is_each_there_once());
    assert!(fixture.is_consistent());
    assert_eq!(fixture.saved_run_id().await, "0", "the rest of the window is still to be compared");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn after_an_error_a_comparison_continues_with_the_page_that_failed() {
    let (fixture, mut replica) = many_published().await;
    fixture.world.publishing.fail_over(10);
    fixture.fail_call(LIST, 3);
    replica.notice().await.expect_err("PostgreSQL is down");
    assert!(!fixture.is_consistent(), "the oldest routes were not compared");
    replica.notice().await.expect("the stores are there");
    let listings = fixture.listings();
    assert_eq!(listings.len(), PAGES + 1, "each page is read once, but for the one that failed");
    assert_eq!(listings[2], listings[3]);
    assert!(fixture.is_each_there_once() && fixture.is_consistent());
    assert_eq!(fixture.saved_run_id().await, "1");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn losses_are_counted_once_with_those_of_the_pages_before_an_error() {
    const FIND: &str = "find_entries";
    let (fixture, mut replica) = many_published().await;
    fixture.world.publishing.fail_over(0);
    fixture.fail_call(FIND, 3);
    replica.notice().await.expect_err("Redis is down");
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), PAGES + 1);
    assert_eq!(replica.watch.losses.counted(), RECORDS, "of the pages before the error, too");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn what_was_found_in_a_page_that_failed_halfway_is_found_again() {
    let (fixture, mut replica) = many_published().await;
    fixture.world.publishing.fail_over(300);
    let (held, token) = (key(RECORDS - 250), LeaseToken("a publisher".to_owned()));
    let leases = fixture.world.publishing.acquire_leases(&[&held], &token, WINDOW).await;
    assert_eq!(leases.expect("it is there"), [LeaseOutcome::Won]);
    fixture.fail_call(REPLACE, 2);
    replica.notice().await.expect_err("PostgreSQL is down");
    assert!(!fixture.is_each_there_once());
    fixture.world.publishing.release_leases(&[&held], &token).await.expect("it is there");
    replica.notice().await.expect("the stores are there");
    assert!(fixture.is_each_there_once() && fixture.is_consistent());
    assert_eq!(fixture.saved_run_id().await, "1", "the route is no longer held");
    assert_eq!(fixture.listings().len(), PAGES + 1);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_comparison_that_was_stopped_continues_with_the_page_that_it_was_in() {
    let (fixture, mut replica) = many_published().await;
    fixture.world.publishing.fail_over(10);
    let stop = CancellationToken::new();
    let (stopped, mut calls) = (stop.clone(), 0);
    fixture.world.script.on(LIST, move |_| {
        calls += 1;
        if calls == 2 {
            stopped.cancel();
        }
        Effect::Pass
    });
    replica.look().await.expect("the stores are there");
    fixture.pass(SETTLE_TIME).await;
    let pass = replica.republisher.run_once(&mut replica.watch, &stop).await;
    pass.expect("the stores are there");
    assert_eq!(fixture.listings().len(), 2);
    replica.notice().await.expect("the stores are there");
    let listings = fixture.listings();
    assert_eq!((listings.len(), &listings[1]), (PAGES + 1, &listings[2]));
    assert!(fixture.is_each_there_once() && fixture.is_consistent());
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_comparison_that_another_replica_has_finished_is_not_continued() {
    let (fixture, mut replica) = many_published().await;
    fixture.world.publishing.fail_over(10);
    fixture.fail_call(LIST, 2);
    replica.notice().await.expect_err("PostgreSQL is down");
    Replica::of(&fixture).notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), 2 + PAGES);
    for _ in 0..50 {
        fixture.pass(OBSERVE_INTERVAL).await;
        replica.look().await.expect("the stores are there");
    }
    assert_eq!(fixture.listings().len(), 2 + PAGES * 2, "the repetition reads all pages");
    assert_eq!(fixture.saved().await[0].compare_again_since, None);
}

// INV-13
#[tokio::test(start_paused = true)]
async fn another_change_after_an_error_is_compared_from_the_newest_record_on() {
    let (fixture, mut replica) = many_published().await;
    fixture.world.publishing.fail_over(RECORDS as usize - 100);
    fixture.fail_call(LIST, 3);
    replica.notice().await.expect_err("PostgreSQL is down");
    fixture.world.publishing.fail_over(RECORDS as usize - 50);
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), 3 + PAGES);
    assert!(fixture.is_each_there_once() && fixture.is_consistent());
    assert_eq!(fixture.saved_run_id().await, "2");
}

// INV-13
#[tokio::test(start_paused = true)]
async fn the_next_leader_begins_with_the_newest_record() {
    let (fixture, mut replica) = many_published().await;
    fixture.world.publishing.fail_over(10);
    fixture.fail_call(LIST, 3);
    replica.notice().await.expect_err("PostgreSQL is down");
    drop(replica);
    Replica::of(&fixture).notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), 3 + PAGES);
    assert!(fixture.is_each_there_once() && fixture.is_consistent());
}

// INV-13
#[tokio::test(start_paused = true)]
async fn a_completion_that_is_committed_after_its_page_was_read_is_compared_by_the_repetition() {
    let (fixture, mut replica) = many_published().await;
    let late = fixture.append(RECORDS + 1).await;
    fixture.world.publishing.fail_over(RECORDS as usize - 100);
    fixture.fail_call(LIST, 2);
    replica.notice().await.expect_err("PostgreSQL is down");
    fixture.complete(late).await;
    replica.notice().await.expect("the stores are there");
    assert_eq!(fixture.listings().len(), PAGES + 1);
    assert!(!fixture.is_each_there_once(), "its page was read before it was published");
    // The repetition also fails, and continues.
    fixture.fail_call(LIST, 3);
    let mut failures = 0;
    for _ in 0..40 {
        fixture.pass(OBSERVE_INTERVAL).await;
        failures += u32::from(replica.look().await.is_err());
    }
    assert_eq!((failures, fixture.listings().len()), (1, 2 * (PAGES + 1)));
    assert!(fixture.is_each_there_once() && fixture.is_consistent());
    assert_eq!(fixture.saved().await[0].compare_again_since, None, "it is repeated once");
}
