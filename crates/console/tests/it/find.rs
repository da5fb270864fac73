//! The search by any id.

use axum::http::StatusCode;

use crate::pages::HOSTILE;
use crate::rows::{accepted, draft, malformed};
use crate::support::*;

#[tokio::test]
async fn one_match_leads_to_its_page_and_several_are_listed() {
    let world = World::new().await;
    accepted(&world.store, 1, draft("u-1", "k-1"), start()).await;
    accepted(&world.store, 2, draft("u-1", "1-0"), start()).await;
    malformed(&world.store, 3, &[(b"idempotency_key", b"k-3")], start()).await;
    let mut browser = world.signed_in().await;
    for (id, page) in [
        ("k-1", "/console/notifications/1-0"),
        ("1-0%2Fpush:user:u-1", "/console/notifications/1-0?route=push%3Auser%3Au-1"),
        ("k-3", "/console/malformed/3-0?stream=notification%3Aintents"),
    ] {
        let answer = browser.get(&format!("/console/find?id={id}")).await;
        assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, page), "{id}");
        assert_eq!(browser.get(page).await.status, StatusCode::OK, "{page}");
    }
    let list = browser.get("/console/find?id=1-0").await;
    assert_eq!(list.status, StatusCode::OK);
    for page in ["/console/notifications/1-0", "/console/notifications/2-0"] {
        assert!(list.body.contains(&format!("href=\"{page}\"")), "{page}: {}", list.body);
    }
    let one = browser.get("/console/find?id=1-0&producer=game_master").await;
    assert_eq!(one.header("location"), "/console/notifications/2-0");
}

#[tokio::test]
async fn an_unknown_id_says_where_it_was_looked_for_and_every_page_has_the_box() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    let id: String = HOSTILE.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let page = browser.get(&format!("/console/find?id={id}")).await;
    assert_eq!(page.status, StatusCode::NOT_FOUND);
    assert!(page.body.contains("the newest 100000 notifications"), "{}", page.body);
    assert!(!page.body.contains("<script>alert"), "{}", page.body);
    for path in ["/console/", "/console/find", "/console/notifications"] {
        let page = browser.get(path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}");
        assert!(page.body.contains("action=\"/console/find\" role=\"search\""), "{path}: {}", page.body);
    }
}
