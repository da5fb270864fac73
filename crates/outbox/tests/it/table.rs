//! The table: writes by a producer, and the results of `check` and `migrate`.

use ambient::Timestamp;
use outbox::{
    Administration, ChannelName, EventContent, NewEvent, OutboxError, TableName, enqueue, enqueue_on,
    notify_sql, schema_sql,
};
use tokio::task::JoinSet;

use crate::support::{Db, World, event, id, ids, pool, request};

#[tokio::test]
async fn a_producer_writes_an_event_in_its_own_transaction_or_not_at_all() {
    let db = Db::new().await;
    let (pool, table) = (pool(db.dsn()), TableName::default());
    let at = Timestamp::from_millis(1_000_000_060_123).expect("in range");
    let headers = [("traceparent".to_owned(), "00-\"x\"".to_owned())].into();
    let event = NewEvent { headers, available_at: Some(at), ..event(1, "k") };
    for commit in [false, true] {
        let session = pool.session("work").await.expect("connects");
        session.begin().await.expect("begun");
        enqueue(&session, &table, &event).await.expect("written");
        if commit {
            session.commit().await.expect("committed");
        } else {
            session.rollback().await.expect("rolled back");
            assert_eq!(db.get(id(1)).await, None);
        }
    }
    let stored = db.administration().get_event(id(1)).await.expect("read").expect("it exists");
    assert_eq!((stored.event.available_at, stored.event.created_at), (Some(at), Some(db.now().await)));
    assert_eq!(stored.headers.as_deref(), Some(r#"{"traceparent": "00-\"x\""}"#));

    let mut producer = db.block("").await;
    producer.batch_execute("ROLLBACK").await.expect("rolled back");
    let transaction = producer.transaction().await.expect("begun");
    let plain = NewEvent { event_id: id(2), ..NewEvent::new("t", "x") };
    enqueue_on(&transaction, &table, &plain).await.expect("written");
    transaction.commit().await.expect("committed");
    assert_eq!(db.status(id(2)).await, "PENDING");
    let keyless: i64 = db.value("SELECT count(*) FROM openoutbox_events WHERE partition_key IS NULL").await;
    assert_eq!(keyless, 1);
}

#[tokio::test]
async fn the_shortest_insert_of_a_producer_is_an_event_that_is_due() {
    let db = Db::new().await;
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload)
                VALUES (gen_random_uuid(), 'game.turn.ready', convert_to('{}', 'UTF8'))",
    )
    .await;
    let claim = db.claim_with(&request(10)).await;
    assert_eq!((&*claim.events[0].event_type, &*claim.events[0].partition_key), ("game.turn.ready", ""));
    let whole = EventContent::Whole { payload: "{}".into(), headers: "{}".to_owned() };
    assert_eq!(claim.events[0].content, whole);
}

