//! The list of operators' actions.

use axum::http::StatusCode;

use crate::operations::{CHANGE, borrowed, confirmation, with_dead_letters};
use crate::pages::HOSTILE;
use crate::support::*;

#[tokio::test]
async fn a_change_is_listed_and_found_by_its_operator_action_and_request() {
    let (_world, mut browser) = with_dead_letters(2).await;
    assert!(browser.get("/console/actions").await.body.contains("No operator has changed anything."));
    let plan = browser.plan(&[("do", "replay_chosen"), ("id", "1-0/push:user:u-1")]).await;
    let form = confirmation(&plan);
    browser.post(CHANGE, &borrowed(&form)).await;
    let request =
        form.iter().find(|(name, _)| name == "request_id").map(|(_, id)| id.clone()).expect("an id");
    for address in [
        "/console/actions".to_owned(),
        "/console/actions?actor=operator&action=replay_dead_letters".to_owned(),
        format!("/console/actions?request_id={request}&after=2000-01-01T00:00:00"),
    ] {
        let list = browser.get(&address).await;
        assert!(list.body.contains(&request) && list.body.contains("1-0/push:user:u-1"), "{address}");
    }
    for address in ["/console/actions?actor=another", "/console/actions?before=2000-01-01T00:00:00"] {
        assert!(browser.get(address).await.body.contains("No action matches."), "{address}");
    }
    assert_eq!(browser.get("/console/actions?colour=red").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn what_an_operator_wrote_is_escaped() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let token = browser.form_token().await;
    let hold = [
        ("form_token", token.as_str()),
        ("change", "hold"),
        ("scope", "producer"),
        ("name", HOSTILE),
        ("reason", HOSTILE),
    ];
    browser.post("/console/holds/change", &hold).await;
    let list = browser.get("/console/actions").await;
    assert!(list.body.contains("hold") && !list.body.contains("<script>alert"), "{}", list.body);
}
