//! Promises that only a table in PostgreSQL can keep.

use idempotency::{
    Claim, FreeCompletion, Guarded, IdempotencyError, Store, complete_free_in, complete_in, schema_sql,
    statements,
};
use tokio::task::JoinSet;

use crate::support::{
    Db, LOCK, RETENTION, TICK, World, completion, free_completion, is_pending, lookup, request,
};

// I-05
#[tokio::test]
async fn the_row_of_the_next_claim_is_untouched_by_the_holder_of_the_last() {
    let db = Db::new().await;
    let old = db.claimed("k").await.id;
    db.pass(LOCK + TICK).await;
    db.claimed("k").await;
    let before = db.row("k").await;
    assert_eq!(db.complete(&completion(&old, 200, b"")).await, Guarded::Fenced);
    assert_eq!(db.abandon(&old).await, Guarded::Fenced);
    assert_eq!(db.row("k").await, before);
}

// I-11
#[tokio::test]
async fn nothing_is_left_of_an_expired_answer_while_its_key_is_pending_again() {
    let db = Db::new().await;
    db.completed("k").await;
    db.pass(RETENTION + TICK).await;
    db.claimed("k").await;
    let left = "SELECT count(*) FROM idempotency_keys WHERE response_status IS NOT NULL
                OR response_headers IS NOT NULL OR response_body IS NOT NULL";
    assert_eq!(db.value::<i64>(left).await, 0);
    assert!(db.row("k").await.contains("pending"));
}

// I-13
#[tokio::test]
async fn every_end_follows_the_clock_of_the_server() {
    // That clock is a quarter of a century behind the client's.
    let db = Db::new().await;
    let ends_in = "SELECT (extract(epoch FROM expires_at - now()) * 1000)::bigint FROM idempotency_keys";
    let claim = db.claimed("k").await;
    assert_eq!(db.value::<i64>(ends_in).await, LOCK.as_millis() as i64);
    assert!(is_pending(&db.claim(&request("k", "f")).await));
    assert_eq!(db.extend(&claim.id, LOCK * 2).await, Guarded::Applied);
    assert_eq!(db.value::<i64>(ends_in).await, LOCK.as_millis() as i64 * 2);
    assert_eq!(db.complete(&completion(&claim.id, 200, b"")).await, Guarded::Applied);
    assert_eq!(db.value::<i64>(ends_in).await, RETENTION.as_millis() as i64);
    assert_eq!(db.store().sweep(10).await.expect("no failure"), 0);
}

// I-14
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_set_up_the_table_at_once_and_again() {
    let db = Db::without_table().await;
    let mut setups = JoinSet::new();
    for _ in 0..10 {
        let store = db.store().clone();
        setups.spawn(async move { store.setup_schema().await });
    }
    for outcome in setups.join_all().await {
        outcome.expect("set up");
    }
    let claim = db.claimed("k").await;
    db.store().setup_schema().await.expect("set up again");
    assert_eq!(db.abandon(&claim.id).await, Guarded::Applied);
}

/// Describes the table from the catalog: columns, constraints, indexes and comments.
const CATALOGUE: &str = "
    SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
        SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attcollation::regcollation,
                         col_description(attrelid, attnum)) AS line
        FROM pg_attribute WHERE attrelid = 'idempotency_keys'::regclass AND attnum > 0
        UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'idempotency_keys'::regclass
        UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'idempotency_keys'::regclass
        UNION ALL SELECT obj_description('idempotency_keys'::regclass)) AS lines";

// I-17
#[tokio::test]
async fn a_migration_with_the_shipped_sql_makes_the_very_table_that_setting_up_makes() {
    let (set_up, migrated) = (Db::new().await, Db::without_table().await);
    let session = migrated.pool().session("migrate").await.expect("connects");
    session.execute_batch(schema_sql()).await.expect("migrated");
    assert_eq!(migrated.value::<String>(CATALOGUE).await, set_up.value::<String>(CATALOGUE).await);
    migrated.store().check_schema().await.expect("passes");
}

// I-18
#[tokio::test]
async fn a_pool_may_be_closed_twice_and_nothing_is_claimed_afterwards() {
    let db = Db::new().await;
    let pool = db.pool();
    let store = idempotency::PostgresStore::new(pool.clone());
    store.claim(&[request("k", "f")]).await.expect("no failure");
    pool.close();
    pool.close();
    assert!(matches!(store.claim(&[request("l", "f")]).await, Err(IdempotencyError::Postgres(_))));
    assert_eq!(pool.usage(), (0, 0), "no connection is left");
}

