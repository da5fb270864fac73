//! Erasing a person: the form, the plan, and the receipt.

use axum::http::StatusCode;

use crate::pages::HOSTILE;
use crate::support::*;

const PLAN: &str = "/console/erase/plan";
const CHANGE: &str = "/console/erase/change";

fn erased(world: &World) -> Vec<(String, String)> {
    world.erasures.0.lock().expect("no test panics while it holds the users").clone()
}

#[tokio::test]
async fn a_plan_erases_nothing_and_the_receipt_shows_what_is_left_and_a_button_to_continue() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    assert!(browser.get("/console/actions").await.body.contains("href=\"/console/erase\""));
    assert!(browser.get("/console/erase").await.body.contains("Show what would be erased"));
    let token = browser.form_token().await;
    let fields = [("form_token", token.as_str()), ("user_id", HOSTILE)];
    let plan = browser.post(PLAN, &fields).await;
    assert_eq!(plan.status, StatusCode::OK, "{}", plan.body);
    assert!(plan.body.contains("Notifications to the user") && !plan.body.contains(HOSTILE), "{}", plan.body);
    assert!(plan.body.contains("/console/notifications/7-0"), "{}", plan.body);
    assert_eq!(erased(&world), []);
    let first = browser.post(CHANGE, &fields).await;
    assert!(first.body.contains("Something is left") && first.body.contains("Continue"), "{}", first.body);
    let second = browser.post(CHANGE, &fields).await;
    assert!(
        second.body.contains("The person is erased") && !second.body.contains("Continue"),
        "{}",
        second.body
    );
    assert!(second.body.contains(&"9d".repeat(32)) && !second.body.contains("alert(1)"), "{}", second.body);
    assert_eq!(erased(&world), [0; 2].map(|_| (HOSTILE.to_owned(), "operator".to_owned())));
}

#[tokio::test]
async fn only_an_id_and_a_form_of_the_session_erase_and_what_is_wrong_stays_in_the_form() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let token = browser.form_token().await;
    let wrong = browser.post(PLAN, &[("form_token", token.as_str()), ("user_id", " u-1")]).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert!(wrong.body.contains("value=\" u-1\"") && wrong.body.contains("1 to 128 bytes"), "{}", wrong.body);
    let wrong = browser.post(CHANGE, &[("form_token", token.as_str()), ("user_id", "")]).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{}", wrong.body);
    let foreign = browser.post(CHANGE, &[("form_token", "x"), ("user_id", "u-1")]).await;
    assert_eq!(foreign.status, StatusCode::FORBIDDEN, "{}", foreign.body);
    assert_eq!(erased(&world), []);
    for path in [PLAN, CHANGE] {
        assert_eq!(browser.get(path).await.header("location"), "/console/erase");
    }
}
