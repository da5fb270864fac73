//! Resubmitting malformed intents: the plan, the change, and the links of the entries.

use axum::http::StatusCode;
use domain::entry::RawFields;
use domain::ports::IntentProducer;

use crate::rows::malformed;
use crate::support::*;

const PLAN: &str = "/console/malformed/resubmit/plan";
const CHANGE: &str = "/console/malformed/resubmit/change";

#[tokio::test]
async fn all_that_match_are_planned_and_resubmitted_once_and_recorded() {
    let world = World::new().await;
    world.intents.append(&RawFields::from_iter([("a", "b")])).await.expect("the stream is there");
    for number in 1..=3 {
        let key = format!("k-{number}");
        malformed(&world.store, number, &[(b"idempotency_key", key.as_bytes())], start()).await;
    }
    let mut browser = world.signed_in().await;
    let token = browser.form_token().await;
    world.advance(std::time::Duration::from_secs(1));
    let fields = [("form_token", token.as_str()), ("code", "missing_field")];
    let plan = browser.post(PLAN, &fields).await;
    assert_eq!(plan.status, StatusCode::OK, "{}", plan.body);
    assert!(
        plan.body.contains("3 malformed intents") && plan.body.contains("missing_field"),
        "{}",
        plan.body
    );
    let until = plan.hidden("recorded_before").expect("the plan has an end");
    assert_eq!(world.actions().await, []);
    let fields = [fields[0], fields[1], ("recorded_before", until.as_str())];
    let change = [fields.as_slice(), &[("reason", "users were imported")]].concat();
    for expected in ["3 resubmitted, 0 not", "0 resubmitted, 0 not"] {
        let done = browser.post(CHANGE, &change).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
        let list = browser.get(done.header("location")).await;
        assert!(list.body.contains(expected), "{}", list.body);
    }
    let forged = browser.get("/console/malformed?done=Call+me&proof=00").await;
    assert!(forged.status == StatusCode::OK && !forged.body.contains("Call me"), "{}", forged.body);
    assert_eq!(world.intents.ids().len(), 4);
    let actions = world.actions().await;
    assert_eq!(actions.len(), 1);
    assert_eq!((&*actions[0].action, actions[0].affected), ("resubmit_malformed_intents", 3));
    assert!(actions[0].arguments.to_string().contains("users were imported"), "{:?}", actions[0].arguments);
    let page = browser.get("/console/malformed/2-0").await;
    assert!(page.body.contains("Resubmitted at") && !page.body.contains("Resubmit…"), "{}", page.body);
}

#[tokio::test]
async fn one_that_cannot_be_resubmitted_says_why() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let token = browser.form_token().await;
    let plan = browser.post(PLAN, &[("form_token", &token), ("id", "9-0")]).await;
    assert!(plan.body.contains("There is nothing to resubmit."), "{}", plan.body);
    let forged = browser.post(CHANGE, &[("form_token", "x"), ("id", "9-0")]).await;
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
}