#[tokio::test]
async fn each_right_that_is_missing_is_found_out() {
    let db = Db::new().await;
    for right in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
        db.execute(&format!("REVOKE {right} ON idempotency_keys FROM svc")).await;
        let error = db.store().check_schema().await.expect_err("refused");
        assert!(
            matches!(&error, IdempotencyError::NoRights(missing) if *missing == format!("{right} on idempotency_keys")),
            "{error}"
        );
        db.execute(&format!("GRANT {right} ON idempotency_keys TO svc")).await;
    }
    db.store().check_schema().await.expect("passes");
}

#[tokio::test]
async fn a_table_of_another_shape_is_found_out() {
    let db = Db::without_table().await;
    assert!(db.store().check_schema().await.is_err(), "there is none");
    db.execute(
        "CREATE TABLE idempotency_keys (scope text, key text); ALTER TABLE idempotency_keys OWNER TO svc",
    )
    .await;
    assert!(db.store().check_schema().await.is_err());
}

#[tokio::test]
async fn every_column_is_explained() {
    let db = Db::new().await;
    let silent = "SELECT count(*) FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
                  AND attrelid = 'idempotency_keys'::regclass AND col_description(attrelid, attnum) IS NULL";
    assert_eq!(db.value::<i64>(silent).await, 0);
}

#[tokio::test]
async fn answers_are_stored_with_the_callers_transaction_or_not_at_all() {
    let db = Db::new().await;
    let pool = db.pool();
    let completions =
        [completion(&db.claimed("b").await.id, 202, b"b"), completion(&db.claimed("a").await.id, 202, b"a")];
    let session = pool.session("work").await.expect("connects");
    session.begin().await.expect("begun");
    let outcomes = complete_in(&session, &completions).await.expect("no failure");
    assert_eq!(outcomes, [Guarded::Applied, Guarded::Applied]);
    session.rollback().await.expect("rolled back");
    assert!(is_pending(&db.claim(&request("a", "f")).await));

    // Pipelined with the caller's own statements.
    let prepared = session.prepare(statements::complete(&completions)).await.expect("prepared");
    let (begun, changed, committed) =
        tokio::join!(biased; session.begin(), session.change(&prepared), session.commit());
    begun.expect("begun");
    assert_eq!(changed.expect("changed"), 2);
    committed.expect("committed");
    for completed in completions {
        let key = completed.id.key.as_str();
        assert_eq!(db.claim(&request(key, "f")).await, Claim::Completed(completed.answer));
    }
}

#[tokio::test]
async fn a_fenced_answer_shows_in_the_count_and_in_the_outcomes() {
    let db = Db::new().await;
    let held = completion(&db.claimed("held").await.id, 202, b"");
    let lost = completion(&db.claimed("lost").await.id, 202, b"");
    assert_eq!(db.abandon(&lost.id).await, Guarded::Applied);
    let completions = [lost, held.clone(), held];
    let session = db.pool().session("work").await.expect("connects");
    session.begin().await.expect("begun");
    let outcomes = complete_in(&session, &completions).await.expect("no failure");
    assert_eq!(outcomes, [Guarded::Fenced, Guarded::Applied, Guarded::Fenced], "once each");
    session.rollback().await.expect("rolled back");
    let prepared = session.prepare(statements::complete(&completions)).await.expect("prepared");
    assert_eq!(session.change(&prepared).await.expect("changed"), 1);
}

#[tokio::test]
async fn a_free_key_gets_its_answer_with_the_callers_transaction_or_stays_free() {
    let db = Db::new().await;
    db.completed("expired").await;
    db.pass(RETENTION + TICK).await;
    let completions =
        [free_completion("b", b"b"), free_completion("expired", b"new"), free_completion("a", b"a")];
    let session = db.pool().session("work").await.expect("connects");
    for end in ["ROLLBACK", "COMMIT"] {
        session.begin().await.expect("begun");
        let outcomes = complete_free_in(&session, &completions).await.expect("no failure");
        assert_eq!(outcomes, [Guarded::Applied; 3], "{end}");
        session.execute_batch(end).await.expect("ended");
        if end == "ROLLBACK" {
            let lookups = ["a", "b", "expired"].map(|key| lookup(key, "f"));
            assert_eq!(db.store().lookup(&lookups).await.expect("no failure"), [None, None, None]);
        }
    }
    for FreeCompletion { completion, .. } in completions {
        let key = completion.id.key.as_str();
        assert_eq!(db.claim(&request(key, "f")).await, Claim::Completed(completion.answer));
        assert_eq!(db.claim(&request(key, "other")).await, Claim::Conflict);
        assert_eq!(db.abandon(&completion.id).await, Guarded::Fenced, "an answer stays");
    }
}

