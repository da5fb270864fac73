//! What every store promises: each test runs on both.

use state::query::Query;
use state::{
    Advance, Delete, Key, MAX_ANSWER_BYTES, Member, Members, Page, Patch, StateError, StatusCondition, Store,
    Value, Version, VersionCondition, Write, WriteConditions, advance_status,
};
use tokio::task::JoinSet;

use crate::support::{get, key, prefix, put, tree, value};

/// Each function as a test on the store in memory and as one on PostgreSQL.
macro_rules! on_both_stores {
    ($($name:ident)+) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(state::MemoryStore::default()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::support::Db::with_table().await.store()).await;
            })+
        }
    };
}

on_both_stores! {
    a_write_keeps_created_at_and_makes_updated_at_strictly_later
    of_64_writers_that_expect_one_status_one_wins
    of_64_writers_that_expect_one_version_one_wins
    of_64_writers_that_expect_no_document_one_wins
    a_conditional_write_of_an_absent_key_inserts_nothing
    a_write_whose_condition_fails_changes_nothing
    a_version_mismatch_is_reported_before_a_status_mismatch
    only_a_string_can_be_the_status
    versions_rise_with_every_write_and_never_repeat_after_a_deletion
    versions_of_a_key_rise_in_the_order_of_its_writes
    a_prefix_is_taken_literally
    keys_are_listed_by_their_bytes_page_by_page
    a_prefix_ends_where_its_last_code_point_ends
    many_documents_come_in_the_order_asked_and_each_once
    members_come_without_the_rest_of_the_document_and_large_ones_not_at_all
    a_patch_is_merged_and_keeps_every_digit
    patches_that_race_lose_nothing
    a_patch_of_an_absent_key_is_not_found_whatever_its_conditions
    a_patch_that_makes_too_much_is_invalid_and_changes_nothing
    a_deletion_depends_on_the_version_alone
    a_value_comes_back_digit_by_digit
    keys_of_any_bytes_are_kept_apart
    reports_of_a_status_in_any_order_and_at_once_leave_the_highest_one
    a_query_finds_what_matches_page_by_page
    a_query_counts_instead_of_reading_or_beside_it
    a_page_ends_early_and_a_batch_fails_if_the_values_are_too_large_for_one_answer
    a_report_is_stale_unless_the_document_has_a_lower_status
}

fn expecting_status(status: &str) -> WriteConditions {
    WriteConditions { status: Some(StatusCondition(status.into())), ..WriteConditions::default() }
}

fn expecting(version: VersionCondition) -> WriteConditions {
    WriteConditions { version, status: None }
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

/// How many of 64 writers at once were applied; all others say what `lost` expects.
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

async fn versions_rise_with_every_write_and_never_repeat_after_a_deletion(store: impl Store) {
    let mut last = Version(0);
    for _ in 0..20 {
        let put = put(&store, "k", r#"{"status":"a"}"#).await;
        assert!(put > last);
        let patched = store.patch(&key("k"), &value("{}"), &WriteConditions::default()).await;
        let Patch::Written(Write::Applied(patched)) = patched.expect("no failure") else {
            panic!("not patched")
        };
        assert!(patched > put);
        let condition = expecting(VersionCondition::Is(Some(patched)));
        let written = store.put(&key("k"), &value("1"), &condition).await.expect("no failure");
        let Write::Applied(swapped) = written else { panic!("not written") };
        assert!(swapped > patched);
        assert_eq!(get(&store, "k").await.version, swapped);
        assert_eq!(
            store.delete(&key("k"), VersionCondition::Any).await.expect("no failure"),
            Delete::Applied
        );
        last = swapped;
    }
}

async fn versions_of_a_key_rise_in_the_order_of_its_writes(store: impl Store) {
    let store = std::sync::Arc::new(store);
    put(&*store, "k", "0").await;
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            let mut written = Vec::new();
            for number in 0..40 {
                if writer % 2 == 0 {
                    written.push(put(&*store, "k", &number.to_string()).await);
                } else {
                    let done = store.put(&key("k"), &value("1"), &expecting(VersionCondition::Exists)).await;
                    let Write::Applied(version) = done.expect("no failure") else { panic!("it exists") };
                    written.push(version);
                }
                // What is read after a write is not older than it.
                assert!(get(&*store, "k").await.version >= written[number]);
            }
            written
        });
    }
    let mut all: Vec<Version> = writers.join_all().await.into_iter().flatten().collect();
    all.sort();
    assert_eq!(
        get(&*store, "k").await.version,
        *all.last().expect("some"),
        "the last write has the highest version"
    );
    all.dedup();
    assert_eq!(all.len(), 8 * 40, "no version was used twice");
}

