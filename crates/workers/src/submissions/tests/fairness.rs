//! The effect of one producer's submissions on those of another.

use super::super::queue::MAX_WAITING;
use super::*;

/// Returns the same intent with `producer` as its sender.
fn of(producer: &str, mut submission: Submission) -> Submission {
    producer.clone_into(&mut submission.intent.producer);
    submission
}

/// The duration of each transaction.
fn transaction() -> Duration {
    Duration::from_millis(20)
}

#[tokio::test(start_paused = true)]
async fn a_single_intent_waits_for_no_element_of_a_batch() {
    let world = world();
    world.script.on("accept", |_| Effect::Delay(transaction()));
    let running = Running::start(&world);
    let elements: Vec<_> = (0..2_000)
        .map(|number| running.spawn(of("greedy", unclaimed(&format!("element-{number}"), "u-1"))))
        .collect();
    world.script.until(BOUND, || world.script.count("accept") == 1).await;
    for number in 0..5 {
        let since = Instant::now();
        let outcome = running.submit(submission(&format!("key-{number}"), "u-2")).await;
        assert_eq!((name(&outcome), since.elapsed()), ("accepted", transaction()));
    }
    assert!(elements.iter().any(|element| !element.is_finished()), "the elements are all decided");
    for element in elements {
        assert_eq!(name(&element.await.expect("does not panic")), "accepted");
    }
}

#[tokio::test(start_paused = true)]
async fn elements_let_single_intents_pass_but_not_for_long() {
    let world = world_with_slow_look_up(SLOW);
    world.script.on("accept", |_| Effect::Delay(transaction()));
    let running = Running::start(&world);
    let single = running.spawn(submission("key-1", "u-1"));
    world.script.until(BOUND, || world.script.count("accept") == 1).await;
    let since = Instant::now();
    assert_eq!(name(&running.submit(unclaimed("element-1", "u-1")).await), "accepted");
    assert_eq!(since.elapsed(), 2 * transaction());
    assert_eq!(name(&single.await.expect("does not panic")), "accepted");

    let look_ups = world.script.count("look_up");
    let slow = running.spawn(submission("key-2", SLOW_USER));
    world.script.until(BOUND, || world.script.count("look_up") > look_ups).await;
    let since = Instant::now();
    assert_eq!(name(&running.submit(unclaimed("element-2", "u-1")).await), "accepted");
    assert_eq!(since.elapsed(), singles_first::MAX_YIELD + transaction());
    assert_eq!(name(&slow.await.expect("does not panic")), "accepted");
}

#[tokio::test(start_paused = true)]
async fn elements_do_not_starve_while_a_single_intent_is_looked_up() {
    let world = world_with_slow_look_up(SLOW);
    world.script.on("accept", |_| Effect::Delay(transaction()));
    let running = Running::start(&world);
    let slow = running.spawn(submission("slow", SLOW_USER));
    world.script.until(BOUND, || world.script.count("look_up") == 1).await;
    let since = Instant::now();
    let elements = (0..MAX_WAITING).map(|number| of("other", unclaimed(&format!("element-{number}"), "u-1")));
    running.submit_all(elements).await;
    // The first group has few elements, and the last group may have few.
    let groups = u32::try_from(MAX_WAITING / MAX_ELEMENT_GROUP).expect("few") + 2;
    let time = since.elapsed();
    assert!(time <= groups * (singles_first::MAX_YIELD + transaction()), "{time:?}");
    assert_eq!(name(&slow.await.expect("does not panic")), "accepted");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_single_intent_whose_caller_has_gone_is_passed() {
    let world = world();
    world.script.on("claim_keys", |_| Effect::Delay(transaction()));
    let running = Running::start(&world);
    let first = running.spawn(submission("first", "u-1"));
    world.script.until(BOUND, || world.script.count("claim_keys") == 1).await;
    let mut gone = Box::pin(running.queue.submit(submission("gone", "u-1")));
    assert!(gone.as_mut().now_or_never().is_none(), "it is decided although another one is being claimed");
    drop(gone);
    assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "accepted");
    assert_eq!(name(&first.await.expect("does not panic")), "accepted");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_key_is_passed_by_all_but_its_repeats() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    // The lookup of the first element is slow; those with its key wait for it.
    let first = running.spawn(of("greedy", unclaimed("same", SLOW_USER)));
    world.script.until(BOUND, || world.script.count("look_up") == 1).await;
    let repeats: Vec<_> =
        (0..100).map(|_| running.spawn(of("greedy", unclaimed("same", SLOW_USER)))).collect();
    let since = Instant::now();
    let others =
        [of("greedy", unclaimed("another", "u-1")), unclaimed("key-1", "u-1"), submission("key-2", "u-1")];
    assert_eq!(names(&running.submit_all(others).await), ["accepted"; 3]);
    assert_eq!(since.elapsed(), Duration::ZERO);
    assert_eq!(name(&first.await.expect("does not panic")), "accepted");
    for repeat in repeats {
        assert_eq!(name(&repeat.await.expect("does not panic")), "duplicate");
    }
}

#[tokio::test(start_paused = true)]
async fn producers_take_turns() {
    let world = world();
    world.script.on("claim_keys", |_| Effect::Delay(transaction()));
    let running = Running::start(&world);
    let first = running.spawn(submission("first", "u-1"));
    world.script.until(BOUND, || world.script.count("claim_keys") == 1).await;
    let greedy: Vec<_> = (0..3 * MAX_GROUP)
        .map(|number| running.spawn(of("greedy", submission(&format!("greedy-{number}"), "u-1"))))
        .collect();
    let modest = running.submit(submission("modest", "u-1"));
    let since = Instant::now();
    assert_eq!(name(&modest.await), "accepted");
    // The statement in progress, and the next one.
    assert_eq!(since.elapsed(), 2 * transaction());
    assert_eq!(name(&first.await.expect("does not panic")), "accepted");
    greedy.into_iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn a_submission_whose_caller_has_gone_holds_what_it_occupies_until_it_is_decided() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    let occupied = Arc::new(());
    let held = Held::new(Arc::clone(&occupied));
    let gone = running.spawn(Submission { held, ..submission("key-1", SLOW_USER) });
    world.script.until(BOUND, || world.script.count("look_up") == 1).await;
    gone.abort();
    assert!(gone.await.is_err(), "its caller has gone");
    assert_eq!(Arc::strong_count(&occupied), 2, "nothing is held any more");
    assert_eq!(name(&running.submit(submission("key-2", SLOW_USER)).await), "accepted");
    world.script.until(BOUND, || Arc::strong_count(&occupied) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_is_in_progress_while_its_intent_is_looked_up() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    let slow = running.spawn(submission("key-1", SLOW_USER));
    world.script.until(BOUND, || world.script.count("look_up") == 1).await;
    assert!(running.queue.time_in_progress(&key("key-1")).await.is_some());
    assert_eq!(running.queue.time_in_progress(&key("key-2")).await, None);
    assert_eq!(name(&slow.await.expect("does not panic")), "accepted");
    assert_eq!(running.queue.time_in_progress(&key("key-1")).await, None);
}
