//! L-15: the tables.

use lock::{ErrorCode, LockManager, TableNames, schema_sql};
use tokio::task::JoinSet;

use crate::support::{Db, TTL, granted};

// L-15
#[tokio::test]
async fn setting_up_twice_changes_nothing() {
    let db = Db::new().await;
    let grant = db.acquire("k").await;
    db.locks.setup_schema().await.expect("set up again");
    assert!(db.locks.owns(&grant.lock_id).await.expect("looked up"));
}

// L-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_set_up_at_once() {
    let db = Db::without_tables().await;
    let mut setups = JoinSet::new();
    for _ in 0..8 {
        let locks = db.locks.clone();
        setups.spawn(async move { locks.setup_schema().await });
    }
    for outcome in setups.join_all().await {
        outcome.expect("set up");
    }
}

// L-15
#[tokio::test]
async fn tables_of_other_names_hold_other_locks() {
    let db = Db::new().await;
    db.acquire("k").await;
    let names = TableNames::new(&"L".repeat(51), "Other_Counters").expect("valid");
    let others = LockManager::new(db.pool(""), names);
    others.setup_schema().await.expect("set up");
    assert_eq!(granted(others.try_acquire("k", TTL).await).fence, 1);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM locks").await, 1);
}

// L-15
#[tokio::test]
async fn a_table_of_another_shape_is_found_out() {
    let db = Db::without_tables().await;
    db.execute("CREATE TABLE locks (key text PRIMARY KEY); ALTER TABLE locks OWNER TO svc").await;
    let error = db.locks.setup_schema().await.expect_err("refused");
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

// L-15
#[tokio::test]
async fn each_right_that_is_missing_is_found_out_with_its_table() {
    let db = Db::new().await;
    for (table, rights) in [
        ("locks", &["SELECT", "INSERT", "UPDATE", "DELETE"][..]),
        ("fence_counters", &["SELECT", "INSERT", "UPDATE"]),
    ] {
        for right in rights {
            db.execute(&format!("REVOKE {right} ON {table} FROM svc")).await;
            let error = db.locks.check_schema().await.expect_err("refused");
            assert_eq!(error.code(), ErrorCode::AuthFailed, "{right}");
            assert!(
                error.to_string().contains(&format!("the role lacks {right} on {table}")),
                "{right}: {error}"
            );
            db.execute(&format!("GRANT {right} ON {table} TO svc")).await;
        }
    }
    db.locks.check_schema().await.expect("passes");
}

// L-15
#[tokio::test]
async fn rights_are_asked_for_by_the_very_name_of_a_table() {
    let db = Db::without_tables().await;
    let names = TableNames::new("Locks", "Other_Counters").expect("valid");
    LockManager::new(db.pool(""), names).setup_schema().await.expect("set up, which checks");
}

#[tokio::test]
async fn a_migration_that_holds_the_sql_makes_tables_that_pass_the_check() {
    let db = Db::without_tables().await;
    assert!(db.locks.check_schema().await.is_err());
    let session = db.pool("").session("migrate").await.expect("connects");
    session.execute_batch(&schema_sql(&TableNames::default())).await.expect("migrated");
    db.locks.check_schema().await.expect("passes");
}

#[tokio::test]
async fn every_column_is_explained() {
    let db = Db::new().await;
    let silent = "SELECT count(*) FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
                  AND attrelid IN ('locks'::regclass, 'fence_counters'::regclass) AND col_description(attrelid, attnum) IS NULL";
    assert_eq!(db.value::<i64>(silent).await, 0);
}