#[tokio::test]
async fn a_key_that_is_taken_shows_in_the_count_and_in_the_outcomes_of_free_keys() {
    let db = Db::new().await;
    db.claimed("claimed").await;
    db.completed("answered").await;
    let twice = free_completion("free", b"");
    let completions =
        [free_completion("claimed", b""), twice.clone(), free_completion("answered", b""), twice];
    let session = db.pool().session("work").await.expect("connects");
    session.begin().await.expect("begun");
    let outcomes = complete_free_in(&session, &completions).await.expect("no failure");
    assert_eq!(outcomes, [Guarded::Fenced, Guarded::Applied, Guarded::Fenced, Guarded::Fenced]);
    session.rollback().await.expect("rolled back");
    let prepared = session.prepare(statements::complete_free(&completions[..3])).await.expect("prepared");
    assert_eq!(session.change(&prepared).await.expect("changed"), 1);
}

#[tokio::test]
async fn of_two_transactions_that_take_a_free_key_the_second_waits_and_leaves_it() {
    let db = Db::new().await;
    let (first, second) = (free_completion("k", b"first"), free_completion("k", b"second"));
    let pool = db.pool();
    let holder = pool.session("first").await.expect("connects");
    holder.begin().await.expect("begun");
    let taken = complete_free_in(&holder, std::slice::from_ref(&first)).await.expect("no failure");
    assert_eq!(taken, [Guarded::Applied]);
    let waiter = pool.session("second").await.expect("connects");
    waiter.begin().await.expect("begun");
    let (told, ()) = tokio::join!(complete_free_in(&waiter, std::slice::from_ref(&second)), async {
        db.until_blocked().await;
        holder.commit().await.expect("committed");
    });
    assert_eq!(told.expect("no failure"), [Guarded::Fenced]);
    waiter.rollback().await.expect("rolled back");
    assert_eq!(db.claim(&request("k", "f")).await, Claim::Completed(first.completion.answer));
}

#[tokio::test]
async fn an_impossible_row_is_refused_by_the_table() {
    let db = Db::new().await;
    db.completed("k").await;
    for change in ["state = 'done'", "state = 'pending'", "response_body = NULL", "response_status = 99"] {
        let sql = format!(
            "DO $$ BEGIN UPDATE idempotency_keys SET {change}; RAISE 'not refused';
                           EXCEPTION WHEN check_violation THEN NULL; END $$"
        );
        db.execute(&sql).await;
    }
}

// I-13
#[tokio::test]
async fn a_claim_from_a_clock_that_was_set_back_is_over_after_its_time_and_not_before() {
    let hour_ms = 3_600_000;
    for reads in [false, true] {
        let db = Db::new().await;
        db.execute(&format!("UPDATE fake_clock SET now_ms = now_ms + {hour_ms}")).await;
        db.claimed("k").await;
        db.execute(&format!("UPDATE fake_clock SET now_ms = now_ms - {hour_ms}")).await;
        // Found by a request that claims, or by one that only reads.
        if reads {
            drop(db.store().lookup(&[lookup("k", "f")]).await.expect("no failure"));
        } else {
            assert!(is_pending(&db.claim(&request("k", "f")).await));
        }
        db.pass(LOCK).await;
        assert!(is_pending(&db.claim(&request("k", "f")).await), "reads: {reads}");
        db.pass(TICK).await;
        assert!(matches!(db.claim(&request("k", "f")).await, Claim::New), "reads: {reads}");
    }
}

// I-13
#[tokio::test]
async fn a_claim_that_another_transaction_has_locked_does_not_keep_others_from_beginning_now() {
    let db = Db::new().await;
    db.execute("UPDATE fake_clock SET now_ms = now_ms + 3600000").await;
    for name in ["a", "b", "c"] {
        db.claimed(name).await;
    }
    db.execute("UPDATE fake_clock SET now_ms = now_ms - 3600000").await;
    let _holder = db.block("SELECT FROM idempotency_keys WHERE key = 'b' FOR UPDATE").await;
    let keys = ["a", "b", "c"].map(|name| lookup(name, "f"));
    drop(db.store().lookup(&keys).await.expect("no failure"));
    let now = "SELECT coalesce(string_agg(key, '' ORDER BY key), '') FROM test.idempotency_keys WHERE created_at <= test.now()";
    assert_eq!(db.value::<String>(now).await, "ac");
}
