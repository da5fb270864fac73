//! Holds: the plan, the change, and the list.

use axum::http::StatusCode;

use crate::pages::HOSTILE;
use crate::support::*;

const PLAN: &str = "/console/holds/plan";
const CHANGE: &str = "/console/holds/change";

/// A hold of a producer, for a reason.
fn hold<'a>(token: &'a str, name: &'a str, reason: &'a str) -> [(&'a str, &'a str); 5] {
    [("form_token", token), ("change", "hold"), ("scope", "producer"), ("name", name), ("reason", reason)]
}

fn release<'a>(token: &'a str, name: &'a str) -> [(&'a str, &'a str); 4] {
    [("form_token", token), ("change", "release"), ("scope", "producer"), ("name", name)]
}

#[tokio::test]
async fn a_hold_is_planned_made_listed_and_released_and_recorded_twice() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let token = browser.form_token().await;
    let fields = hold(&token, "game_master", "sends twice");
    let plan = browser.post(PLAN, &fields).await;
    assert_eq!(plan.status, StatusCode::OK);
    assert!(plan.body.contains("Hold the producer game_master"), "{}", plan.body);
    assert_eq!(world.actions().await, []);
    for expected in ["is+held", "was+held+already"] {
        let made = browser.post(CHANGE, &fields).await;
        assert_eq!(made.status, StatusCode::SEE_OTHER, "{}", made.body);
        assert!(made.header("location").contains(expected), "{}", made.header("location"));
    }
    let list = browser.get("/console/holds").await;
    assert!(list.body.contains("held for") && list.body.contains("operator: sends twice"), "{}", list.body);
    let overview = browser.get("/console/").await;
    assert!(overview.body.contains("Held: producer game_master"), "{}", overview.body);
    let plan = browser.post(PLAN, &release(&token, "game_master")).await;
    assert!(plan.body.contains("Release the producer game_master"), "{}", plan.body);
    for expected in ["is+released", "was+not+held"] {
        let released = browser.post(CHANGE, &release(&token, "game_master")).await;
        assert!(released.header("location").contains(expected), "{}", released.header("location"));
    }
    assert!(browser.get("/console/holds").await.body.contains("being released"));
    let actions = world.actions().await;
    let names: Vec<&str> = actions.iter().map(|action| &*action.action).collect();
    assert_eq!(names, ["hold", "release"]);
    assert!(actions.iter().all(|action| action.actor == "operator"));
}

#[tokio::test]
async fn what_cannot_be_held_is_said_and_the_values_stay_in_the_form() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let token = browser.form_token().await;
    let no_channel = [
        ("form_token", token.as_str()),
        ("change", "hold"),
        ("scope", "channel"),
        ("name", "sms"),
        ("reason", "a reason"),
    ];
    let wrong = browser.post(PLAN, &no_channel).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    for expected in ["push and email can be held", "value=\"sms\"", "value=\"a reason\""] {
        assert!(wrong.body.contains(expected), "{expected}: {}", wrong.body);
    }
    assert_eq!(browser.post(CHANGE, &no_channel).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(browser.post(PLAN, &hold(&token, "p", "")).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(world.actions().await, []);
}

#[tokio::test]
async fn the_name_and_the_reason_of_a_hold_are_escaped() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let token = browser.form_token().await;
    for answer in [
        browser.post(PLAN, &hold(&token, HOSTILE, HOSTILE)).await,
        browser.post(CHANGE, &hold(&token, HOSTILE, HOSTILE)).await,
        browser.get("/console/holds").await,
        browser.get("/console/").await,
    ] {
        assert!(!answer.body.contains("<script>alert"), "{}", answer.body);
    }
}
