//! The effect of a write on a document, and the winner of concurrent writes.

use state::{Delete, Patch, Store, Version, VersionCondition, Write, WriteConditions};
use tokio::task::JoinSet;

use super::{expecting, expecting_status};
use crate::support::{get, key, put, value};

on_both_stores! {
    a_write_keeps_created_at_and_makes_updated_at_strictly_later
    of_64_writers_that_expect_one_status_one_wins
    of_64_writers_that_expect_one_version_one_wins
    of_64_writers_that_expect_no_document_one_wins
    a_conditional_write_of_an_absent_key_inserts_nothing
    a_write_whose_condition_fails_changes_nothing
    a_version_mismatch_is_reported_before_a_status_mismatch
    only_a_string_can_be_the_status
    a_deletion_depends_on_the_version_alone
}

/// Returns how many of 64 concurrent writers were applied; all others get the outcome that `lost` accepts.
async fn race(store: impl Store, conditions: WriteConditions, lost: impl Fn(&Write) -> bool) -> usize {
    let store = std::sync::Arc::new(store);
    let mut writers = JoinSet::new();
    for number in 0..64 {
        let (store, conditions) = (store.clone(), conditions.clone());
        writers.spawn(async move {
            let text = format!(r#"{{"status":"running","writer":{number}}}"#);
            store.put(&key("k"), &value(&text), &conditions).await.expect("no failure")
        });
    }
    let outcomes = writers.join_all().await;
    let applied = outcomes.iter().filter(|outcome| matches!(outcome, Write::Applied(_))).count();
    for outcome in &outcomes {
        assert!(matches!(outcome, Write::Applied(_)) || lost(outcome), "{outcome:?}");
    }
    applied
}

// K-02
async fn a_write_keeps_created_at_and_makes_updated_at_strictly_later(store: impl Store) {
    put(&store, "k", "1").await;
    let first = get(&store, "k").await;
    assert_eq!(first.created_at, first.updated_at);
    let mut last = first.updated_at;
    for number in 0..50 {
        put(&store, "k", &number.to_string()).await;
        let document = get(&store, "k").await;
        assert_eq!(document.created_at, first.created_at);
        assert!(document.updated_at > last, "{} after {last}", document.updated_at);
        last = document.updated_at;
    }
}

// K-03
async fn of_64_writers_that_expect_one_status_one_wins(store: impl Store) {
    put(&store, "k", r#"{"status":"pending"}"#).await;
    let lost = Write::StatusMismatch { current: Some("running".to_owned()) };
    assert_eq!(race(store, expecting_status("pending"), |outcome| *outcome == lost).await, 1);
}

async fn of_64_writers_that_expect_one_version_one_wins(store: impl Store) {
    let version = put(&store, "k", "1").await;
    let conditions = expecting(VersionCondition::Is(Some(version)));
    assert_eq!(race(store, conditions, |outcome| *outcome == Write::VersionMismatch).await, 1);
}

async fn of_64_writers_that_expect_no_document_one_wins(store: impl Store) {
    let conditions = expecting(VersionCondition::Absent);
    assert_eq!(race(store, conditions, |outcome| *outcome == Write::VersionMismatch).await, 1);
}

// K-03
async fn a_conditional_write_of_an_absent_key_inserts_nothing(store: impl Store) {
    let written = store.put(&key("k"), &value("1"), &expecting_status("pending")).await.expect("no failure");
    assert_eq!(written, Write::StatusMismatch { current: None });
    for condition in
        [VersionCondition::Exists, VersionCondition::Is(None), VersionCondition::Is(Some(Version(1)))]
    {
        let written = store.put(&key("k"), &value("1"), &expecting(condition)).await.expect("no failure");
        assert_eq!(written, Write::VersionMismatch, "{condition:?}");
    }
    assert_eq!(store.get(&key("k")).await.expect("no failure"), None);
}

// K-04
async fn a_write_whose_condition_fails_changes_nothing(store: impl Store) {
    let version = put(&store, "k", r#"{"status":"running","n":1}"#).await;
    let before = get(&store, "k").await;
    let new = value(r#"{"status":"done"}"#);
    let written = store.put(&key("k"), &new, &expecting_status("pending")).await.expect("no failure");
    assert_eq!(written, Write::StatusMismatch { current: Some("running".to_owned()) });
    let other = Version(version.0 + 1);
    for condition in [VersionCondition::Is(Some(other)), VersionCondition::Is(None), VersionCondition::Absent]
    {
        let written = store.put(&key("k"), &new, &expecting(condition)).await.expect("no failure");
        assert_eq!(written, Write::VersionMismatch);
        let patched = store.patch(&key("k"), &new, &expecting(condition)).await.expect("no failure");
        assert_eq!(patched, Patch::Written(Write::VersionMismatch));
    }
    assert_eq!(get(&store, "k").await, before);
}

async fn a_version_mismatch_is_reported_before_a_status_mismatch(store: impl Store) {
    let version = put(&store, "k", r#"{"status":"running"}"#).await;
    let both = |version, status: &str| WriteConditions { version, ..expecting_status(status) };
    let right = VersionCondition::Is(Some(version));
    let wrong = VersionCondition::Is(Some(Version(version.0 + 1)));
    let current = Some("running".to_owned());
    for (conditions, expected) in [
        (both(wrong, "running"), Write::VersionMismatch),
        (both(wrong, "paused"), Write::VersionMismatch),
        (both(VersionCondition::Absent, "running"), Write::VersionMismatch),
        (both(right, "paused"), Write::StatusMismatch { current }),
    ] {
        let written = store.put(&key("k"), &value("1"), &conditions).await.expect("no failure");
        assert_eq!(written, expected, "{conditions:?}");
    }
    let written = store.put(&key("k"), &value("1"), &both(right, "running")).await.expect("no failure");
    assert!(matches!(written, Write::Applied(_)));
    let absent = both(VersionCondition::Absent, "running");
    let written = store.put(&key("none"), &value("1"), &absent).await.expect("no failure");
    assert_eq!(written, Write::StatusMismatch { current: None });
}

async fn only_a_string_can_be_the_status(store: impl Store) {
    for text in
        [r#"{"status":7}"#, r#"{"status":null}"#, r#"{"status":["7"]}"#, r#"["status"]"#, r#""7""#, "{}"]
    {
        put(&store, "k", text).await;
        let written = store.put(&key("k"), &value("1"), &expecting_status("7")).await.expect("no failure");
        assert_eq!(written, Write::StatusMismatch { current: None }, "{text}");
    }
    put(&store, "k", r#"{"status":""}"#).await;
    let written = store.put(&key("k"), &value("1"), &expecting_status("")).await.expect("no failure");
    assert!(matches!(written, Write::Applied(_)));
}

async fn a_deletion_depends_on_the_version_alone(store: impl Store) {
    let delete = async |condition| store.delete(&key("k"), condition).await.expect("no failure");
    let anything = [
        VersionCondition::Any,
        VersionCondition::Exists,
        VersionCondition::Is(None),
        VersionCondition::Is(Some(Version(1))),
    ];
    for condition in anything {
        assert_eq!(delete(condition).await, Delete::NotFound, "{condition:?}");
    }
    let old = put(&store, "k", "1").await;
    let new = put(&store, "k", "2").await;
    for condition in [VersionCondition::Is(Some(old)), VersionCondition::Is(None)] {
        assert_eq!(delete(condition).await, Delete::VersionMismatch, "{condition:?}");
    }
    assert_eq!(get(&store, "k").await.value.as_str(), "2");
    assert_eq!(delete(VersionCondition::Is(Some(new))).await, Delete::Applied);
    put(&store, "k", "3").await;
    assert_eq!(delete(VersionCondition::Exists).await, Delete::Applied);
    assert_eq!(store.get(&key("k")).await.expect("no failure"), None);
}
