//! Declared indexes.

use pg::SessionSettings;
use state::query::expressions::{IndexType, Member, index_sql};
use state::{IndexSpec, PostgresStore, StateError, TableName};
use tokio::task::JoinSet;

use super::{ORIGINAL, TRACE, in_time, index_count};
use crate::support::{Db, put, until};

#[tokio::test]
async fn a_role_that_may_create_no_temporary_table_is_told_so_if_indexes_are_declared() {
    let db = Db::with_table().await;
    db.execute("DO $$ BEGIN EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database()); END $$").await;
    let failed = db.setup("status").await;
    assert!(
        matches!(&failed, Err(StateError::NotATable { problem, .. }) if problem.contains("GRANT TEMPORARY")),
        "{failed:?}"
    );
    db.setup("").await.expect("without them none is needed");
}

// K-10
#[tokio::test]
async fn the_example_of_the_original_is_built_and_used_and_a_restart_changes_nothing() {
    let db = Db::new().await;
    db.execute(ORIGINAL).await;
    let example = "status,(deadline_at)::timestamptz";
    db.setup(example).await.expect("it is built");
    let client = db.block("SET LOCAL enable_seqscan = off").await;
    for (member, kind, operand) in
        [("status", IndexType::Text, "'a'"), ("deadline_at", IndexType::Timestamptz, "now()")]
    {
        let expression = index_sql("kv", &Member::new(member).expect("a name"), kind);
        let rows = client
            .query(&format!("EXPLAIN SELECT key FROM kv WHERE {expression} < {operand}"), &[])
            .await
            .expect("a plan");
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let name = format!("kv-{member}-{}", kind.as_str());
        assert!(plan.iter().any(|line| line.contains(&name)), "{plan:?}");
    }
    let before: String = db.value(TRACE).await;
    db.setup(example).await.expect("it is there");
    assert_eq!(db.value::<String>(TRACE).await, before);
}

