//! A change that a failure of the store interrupts, and its form that is sent again.

use axum::http::StatusCode;
use domain::ports::StoreError;
use memory_stores::Effect;

use crate::pages::{CHANGE, borrowed, confirmation, with_dead_letters};

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
