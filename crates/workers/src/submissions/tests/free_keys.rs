//! Keys that are read and not claimed, because the directory recalls the recipients.

use domain::ports::{IdempotencyStore, KeyClaim, KeyClaimRequest, KeyClaimToken};

use super::*;

/// A world whose directory recalls the users `u-1` to `u-9`.
fn world_that_recalls() -> World {
    let world = world();
    for number in 1..10 {
        let user = User { email: format!("u-{number}@example.com"), preferred_language: "en".to_owned() };
        world.directory.recall_user(&format!("u-{number}"), user);
    }
    world
}

/// Claims a key as another replica does, for another intent.
fn claim_elsewhere(database: &MemoryDatabase, key: &str) {
    let key = super::key(key);
    let claim = KeyClaimRequest { key: &key, fingerprint: "another", token: KeyClaimToken([9; 16]) };
    let claims = [claim];
    let claimed = database.claim_keys(&claims, LOCK_TTL).now_or_never().expect("it does not wait");
    assert_eq!(claimed.expect("the store is there"), [KeyClaim::New]);
}

#[tokio::test(start_paused = true)]
async fn submissions_whose_recipients_are_recalled_claim_no_key_and_are_replayed() {
    let world = world_that_recalls();
    let running = Running::start(&world);
    let accepted = running.submit_all(several(3)).await;
    assert_eq!(names(&accepted), ["accepted"; 3]);
    assert_eq!(names(&running.submit_all(several(3)).await), ["replayed"; 3]);
    assert_eq!(name(&running.submit(submission("key-1", "u-2")).await), "conflict");
    assert_eq!(transactions(&world), [3]);
    for call in ["claim_keys", "look_up", "abandon_keys"] {
        assert_eq!(world.script.count(call), 0, "{call}");
    }
    world.database.expire_key(&key("key-1"));
    assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "duplicate");
    assert_eq!(world.database.records().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_submission_with_one_recipient_to_be_looked_up_claims_its_key() {
    let world = world_that_recalls();
    let running = Running::start(&world);
    let both = [submission("key-1", "u-1"), submission("key-2", "stranger")];
    assert_eq!(names(&running.submit_all(both).await), ["accepted"; 2]);
    let claimed = world.script.calls_of("claim_keys");
    assert_eq!(claimed.iter().map(|call| call.elements.join(" ")).collect::<Vec<_>>(), ["key-2"]);
}

#[tokio::test(start_paused = true)]
async fn of_two_with_one_free_key_the_second_is_replayed() {
    let world = world_that_recalls();
    let twice = [submission("key-1", "u-1"), submission("key-1", "u-1"), submission("key-1", "u-2")];
    let outcomes = Running::start(&world).submit_all(twice).await;
    assert_eq!(names(&outcomes), ["accepted", "replayed", "conflict"]);
    assert_eq!(transactions(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_claimed_after_it_was_read_delays_no_neighbour() {
    let world = world_that_recalls();
    let database = (*world.database).clone();
    let first = std::sync::Once::new();
    world.script.on("accept", move |_| {
        first.call_once(|| claim_elsewhere(&database, "key-2"));
        Effect::Pass
    });
    let running = Running::start(&world);
    let outcomes = running.submit_all(several(3)).await;
    assert_eq!(names(&outcomes), ["accepted", "in progress", "accepted"]);
    assert_eq!(transactions(&world), [2]);
    assert_eq!(names(&running.submit_all(several(3)).await), ["replayed", "in progress", "replayed"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_another_transaction_holds_is_claimed() {
    let world = world_that_recalls();
    world.script.on("accept", |_| Effect::Fail(locked("accept")));
    let running = Running::start(&world);
    assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "unavailable");
    assert_eq!(world.script.count("claim_keys"), 1);
    world.script.until(BOUND, || world.script.count("abandon_keys") == 1).await;
    world.script.off("accept");
    assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "accepted");
}

#[tokio::test(start_paused = true)]
async fn an_outage_leaves_no_claim_of_a_free_key() {
    for call in ["lookup_keys", "accept"] {
        let world = world_that_recalls();
        world.script.on(call, |_| Effect::Fail(down("any")));
        let running = Running::start(&world);
        assert_eq!(names(&running.submit_all(several(2)).await), ["unavailable"; 2], "{call}");
        assert!(running.health.status().blocked.is_some());
        world.script.off(call);
        assert_eq!(names(&running.submit_all(several(2)).await), ["accepted"; 2], "{call}");
        assert_eq!(world.script.count("claim_keys") + world.script.count("abandon_keys"), 0);
        running.stop().await;
    }
}
