//! Submissions that PostgreSQL refuses, locks or leaves hung do not harm their neighbours.

use super::*;

/// Makes every transaction that stores the response of this key end with `effect`.
fn spoil(world: &World, key: &str, effect: impl Fn() -> Effect + Send + 'static) {
    let response = format!("response {key}");
    world.script.on("accept", move |call| match call.elements.contains(&response) {
        true => effect(),
        false => Effect::Pass,
    });
}

#[tokio::test(start_paused = true)]
async fn of_a_refused_group_only_the_bad_one_is_not_storable() {
    let world = world();
    spoil(&world, "key-3", || Effect::Fail(refused("accept")));
    let running = Running::start(&world);
    let outcomes = running.submit_all(several(5)).await;
    assert_eq!(names(&outcomes), ["accepted", "accepted", "not_storable", "accepted", "accepted"]);
    assert_eq!(world.database.records().len(), 4);
    world.script.off("accept");
    let again = running.submit_all(several(5)).await;
    assert_eq!(
        names(&again),
        ["replayed", "replayed", "accepted", "replayed", "replayed"],
        "its key is free"
    );
}

#[tokio::test(start_paused = true)]
async fn if_postgresql_refuses_the_probe_too_the_bad_one_is_not_blamed() {
    let world = world();
    spoil(&world, "key-2", || Effect::Fail(refused("accept")));
    world.script.on("probe", |_| Effect::Fail(refused("probe")));
    let outcomes = Running::start(&world).submit_all(several(3)).await;
    assert_eq!(names(&outcomes), ["accepted", "unavailable", "accepted"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_locked_or_too_slow_is_unavailable_while_the_others_are_accepted() {
    for error in [locked, timed_out] {
        let world = world();
        spoil(&world, "key-1", move || Effect::Fail(error("accept")));
        let running = Running::start(&world);
        assert_eq!(names(&running.submit_all(several(3)).await), ["unavailable", "accepted", "accepted"]);
        assert!(running.health.status().blocked.is_none(), "PostgreSQL is there");
        world.script.off("accept");
        assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "accepted", "its key is free");
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_hangs_does_not_hold_the_next_group() {
    let world = world();
    spoil(&world, "key-1", || Effect::Hang);
    let running = Running::start(&world);
    let hung = running.spawn(submission("key-1", "u-1"));
    world.script.until(BOUND, || world.script.count("accept") == 1).await;
    let since = Instant::now();
    let others = running.submit_all([submission("key-2", "u-2"), submission("key-3", "u-3")]).await;
    assert_eq!(names(&others), ["accepted"; 2]);
    assert!(since.elapsed() <= Duration::from_millis(110), "{:?}", since.elapsed());
    assert!(!hung.is_finished());
}

#[tokio::test(start_paused = true)]
async fn an_intent_whose_recipient_does_not_exist_leaves_its_key_free() {
    let world = world();
    world.directory.set("u-2", Lookup::Missing);
    let running = Running::start(&world);
    let outcomes = running.submit_all(several(3)).await;
    assert_eq!(names(&outcomes), ["accepted", "recipient_not_found", "accepted"]);
    world.directory.clear();
    assert_eq!(name(&running.submit(submission("key-2", "u-2")).await), "accepted");
}