async fn listed(store: &impl Store, start: &str) -> Vec<String> {
    let page = store.list(&prefix(start), None, 100).await.expect("no failure");
    assert_eq!(page.next_after, None);
    page.keys.iter().map(|key| key.as_str().to_owned()).collect()
}

// K-05
async fn a_prefix_is_taken_literally(store: impl Store) {
    for name in ["a_b/1", "aXb/1", "a%c/1"] {
        put(&store, name, "1").await;
    }
    assert_eq!(listed(&store, "a_").await, ["a_b/1"]);
    assert_eq!(listed(&store, "a%").await, ["a%c/1"]);
    assert_eq!(listed(&store, "a").await, ["a%c/1", "aXb/1", "a_b/1"]);
    assert!(listed(&store, "%").await.is_empty());
}

async fn keys_are_listed_by_their_bytes_page_by_page(store: impl Store) {
    let mut names = vec!["B", "a", "b", "ä", "a/", "a b", "a\u{10FFFF}", "-", "\u{FFFF}", "\u{10000}", "A"];
    for name in &names {
        put(&store, name, "1").await;
    }
    names.sort_unstable();
    assert_eq!(listed(&store, "").await, names);
    for limit in 1..=names.len() + 1 {
        let (mut seen, mut after): (Vec<Key>, Option<Key>) = (Vec::new(), None);
        loop {
            let limit = u32::try_from(limit).expect("small");
            let page = store.list(&prefix(""), after.as_ref(), limit).await.expect("no failure");
            assert!(page.keys.len() <= limit as usize);
            assert_eq!(page.next_after.as_ref(), page.keys.last().filter(|_| page.next_after.is_some()));
            seen.extend(page.keys);
            after = page.next_after;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen.iter().map(Key::as_str).collect::<Vec<_>>(), names, "pages of {limit}");
    }
    // A key before the prefix, one within it, its last one, and one after it.
    for (after, expected) in [
        ("A", vec!["a", "a b", "a/", "a\u{10FFFF}"]),
        ("a b", vec!["a/", "a\u{10FFFF}"]),
        ("a\u{10FFFF}", vec![]),
        ("b", vec![]),
    ] {
        let page = store.list(&prefix("a"), Some(&key(after)), 10).await.expect("no failure");
        assert_eq!(page.keys.iter().map(Key::as_str).collect::<Vec<_>>(), expected, "after {after}");
    }
}

async fn a_prefix_ends_where_its_last_code_point_ends(store: impl Store) {
    for start in ["\u{D7FF}", "\u{10FFFF}", "a\u{10FFFF}", "\u{7F}", "\u{7FF}", "\u{FFFF}"] {
        for name in [start.to_owned(), format!("{start}\u{10FFFF}"), format!("{start}\u{1}")] {
            put(&store, &name, "1").await;
        }
    }
    for name in ["\u{E000}", "b", "\u{80}", "\u{800}", "\u{10000}"] {
        put(&store, name, "1").await;
    }
    for start in ["\u{D7FF}", "\u{10FFFF}", "a\u{10FFFF}", "\u{7F}", "\u{7FF}", "\u{FFFF}"] {
        let expected = [start.to_owned(), format!("{start}\u{1}"), format!("{start}\u{10FFFF}")];
        assert_eq!(listed(&store, start).await, expected, "{start:?}");
    }
}

