//! A table that is created, taken over or rejected.

use pg::SessionSettings;
use state::{
    PostgresStore, StateError, Store, TableName, VersionCondition, Write, WriteConditions, schema_sql,
};

use super::{ORIGINAL, TRACE, in_time, index_count};
use crate::support::{Db, get, key, named, prefix, put, until, value};

#[tokio::test]
async fn a_table_that_is_missing_is_made_as_the_shipped_sql_makes_it() {
    let columns =
        "SELECT string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, NULL), a.attnotnull, l.collname,
            pg_get_expr(d.adbin, d.adrelid), col_description(a.attrelid, a.attnum)), E'\n' ORDER BY a.attnum)
        FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = 'test.kv'::regclass AND a.attnum > 0";
    let (made, shipped) = (Db::with_table().await, Db::new().await);
    shipped
        .execute(&format!(
            "SET ROLE svc; SET search_path TO test; {}; RESET ROLE",
            schema_sql(&TableName::default())
        ))
        .await;
    assert_eq!(made.value::<String>(columns).await, shipped.value::<String>(columns).await);
    let before: String = shipped.value(TRACE).await;
    shipped.setup("").await.expect("it is complete");
    assert_eq!(shipped.value::<String>(TRACE).await, before, "nothing was added to what a migration made");
    let text: String = made.value(columns).await;
    assert!(text.contains("key text t C") && text.contains("nextval"), "{text}");
}

#[tokio::test]
async fn a_table_of_the_original_is_taken_over_with_its_rows_and_without_a_rewrite() {
    let db = Db::new().await;
    db.execute(ORIGINAL).await;
    let file: i64 =
        db.value("SELECT relfilenode::bigint FROM pg_class WHERE oid = 'test.kv'::regclass").await;
    db.setup("status").await.expect("it is taken over");
    let now: i64 = db.value("SELECT relfilenode::bigint FROM pg_class WHERE oid = 'test.kv'::regclass").await;
    assert_eq!(now, file);
    // Primary key, the original's GIN, keys by bytes, status: no second GIN.
    assert_eq!(index_count(&db).await, 4);
    let store = db.store();
    let before = get(&store, "a").await;
    assert_eq!(
        (before.version.0, before.created_at.to_string().as_str()),
        (0, "2020-01-01T00:00:00.000000Z")
    );
    let zero = WriteConditions { version: VersionCondition::Is(Some(before.version)), status: None };
    let written = store.put(&key("a"), &value("1"), &zero).await.expect("no failure");
    assert!(matches!(written, Write::Applied(version) if version.0 > 0), "{written:?}");
    assert_eq!(get(&store, "a").await.created_at, before.created_at);
    put(&store, "new", "1").await;
    let page = store.list(&prefix(""), None, 100).await.expect("no failure");
    let keys: Vec<&str> = page.keys.iter().map(|key| key.as_str()).collect();
    assert_eq!(keys, ["A", "B", "a", "aXb/1", "a_b/1", "b", "new", "ä"]);
    // An insert by hand, as clients of the original's table do it.
    db.execute("INSERT INTO test.kv (key, value) VALUES ('hand', '1')").await;
    assert!(get(&store, "hand").await.version > get(&store, "new").await.version);
}

#[tokio::test]
async fn a_table_of_keys_and_values_alone_gets_the_times_of_its_takeover() {
    let db = Db::new().await;
    db.execute(
        "CREATE TABLE test.kv (key text PRIMARY KEY, value jsonb NOT NULL, note text, n int NOT NULL DEFAULT 1);
         ALTER TABLE test.kv OWNER TO svc; INSERT INTO test.kv SELECT 'k' || n, '1' FROM generate_series(1, 9) AS n",
    )
    .await;
    let file = "SELECT relfilenode::bigint FROM pg_class WHERE oid = 'test.kv'::regclass";
    let before: i64 = db.value(file).await;
    db.setup("").await.expect("it is taken over");
    assert_eq!(db.value::<i64>(file).await, before, "no row was rewritten");
    let (one, other) = (get(&db.store(), "k1").await, get(&db.store(), "k9").await);
    assert_eq!((one.created_at, one.updated_at, one.version.0), (other.created_at, other.updated_at, 0));
    put(&db.store(), "new", "1").await;
    // Its own index on values, and byte order from the primary key: the database sorts by bytes.
    assert!(db.value::<bool>("SELECT to_regclass('test.kv_value_gin') IS NOT NULL").await);
}

// K-05
#[tokio::test]
async fn a_prefix_is_taken_literally_in_a_table_of_the_original() {
    let db = Db::new().await;
    db.execute(ORIGINAL).await;
    db.setup("").await.expect("it is taken over");
    let page = db.store().list(&prefix("a_"), None, 100).await.expect("no failure");
    assert_eq!(page.keys, [key("a_b/1")]);
}

