//! L-05: a lookup changes nothing and shows no names.

use lock::{LockId, hash_key};

use crate::support::{Db, TTL_MS};

// L-05
#[tokio::test]
async fn a_lookup_by_key_and_one_by_id_return_the_same_without_names() {
    let db = Db::new().await;
    let grant = db.acquire("payment:123").await;
    let by_key = db.locks.lookup("payment:123").await.expect("looked up").expect("held");
    let by_id = db.locks.lookup_by_id(&grant.lock_id).await.expect("looked up").expect("held");
    assert_eq!(by_key, by_id);
    assert_eq!(by_key.key_hash, hash_key("payment:123"));
    assert_eq!(by_key.lock_id_hash, grant.lock_id.hash());
    assert_eq!((by_key.fence, by_key.expires_at_ms), (grant.fence, grant.expires_at_ms));
    assert_eq!(by_key.acquired_at_ms, grant.expires_at_ms - TTL_MS);
    assert_eq!(by_key.free_in.as_millis() as i64, TTL_MS + 1000);
    db.pass(600).await;
    let later = db.locks.lookup("payment:123").await.expect("looked up").expect("held");
    assert_eq!(later.free_in.as_millis() as i64, TTL_MS + 400);
    let shown = format!("{by_key:?} {grant:?}");
    assert!(!shown.contains("payment") && !shown.contains(grant.lock_id.as_str()), "{shown}");
}

// L-05
#[tokio::test]
async fn an_unknown_lock_and_an_expired_one_have_the_same_result() {
    let db = Db::new().await;
    let grant = db.acquire("expired").await;
    db.pass(TTL_MS + 1000).await;
    let unknown = LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").expect("well formed");
    assert_eq!(db.locks.lookup("expired").await.expect("looked up"), None);
    assert_eq!(db.locks.lookup("unknown").await.expect("looked up"), None);
    assert_eq!(db.locks.lookup_by_id(&grant.lock_id).await.expect("looked up"), None);
    assert_eq!(db.locks.lookup_by_id(&unknown).await.expect("looked up"), None);
}

// L-05
#[tokio::test]
async fn lookups_at_the_same_time_see_the_same() {
    let db = Db::new().await;
    db.acquire("k").await;
    let (a, b, c) = tokio::join!(db.locks.lookup("k"), db.locks.lookup("k"), db.locks.lookup("k"));
    let (a, b, c) = (a.expect("looked up"), b.expect("looked up"), c.expect("looked up"));
    assert!(a.is_some() && a == b && b == c);
}

// L-05
#[tokio::test]
async fn the_same_key_in_another_unicode_form_is_the_same_lock() {
    let db = Db::new().await;
    db.acquire("caf\u{e9}").await;
    assert!(db.locks.is_locked("cafe\u{301}").await.expect("looked up"));
}
