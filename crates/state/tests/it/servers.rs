//! Servers and tables in states that an operator must notice: read-only, without free connections, in another
//! encoding, copied without the sequence.

use pg::{Dsn, SessionSettings};
use state::{
    Patch, PostgresStore, StateError, Store, TableName, Version, VersionCondition, Write, WriteConditions,
};

use crate::support::{Db, ROLE, get, key, pool, put, server, value};

fn if_match(version: Version) -> WriteConditions {
    WriteConditions { version: VersionCondition::Is(Some(version)), status: None }
}

#[tokio::test]
async fn versions_of_a_document_rise_even_if_the_sequence_was_set_back() {
    let db = Db::with_table().await;
    let store = db.store();
    for _ in 0..5 {
        put(&store, "a", "{}").await;
    }
    let read = get(&store, "a").await.version;
    db.execute("ALTER SEQUENCE test.kv_version_seq RESTART").await;
    let mut last = read;
    for step in 0..4 {
        let version = match step {
            0 => put(&store, "a", "{}").await,
            1 => {
                let patched = store.patch(&key("a"), &value("{}"), &WriteConditions::default()).await;
                let Ok(Patch::Written(Write::Applied(version))) = patched else { panic!("{patched:?}") };
                version
            }
            2 => {
                let written = store.put(&key("a"), &value("{}"), &if_match(last)).await;
                let Ok(Write::Applied(version)) = written else { panic!("{written:?}") };
                version
            }
            _ => {
                store.put_many(&[(key("a"), value("{}"))]).await.expect("no failure");
                get(&store, "a").await.version
            }
        };
        assert!(version > last, "{version:?} after {last:?} in step {step}");
        last = version;
    }
    // The version that was read before no longer exists.
    let written = store.put(&key("a"), &value("1"), &if_match(read)).await.expect("no failure");
    assert_eq!(written, Write::VersionMismatch);
}

#[tokio::test]
async fn a_start_moves_a_sequence_that_is_behind_its_documents_and_no_other_one() {
    let db = Db::with_table().await;
    let store = db.store();
    let deleted = put(&store, "gone", "1").await;
    put(&store, "a", "1").await;
    let last_value = async || db.value::<i64>("SELECT last_value FROM test.kv_version_seq").await;
    db.setup("").await.expect("it is ready");
    assert_eq!(last_value().await, 2);
    db.execute("DELETE FROM test.kv WHERE key = 'gone'; ALTER SEQUENCE test.kv_version_seq RESTART").await;
    db.setup("").await.expect("it is ready");
    let moved = last_value().await;
    assert!(put(&store, "gone", "1").await > deleted);
    assert!(moved > 1_000_000, "{moved}");
    db.setup("").await.expect("it is ready");
    assert_eq!(last_value().await, moved + 1);
    // A table of many pages, which is sampled.
    db.execute(
        "INSERT INTO test.kv (key, value, version) SELECT 'm' || n, to_jsonb(repeat(md5(n::text), 60)), 5000000 + n
         FROM generate_series(1, 10000) n",
    )
    .await;
    assert!(db.value::<i64>("SELECT pg_relation_size('test.kv') / 8192").await > 2_000);
    db.setup("").await.expect("it is ready");
    assert_eq!(last_value().await, 6_010_000);
}

#[tokio::test]
async fn a_read_only_server_is_named_and_not_unavailable() {
    let db = Db::with_table().await;
    put(&db.store(), "a", "1").await;
    let database: String = db.value("SELECT current_database()::text").await;
    db.execute(&format!("ALTER ROLE {ROLE} IN DATABASE {database} SET default_transaction_read_only = on"))
        .await;
    let store = PostgresStore::new(pool(&db.dsn(), std::time::Duration::from_secs(5)), TableName::default());
    assert_eq!(get(&store, "a").await.value, value("1"));
    let refused =
        |outcome: Option<StateError>| assert!(matches!(outcome, Some(StateError::ReadOnly)), "{outcome:?}");
    refused(store.put(&key("a"), &value("2"), &WriteConditions::default()).await.err());
    refused(store.patch(&key("a"), &value("{}"), &WriteConditions::default()).await.err());
    refused(store.delete(&key("a"), VersionCondition::Any).await.err());
    refused(store.check_ready().await.err());
    db.store().check_ready().await.expect_err("the role writes nothing");
    db.execute(&format!("ALTER ROLE {ROLE} IN DATABASE {database} RESET default_transaction_read_only"))
        .await;
    db.store().check_ready().await.expect("it is ready");
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused_at_the_start() {
    let create = "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'";
    server().await.execute("postgres", create).await.expect("a database");
    let dsn = Dsn::parse(&server().await.superuser_dsn("latin")).expect("a connection string");
    let refused = PostgresStore::setup(&dsn, SessionSettings::default(), &TableName::default(), &[]).await;
    assert!(
        matches!(&refused, Err(StateError::NotATable { problem, .. }) if problem.contains("LATIN1")),
        "{refused:?}"
    );
}