#[tokio::test]
async fn a_restart_beside_an_open_transaction_waits_for_nothing() {
    let db = Db::new().await;
    db.execute(ORIGINAL).await;
    db.setup("status").await.expect("it is taken over");
    // The strongest lock that does not block writers, and the lock of a writer.
    for lock in ["SHARE UPDATE EXCLUSIVE", "ROW EXCLUSIVE"] {
        let open = db
            .block(&format!("UPDATE kv SET value = '2' WHERE key = 'a'; LOCK TABLE kv IN {lock} MODE"))
            .await;
        in_time(db.setup("status")).await.expect("nothing is missing");
        drop(open);
    }
}

#[tokio::test]
async fn a_takeover_beside_an_open_transaction_leaves_time_to_the_writers() {
    let db = Db::new().await;
    db.execute(ORIGINAL).await;
    let open = db.block("UPDATE kv SET value = '2' WHERE key = 'a'").await;
    let dsn = db.dsn();
    let setup = tokio::spawn(async move {
        PostgresStore::setup(&dsn, SessionSettings::default(), &TableName::default(), &[]).await
    });
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'test.kv'::regclass";
    for _ in 0..3 {
        until("a wait for the lock", async || db.value::<i64>(waits).await > 0).await;
        // The writer ends before the lock timeout of a pool.
        db.execute("SET lock_timeout = '500ms'; UPDATE test.kv SET value = '3' WHERE key = 'b'").await;
        until("the end of the wait", async || db.value::<i64>(waits).await == 0).await;
    }
    assert!(!setup.is_finished());
    open.batch_execute("COMMIT").await.expect("it commits");
    in_time(setup).await.expect("no panic").expect("it is taken over");
    assert_eq!(get(&db.store(), "a").await.value.as_str(), "2");
}

#[tokio::test]
async fn what_has_the_name_of_the_table_and_is_none_is_refused_and_not_touched() {
    for (sql, said) in [
        ("CREATE VIEW test.kv AS SELECT 1 AS key", "it is a view, not a table"),
        ("CREATE SEQUENCE test.kv", "it is a sequence, not a table"),
        ("CREATE TABLE test.kv (key text, value jsonb) PARTITION BY HASH (key)", "it is a partitioned table"),
        ("CREATE TABLE test.kv (id int)", "it has no column key text"),
        (
            "CREATE TABLE test.kv (key varchar PRIMARY KEY, value jsonb NOT NULL)",
            "its column key is character varying",
        ),
        (
            "CREATE TABLE test.kv (key text PRIMARY KEY, value json NOT NULL)",
            "its column value is json, not jsonb",
        ),
        (
            "CREATE TABLE test.kv (key text NOT NULL, value jsonb NOT NULL)",
            "its column key is not a primary key",
        ),
        (
            "CREATE TABLE test.kv (key text PRIMARY KEY, value jsonb NOT NULL, version text NOT NULL)",
            "its column version is text",
        ),
        (
            "CREATE TABLE test.kv (key text PRIMARY KEY, value jsonb NOT NULL, version bigint NOT NULL)",
            "no sequence kv_version_seq",
        ),
        (
            "CREATE TABLE test.kv (key text PRIMARY KEY, value jsonb NOT NULL, owner text NOT NULL)",
            "its column owner is NOT NULL",
        ),
        (
            "CREATE COLLATION test.loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
          CREATE TABLE test.kv (key text COLLATE test.loose PRIMARY KEY, value jsonb NOT NULL)",
            "its column key calls different texts equal",
        ),
    ] {
        let db = Db::new().await;
        db.execute(sql).await;
        let before: String = db.value(TRACE).await;
        let failed = db.setup("status").await;
        let Err(StateError::NotATable { problem, .. }) = &failed else { panic!("{sql}: {failed:?}") };
        assert!(problem.contains(said), "{sql}: {problem}");
        assert_eq!(db.value::<String>(TRACE).await, before);
    }
}

#[tokio::test]
async fn a_role_without_rights_is_told_so() {
    let db = Db::with_table().await;
    db.execute(
        "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA test TO reader; GRANT SELECT ON test.kv TO reader",
    )
    .await;
    let setup = async |table: &str| {
        PostgresStore::setup(&db.dsn_of("reader"), SessionSettings::default(), &named(table), &[]).await
    };
    let failed = setup("kv").await;
    let Err(StateError::NoRights(missing)) = &failed else { panic!("{failed:?}") };
    assert_eq!(missing, "INSERT, UPDATE, DELETE on kv; USAGE on SEQUENCE kv_version_seq");
    let failed = setup("other").await;
    assert!(matches!(failed, Err(StateError::NoRights(_))), "{failed:?}");
    db.execute("GRANT ALL ON test.kv, test.kv_version_seq TO reader").await;
    setup("kv").await.expect("it need not be the owner");
}

#[tokio::test]
async fn without_a_schema_that_exists_there_is_an_error_that_says_so() {
    let db = Db::new().await;
    let dsn = db.dsn_in("nowhere");
    let failed = PostgresStore::setup(&dsn, SessionSettings::default(), &TableName::default(), &[]).await;
    assert!(
        matches!(&failed, Err(StateError::NotATable { problem, .. }) if problem.contains("search_path")),
        "{failed:?}"
    );
}
