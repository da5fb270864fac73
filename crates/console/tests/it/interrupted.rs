//! Tests of changes that fail or take too long, and of their forms when they are sent again; and of pages
//! that take too long or panic. The clock of the runtime is paused only while nothing waits for PostgreSQL.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use domain::ports::StoreError;
use harness::wait_for;
use idempotency::{IdempotencySettings, LockTtl};
use memory_stores::Effect;
use tokio::time::{Instant, advance, pause, resume};

use crate::operations::{CHANGE, PLAN, borrowed, confirmation, dead_letters_in, with_dead_letters};
use crate::support::{Answer, TIME_LIMIT, World};

#[tokio::test]
async fn a_change_that_fails_after_some_chunks_is_offered_again_and_repeats_nothing() {
    // Each of the 501 notifications has two dead letters: in all, two more than two transactions change.
    let (world, mut browser) = with_dead_letters(501).await;
    let plan = browser.plan(&[("do", "replay_all")]).await;
    let form = confirmation(&plan);
    let mut chunk = 0;
    world.script.on("change_routes", move |_| {
        chunk += 1;
        match chunk {
            2 => Effect::Fail(StoreError::Unavailable { operation: "change", source: "it is down".into() }),
            _ => Effect::Pass,
        }
    });
    let interrupted = browser.post(CHANGE, &borrowed(&form)).await;
    assert_eq!(interrupted.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(interrupted.body.contains("A part of the change may have been made."), "{}", interrupted.body);
    assert!(interrupted.body.contains("value=\"replay_all\""), "{}", interrupted.body);

    let done = browser.post(CHANGE, &borrowed(&form)).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
    let result = browser.get(done.header("location")).await;
    assert!(result.body.contains("502 dead letters were replayed"), "{}", result.body);
    let changed: Vec<u64> = world.actions().await.iter().map(|action| action.affected).collect();
    assert_eq!(changed, [500, 500, 2]);
}

#[tokio::test]
async fn a_change_that_takes_too_long_continues_and_its_form_leads_to_the_result() {
    let (world, mut browser) = with_dead_letters(1).await;
    let form = confirmation(&browser.plan(&[("do", "replay_chosen"), ("id", "1-0/push:user:u-1")]).await);
    world.script.on("change_routes", |_| Effect::Delay(TIME_LIMIT * 2));
    pause();
    for _ in 0..2 {
        let late = browser.post(CHANGE, &borrowed(&form)).await;
        assert_eq!(late.status, StatusCode::CONFLICT, "{}", late.body);
        assert!(late.body.contains("The change is still being made."), "{}", late.body);
        assert_eq!(confirmation(&late), form);
    }
    assert!(world.script.calls_of("change_routes").iter().all(|call| !call.succeeded));
    advance(TIME_LIMIT * 2).await;
    resume();
    let done = wait_for("the change is made", Duration::from_secs(30), async || {
        let answer = browser.post(CHANGE, &borrowed(&form)).await;
        (answer.status == StatusCode::SEE_OTHER).then_some(answer)
    })
    .await;
    let result = browser.get(done.header("location")).await;
    assert!(result.body.contains("1 dead letter was replayed"), "{}", result.body);
    assert_eq!(world.actions().await.len(), 1);
}

/// Returns true if the page shows the id of the request in its form, outside of the fields.
fn names_its_request(answer: &Answer, form: &[(String, String)]) -> bool {
    let request_id = form.iter().find(|(name, _)| name == "request_id").map(|(_, id)| id.as_str());
    let request_id = request_id.expect("the form has it");
    answer.body.contains("operator_actions") && answer.body.contains(&format!(">{request_id}</code>"))
}

#[tokio::test]
async fn a_change_that_panics_or_meets_a_corrupt_or_refused_row_says_what_may_be_done_and_continues() {
    let corrupt = || StoreError::Corrupt {
        place: "routes.status",
        key: "1-0".to_owned(),
        problem: "it is no status".to_owned(),
    };
    let refused = || StoreError::Refused { operation: "change dead letters", source: "a check".into() };
    let failures: [Option<fn() -> StoreError>; 3] = [None, Some(corrupt), Some(refused)];
    for failure in failures {
        let (world, mut browser) = with_dead_letters(1).await;
        let form = confirmation(&browser.plan(&[("do", "replay_all")]).await);
        world.script.on("change_routes", move |_| {
            Effect::Fail(failure.expect("a test makes a chunk of a change panic")())
        });
        let interrupted = browser.post(CHANGE, &borrowed(&form)).await;
        assert_eq!(interrupted.status, StatusCode::INTERNAL_SERVER_ERROR);
        for expected in ["Interrupted", "A part of the change may have been made.", "The log of this replica"]
        {
            assert!(interrupted.body.contains(expected), "{expected}: {}", interrupted.body);
        }
        assert!(names_its_request(&interrupted, &form), "{}", interrupted.body);
        assert_eq!(confirmation(&interrupted), form);

        world.script.off("change_routes");
        let done = browser.post(CHANGE, &borrowed(&form)).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
        let changed: Vec<u64> = world.actions().await.iter().map(|action| action.affected).collect();
        assert_eq!(changed, [2], "{:?}", failure.map(|failure| failure()));
    }
}

/// Returns the page of a change without a result, and its form. The clock stays paused.
async fn unfinished(world: World) -> (World, Answer, Vec<(String, String)>) {
    let (world, mut browser) = dead_letters_in(world, 1).await;
    let form = confirmation(&browser.plan(&[("do", "replay_all")]).await);
    pause();
    let answer = browser.post(CHANGE, &borrowed(&form)).await;
    (world, answer, form)
}

#[tokio::test]
async fn a_change_that_takes_longer_than_a_handler_may_is_interrupted_and_names_its_request() {
    let world = World::with_keys(IdempotencySettings {
        handler_timeout: TIME_LIMIT / 2,
        ..IdempotencySettings::default()
    })
    .await;
    world.script.on("change_routes", |_| Effect::Hang);
    let (_world, answer, form) = unfinished(world).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.body.contains("The change took longer than it may."), "{}", answer.body);
    assert!(names_its_request(&answer, &form), "{}", answer.body);
}

