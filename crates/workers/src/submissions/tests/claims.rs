//! Claims that are lost, of unknown outcome, or released.

use ambient::Tokens;
use domain::ports::{KeyClaimRequest, KeyClaimToken};

use super::*;

/// Waits until `calls` calls to release claims were made.
async fn until_abandoned(world: &World, calls: usize) {
    world.script.until(BOUND, || world.script.count("abandon_keys") >= calls).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_writes_nothing_and_its_neighbours_are_accepted() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    let lost = running.spawn(submission("key-1", SLOW_USER));
    let neighbour = running.spawn(submission("key-2", SLOW_USER));
    world.script.until(BOUND, || world.script.count("look_up") == 2).await;
    world.database.expire_key(&key("key-1"));
    let winner = running.submit(submission("key-1", "u-1")).await;
    let SubmissionOutcome::Accepted { response: Some(response), .. } = winner else { panic!("{winner:?}") };
    assert_eq!(name(&lost.await.expect("no panic")), "unavailable");
    assert_eq!(name(&neighbour.await.expect("no panic")), "accepted", "no other request has won its key");
    assert_eq!(world.database.records().len(), 2);
    assert_eq!(running.submit(submission("key-1", "u-1")).await, SubmissionOutcome::Replayed(response));
}

#[tokio::test(start_paused = true)]
async fn an_outage_answers_all_with_unavailable_and_frees_their_keys_when_it_is_over() {
    let world = world();
    world.script.on("accept", |_| Effect::Fail(down("accept")));
    world.script.on("abandon_keys", |_| Effect::Fail(down("abandon_keys")));
    let running = Running::start(&world);
    let since = Instant::now();
    assert_eq!(names(&running.submit_all(several(3)).await), ["unavailable"; 3]);
    assert_eq!(since.elapsed(), Duration::ZERO);
    assert!(running.health.status().blocked.is_some());
    until_abandoned(&world, 3).await;
    assert_eq!(names(&running.submit_all(several(3)).await), ["in progress"; 3]);
    world.script.off("accept");
    world.script.off("abandon_keys");
    let tried = world.script.count("abandon_keys");
    until_abandoned(&world, tried + 1).await;
    assert_eq!(names(&running.submit_all(several(3)).await), ["accepted"; 3]);
    assert!(running.health.status().blocked.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_outage_is_noticed_although_no_submission_comes() {
    let world = world();
    world.script.on("accept", |_| Effect::Fail(down("accept")));
    world.script.on("find_requests", |_| Effect::Fail(down("find_requests")));
    let running = Running::start(&world);
    assert_eq!(name(&running.submit(unclaimed("key-1", "u-1")).await), "unavailable");
    assert!(running.health.status().blocked.is_some());
    world.script.until(BOUND, || world.script.count("find_requests") == 2).await;
    assert!(running.health.status().blocked.is_some(), "it lasts");
    world.script.off("find_requests");
    world.script.until(BOUND, || running.health.status().blocked.is_none()).await;
    assert_eq!(world.script.count("find_requests"), 3, "one question was enough");
}

#[tokio::test(start_paused = true)]
async fn claims_that_come_during_an_outage_do_not_try_the_failed_ones_again_before_their_time() {
    let world = world();
    world.script.on("accept", |_| Effect::Fail(down("accept")));
    world.script.on("abandon_keys", |_| Effect::Fail(down("abandon_keys")));
    let running = Running::start(&world);
    for submission in several(5) {
        assert_eq!(name(&running.submit(submission).await), "unavailable");
    }
    until_abandoned(&world, 6).await;
    let tried: Vec<usize> =
        world.script.calls_of("abandon_keys").iter().map(|call| call.elements.len()).collect();
    assert_eq!(tried, [1, 1, 1, 1, 1, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_given_up_is_tried_until_it_has_expired() {
    let world = world();
    world.script.on("accept", |_| Effect::Fail(down("accept")));
    world.script.on("abandon_keys", |_| Effect::Fail(down("abandon_keys")));
    let running = Running::start(&world);
    let since = Instant::now();
    assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "unavailable");
    let Running { queue, task, .. } = running;
    drop(queue);
    timeout(BOUND, task).await.expect("it ends with the claim").expect("it does not panic");
    assert_eq!(since.elapsed(), LOCK_TTL);
    assert_eq!(world.script.count("abandon_keys"), 61, "at once, then once a second");
}

#[tokio::test(start_paused = true)]
async fn an_unsure_claim_that_arrives_late_is_given_up_again() {
    let world = world();
    world.script.fail("claim_keys", down("claim_keys"));
    let running = Running::start(&world);
    let late = submission("key-1", "u-1");
    assert_eq!(name(&running.submit(late.clone()).await), "unavailable");
    until_abandoned(&world, 1).await;
    let (key, fingerprint) = (late.intent.key(), &late.intent.fingerprint);
    let claim =
        KeyClaimRequest { key: &key, fingerprint, token: KeyClaimToken(SeededTokens::new(SEED).next()) };
    let database: &MemoryDatabase = &world.database;
    database.claim_keys(&[claim], LOCK_TTL).await.expect("the store is there");
    assert_eq!(name(&running.submit(late.clone()).await), "in progress");
    until_abandoned(&world, 2).await;
    assert_eq!(name(&running.submit(late).await), "accepted");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_before_its_key_is_claimed_costs_nothing() {
    let world = world();
    let running = Running::start(&world);
    assert!(running.queue.submit(submission("key-1", "u-1")).now_or_never().is_none(), "it waits");
    assert_eq!(name(&running.submit(submission("key-2", "u-2")).await), "accepted");
    let calls: Vec<Vec<String>> = world.script.calls().into_iter().map(|call| call.elements).collect();
    assert!(!calls.iter().flatten().any(|element| element.contains("key-1")), "{calls:?}");
    assert_eq!(transactions(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_later_has_nothing_accepted_and_its_claim_is_given_up() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    let gone = running.spawn(submission("key-1", SLOW_USER));
    world.script.until(BOUND, || world.script.count("look_up") == 1).await;
    gone.abort();
    until_abandoned(&world, 1).await;
    assert_eq!((world.script.count("accept"), world.database.records().len()), (0, 0));
    assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "accepted", "its key is free");
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_callers_have_all_gone_asks_postgresql_nothing() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    let gone = running.spawn(unclaimed("key-1", SLOW_USER));
    world.script.until(BOUND, || world.script.count("look_up") == 1).await;
    gone.abort();
    running.stop().await;
    assert_eq!((world.script.count("find_requests"), world.script.count("accept")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_restore_of_postgresql_claims_answers_and_records_agree() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    let kept = running.submit(submission("key-1", "u-1")).await;
    let SubmissionOutcome::Accepted { response: Some(kept), .. } = kept else { panic!("{kept:?}") };
    let backup = world.database.backup();
    let claimed = running.spawn(submission("key-3", SLOW_USER));
    world.script.until(BOUND, || world.script.count("look_up") == 2).await;
    assert_eq!(name(&running.submit(submission("key-2", "u-2")).await), "accepted");
    world.database.restore(&backup);
    assert_eq!(name(&claimed.await.expect("no panic")), "unavailable", "its claim is gone");
    assert_eq!(world.database.records().len(), 1);
    assert_eq!(running.submit(submission("key-1", "u-1")).await, SubmissionOutcome::Replayed(kept));
    let lost = [submission("key-2", "u-2"), submission("key-3", "u-3")];
    assert_eq!(names(&running.submit_all(lost).await), ["accepted"; 2]);
}
