//! Batches that the store refuses, or does not commit in time.

use super::*;

// INV-01
#[tokio::test(start_paused = true)]
async fn a_poison_element_is_quarantined_alone_and_its_neighbours_are_accepted_in_order() {
    let world = world();
    stream(&world, 1..=9);
    poison(&world, 4);
    run_until(&world, 9, |world, _| world.cached() == Some(id(9))).await;
    let expected: Vec<String> =
        (1..=9).map(|n| format!("{n}-0 {}", if n == 4 { "not_storable" } else { "accepted" })).collect();
    assert_eq!(outcomes(&world), expected);
    assert!(world.script.count("probe") > 0, "a valid row is tried before anything is declared not storable");
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_poison_element_is_the_next_entrys() {
    let world = world();
    for entry in [intent(1, "key", "u-1"), intent(2, "key", "u-1"), intent(3, "key", "u-2")] {
        world.intents.put(entry);
    }
    poison(&world, 1);
    run_until(&world, 9, |world, _| world.cached() == Some(id(3))).await;
    assert_eq!(names(&world), ["not_storable", "accepted", "idempotency_conflict"]);
}

#[tokio::test(start_paused = true)]
async fn known_keys_are_asked_for_at_first_and_then_only_when_there_was_one() {
    let world = world();
    stream(&world, 1..=3);
    let intake = intake(&world, 1);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    // The first pass reads three entries and processes one; the other passes process the two that were read
    // with it.
    for _ in 0..3 {
        assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));
    }
    assert_eq!((outcomes(&world).len(), world.script.count("find_known")), (3, 1));

    for entry in [intent(4, "key-1", "u-1"), intent(5, "key-1", "u-1"), intent(6, "key-6", "u-1")] {
        world.intents.put(entry);
    }
    for expected in [2, 3, 4] {
        assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));
        assert_eq!(world.script.count("find_known"), expected);
    }
    assert_eq!(names(&world)[3..], ["duplicate", "duplicate", "accepted"]);
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_a_duplicate_whatever_the_directory_says_by_then() {
    for answer in [Lookup::Missing, Lookup::Unavailable("no answer".into())] {
        let world = world();
        stream(&world, [1]);
        let intake = intake(&world, 9);
        let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
        assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));

        world.directory.set("u-1", answer);
        world.intents.put(intent(2, "key-1", "u-1"));
        assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));
        assert_eq!(outcomes(&world), ["1-0 accepted", "duplicate"]);
        assert_eq!(world.durable(), Some(id(2)));
    }
}

// INV-09
#[tokio::test(start_paused = true)]
async fn a_refusal_of_every_row_is_waited_for_and_makes_nothing_not_storable() {
    let world = world();
    stream(&world, 1..=50);
    for call in ["accept", "probe"] {
        world.script.on(call, move |_| Effect::Fail(refused(call)));
    }
    run_until(&world, 9, |_, health| waits_with(health) == Some(1) && waits_for(health, "a valid row")).await;
    assert_eq!(outcomes(&world), [""; 0]);
    for call in ["accept", "probe"] {
        world.script.off(call);
    }
    run_until(&world, 9, |world, _| world.durable() == Some(id(50))).await;
    assert!(names(&world).iter().all(|outcome| outcome == "accepted"));
}

/// An operator undoes a change of the tables after the refusal, before the valid row is tried.
// INV-09
#[tokio::test(start_paused = true)]
async fn a_refusal_whose_cause_ends_before_the_valid_row_is_tried_makes_nothing_not_storable() {
    let world = world();
    stream(&world, 1..=3);
    world.script.fail("accept", refused("accept"));
    run_until(&world, 1, |world, _| world.durable() == Some(id(3))).await;
    assert_eq!(outcomes(&world), ["1-0 accepted", "2-0 accepted", "3-0 accepted"]);
    assert_eq!(world.script.count("probe"), 1);
}

// INV-09
#[tokio::test(start_paused = true)]
async fn entries_before_a_locked_one_are_accepted_and_it_is_named() {
    let world = world();
    stream(&world, 1..=16);
    lock_row(&world, 11);
    run_until(&world, 16, |_, health| waits_with(health) == Some(11) && waits_for(health, "a lock")).await;
    assert_eq!(numbers(&world), Vec::from_iter(1..=10));
    world.script.off("accept");
    run_until(&world, 16, |world, health| {
        world.durable() == Some(id(16)) && health.status().blocked.is_none()
    })
    .await;
    assert_eq!(world.script.count("probe"), 0, "nothing was refused");
}

#[tokio::test(start_paused = true)]
async fn batches_that_take_too_long_are_made_smaller_and_grow_again() {
    let world = world();
    stream(&world, 1..=16);
    world.script.on("accept", |call| match call.elements.len() > 3 {
        true => Effect::Fail(timed_out("accept")),
        false => Effect::Pass,
    });
    let intake = intake(&world, 16);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));
    assert_eq!(numbers(&world), Vec::from_iter(1..=16));
    assert!(transactions(&world).iter().all(|size| *size <= 3));

    // The next batch is not tried at full size again, but later ones are once that is fast.
    world.script.off("accept");
    stream(&world, 17..=64);
    while outcomes(&world).len() < 64 {
        assert!(matches!(work.step(&stop).await, Ok(Pass::Continue)));
    }
    let transactions = transactions(&world);
    assert_eq!(transactions.last(), Some(&16), "{transactions:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_comes_again_in_the_next_batch_is_known() {
    let world = world();
    stream(&world, 1..=4);
    for entry in [intent(5, "key-4", "u-1"), intent(6, "key-6", "u-1"), intent(7, "key-4", "u-2")] {
        world.intents.put(entry);
    }
    run_until(&world, 2, |world, _| world.cached() == Some(id(7))).await;
    let names = names(&world);
    assert_eq!(names[..4], ["accepted"; 4]);
    assert_eq!(names[4..], ["duplicate", "accepted", "idempotency_conflict"]);
}
