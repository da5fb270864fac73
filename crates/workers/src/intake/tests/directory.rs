//! Entries that wait for the user directory, and entries that do not.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_stop_is_not_kept_waiting_by_a_directory_that_says_nothing() {
    let world = world();
    stream(&world, [1]);
    world.script.on("look_up", |_| Effect::Hang);
    run_until(&world, 9, |world, _| world.script.count("look_up") > 0).await;
    assert_eq!(outcomes(&world), [""; 0]);
    assert_eq!(world.durable(), None);
}

// INV-12
#[tokio::test(start_paused = true)]
async fn an_entry_that_must_wait_holds_the_stream_and_says_so() {
    let world = world();
    stream(&world, [1]);
    world.intents.put(intent(2, "key-2", "slow"));
    world.intents.put(intent(3, "key-3", "u-1"));
    world.directory.set("slow", Lookup::Unavailable("no answer".into()));
    run_until(&world, 9, |_, health| health.status().blocked.is_some()).await;
    assert_eq!(outcomes(&world), ["1-0 accepted"]);
    assert_eq!(world.durable(), Some(id(1)));

    world.directory.clear();
    run_until(&world, 9, |world, health| world.durable() == Some(id(3)) && health.status().blocked.is_none())
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_answers_of_a_waiting_entry_are_kept_and_only_the_missing_ones_are_asked_for_again() {
    let world = world();
    let users: Vec<String> = (0..1_000).map(|n| format!("u-{n:04}")).collect();
    world.intents.put(intent_for(1, &users));
    for user in users.iter().step_by(50) {
        world.directory.set(user, Lookup::Unavailable("status 503".into()));
    }
    let intake = intake(&world, 9);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    for failing in [20, 20, 0] {
        if failing == 0 {
            world.directory.clear();
        }
        let pass = work.step(&stop).await.expect("the stores are there");
        assert_eq!(matches!(pass, Pass::Waiting(_)), failing > 0);
    }
    let calls = world.script.calls_of("look_up");
    let asked: Vec<usize> = calls.iter().map(|call| call.elements.len()).collect();
    assert_eq!(asked.iter().sum::<usize>(), 1_000 + 20 + 20, "{asked:?}");
    assert_eq!(names(&world), ["accepted"]);
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_accepted_before_the_slow_users_of_later_ones_are_known() {
    let world = world();
    let users = |from: u64| (from..from + 200).map(|n| format!("u-{n}")).collect::<Vec<_>>();
    for number in 1..=3 {
        world.intents.put(intent_for(number, &users(number * 1_000)));
    }
    world.script.on("look_up", |call| match call.elements.iter().any(|user| user == "u-2000") {
        true => Effect::Delay(Duration::from_secs(3)),
        false => Effect::Pass,
    });
    world.directory.set("u-3000", Lookup::Unavailable("no answer".into()));
    // The first call contains all users of the first entry and one slow user.
    run_until(&world, 9, |world, health| {
        let asked = world.script.calls_of("look_up").iter().filter(|call| call.succeeded).count();
        assert!(asked < 2 || !outcomes(world).is_empty(), "the first entry waits for users of the second");
        waits_with(health) == Some(3)
    })
    .await;
    assert_eq!(numbers(&world), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_down_is_asked_once_and_the_first_entry_that_needs_it_is_named() {
    let world = world();
    stream(&world, [1]);
    let users: Vec<String> = (0..1_000).map(|n| format!("down-{n}")).collect();
    world.intents.put(intent_for(2, &users));
    stream(&world, [3]);
    for user in users {
        world.directory.set(&user, Lookup::Unavailable("refused".into()));
    }
    let intake = intake(&world, 9);
    let (mut work, stop) = (begin(&intake).await, CancellationToken::new());
    let pass = work.step(&stop).await.expect("the stores are there");
    assert!(matches!(pass, Pass::Waiting(wait) if wait.entry_id == id(2)));
    assert_eq!(numbers(&world), [1]);
    // The first call returned a lookup. The second returned none, so there was no third.
    assert_eq!(world.script.count("look_up"), 2);
}
