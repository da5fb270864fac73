//! Effects of other transactions that stay open on an operation, and on the other elements of its batch.

use std::slice;

use idempotency::{Claim, Guarded, LockTtl, Store};
use pg::PgError;

use crate::support::{Db, LOCK, TICK, World, completion, is_pending, request};

const LOCK_ALL: &str = "SELECT * FROM idempotency_keys FOR UPDATE";
const INSERT_K: &str =
    "INSERT INTO idempotency_keys (scope, key, state, token, fingerprint, expires_at, created_at)
    VALUES ('orders:client', 'k', 'pending', 't', 'f', now() + interval '1 minute', now())";
/// The clock of the test, which extends the lock timeout of the statement that reads it beyond the pool's.
const PATIENT_CLOCK: &str =
    "CREATE OR REPLACE FUNCTION test.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
         SELECT set_config('lock_timeout', '20s', true);
         SELECT to_timestamp(0) + now_ms * interval '1 millisecond' FROM test.fake_clock $$";

#[tokio::test]
async fn a_live_key_is_read_whatever_holds_its_row() {
    let db = Db::new().await;
    let completed = db.completed("completed").await;
    db.claimed("pending").await;
    let blocker = db.block(LOCK_ALL).await;
    let requests = [request("completed", "f"), request("pending", "f"), request("new", "f")];
    let claims = db.store().claim(&requests).await.expect("no failure");
    assert_eq!(claims[0], Claim::Completed(completed.answer));
    assert!(is_pending(&claims[1]), "{:?}", claims[1]);
    assert_eq!(claims[2], Claim::New);
    drop(blocker);
}

#[tokio::test]
async fn an_expired_key_that_is_held_is_busy_and_its_neighbours_are_claimed() {
    let db = Db::new().await;
    for key in ["b", "d"] {
        db.claimed(key).await;
    }
    db.pass(LOCK + TICK).await;
    let blocker = db.block("SELECT * FROM idempotency_keys WHERE key = 'b' FOR UPDATE").await;
    let requests = ["a", "b", "c", "d"].map(|key| request(key, "f"));
    let claims = db.store().claim(&requests).await.expect("no failure");
    assert_eq!(claims, [Claim::New, Claim::Busy, Claim::New, Claim::New]);
    assert_eq!(db.claim(&requests[1]).await, Claim::Busy, "by itself too");
    blocker.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(db.claim(&requests[1]).await, Claim::New);
}

#[tokio::test]
async fn a_key_that_another_transaction_is_inserting_is_busy_until_it_ends() {
    let db = Db::new().await;
    let blocker = db.block(INSERT_K).await;
    let requests = ["j", "k", "l"].map(|key| request(key, "f"));
    let claims = db.store().claim(&requests).await.expect("no failure");
    assert_eq!(claims, [Claim::New, Claim::Busy, Claim::New]);
    blocker.batch_execute("COMMIT").await.expect("committed");
    let seen = db.claim(&requests[1]).await;
    assert_eq!(seen, Claim::Pending { fingerprint_matches: true, free_in: LOCK });
}

// I-12
#[tokio::test]
async fn a_claim_that_waited_for_another_transaction_sees_what_that_has_committed() {
    let db = Db::new().await;
    // The wait does not end before the commit, however slow this machine is.
    db.execute(PATIENT_CLOCK).await;
    let blocker = db.block(INSERT_K).await;
    let request = request("k", "f");
    let committed = async {
        db.until_blocked().await;
        blocker.batch_execute("COMMIT").await.expect("committed");
    };
    let (claim, ()) = tokio::join!(db.claim(&request), committed);
    assert_eq!(claim, Claim::Pending { fingerprint_matches: true, free_in: LOCK });
}

#[tokio::test]
async fn a_change_of_a_key_that_is_held_is_busy_and_its_neighbours_are_changed() {
    let db = Db::new().await;
    let claims = [db.claimed("a").await, db.claimed("b").await, db.claimed("c").await];
    let ids = claims.map(|claim| claim.id);
    let blocker = db.block("SELECT * FROM idempotency_keys WHERE key = 'b' FOR UPDATE").await;
    let expected = [Guarded::Applied, Guarded::Busy, Guarded::Applied];
    let extended = db.store().extend(&ids, LockTtl::default()).await.expect("no failure");
    assert_eq!(extended, expected);
    let completions = ids.clone().map(|id| completion(&id, 200, b""));
    assert_eq!(db.store().complete(&completions).await.expect("no failure"), expected);
    assert_eq!(db.abandon(&ids[1]).await, Guarded::Busy);
    blocker.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(db.abandon(&ids[1]).await, Guarded::Applied);
}

#[tokio::test]
async fn an_answer_in_the_callers_transaction_waits_for_the_lock_time_out_and_says_so() {
    let db = Db::new().await;
    let completion = completion(&db.claimed("k").await.id, 200, b"");
    let blocker = db.block(LOCK_ALL).await;
    let session = db.pool().session("work").await.expect("connects");
    session.begin().await.expect("begun");
    let error = idempotency::complete_in(&session, slice::from_ref(&completion)).await.expect_err("locked");
    assert!(
        matches!(error, idempotency::IdempotencyError::Postgres(PgError::Locked { operation: "work", .. })),
        "{error}"
    );
    drop(blocker);
}

#[tokio::test]
async fn a_sweep_leaves_out_what_is_held() {
    let db = Db::new().await;
    for key in ["a", "b"] {
        db.claimed(key).await;
    }
    db.pass(LOCK + TICK).await;
    let blocker = db.block("SELECT * FROM idempotency_keys WHERE key = 'a' FOR UPDATE").await;
    assert_eq!(db.store().sweep(10).await.expect("no failure"), 1);
    drop(blocker);
    assert_eq!(db.value::<String>("SELECT string_agg(key, ',') FROM idempotency_keys").await, "a");
}

#[tokio::test]
async fn a_table_that_is_locked_as_a_whole_fails_the_operation_by_name() {
    let db = Db::new().await;
    let claim = db.claimed("k").await;
    let blocker = db.block("LOCK TABLE idempotency_keys").await;
    let claims = db.store().claim(&[request("l", "f"), request("m", "f")]).await.expect("no failure");
    assert_eq!(claims, [Claim::Busy, Claim::Busy]);
    let error = db.store().sweep(1).await.expect_err("locked").to_string();
    assert!(error.contains("sweep expired idempotency keys") && error.contains("lock"), "{error}");
    blocker.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(db.abandon(&claim.id).await, Guarded::Applied);
}