#[tokio::test]
async fn a_partition_key_of_any_length_can_be_written_and_is_kept_in_order() {
    let db = Db::new().await;
    let long = "x".repeat(200_000);
    // An incompressible key, because index entries may be compressed.
    db.execute("INSERT INTO openoutbox_events (event_id, event_type, payload, partition_key)
                SELECT gen_random_uuid(), 't', '', string_agg(md5(n::text), '') FROM generate_series(1, 1000) n").await;
    db.add(1, &long).await;
    db.add(2, &long).await;
    let claimed = db.claim(10).await.1;
    assert_eq!((&claimed[..2], claimed.len()), (&ids([1, 2])[..], 3));
}

// Results of `check`.

#[tokio::test]
async fn a_table_that_is_missing_or_lacks_a_column_is_named() {
    let db = Db::without_table().await;
    let error = db.storage().check().await.expect_err("there is none");
    assert!(matches!(&error, OutboxError::NoTable(table) if table == "openoutbox_events"), "{error}");
    db.administration().migrate(None).await.expect("made");
    db.execute("ALTER TABLE openoutbox_events DROP COLUMN headers, ALTER COLUMN payload TYPE text USING ''")
        .await;
    let error = db.storage().check().await.expect_err("refused").to_string();
    let expected = "the outbox table openoutbox_events lacks payload as bytea (it is text), headers";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn each_right_that_is_missing_is_named() {
    let db = Db::new().await;
    db.execute("REVOKE DELETE, UPDATE ON openoutbox_events FROM svc").await;
    let error = db.storage().check().await.expect_err("refused").to_string();
    assert_eq!(error, "the role lacks rights on the outbox: UPDATE, DELETE on openoutbox_events");
    db.execute("GRANT DELETE, UPDATE ON openoutbox_events TO svc").await;
    assert_eq!(db.storage().check().await.expect("passes").missing_indexes, [""; 0]);
}

#[tokio::test]
async fn the_right_to_ask_which_cluster_it_is_is_named_if_it_is_missing() {
    let db = Db::new().await;
    db.administration().check_identity().await.expect("everyone has it");
    db.execute("REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC").await;
    let error = db.administration().check_identity().await.expect_err("refused").to_string();
    assert_eq!(error, "the role lacks the right EXECUTE on the function pg_control_system()");
}

#[tokio::test]
async fn the_statements_of_the_check_create_the_indexes_that_are_missing() {
    let db = Db::without_indexes().await;
    let checked = db.storage().check().await.expect("passes");
    assert_eq!(checked.missing_indexes.len(), 4, "{checked:?}");
    for statement in &checked.missing_indexes {
        db.execute(statement).await;
    }
    assert_eq!(db.storage().check().await.expect("passes").missing_indexes, [""; 0]);
    // An invalid index, as a failed build leaves it.
    db.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idx_openoutbox_key_order'::regclass",
    )
    .await;
    let checked = db.storage().check().await.expect("passes");
    let [statement] = &checked.missing_indexes[..] else { panic!("{checked:?}") };
    for part in statement.split("; ") {
        db.execute(part).await;
    }
    assert_eq!(db.storage().check().await.expect("passes").missing_indexes, [""; 0]);
}

// Effects of `migrate`.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_make_the_table_at_once_and_again_beside_an_open_transaction() {
    let db = Db::without_table().await;
    let channel = ChannelName::parse("new events").expect("a name");
    let mut migrations = JoinSet::new();
    for _ in 0..10 {
        let (administration, channel) = (db.administration().clone(), channel.clone());
        migrations.spawn(async move { administration.migrate(Some(&channel)).await });
    }
    for outcome in migrations.join_all().await {
        outcome.expect("made");
    }
    let open = db
        .block(&format!(
            "INSERT INTO openoutbox_events (event_id, event_type, payload) VALUES ('{}', 't', '')",
            id(1)
        ))
        .await;
    db.administration().migrate(Some(&channel)).await.expect("it waits for nothing");
    open.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(db.claim(1).await.1, ids([1]));
}

#[tokio::test]
async fn tables_of_any_name_have_indexes_of_their_own_in_one_schema() {
    let db = Db::without_table().await;
    let long = "x".repeat(63);
    let names = [
        "openoutbox_events",
        "a",
        "a__key_order",
        "openoutbox_key_order",
        &long,
        &long[1..],
        "test.qualified",
    ];
    for name in names {
        let table = TableName::parse(name).expect("a name");
        let administration = Administration::new(pool(db.dsn()), table.clone());
        let channel = ChannelName::parse("c").expect("a name");
        administration.migrate(Some(&channel)).await.expect("made");
        assert_eq!(administration.check().await.expect("passes").missing_indexes, [""; 0], "{name}");
    }
    let first = format!("{}{}", &long[1..], "y");
    let administration = Administration::new(pool(db.dsn()), TableName::parse(&first).expect("a name"));
    administration.migrate(None).await.expect("made");
    assert_eq!(administration.check().await.expect("passes").missing_indexes, [""; 0]);
}

#[tokio::test]
async fn the_table_refuses_a_status_that_is_none_and_explains_its_columns() {
    let db = Db::new().await;
    db.add(1, "").await;
    db.execute(
        "DO $$ BEGIN UPDATE openoutbox_events SET status = 'DONE'; RAISE 'not refused';
                EXCEPTION WHEN check_violation THEN NULL; END $$",
    )
    .await;
    let silent = "SELECT count(*) FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
                  AND attrelid = 'openoutbox_events'::regclass AND col_description(attrelid, attnum) IS NULL";
    assert_eq!(db.value::<i64>(silent).await, 0);
}

#[tokio::test]
async fn the_sql_of_a_migration_never_drops_anything() {
    let table = TableName::default();
    let channel = ChannelName::parse("it's $migration$ \"c\"").expect("a name");
    let sql = format!("{}{}", schema_sql(&table), notify_sql(&table, &channel));
    assert!(!sql.to_lowercase().contains("drop"), "{sql}");
    let db = Db::without_table().await;
    db.execute(&sql).await;
    let source: String = db.value("SELECT prosrc FROM pg_proc WHERE proname = 'trg_openoutbox_notify'").await;
    assert!(source.contains("'it''s $migration$ \"c\"'"), "{source}");
    db.add(1, "").await;
}
