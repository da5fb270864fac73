//! A change that a failure of the store interrupts or that takes too long, and its form that is sent again; pages that take too long or panic.

use std::time::Duration;

use axum::http::StatusCode;
use domain::ports::StoreError;
use memory_stores::Effect;

use crate::changes::{CHANGE, PLAN, borrowed, confirmation, with_dead_letters};
use crate::support::{Answer, TIME_LIMIT};

#[tokio::test]
async fn a_change_that_fails_after_some_chunks_is_offered_again_and_repeats_nothing() {
    // Two of each: two more than two transactions change.
    let (world, mut browser) = with_dead_letters(501).await;
    let plan = browser.plan(&[("do", "replay_all")]).await;
    let form = confirmation(&plan);
    let mut chunk = 0;
    world.script.on("change_dead_letters", move |_| {
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
    let changed: Vec<u64> = world.database.actions().iter().map(|action| action.affected).collect();
    assert_eq!(changed, [500, 500, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_takes_too_long_goes_on_and_its_form_leads_to_the_result() {
    let (world, mut browser) = with_dead_letters(1).await;
    let form = confirmation(&browser.plan(&[("do", "replay_chosen"), ("id", "1-0/push:user:u-1")]).await);
    world.script.on("change_dead_letters", |_| Effect::Delay(TIME_LIMIT * 2));
    for _ in 0..2 {
        let late = browser.post(CHANGE, &borrowed(&form)).await;
        assert_eq!(late.status, StatusCode::CONFLICT, "{}", late.body);
        assert!(late.body.contains("The change is still being made."), "{}", late.body);
        assert_eq!(confirmation(&late), form);
    }
    assert_eq!(world.database.actions(), []);
    tokio::time::advance(TIME_LIMIT * 2).await;
    let mut done = browser.post(CHANGE, &borrowed(&form)).await;
    for _ in 0..100 {
        if done.status == StatusCode::SEE_OTHER {
            break;
        }
        tokio::task::yield_now().await;
        done = browser.post(CHANGE, &borrowed(&form)).await;
    }
    let result = browser.get(done.header("location")).await;
    assert!(result.body.contains("1 dead letter was replayed"), "{}", result.body);
    assert_eq!(world.database.actions().len(), 1);
}

fn is_page(answer: &Answer) -> bool {
    answer.header("content-type").starts_with("text/html")
        && answer.header("content-security-policy").contains("default-src 'none'")
}

#[tokio::test(start_paused = true)]
async fn a_page_that_takes_too_long_is_a_page_that_says_so_within_its_time() {
    let (world, mut browser) = with_dead_letters(1).await;
    world.script.on("select_dead_letters", |_| Effect::Hang);
    let begun = tokio::time::Instant::now();
    let late = browser.plan(&[("do", "replay_all")]).await;
    assert!(begun.elapsed() < TIME_LIMIT + Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!((late.status, late.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "5"));
    assert!(is_page(&late) && late.body.contains("The page took too long"), "{late:?}");
    world.script.off("select_dead_letters");
    assert_eq!(browser.plan(&[("do", "replay_all")]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_page_that_panics_is_a_page_that_says_so() {
    let (world, mut browser) = with_dead_letters(1).await;
    world.script.on("select_dead_letters", |_| panic!("a test makes the page of a plan panic"));
    let failed = browser.plan(&[("do", "replay_all")]).await;
    assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(is_page(&failed) && failed.body.contains("The page failed"), "{failed:?}");
    assert!(!failed.body.contains("a test makes"), "{}", failed.body);
    world.script.off("select_dead_letters");
    assert_eq!(browser.plan(&[("do", "replay_all")]).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_form_that_does_not_arrive_is_refused_within_its_time() {
    let (_world, mut browser) = with_dead_letters(1).await;
    let answer = browser.send_unfinished(PLAN).await;
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT);
    assert!(is_page(&answer) && answer.body.contains("The form came too late"), "{answer:?}");
}