async fn many_documents_come_in_the_order_asked_and_each_once(store: impl Store) {
    for name in ["a", "b", "c"] {
        put(&store, name, &format!("{name:?}")).await;
    }
    let keys = ["c", "none", "a", "c", "b", "none"].map(key);
    let found = store.get_many(&keys).await.expect("no failure");
    assert_eq!(found.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), ["c", "a", "b"]);
    assert_eq!(
        found.iter().map(|one| one.value.as_str()).collect::<Vec<_>>(),
        [r#""c""#, r#""a""#, r#""b""#]
    );
    assert!(store.get_many(&[]).await.expect("no failure").is_empty());
}

async fn members_come_without_the_rest_of_the_document_and_large_ones_not_at_all(store: impl Store) {
    let letters = "ä".repeat(10);
    put(&store, "a", r#"{"y": 1.50, "x": null, "rest": {"x": 2}}"#).await;
    put(&store, "b", &format!(r#"{{"x": "{letters}", "y": "{letters}a"}}"#)).await;
    put(&store, "c", r#"["x"]"#).await;
    put(&store, "d", "{}").await;
    let keys = ["d", "b", "absent", "c", "a", "b"].map(key);
    let text = |text: &str| Member::Value(value(text));
    let of = |name: &str, members: Option<[Member; 2]>| Members {
        key: key(name),
        members: members.map(Into::into),
    };
    let found = store.get_members(&keys, &["x", "y"], 22).await.expect("no failure");
    let expected = [
        of("d", Some([Member::Absent, Member::Absent])),
        of("b", Some([text(&format!("\"{letters}\"")), Member::TooLarge])),
        of("c", None),
        of("a", Some([text("null"), text("1.50")])),
    ];
    assert_eq!(found, expected);
    assert_eq!(store.get_members(&[], &["x"], 22).await.expect("no failure"), []);
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
    // What is no object replaces the value as a whole.
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
    let half = "x".repeat(6 * 1024 * 1024);
    put(&store, "k", &format!(r#"{{"a":"{half}"}}"#)).await;
    let before = get(&store, "k").await;
    let patch = value(&format!(r#"{{"b":"{half}"}}"#));
    let patched = store.patch(&key("k"), &patch, &WriteConditions::default()).await.expect("no failure");
    assert!(matches!(&patched, Patch::Invalid(reason) if reason.contains("10485760")), "{patched:?}");
    assert_eq!(get(&store, "k").await, before);
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

async fn a_value_comes_back_digit_by_digit(store: impl Store) {
    for text in [
        "1.10",
        "-0.0",
        "123456789012345678901234567890",
        r#""\u0001\"\\ä""#,
        "null",
        "[]",
        "{}",
        "false",
        r#"[1, {"a": "b"}]"#,
    ] {
        put(&store, "k", text).await;
        let read: Value = get(&store, "k").await.value;
        assert_eq!(tree(&read), tree(&value(text)), "{text}");
    }
    put(&store, "k", "1.10").await;
    assert_eq!(get(&store, "k").await.value.as_str(), "1.10");
    put(&store, "k", r#"{"a":1,"a":2}"#).await;
    assert_eq!(get(&store, "k").await.value.as_str(), r#"{"a": 2}"#);
    // As jsonb writes it: members by length, then by bytes.
    put(&store, "k", r#"{"bb":1,"a":[1,2],"ab":"c"}"#).await;
    assert_eq!(get(&store, "k").await.value.as_str(), r#"{"a": [1, 2], "ab": "c", "bb": 1}"#);
}

async fn keys_of_any_bytes_are_kept_apart(store: impl Store) {
    let longest = "k".repeat(1_024);
    let names = [
        "a", "A", "a ", "/", "//", ".", "..", "%2F", "'", "\"", "\\", "$1", "é", "e\u{301}", "\u{1}",
        &longest,
    ];
    for name in names {
        put(&store, name, &format!("{:?}", name.len())).await;
    }
    for name in names {
        assert_eq!(get(&store, name).await.value.as_str(), name.len().to_string(), "{name:?}");
    }
    assert_eq!(listed(&store, "").await.len(), names.len());
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

async fn queried(store: &impl Store, text: &str) -> Page {
    store.query(&Query::parse(text.as_bytes()).expect("a query")).await.expect("no failure")
}

// K-05
async fn a_query_finds_what_matches_page_by_page(store: impl Store) {
    for number in 0..25 {
        put(&store, &format!("a_{number:02}"), &format!(r#"{{"n":{}}}"#, number % 3)).await;
        put(&store, &format!("aX{number:02}"), r#"{"n":0}"#).await;
    }
    let (mut found, mut cursor) = (Vec::new(), String::from("null"));
    loop {
        let text = format!(
            r#"{{"prefix":"a_","filter":{{"n":{{"$gte":1}}}},"sort":["-n"],"limit":4,"cursor":{cursor}}}"#
        );
        let page = queried(&store, &text).await;
        assert!(page.rows.len() <= 4 && page.matched.is_none());
        found.extend(page.rows.into_iter().map(|row| row.key.as_str().to_owned()));
        match page.next_cursor {
            Some(next) => cursor = format!("{next:?}"),
            None => break,
        }
    }
    let of =
        |rest: usize| (0..25).filter(move |number| number % 3 == rest).map(|number| format!("a_{number:02}"));
    assert_eq!(found, of(2).chain(of(1)).collect::<Vec<_>>());
}

async fn a_query_counts_instead_of_reading_or_beside_it(store: impl Store) {
    for number in 0..9 {
        put(&store, &format!("k{number}"), &format!(r#"{{"n":{number}}}"#)).await;
    }
    let page = queried(&store, r#"{"filter":{"n":{"$lt":7}},"count":true}"#).await;
    assert_eq!((page.rows.len(), page.matched, page.next_cursor), (0, Some(7), None));
    let page = queried(&store, r#"{"filter":{"n":{"$lt":7}},"limit":2,"matched":true}"#).await;
    assert_eq!((page.rows.len(), page.matched, page.next_cursor.is_some()), (2, Some(7), true));
    // A cursor whose document is needed and gone.
    let long = "x".repeat(5_000);
    put(&store, "a", &format!(r#"{{"s":"{long}1"}}"#)).await;
    put(&store, "b", &format!(r#"{{"s":"{long}2"}}"#)).await;
    let text = |cursor: &str| {
        format!(r#"{{"filter":{{"s":{{"$exists":true}}}},"sort":["s"],"limit":1,"cursor":{cursor}}}"#)
    };
    let first = queried(&store, &text("null")).await;
    let next = text(&format!("{:?}", first.next_cursor.expect("there are two")));
    assert_eq!(queried(&store, &next).await.rows[0].key, key("b"));
    put(&store, "a", "1").await;
    let failed = store.query(&Query::parse(next.as_bytes()).expect("a query")).await;
    assert!(matches!(failed, Err(StateError::InvalidQuery(_))), "{failed:?}");
    assert_eq!(queried(&store, r#"{"count":true}"#).await.matched, Some(11), "the connection can be used");
}

async fn a_page_ends_early_and_a_batch_fails_if_the_values_are_too_large_for_one_answer(store: impl Store) {
    let large = format!(r#"{{"large":"{}"}}"#, "x".repeat(MAX_ANSWER_BYTES * 2 / 5));
    let keys: Vec<Key> = (1..=5).map(|number| key(&format!("k{number}"))).collect();
    for key in &keys {
        put(&store, key.as_str(), &large).await;
    }
    let (mut cursor, mut pages) = (None, Vec::new());
    loop {
        let page = queried(&store, &format!(r#"{{"cursor":{}}}"#, cursor.as_deref().unwrap_or("null"))).await;
        pages.push(page.rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>());
        cursor = page.next_cursor.map(|next| format!("{next:?}"));
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, [&keys[..2], &keys[2..4], &keys[4..]]);
    assert_eq!(store.get_many(&keys[..2]).await.expect("they fit").len(), 2);
    let failed = store.get_many(&keys).await;
    assert!(matches!(failed, Err(StateError::TooLarge)), "{failed:?}");
}
