//! Tests of replaying and discarding dead letters: the plan, its form, and the effects of the form.

use std::time::Duration;

use axum::http::StatusCode;

use crate::pages::HOSTILE;
use crate::rows::dead;
use crate::support::*;

pub(crate) const PLAN: &str = "/console/dead-letters/plan";
pub(crate) const CHANGE: &str = "/console/dead-letters/change";

/// The fields of the form that confirms a plan.
pub(crate) fn confirmation(plan: &Answer) -> Vec<(String, String)> {
    let action = format!("action=\"{CHANGE}\"");
    let (_, form) = plan.body.split_once(&action).unwrap_or_else(|| panic!("no plan: {}", plan.body));
    let hidden = form.split("<input type=\"hidden\" name=\"").skip(1);
    let field = |text: &str| {
        let (name, rest) = text.split_once("\" value=\"")?;
        Some((name.to_owned(), rest.split('"').next()?.to_owned()))
    };
    hidden.filter_map(field).collect()
}

pub(crate) fn borrowed(fields: &[(String, String)]) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

impl Browser {
    pub(crate) async fn form_token(&mut self) -> String {
        self.get("/console/notifications").await.hidden("form_token").expect("a form")
    }

    /// Requests a plan with a form of the list of dead letters.
    pub(crate) async fn plan(&mut self, fields: &[(&str, &str)]) -> Answer {
        let token = self.form_token().await;
        self.post(PLAN, &[&[("form_token", token.as_str())], fields].concat()).await
    }
}

pub(crate) async fn with_dead_letters(count: u64) -> (World, Browser) {
    dead_letters_in(World::new().await, count).await
}

pub(crate) async fn dead_letters_in(world: World, count: u64) -> (World, Browser) {
    dead(&world.store, 1..=count, start()).await;
    world.advance(Duration::from_secs(60));
    let browser = world.signed_in().await;
    (world, browser)
}

#[tokio::test]
async fn a_plan_changes_nothing_and_its_form_does_it_once_however_often_it_is_sent() {
    let (world, mut browser) = with_dead_letters(2).await;
    let plan = browser.plan(&[("do", "replay_chosen"), ("id", "1-0/push:user:u-1"), ("id", "9-0/x")]).await;
    assert_eq!(plan.status, StatusCode::OK);
    for expected in ["Replay 1 dead letter", "gateway_stream_publish_failed", "name no route", "9-0/x"] {
        assert!(plan.body.contains(expected), "{expected}: {}", plan.body);
    }
    assert_eq!(world.actions().await, []);
    let form = confirmation(&plan);
    let first = browser.post(CHANGE, &borrowed(&form)).await;
    assert_eq!(first.status, StatusCode::SEE_OTHER, "{}", first.body);
    let again = browser.post(CHANGE, &borrowed(&form)).await;
    assert_eq!((again.status, again.header("location")), (StatusCode::SEE_OTHER, first.header("location")));
    let result = browser.get(first.header("location")).await;
    assert!(result.body.contains("1 dead letter was replayed"), "{}", result.body);
    assert!(result.body.contains("Recorded in"), "{}", result.body);
    let actions = world.actions().await;
    assert_eq!(actions.len(), 1);
    assert_eq!(
        (&*actions[0].actor, &*actions[0].action, actions[0].affected),
        ("operator", "replay_dead_letters", 1)
    );
    let request_id = form.iter().find(|(name, _)| name == "request_id").map(|(_, id)| id.as_str());
    assert_eq!(Some(actions[0].request_id.as_str()), request_id);
}