#[tokio::test]
async fn a_change_whose_key_is_not_claimed_is_not_said_to_be_in_progress() {
    // The claim takes longer than the page, takes less long, or is not even tried.
    let lock_ttl = LockTtl::new(Duration::from_secs(120)).expect("in range");
    let store_timeouts = [TIME_LIMIT * 2, TIME_LIMIT / 2];
    let waiting = store_timeouts.map(|store_timeout| IdempotencySettings {
        lock_ttl,
        store_timeout,
        ..IdempotencySettings::default()
    });
    let busy = IdempotencySettings { max_concurrent: 0, ..IdempotencySettings::default() };
    for (settings, expected) in [
        (waiting[0], "The change has not begun yet"),
        (waiting[1], "PostgreSQL did not answer in time. Sending the form this time changed nothing."),
        (busy, "makes as many changes at a time as it may. Sending the form this time changed nothing."),
    ] {
        let world = World::with_keys(settings).await;
        world.claims_hang.store(true, Ordering::Relaxed);
        let (world, answer, form) = unfinished(world).await;
        resume();
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{expected}");
        assert!(answer.body.contains(expected), "{expected}: {}", answer.body);
        assert!(!answer.body.contains("may have been made"), "{}", answer.body);
        assert_eq!(confirmation(&answer), form);
        assert_eq!(world.actions().await, []);
    }
}

fn is_page(answer: &Answer) -> bool {
    answer.header("content-type").starts_with("text/html")
        && answer.header("content-security-policy").contains("default-src 'none'")
}

/// Returns true if the page has the navigation of a signed-in operator.
fn has_navigation(answer: &Answer) -> bool {
    answer.body.contains("aria-label=\"Pages\"") && answer.body.contains("Sign out")
}

#[tokio::test]
async fn the_time_of_a_page_counts_from_the_first_byte_of_its_request() {
    let (world, mut browser) = with_dead_letters(1).await;
    world.script.on("select_routes", |_| Effect::Hang);
    let token = browser.form_token().await;
    browser.waited = TIME_LIMIT - Duration::from_secs(1);
    pause();
    let begun = Instant::now();
    let late = browser.post(PLAN, &[("form_token", &token), ("do", "replay_all")]).await;
    assert!(late.body.contains("The page took too long"), "{late:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_page_that_takes_too_long_is_a_page_that_says_so_within_its_time() {
    let (world, mut browser) = with_dead_letters(1).await;
    world.script.on("select_routes", |_| Effect::Hang);
    let token = browser.form_token().await;
    pause();
    let begun = Instant::now();
    let late = browser.post(PLAN, &[("form_token", &token), ("do", "replay_all")]).await;
    assert!(begun.elapsed() < TIME_LIMIT + Duration::from_millis(500), "{:?}", begun.elapsed());
    resume();
    assert_eq!((late.status, late.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "5"));
    assert!(is_page(&late) && late.body.contains("The page took too long"), "{late:?}");
    assert!(has_navigation(&late), "{late:?}");
    world.script.off("select_routes");
    assert_eq!(browser.plan(&[("do", "replay_all")]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_page_that_panics_is_a_page_that_says_so() {
    let (world, mut browser) = with_dead_letters(1).await;
    world.script.on("select_routes", |_| panic!("a test makes the page of a plan panic"));
    let failed = browser.plan(&[("do", "replay_all")]).await;
    assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(is_page(&failed) && failed.body.contains("The page failed"), "{failed:?}");
    assert!(has_navigation(&failed), "{failed:?}");
    assert!(!failed.body.contains("a test makes"), "{}", failed.body);
    world.script.off("select_routes");
    assert_eq!(browser.plan(&[("do", "replay_all")]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_form_that_does_not_arrive_is_refused_within_its_time() {
    let (_world, mut browser) = with_dead_letters(1).await;
    pause();
    let answer = browser.send_unfinished(PLAN).await;
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT);
    assert!(is_page(&answer) && answer.body.contains("The form came too late"), "{answer:?}");
}
