//! Merging of patches, and reports of a status.

use state::{Advance, Patch, StateError, Store, VersionCondition, Write, WriteConditions, advance_status};
use tokio::task::JoinSet;

use super::{expecting, expecting_status};
use crate::support::{get, key, put, tree, value};

on_both_stores! {
    a_patch_is_merged_and_keeps_every_digit
    patches_that_race_lose_nothing
    a_patch_of_an_absent_key_is_not_found_whatever_its_conditions
    a_patch_that_makes_too_much_is_invalid_and_changes_nothing
    what_could_be_put_can_be_patched_however_long_the_text_is_that_is_kept
    reports_of_a_status_in_any_order_and_at_once_leave_the_highest_one
    a_report_is_stale_unless_the_document_has_a_lower_status
}

async fn a_patch_is_merged_and_keeps_every_digit(store: impl Store) {
    let digits = "12345678901234567890.12345678901234567890";
    put(&store, "k", &format!(r#"{{"a":{digits},"b":{{"x":1,"y":2}},"c":[1,2]}}"#)).await;
    let created = get(&store, "k").await.created_at;
    let patch = value(r#"{"b":{"x":null,"z":1e400},"c":[3],"d":{"n":null}}"#);
    let patched = store.patch(&key("k"), &patch, &WriteConditions::default()).await.expect("no failure");
    let document = get(&store, "k").await;
    assert_eq!(patched, Patch::Written(Write::Applied(document.version)));
    let expected = format!(r#"{{"a":{digits},"b":{{"y":2,"z":1e400}},"c":[3],"d":{{}}}}"#);
    assert_eq!(tree(&document.value), tree(&value(&expected)));
    assert!(document.value.as_str().contains(digits));
    assert!(document.updated_at > created && document.created_at == created);
    // A patch that is not an object replaces the whole value.
    let patched =
        store.patch(&key("k"), &value("[1]"), &WriteConditions::default()).await.expect("no failure");
    assert!(matches!(patched, Patch::Written(Write::Applied(_))));
    assert_eq!(get(&store, "k").await.value.as_str(), "[1]");
}

async fn patches_that_race_lose_nothing(store: impl Store) {
    put(&store, "k", "{}").await;
    let store = std::sync::Arc::new(store);
    let mut writers = JoinSet::new();
    for number in 0..32 {
        let store = store.clone();
        writers.spawn(async move {
            let patch = value(&format!(r#"{{"m{number}":{number}}}"#));
            store.patch(&key("k"), &patch, &WriteConditions::default()).await.expect("no failure")
        });
    }
    for outcome in writers.join_all().await {
        assert!(matches!(outcome, Patch::Written(Write::Applied(_))));
    }
    let members: Vec<String> = (0..32).map(|number| format!(r#""m{number}":{number}"#)).collect();
    let expected = value(&format!("{{{}}}", members.join(",")));
    assert_eq!(tree(&get(&*store, "k").await.value), tree(&expected));
}

async fn a_patch_of_an_absent_key_is_not_found_whatever_its_conditions(store: impl Store) {
    let conditions = [VersionCondition::Any, VersionCondition::Exists, VersionCondition::Is(None)];
    for conditions in conditions.map(expecting).into_iter().chain([expecting_status("a")]) {
        let patched = store.patch(&key("k"), &value("{}"), &conditions).await.expect("no failure");
        assert_eq!(patched, Patch::NotFound);
    }
    assert_eq!(store.get(&key("k")).await.expect("no failure"), None);
}

async fn a_patch_that_makes_too_much_is_invalid_and_changes_nothing(store: impl Store) {
    let half = "x".repeat(8 * 1024 * 1024);
    put(&store, "k", &format!(r#"{{"a":"{half}"}}"#)).await;
    let before = get(&store, "k").await;
    let patch = value(&format!(r#"{{"b":"{half}"}}"#));
    let patched = store.patch(&key("k"), &patch, &WriteConditions::default()).await.expect("no failure");
    assert!(matches!(&patched, Patch::Invalid(reason) if reason.contains("at most 15728640")), "{patched:?}");
    assert_eq!(get(&store, "k").await, before);
}

async fn what_could_be_put_can_be_patched_however_long_the_text_is_that_is_kept(store: impl Store) {
    let numbers = ["1e131071"; 90].join(",");
    put(&store, "k", &format!(r#"{{"l":[{numbers}]}}"#)).await;
    assert!(get(&store, "k").await.value.as_str().len() > 10 << 20);
    let patched = store.patch(&key("k"), &value(r#"{"s":1}"#), &WriteConditions::default()).await;
    assert!(matches!(patched, Ok(Patch::Written(Write::Applied(_)))), "{patched:?}");
    assert_eq!(tree(&get(&store, "k").await.value).get("s"), Some(&tree(&value("1"))));
}

// K-15
async fn reports_of_a_status_in_any_order_and_at_once_leave_the_highest_one(store: impl Store) {
    let store = std::sync::Arc::new(store);
    for round in 0..10 {
        put(&*store, "k", r#"{"status":"pending","deadline_at":"2026-01-01T00:00:00Z"}"#).await;
        let mut reports = JoinSet::new();
        for (number, status) in
            ["succeeded", "running", "pending", "paused", "running", "paused"].iter().enumerate()
        {
            let (store, patch) = (store.clone(), value(&format!(r#"{{"status":"{status}","m{number}":1}}"#)));
            reports
                .spawn(async move { advance_status(&*store, &key("k"), &patch).await.expect("no failure") });
        }
        for outcome in reports.join_all().await {
            assert!(matches!(outcome, Advance::Applied(_) | Advance::Stale { .. }), "{outcome:?}");
        }
        let json = tree(&get(&*store, "k").await.value);
        assert_eq!(json.get("status").and_then(|status| status.as_str()), Some("succeeded"), "round {round}");
        assert!(json.get("m0").is_some() && json.get("deadline_at").is_some(), "{json:?}");
    }
}

// K-15
async fn a_report_is_stale_unless_the_document_has_a_lower_status(store: impl Store) {
    let report = async |text: &str| advance_status(&store, &key("k"), &value(text)).await;
    assert_eq!(report(r#"{"status":"running"}"#).await.expect("no failure"), Advance::NotFound);
    for text in ["{}", r#"{"status":"done"}"#, r#"{"status":1}"#, "7"] {
        assert!(matches!(report(text).await, Err(StateError::InvalidValue(_))), "{text}");
    }
    for (old, current) in [
        (r#"{"status":"failed"}"#, Some("failed")),
        (r#"{"status":"succeeded"}"#, Some("succeeded")),
        (r#"{"status":"other"}"#, Some("other")),
        (r#"{"status":7}"#, None),
        ("[]", None),
    ] {
        put(&store, "k", old).await;
        let before = get(&store, "k").await;
        let current = current.map(str::to_owned);
        assert_eq!(
            report(r#"{"status":"succeeded"}"#).await.expect("no failure"),
            Advance::Stale { current }
        );
        assert_eq!(get(&store, "k").await, before);
    }
}