#[tokio::test]
async fn an_index_without_statistics_gets_them_at_the_next_start() {
    let db = Db::new().await;
    db.execute(ORIGINAL).await;
    db.setup("").await.expect("it is taken over");
    db.execute("ALTER TABLE test.kv SET (autovacuum_enabled = false)").await;
    db.execute(
        "INSERT INTO test.kv (key, value) SELECT n::text, jsonb_build_object('status', n) FROM generate_series(1, 9) n",
    )
    .await;
    // The state after a process that ended while building the index.
    let expression = index_sql("kv", &Member::new("status").expect("a name"), IndexType::Text);
    db.execute(&format!("CREATE INDEX \"kv-status-text\" ON test.kv (({expression}))")).await;
    let known = "SELECT count(*) FROM pg_stats WHERE tablename = 'kv-status-text'";
    assert_eq!(db.value::<i64>(known).await, 0);
    db.setup("status").await.expect("it is there");
    assert_eq!(db.value::<i64>(known).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_start_at_once() {
    for original in ["", ORIGINAL] {
        let db = Db::new().await;
        db.execute(original).await;
        let mut starts = JoinSet::new();
        for _ in 0..8 {
            let (dsn, table) = (db.dsn(), TableName::default());
            let indexes = IndexSpec::parse_list("status,(deadline_at)::timestamptz").expect("a list");
            starts.spawn(async move {
                PostgresStore::setup(&dsn, SessionSettings::default(), &table, &indexes).await
            });
        }
        for started in in_time(starts.join_all()).await {
            started.expect("it starts");
        }
        let invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid";
        assert_eq!(db.value::<i64>(invalid).await, 0);
        assert_eq!(index_count(&db).await, if original.is_empty() { 4 } else { 5 });
    }
}

#[tokio::test]
async fn an_index_whose_build_was_interrupted_is_built_again() {
    let db = Db::new().await;
    db.execute(&ORIGINAL.replace("CREATE INDEX idx_kv_gin ON test.kv USING GIN (value jsonb_path_ops);", ""))
        .await;
    let status = index_sql("kv", &Member::new("status").expect("a name"), IndexType::Text);
    let open = db.block("UPDATE kv SET value = '2' WHERE key = 'a'").await;
    let client = db.connect().await;
    for (name, definition) in [
        ("kv_key_bytes", "btree (key COLLATE \"C\")".to_owned()),
        ("kv_value_gin", "gin (value jsonb_path_ops)".to_owned()),
        ("kv-status-text", format!("btree (({status}))")),
    ] {
        let sql = format!("CREATE INDEX CONCURRENTLY \"{name}\" ON kv USING {definition}");
        client.batch_execute("SET lock_timeout = 50").await.expect("set");
        client.batch_execute(&sql).await.expect_err("it waits for the open transaction");
    }
    let invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid AND indrelid = 'test.kv'::regclass";
    assert_eq!(db.value::<i64>(invalid).await, 3);
    drop(open);
    in_time(db.setup("status")).await.expect("it is taken over");
    assert_eq!(db.value::<i64>(invalid).await, 0);
    assert_eq!(index_count(&db).await, 4);
}

#[tokio::test]
async fn a_process_that_is_killed_while_it_builds_an_index_is_followed_by_one_that_builds_it() {
    let db = Db::with_table().await;
    let open = db.block("INSERT INTO kv (key, value) VALUES ('a', '1')").await;
    let dsn = db.dsn();
    let first = tokio::spawn(async move {
        let indexes = IndexSpec::parse_list("(n)::numeric").expect("a list");
        PostgresStore::setup(&dsn, SessionSettings::default(), &TableName::default(), &indexes).await
    });
    let building =
        "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%'
                    AND wait_event_type = 'Lock'";
    until("a build that waits", async || db.value::<i64>(&format!("SELECT count(*) {building}")).await > 0)
        .await;
    // A second setup waits for the first one, and blocks neither its build nor a writer.
    let second = tokio::spawn({
        let dsn = db.dsn();
        async move {
            let indexes = IndexSpec::parse_list("(n)::numeric").expect("a list");
            PostgresStore::setup(&dsn, SessionSettings::default(), &TableName::default(), &indexes).await
        }
    });
    put(&db.store(), "b", "1").await;
    db.execute(&format!("SELECT pg_terminate_backend(pid) {building}")).await;
    let failed = in_time(first).await.expect("no panic");
    assert!(matches!(&failed, Err(StateError::Index { item, .. }) if item == "(n)::numeric"), "{failed:?}");
    open.batch_execute("COMMIT").await.expect("it commits");
    in_time(second).await.expect("no panic").expect("it builds the index");
    assert!(
        db.value::<bool>(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'test.\"kv-n-numeric\"'::regclass"
        )
        .await
    );
}

// K-11
#[tokio::test]
async fn an_index_that_the_server_refuses_is_named_and_nothing_of_it_is_left() {
    let db = Db::with_table().await;
    let before: String = db.value(TRACE).await;
    // Rejected before anything is built, although the item before it is valid.
    refuse(&db, "tag = 'CREATE INDEX' AND current_query() LIKE '%''bad''%'").await;
    for _ in 0..2 {
        let failed = db.setup("good,(bad)::numeric").await;
        assert!(
            matches!(&failed, Err(StateError::Index { item, .. }) if item == "(bad)::numeric"),
            "{failed:?}"
        );
        assert_eq!(db.value::<String>(TRACE).await, before);
    }
    // Rejected while it is built.
    refuse(&db, "current_query() LIKE '%CONCURRENTLY%''bad''%'").await;
    let failed = db.setup("(bad)::numeric").await;
    assert!(matches!(&failed, Err(StateError::Index { item, .. }) if item == "(bad)::numeric"), "{failed:?}");
    assert_eq!(db.value::<String>(TRACE).await, before);
}

/// Makes PostgreSQL reject matching statements from now on.
async fn refuse(db: &Db, condition: &str) {
    db.execute(&format!(
        "DROP EVENT TRIGGER IF EXISTS refuse;
         CREATE OR REPLACE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS
             $$ DECLARE tag text := tg_tag; BEGIN IF {condition} THEN RAISE 'no'; END IF; END $$;
         CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION public.refuse()"
    ))
    .await;
}

#[tokio::test]
async fn indexes_of_two_tables_of_one_schema_share_no_name() {
    let db = Db::new().await;
    for table in ["kv", "kv_a", "kv_value", &"t".repeat(41)] {
        db.setup_table(table, "a_b,b,(b)::int,(B)::int").await.expect("it is made");
    }
    db.setup_table("receipts", "").await.expect("it is made");
    let invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid";
    assert_eq!(db.value::<i64>(invalid).await, 0);
    assert_eq!(db.value::<i64>("SELECT count(*) FROM pg_indexes WHERE schemaname = 'test'").await, 4 * 6 + 2);
}

#[tokio::test]
async fn what_has_the_name_of_an_index_and_is_another_one_is_not_touched() {
    for taken in [
        "CREATE INDEX \"kv-status-text\" ON kv (created_at)",
        "CREATE INDEX \"kv-status-text\" ON kv ((value ->> 'status'))",
        "CREATE TABLE \"kv-status-text\" ()",
    ] {
        let db = Db::with_table().await;
        db.execute(&format!("SET search_path TO test; {taken}")).await;
        let before: String = db.value(TRACE).await;
        let failed = db.setup("status").await;
        let Err(StateError::NotATable { problem, .. }) = &failed else { panic!("{taken}: {failed:?}") };
        assert!(problem.contains("kv-status-text") && problem.contains("(status)::text"), "{problem}");
        assert_eq!(db.value::<String>(TRACE).await, before);
    }
}

#[tokio::test]
async fn no_document_is_refused_by_a_declared_index() {
    let db = Db::new().await;
    let all = IndexType::ALL.map(|kind| format!("(m)::{}", kind.as_str())).join(",");
    db.setup(&all).await.expect("it is made");
    let store = db.store();
    let long = format!("\"{}\"", "ä".repeat(100_000));
    let digits = "9".repeat(5_000);
    let members = [
        "1",
        "-1.5",
        "1e400",
        "-1e130000",
        &digits,
        "1e-16000",
        "true",
        "null",
        "[]",
        "{}",
        "\"\"",
        "\"2026-02-30T00:00:00Z\"",
        "\"0001-01-01T00:00:00+15:59\"",
        "\"9999-12-31T23:59:59.999999-15:59\"",
        "\"infinity\"",
        "\"2026-01-01\"",
        "\"9\\u0001\"",
        &long,
    ];
    for (number, member) in members.iter().enumerate() {
        put(&store, &format!("k{number}"), &format!(r#"{{"m":{member}}}"#)).await;
        put(&store, &format!("v{number}"), member).await;
    }
    // The documents may also exist before the indexes.
    let other = Db::with_table().await;
    let store = other.store();
    for (number, member) in members.iter().enumerate() {
        put(&store, &format!("k{number}"), &format!(r#"{{"m":{member}}}"#)).await;
    }
    other.setup(&all).await.expect("they are built");
}

#[tokio::test]
async fn a_build_may_take_longer_than_the_time_outs_that_the_database_sets() {
    let db = Db::with_table().await;
    db.execute(
        "DO $$ BEGIN
            EXECUTE format('ALTER DATABASE %I SET statement_timeout = 200', current_database());
            EXECUTE format('ALTER DATABASE %I SET lock_timeout = 100', current_database());
        END $$",
    )
    .await;
    let open =
        db.block("SET LOCAL statement_timeout = 0; INSERT INTO kv (key, value) VALUES ('a', '1')").await;
    let dsn = db.dsn();
    let setup = tokio::spawn(async move {
        let indexes = IndexSpec::parse_list("status").expect("a list");
        PostgresStore::setup(&dsn, SessionSettings::default(), &TableName::default(), &indexes).await
    });
    let waited = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%'
                  AND datname = current_database() AND clock_timestamp() - query_start > interval '400ms'";
    until("a long wait", async || db.value::<i64>(waited).await > 0).await;
    assert!(!setup.is_finished());
    open.batch_execute("COMMIT").await.expect("it commits");
    in_time(setup).await.expect("no panic").expect("it is built");
}
