//! A read returns the written value, and no more than fits into a response.

use state::{DocumentMembers, Key, MAX_ANSWER_BYTES, MemberValue, StateError, Store, Value};

use super::queried;
use crate::support::{get, key, put, tree, value};

on_both_stores! {
    many_documents_come_in_the_order_asked_and_each_once
    members_come_without_the_rest_of_the_document_and_large_ones_not_at_all
    a_value_comes_back_digit_by_digit
    a_page_ends_early_and_a_batch_fails_if_the_values_are_too_large_for_one_answer
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
    let text = |text: &str| MemberValue::Value(value(text));
    let of = |name: &str, members: Option<[MemberValue; 2]>| DocumentMembers {
        key: key(name),
        members: members.map(Into::into),
    };
    let found = store.get_members(&keys, &["x", "y"], 22).await.expect("no failure");
    let expected = [
        of("d", Some([MemberValue::Absent, MemberValue::Absent])),
        of("b", Some([text(&format!("\"{letters}\"")), MemberValue::TooLarge])),
        of("c", None),
        of("a", Some([text("null"), text("1.50")])),
    ];
    assert_eq!(found, expected);
    assert_eq!(store.get_members(&[], &["x"], 22).await.expect("no failure"), []);
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
    // jsonb sorts members by length, then by bytes.
    put(&store, "k", r#"{"bb":1,"a":[1,2],"ab":"c"}"#).await;
    assert_eq!(get(&store, "k").await.value.as_str(), r#"{"a": [1, 2], "ab": "c", "bb": 1}"#);
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
