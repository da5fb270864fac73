//! Queries.

use state::query::Query;
use state::{StateError, Store};

use super::queried;
use crate::support::{key, put};

on_both_stores! {
    a_query_finds_what_matches_page_by_page
    a_query_counts_instead_of_reading_or_beside_it
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
    // A cursor whose document is needed but was deleted.
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