#[tokio::test]
async fn only_the_session_that_made_a_change_has_an_address_of_its_result() {
    let (world, mut browser) = with_dead_letters(1).await;
    let plan = browser.plan(&[("do", "replay_chosen"), ("id", "1-0/push:user:u-1")]).await;
    let done = browser.post(CHANGE, &borrowed(&confirmation(&plan))).await;
    let path = done.header("location");
    assert_eq!(browser.get(path).await.status, StatusCode::OK);
    let (figures, proof) = path.split_once("&proof=").expect("a proof");
    for forged in [
        path.replace("changed=1", "changed=10000"),
        format!("{figures}&channel=email&proof={proof}"),
        format!("{path}&changed=2"),
        figures.to_owned(),
        format!("{figures}&proof="),
    ] {
        assert_ne!(forged, path);
        let page = browser.get(&forged).await;
        assert_eq!(page.status, StatusCode::NOT_FOUND, "{forged}: {}", page.body);
        assert!(!page.body.contains("replayed"), "{}", page.body);
    }
    let mut other = world.signed_in().await;
    assert_eq!(other.get(path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_change_that_found_nothing_claims_no_record_and_says_where_to_look() {
    let (_world, mut browser) = with_dead_letters(1).await;
    let chosen = [("do", "replay_chosen"), ("id", "1-0/push:user:u-1")];
    let (plan, other) = (browser.plan(&chosen).await, browser.plan(&chosen).await);
    browser.post(CHANGE, &borrowed(&confirmation(&other))).await;
    let done = browser.post(CHANGE, &borrowed(&confirmation(&plan))).await;
    let result = browser.get(done.header("location")).await;
    assert!(result.body.contains("an earlier run of this form was interrupted"), "{}", result.body);
    assert!(!result.body.contains("Recorded in"), "{}", result.body);
}

#[tokio::test]
async fn what_another_operator_discarded_after_the_plan_is_not_replayed() {
    let (world, mut browser) = with_dead_letters(2).await;
    let chosen = [("id", "1-0/push:user:u-1"), ("id", "2-0/push:user:u-1")];
    let plan = browser.plan(&[&[("do", "replay_chosen")], &chosen[..]].concat()).await;
    let mut discard = confirmation(&browser.plan(&[("do", "discard_chosen"), chosen[0]]).await);
    discard.push(("reason".to_owned(), "the game is over".to_owned()));
    assert_eq!(browser.post(CHANGE, &borrowed(&discard)).await.status, StatusCode::SEE_OTHER);
    let done = browser.post(CHANGE, &borrowed(&confirmation(&plan))).await;
    let result = browser.get(done.header("location")).await;
    assert!(result.body.contains("1 dead letter was replayed"), "{}", result.body);
    assert!(result.body.contains("1 was left as found: changed since the plan"), "{}", result.body);
    let discarded = browser.get("/console/dead-letters?discarded=true").await;
    assert!(discarded.body.contains("1-0/push:user:u-1"), "{}", discarded.body);
    assert_eq!(world.actions().await[1].arguments["ids"], serde_json::json!(["2-0/push:user:u-1"]));
}

#[tokio::test]
async fn a_plan_that_is_shown_again_leaves_out_what_changed_since_it_was_shown_first() {
    let (_world, mut browser) = with_dead_letters(2).await;
    let chosen = [("id", "1-0/push:user:u-1"), ("id", "2-0/push:user:u-1"), ("id", "9-0/x")];
    let discard = confirmation(&browser.plan(&[&[("do", "discard_chosen")], &chosen[..]].concat()).await);
    let ids = discard.iter().filter(|(name, _)| name == "id").map(|(_, id)| id.as_str());
    assert_eq!(ids.collect::<Vec<_>>(), ["1-0/push:user:u-1", "2-0/push:user:u-1"]);
    let replay = confirmation(&browser.plan(&[("do", "replay_chosen"), chosen[0]]).await);
    browser.post(CHANGE, &borrowed(&replay)).await;
    // The reason is missing.
    let refused = browser.post(CHANGE, &borrowed(&discard)).await;
    assert!(refused.body.contains("Discard 1 dead letter"), "{}", refused.body);
    let form = confirmation(&refused);
    let ids = form.iter().filter(|(name, _)| name == "id").map(|(_, id)| id.as_str());
    assert_eq!(ids.collect::<Vec<_>>(), ["2-0/push:user:u-1"]);
}

#[tokio::test]
async fn a_confirmation_without_the_versions_of_its_plan_is_refused() {
    let (world, mut browser) = with_dead_letters(1).await;
    let form = confirmation(&browser.plan(&[("do", "replay_chosen"), ("id", "1-0/push:user:u-1")]).await);
    let version = |(name, value): &(String, String)| match name.as_str() {
        "version" => None,
        _ => Some((name.clone(), value.clone())),
    };
    let without: Vec<_> = form.iter().filter_map(version).collect();
    let other = form.iter().map(|(name, value)| match name.as_str() {
        "version" => (name.clone(), "soon".to_owned()),
        _ => (name.clone(), value.clone()),
    });
    for form in [without, other.collect()] {
        let answer = browser.post(CHANGE, &borrowed(&form)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(answer.body.contains("Start again from the list"), "{}", answer.body);
    }
    assert_eq!(world.actions().await, []);
}

#[tokio::test]
async fn a_form_that_was_carried_out_is_not_taken_with_other_values() {
    let (world, mut browser) = with_dead_letters(2).await;
    let plan = browser.plan(&[("do", "replay_chosen"), ("id", "1-0/push:user:u-1")]).await;
    let mut form = confirmation(&plan);
    assert_eq!(browser.post(CHANGE, &borrowed(&form)).await.status, StatusCode::SEE_OTHER);
    form.push(("id".to_owned(), "2-0/push:user:u-1".to_owned()));
    form.push(("version".to_owned(), "0".to_owned()));
    let other = browser.post(CHANGE, &borrowed(&form)).await;
    assert_eq!(other.status, StatusCode::BAD_REQUEST, "{}", other.body);
    assert_eq!(world.actions().await.len(), 1);
}

#[tokio::test]
async fn all_that_match_have_those_that_a_replica_wrote_whose_clock_is_ahead() {
    let (world, mut browser) = with_dead_letters(3).await;
    dead(&world.store, [4], start() + Duration::from_secs(3_600)).await;
    let plan = browser.plan(&[("do", "replay_all"), ("channel", "email")]).await;
    assert!(plan.body.contains("Replay 4 dead letters"), "{}", plan.body);
}

#[tokio::test]
async fn all_that_match_are_those_of_the_plan_and_none_that_fail_after_it() {
    let (world, mut browser) = with_dead_letters(3).await;
    let plan = browser.plan(&[("do", "replay_all"), ("channel", "email")]).await;
    assert!(plan.body.contains("Replay 3 dead letters"), "{}", plan.body);
    world.advance(Duration::from_secs(1));
    dead(&world.store, [4], start() + Duration::from_secs(61)).await;
    let done = browser.post(CHANGE, &borrowed(&confirmation(&plan))).await;
    let result = browser.get(done.header("location")).await;
    assert!(result.body.contains("3 dead letters were replayed"), "{}", result.body);
    let list = browser.get("/console/dead-letters?channel=email").await;
    assert!(list.body.contains("4-0/email:user:u-1") && !list.body.contains("3-0/email:user:u-1"));
}

#[tokio::test]
async fn a_discard_needs_a_reason_and_is_recorded_with_it() {
    let (world, mut browser) = with_dead_letters(1).await;
    let plan = browser.plan(&[("do", "discard_all"), ("channel", "push")]).await;
    let mut form = confirmation(&plan);
    let refused = browser.post(CHANGE, &borrowed(&form)).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.body.contains("A discard takes a reason"), "{}", refused.body);
    assert_eq!(world.actions().await, []);
    form.push(("reason".to_owned(), HOSTILE.to_owned()));
    let done = browser.post(CHANGE, &borrowed(&form)).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
    assert_eq!(world.actions().await[0].action, "discard_dead_letters");
    let list = browser.get("/console/dead-letters?discarded=true").await;
    assert!(list.body.contains("&lt;script&gt;") && list.body.contains("Discarded by"), "{}", list.body);
    assert!(!list.body.contains("Replay all that match"), "a discarded one is replayed by its id only");
}

#[tokio::test]
async fn a_reason_that_is_refused_stays_in_its_field_and_is_measured_in_bytes_as_it_is_stored() {
    let (world, mut browser) = with_dead_letters(1).await;
    let plan = browser.plan(&[("do", "discard_all"), ("channel", "push")]).await;
    // A browser counts characters, and ends each line with two.
    let with_reason = |plan: &Answer, letters: usize| {
        let mut form = confirmation(plan);
        form.push(("reason".to_owned(), format!("<a>\r\n{}", "é".repeat(letters))));
        form
    };
    let refused = browser.post(CHANGE, &borrowed(&with_reason(&plan, 511))).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    for expected in [&*format!("&lt;a&gt;\n{}</textarea>", "é".repeat(511)), "this one has 1026"] {
        assert!(refused.body.contains(expected), "{expected}: {}", refused.body);
    }
    let done = browser.post(CHANGE, &borrowed(&with_reason(&refused, 510))).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
    assert_eq!(world.actions().await[0].arguments["reason"], format!("<a>\n{}", "é".repeat(510)).as_str());
}

#[tokio::test]
async fn a_form_that_chooses_nothing_or_says_nothing_is_refused() {
    let (world, mut browser) = with_dead_letters(1).await;
    for (fields, expected) in [
        (vec![("do", "replay_chosen")], "No dead letter is chosen"),
        (vec![("id", "1-0/push:user:u-1")], "does not say what to do"),
        (vec![("do", "replay_chosen"), ("id", "1-0/push:user:u-1\0")], "has the character NUL"),
        (vec![("do", "replay_all"), ("channel", "fax")], "The field channel"),
        (vec![("do", "replay_all"), ("created_after", "yesterday")], "The field created_after"),
    ] {
        let answer = browser.plan(&fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{fields:?}");
        assert!(answer.body.contains(expected), "{expected}: {}", answer.body);
    }
    let plan = browser.plan(&[("do", "replay_chosen"), ("id", "9-0/x")]).await;
    assert!(plan.body.contains("There is nothing to change"), "{}", plan.body);
    // A plan and a change are loaded by their address, without a form.
    for path in [PLAN, CHANGE] {
        assert_eq!(browser.get(path).await.header("location"), "/console/dead-letters");
    }
    assert_eq!(browser.get("/console/dead-letters/result").await.status, StatusCode::NOT_FOUND);
    assert_eq!(world.actions().await, []);
}
