//! Tests that need a table in PostgreSQL: rows that were edited by hand, transactions of the caller,
//! timeouts.

use std::time::{Duration, Instant};

use local_servers::{Postgres, PostgresOptions};
use pg::{MAX_PREPARED, PgError};
use state::query::Query;
use state::{
    Delete, MAX_ANSWER_BYTES, Patch, PostgresStore, StateError, Store, TableName, Version, VersionCondition,
    Write, WriteConditions, delete_many_in, get_many_in, insert_many_in, lock_many_in, put_many_in,
};
use tokio::task::JoinSet;

use crate::support::{BOUND, Db, get, key, pool, prefix, put, until, value};

#[tokio::test]
async fn times_that_were_written_by_hand_and_are_none_make_no_document_unreadable() {
    let db = Db::with_table().await;
    let store = db.store();
    let times = ["-infinity", "4000-01-01 BC", "2020-01-01Z", "200000-01-01", "infinity"];
    for (number, time) in times.iter().enumerate() {
        put(&store, &format!("k{number}"), "1").await;
        db.execute(&format!(
            "UPDATE test.kv SET created_at = '{time}', updated_at = '{time}' WHERE key = 'k{number}'"
        ))
        .await;
    }
    let shown = async |name: &str| get(&store, name).await.updated_at.to_string();
    assert_eq!(shown("k0").await, "0001-01-01T00:00:00.000000Z");
    assert_eq!(shown("k1").await, "0001-01-01T00:00:00.000000Z");
    assert_eq!(shown("k3").await, "9999-12-31T23:59:59.999999Z");
    assert_eq!(shown("k4").await, "9999-12-31T23:59:59.999999Z");
    // Pages neither repeat nor skip documents, in either direction.
    for (sort, expected) in [("created_at", "k0 k1 k2 k3 k4"), ("-updated_at", "k4 k3 k2 k1 k0")] {
        let (mut found, mut cursor) = (Vec::new(), "null".to_owned());
        loop {
            assert!(found.len() <= times.len(), "{found:?}");
            let text = format!(r#"{{"sort":["{sort}"],"limit":1,"cursor":{cursor}}}"#);
            let page =
                store.query(&Query::parse(text.as_bytes()).expect("a query")).await.expect("no failure");
            found.extend(page.rows.into_iter().map(|row| row.key.as_str().to_owned()));
            let Some(next) = page.next_cursor else { break };
            cursor = format!("{next:?}");
        }
        assert_eq!(found.join(" "), expected);
    }
    // The next write makes it a finite time again.
    for number in 0..times.len() {
        put(&store, &format!("k{number}"), "2").await;
        let updated = get(&store, &format!("k{number}")).await.updated_at.to_string();
        assert!(updated.starts_with("20"), "{updated}");
    }
}

fn query(text: &str) -> Query {
    Query::parse(text.as_bytes()).expect("a query")
}

#[tokio::test]
async fn a_connection_keeps_a_bounded_number_of_queries_prepared() {
    let db = Db::with_table().await;
    let pool = pool(&db.dsn(), BOUND);
    let store = PostgresStore::new(pool.clone(), TableName::default());
    put(&store, "k", r#"{"f7":1}"#).await;
    for n in 0..MAX_PREPARED + 2 {
        // Names are part of a statement's text.
        let found = store.query(&query(&format!(r#"{{"filter":{{"f{n}":{{"$gt":0}}}}}}"#))).await;
        assert_eq!(found.expect("it is found").rows.len(), usize::from(n == 7), "f{n}");
    }
    let session = pool.session("count statements").await.expect("a connection");
    let kept = session.raw("SELECT count(*) FROM pg_prepared_statements").await.expect("it is counted");
    let kept: usize = kept[0].parse().expect("a number");
    assert!((1..MAX_PREPARED).contains(&kept), "{kept}");
}

#[tokio::test]
async fn a_long_query_is_answered_and_not_kept_prepared() {
    let db = Db::with_table().await;
    let pool = pool(&db.dsn(), BOUND);
    let store = PostgresStore::new(pool.clone(), TableName::default());
    put(&store, "k", r#"{"f":1}"#).await;
    let all: Vec<String> = (0..60).map(|n| format!(r#"{{"f{n}":{{"$in":[1,"a",true]}}}}"#)).collect();
    let query = query(&format!(r#"{{"filter":{{"$or":[{{"f":1}},{}]}}}}"#, all.join(",")));
    assert_eq!(store.query(&query).await.expect("it is found").rows.len(), 1);
    let session = pool.session("count statements").await.expect("a connection");
    let kept =
        session.raw("SELECT count(*) FROM pg_prepared_statements WHERE length(statement) > 8192").await;
    assert_eq!(kept.expect("it is counted"), ["0"]);
}

#[tokio::test]
async fn the_server_stops_sending_what_does_not_fit_into_an_answer() {
    let db = Db::with_table().await;
    let pool = pool(&db.dsn(), BOUND);
    let store = PostgresStore::new(pool.clone(), TableName::default());
    let sql = format!(
        "INSERT INTO test.kv (key, value)
         SELECT 'k' || n, to_jsonb(repeat('x', {MAX_ANSWER_BYTES} / 100)) FROM generate_series(100, 299) AS n"
    );
    db.execute(&sql).await;
    let connection = async || {
        let session = pool.session("name the connection").await.expect("a connection");
        session.raw("SELECT pg_backend_pid()").await.expect("it has a number").remove(0)
    };
    for (text, rows, ends_early) in [
        (r#"{"limit":5}"#, 5, false),
        (r#"{"limit":150}"#, 99, true),
        (r#"{"limit":5,"matched":true}"#, 5, false),
        (r#"{"limit":150,"matched":true}"#, 99, true),
    ] {
        let before = connection().await;
        let page = store.query(&query(text)).await.expect("a page");
        assert_eq!(page.rows.len(), rows, "{text}");
        assert!(page.next_cursor.is_some(), "{text}");
        let is_closed = connection().await != before;
        assert_eq!(is_closed, ends_early, "{text}");
    }
}

#[tokio::test]
async fn a_page_ends_before_a_document_that_is_too_large_and_skips_none() {
    let db = Db::with_table().await;
    let store = db.store().with_max_value_bytes(1024 * 1024);
    for name in ["a", "c"] {
        put(&store, name, "1").await;
    }
    // Written by another program.
    db.execute("INSERT INTO test.kv (key, value) VALUES ('b', to_jsonb(repeat('x', 2000000)))").await;
    let query = |cursor: &str| {
        Query::parse(format!(r#"{{"sort": ["key"], "cursor": {cursor}}}"#).as_bytes()).expect("a query")
    };
    let page = store.query(&query("null")).await.expect("no failure");
    assert_eq!(page.rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["a"]);
    let cursor = format!("{:?}", page.next_cursor.expect("there are more"));
    let next = store.query(&query(&cursor)).await;
    assert!(matches!(next, Err(StateError::DocumentTooLarge { key: found, .. }) if found == key("b")));
}

#[tokio::test]
async fn a_clock_that_was_set_back_does_not_make_an_update_earlier() {
    let db = Db::with_table().await;
    put(&db.store(), "k", "1").await;
    db.execute("UPDATE test.kv SET updated_at = '2999-01-01Z'").await;
    put(&db.store(), "k", "2").await;
    assert_eq!(get(&db.store(), "k").await.updated_at.to_string(), "2999-01-01T00:00:00.000001Z");
}

#[tokio::test]
async fn keys_and_values_that_a_table_of_the_original_may_have_are_read() {
    let db = Db::with_table().await;
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    db.execute(&format!(
        "INSERT INTO test.kv (key, value) VALUES ('', '1'), (repeat('k', 2000), '2'), ('deep', '{deep}')"
    ))
    .await;
    let store = db.store();
    let page = store.list(&prefix(""), None, 10).await.expect("no failure");
    assert_eq!(page.keys.iter().map(|key| key.as_str().len()).collect::<Vec<_>>(), [0, 4, 2_000]);
    assert_eq!(get(&store, "deep").await.value.as_str(), deep);
    let patched = store.patch(&key("deep"), &value(r#"{"a":1}"#), &WriteConditions::default()).await;
    assert!(matches!(patched, Ok(Patch::Invalid(_) | Patch::Written(_))), "{patched:?}");
    // A query on a top-level member succeeds.
    let query = Query::parse(br#"{"filter":{"a":1}}"#).expect("a query");
    store.query(&query).await.expect("no failure");
}

#[tokio::test]
async fn many_documents_are_stored_at_once_and_the_last_of_equal_keys_counts() {
    let db = Db::with_table().await;
    let store = db.store();
    put(&store, "b", "0").await;
    let before = get(&store, "b").await;
    let documents =
        [("c", "1"), ("b", "2"), ("a", "3"), ("c", "4")].map(|(name, text)| (key(name), value(text)));
    store.put_many(&documents).await.expect("no failure");
    for (name, text) in [("a", "3"), ("b", "2"), ("c", "4")] {
        assert_eq!(get(&store, name).await.value.as_str(), text);
    }
    let after = get(&store, "b").await;
    assert!(
        after.created_at == before.created_at
            && after.updated_at > before.updated_at
            && after.version > before.version
    );
    store.put_many(&[]).await.expect("nothing to do");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_any_order_never_deadlock() {
    let db = Db::with_table().await;
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let (store, pool) = (db.store(), pool(&db.dsn(), BOUND));
        writers.spawn(async move {
            for round in 0..15 {
                let mut documents: Vec<_> =
                    (0..20).map(|number| (key(&number.to_string()), value("1"))).collect();
                if (writer + round) % 2 == 0 {
                    documents.reverse();
                }
                if writer < 6 {
                    store.put_many(&documents).await.expect("no deadlock");
                } else {
                    let keys: Vec<_> = documents.into_iter().map(|(key, _)| key).collect();
                    let session = pool.session("test").await.expect("a connection");
                    session.begin().await.expect("begins");
                    lock_many_in(&session, &TableName::default(), &keys).await.expect("no deadlock");
                    delete_many_in(&session, &TableName::default(), &keys).await.expect("no deadlock");
                    session.commit().await.expect("commits");
                }
            }
        });
    }
    writers.join_all().await;
}

#[tokio::test]
async fn what_is_done_in_a_transaction_of_the_caller_ends_with_it() {
    let db = Db::with_table().await;
    let (store, table) = (db.store(), TableName::default());
    put(&store, "a", "1").await;
    let keys = ["b", "a", "none"].map(key);
    for committed in [false, true] {
        let pool = pool(&db.dsn(), BOUND);
        let session = pool.session("test").await.expect("a connection");
        session.begin().await.expect("begins");
        put_many_in(&session, &table, &[(key("b"), value("2"))]).await.expect("no failure");
        let seen = get_many_in(&session, &table, &keys).await.expect("no failure");
        assert_eq!(seen.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        let inserted =
            insert_many_in(&session, &table, &[(key("a"), value("3")), (key("c"), value("3"))]).await;
        assert_eq!(inserted.expect("no failure"), [key("c")], "what there is stays");
        let held = lock_many_in(&session, &table, &keys).await.expect("no failure");
        assert_eq!(held, seen);
        // Its rows are locked: another writer must wait, and fails with an error.
        let written = store.put(&key("a"), &value("2"), &WriteConditions::default()).await;
        assert!(matches!(written, Err(StateError::Postgres(PgError::Locked { .. }))), "{written:?}");
        assert_eq!(delete_many_in(&session, &table, &keys[1..]).await.expect("no failure"), 1);
        if committed {
            session.commit().await.expect("commits");
        } else {
            session.rollback().await.expect("taken back");
        }
        assert_eq!(store.get(&key("b")).await.expect("no failure").is_some(), committed);
        assert_eq!(store.get(&key("c")).await.expect("no failure").is_some(), committed);
        assert_eq!(store.get(&key("a")).await.expect("no failure").is_none(), committed);
    }
}

/// A write that finds its row locked decides when the lock is released, by the state of the row then.
#[tokio::test]
async fn a_write_that_waited_is_decided_by_what_the_row_is_then() {
    let db = Db::with_table().await;
    for (then, expected) in [
        (
            "UPDATE kv SET value = '{\"status\":\"b\"}' WHERE key = 'k'",
            Write::StatusMismatch { current: Some("b".to_owned()) },
        ),
        ("DELETE FROM kv WHERE key = 'k'", Write::StatusMismatch { current: None }),
    ] {
        put(&db.store(), "k", r#"{"status":"a"}"#).await;
        let open = db.block(then).await;
        let store = db.store();
        let write = tokio::spawn(async move {
            let conditions = WriteConditions {
                status: Some(state::StatusCondition("a".into())),
                ..WriteConditions::default()
            };
            store.put(&key("k"), &value("1"), &conditions).await
        });
        until_blocked(&db).await;
        open.batch_execute("COMMIT").await.expect("it commits");
        assert_eq!(write.await.expect("no panic").expect("no failure"), expected, "{then}");
    }
}

#[tokio::test]
async fn a_deletion_that_waited_is_decided_by_what_the_row_is_then() {
    let db = Db::with_table().await;
    let replaced = "UPDATE kv SET value = '2', version = nextval('kv_version_seq') WHERE key = 'k'";
    let deleted = "DELETE FROM kv WHERE key = 'k'";
    for (then, versioned, expected) in [
        (replaced, true, Delete::VersionMismatch),
        (replaced, false, Delete::Applied),
        (deleted, true, Delete::NotFound),
        (deleted, false, Delete::NotFound),
    ] {
        let version = put(&db.store(), "k", "1").await;
        let condition = if versioned { VersionCondition::Is(Some(version)) } else { VersionCondition::Any };
        let open = db.block(then).await;
        let store = db.store();
        let delete = tokio::spawn(async move { store.delete(&key("k"), condition).await });
        until_blocked(&db).await;
        open.batch_execute("COMMIT").await.expect("it commits");
        assert_eq!(delete.await.expect("no panic").expect("no failure"), expected, "{then} {versioned}");
    }
}

async fn until_blocked(db: &Db) {
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until("a wait", async || db.value::<i64>(waits).await > 0).await;
}

#[tokio::test]
async fn a_write_that_waits_for_a_row_takes_its_version_when_it_has_it() {
    let db = Db::with_table().await;
    put(&db.store(), "k", "1").await;
    for conditions in
        [WriteConditions::default(), WriteConditions { version: VersionCondition::Exists, status: None }]
    {
        let open = db.block("SELECT FROM kv WHERE key = 'k' FOR UPDATE").await;
        let store = db.store();
        let write = tokio::spawn(async move { store.put(&key("k"), &value("2"), &conditions).await });
        until_blocked(&db).await;
        let sql = "UPDATE kv SET value = '3', version = nextval('kv_version_seq') WHERE key = 'k' RETURNING version";
        let between: i64 = open.query_one(sql, &[]).await.expect("it is held").get(0);
        open.batch_execute("COMMIT").await.expect("it commits");
        let written = write.await.expect("no panic").expect("no failure");
        assert!(
            matches!(written, Write::Applied(Version(version)) if version > between),
            "{written:?} after {between}"
        );
        assert_eq!(get(&db.store(), "k").await.value.as_str(), "2");
    }
}

#[tokio::test]
async fn a_role_without_rights_and_a_table_that_is_gone_are_errors_that_say_so() {
    let db = Db::with_table().await;
    db.execute("CREATE ROLE stranger LOGIN; GRANT USAGE ON SCHEMA test TO stranger").await;
    let store = PostgresStore::new(pool(&db.dsn_of("stranger"), BOUND), TableName::default());
    let failed = store.get(&key("k")).await;
    assert!(matches!(failed, Err(StateError::NoRights(_))), "{failed:?}");
    db.execute("DROP TABLE test.kv").await;
    let failed = db.store().get(&key("k")).await;
    assert!(matches!(failed, Err(StateError::Postgres(PgError::Unavailable { .. }))), "{failed:?}");
}

#[tokio::test]
async fn what_the_server_refuses_is_the_fault_of_the_value() {
    let db = Db::with_table().await;
    db.execute("ALTER TABLE test.kv ADD CHECK (value <> '7')").await;
    let failed = db.store().put(&key("k"), &value("7"), &WriteConditions::default()).await;
    assert!(
        matches!(&failed, Err(StateError::InvalidValue(reason)) if reason.contains("23514")),
        "{failed:?}"
    );
}

#[tokio::test]
async fn without_an_answer_of_the_server_an_operation_ends_within_its_timeout_and_a_second() {
    const TIMEOUT: Duration = Duration::from_millis(600);
    let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
    let dsn = pg::Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
    PostgresStore::setup(&dsn, pg::SessionSettings::default(), &TableName::default(), &[])
        .await
        .expect("it is made");
    let store = PostgresStore::new(pool(&dsn, TIMEOUT), TableName::default());
    put(&store, "k", "1").await;
    server.pause();
    // More operations than connections, so that some wait for one, some for it to open, and one for a
    // response.
    let mut operations = JoinSet::new();
    for _ in 0..20 {
        let store = store.clone();
        operations.spawn(async move {
            let begin = Instant::now();
            let got = store.get(&key("k")).await;
            (begin.elapsed(), got)
        });
    }
    for (elapsed, got) in operations.join_all().await {
        assert!(elapsed < TIMEOUT + Duration::from_secs(1), "{elapsed:?}");
        let ended =
            matches!(got, Err(StateError::TimedOut { .. } | StateError::Postgres(_) | StateError::Busy(_)));
        assert!(ended, "{got:?}");
    }
    server.resume();
    until("an answer", async || store.get(&key("k")).await.is_ok()).await;
}

#[tokio::test]
async fn a_statement_that_takes_too_long_has_timed_out() {
    let db = Db::with_table().await;
    let store = PostgresStore::new(pool(&db.dsn(), Duration::from_millis(300)), TableName::default());
    db.execute("CREATE FUNCTION test.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(30); RETURN new; END $$;
                CREATE TRIGGER slow BEFORE INSERT ON test.kv FOR EACH ROW EXECUTE FUNCTION test.slow()").await;
    let failed = store.put(&key("k"), &value("1"), &WriteConditions::default()).await;
    assert!(matches!(failed, Err(StateError::TimedOut { operation: "put a document", .. })), "{failed:?}");
    assert!(
        failed.as_ref().is_err_and(|error| pg::is_late(error)),
        "so that a start tries again: {failed:?}"
    );
    assert_eq!(store.get(&key("k")).await.expect("no failure"), None);
}
