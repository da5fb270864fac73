//! Keys and prefixes are bytes.

use state::{Key, Store};

use crate::support::{get, key, prefix, put};

on_both_stores! {
    a_prefix_is_taken_literally
    keys_are_listed_by_their_bytes_page_by_page
    a_prefix_ends_where_its_last_code_point_ends
    keys_of_any_bytes_are_kept_apart
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
