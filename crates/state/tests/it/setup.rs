//! Making a table ready: creating it, taking over one of the original, and its indexes.

use pg::SessionSettings;
use state::query::expressions::{IndexType, Member, index_sql};
use state::{
    IndexSpec, PostgresStore, StateError, Store, TableName, VersionCondition, Write, WriteConditions,
    schema_sql,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{BOUND, Db, get, key, named, prefix, put, until, value};

/// A table of the original, in a database whose texts do not sort by bytes, with some rows.
const ORIGINAL: &str = r#"
    CREATE TABLE test.kv (
        key TEXT COLLATE "en-US-x-icu" PRIMARY KEY, value JSONB NOT NULL,
        created_at TIMESTAMPTZ NOT NULL DEFAULT now(), updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
    );
    CREATE INDEX idx_kv_gin ON test.kv USING GIN (value jsonb_path_ops);
    ALTER TABLE test.kv OWNER TO svc;
    INSERT INTO test.kv (key, value, created_at, updated_at)
        SELECT k, jsonb_build_object('status', 'pending', 'n', 1), '2020-01-01Z', '2021-01-01Z'
        FROM unnest(ARRAY['a', 'B', 'b', 'A', 'a_b/1', 'aXb/1', 'ä']) AS k;"#;

/// Ids, files and definitions of the table and its indexes: what a change leaves a trace in.
const TRACE: &str = "
    SELECT string_agg(concat_ws(' ', c.oid, c.relfilenode, c.relname, c.xmin, pg_get_indexdef(c.oid)), E'\n' ORDER BY c.relname)
    FROM pg_class c WHERE c.relnamespace = 'test'::regnamespace";

async fn index_count(db: &Db) -> i64 {
    db.value("SELECT count(*) FROM pg_index WHERE indrelid = 'test.kv'::regclass").await
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(BOUND, work).await.expect("in time")
}

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
    // By hand, as clients of the original's table do.
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

// K-05
#[tokio::test]
async fn a_prefix_is_taken_literally_in_a_table_of_the_original() {
    let db = Db::new().await;
    db.execute(ORIGINAL).await;
    db.setup("").await.expect("it is taken over");
    let page = db.store().list(&prefix("a_"), None, 100).await.expect("no failure");
    assert_eq!(page.keys, [key("a_b/1")]);
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
async fn a_restart_beside_an_open_transaction_waits_for_nothing() {
    let db = Db::new().await;
    db.execute(ORIGINAL).await;
    db.setup("status").await.expect("it is taken over");
    // As strong as a lock can be that writers do not wait for, and one that they do wait for.
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
        // Ends before the lock time-out of a pool does.
        db.execute("SET lock_timeout = '500ms'; UPDATE test.kv SET value = '3' WHERE key = 'b'").await;
        until("the end of the wait", async || db.value::<i64>(waits).await == 0).await;
    }
    assert!(!setup.is_finished());
    open.batch_execute("COMMIT").await.expect("it commits");
    in_time(setup).await.expect("no panic").expect("it is taken over");
    assert_eq!(get(&db.store(), "a").await.value.as_str(), "2");
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
    // A second one waits for the first one, and holds up neither its build nor a writer.
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
    // Refused before anything is built, though the item before it could be.
    refuse(&db, "tag = 'CREATE INDEX' AND current_query() LIKE '%''bad''%'").await;
    for _ in 0..2 {
        let failed = db.setup("good,(bad)::numeric").await;
        assert!(
            matches!(&failed, Err(StateError::Index { item, .. }) if item == "(bad)::numeric"),
            "{failed:?}"
        );
        assert_eq!(db.value::<String>(TRACE).await, before);
    }
    // Refused while it is built.
    refuse(&db, "current_query() LIKE '%CONCURRENTLY%''bad''%'").await;
    let failed = db.setup("(bad)::numeric").await;
    assert!(matches!(&failed, Err(StateError::Index { item, .. }) if item == "(bad)::numeric"), "{failed:?}");
    assert_eq!(db.value::<String>(TRACE).await, before);
}

/// Refuses statements from now on.
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
            "its column key is no primary key",
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
    assert_eq!(missing, "kv (INSERT, UPDATE, DELETE, USAGE of its sequence)");
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
    // And they may be there before the indexes are.
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
