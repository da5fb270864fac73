//! What only a table in PostgreSQL can promise.

use std::time::Duration;

use ambient::Timestamp;
use outbox::{
    Administration, Age, ChannelName, ClaimRequest, Content, EventTypes, FailureKind, Marked, NewEvent,
    OutboxError, PostgresStorage, PruneRequest, Pruned, Requeued, Stats, Storage, TableName, enqueue,
    enqueue_on, notify_sql, schema_sql,
};
use tokio::task::JoinSet;

use crate::support::{Db, LEASE, MINUTE, TICK, World, event, id, ids, pool, request, until};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

// O-09
#[tokio::test]
async fn what_is_old_enough_is_pruned_and_what_is_to_be_published_never() {
    let db = Db::new().await;
    for (number, status, days) in [
        (1, "DELIVERED", 2),
        (2, "DEAD", 8),
        (3, "DEAD", 9),
        (4, "PENDING", 40),
        (5, "DELIVERING", 40),
        (6, "DELIVERED", 0),
        (7, "DEAD", 1),
    ] {
        db.add(number, "").await;
        db.execute(&format!(
            "UPDATE openoutbox_events SET status = '{status}', updated_at = now() - interval '{days} days',
                    delivered_at = now() - interval '{days} days' WHERE event_id = '{}'",
            id(number)
        ))
        .await;
    }
    let request = |dry_run| PruneRequest {
        delivered_age: Some(Age::parse("24h").expect("an age")),
        dead_age: Some(Age::parse("7d").expect("an age")),
        dry_run,
    };
    let prune = async |dry_run| db.administration().prune(&request(dry_run)).await.expect("pruned");
    let expected = Pruned { delivered: 1, dead: 2 };
    assert_eq!((prune(true).await, prune(true).await), (expected, expected));
    assert_eq!(prune(false).await, expected);
    assert_eq!((prune(true).await, prune(false).await), (Pruned::default(), Pruned::default()));
    let left: String = db
        .value("SELECT string_agg(right(event_id::text, 1), '' ORDER BY event_id) FROM openoutbox_events")
        .await;
    assert_eq!(left, "4567");
}

// O-19
#[tokio::test]
async fn what_is_exactly_as_old_is_kept_and_no_age_prunes_nothing() {
    let db = Db::new().await;
    db.add(1, "").await;
    let (token, claimed) = db.claim(1).await;
    assert_eq!(db.deliver(&token, &claimed).await, [Marked::Applied]);
    let hour = Age::parse("1h").expect("an age");
    let request = PruneRequest { delivered_age: Some(hour), dead_age: None, dry_run: false };
    db.pass(hour.as_duration()).await;
    assert_eq!(db.administration().prune(&request).await.expect("pruned").delivered, 0);
    db.pass(TICK).await;
    assert_eq!(db.administration().prune(&PruneRequest::default()).await.expect("pruned"), Pruned::default());
    assert_eq!(db.administration().prune(&request).await.expect("pruned").delivered, 1);
}

// O-19
#[tokio::test]
async fn a_chunk_that_fails_is_rolled_back_and_those_before_it_are_not() {
    let db = Db::new().await;
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status, delivered_at)
         SELECT lpad(to_hex(n), 32, '0')::uuid, 't', '', 'DELIVERED', now() - interval '1 day' + n * interval '1 second'
         FROM generate_series(1, 2500) n;
         CREATE FUNCTION test.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
         CREATE TRIGGER refuse BEFORE DELETE ON openoutbox_events FOR EACH ROW
         WHEN (OLD.event_id = lpad(to_hex(1500), 32, '0')::uuid) EXECUTE FUNCTION test.refuse()",
    )
    .await;
    let request =
        PruneRequest { delivered_age: Some(Age::parse("1h").expect("an age")), ..PruneRequest::default() };
    db.administration().prune(&request).await.expect_err("refused");
    assert_eq!(db.value::<i64>("SELECT count(*) FROM openoutbox_events").await, 1500);
    db.execute("DROP TRIGGER refuse ON openoutbox_events").await;
    assert_eq!(db.administration().prune(&request).await.expect("pruned").delivered, 1500);
}

// O-13
#[tokio::test]
async fn a_lease_without_a_holder_or_a_time_is_reaped_and_one_that_is_held_is_not() {
    let db = Db::new().await;
    for number in 1..=3 {
        db.add(number, "").await;
    }
    db.execute(&format!(
        "UPDATE openoutbox_events SET status = 'DELIVERING';
         UPDATE openoutbox_events SET locked_at = now() - interval '20 minutes' WHERE event_id = '{}';
         UPDATE openoutbox_events SET locked_at = now() WHERE event_id = '{}'",
        id(1),
        id(2)
    ))
    .await;
    assert_eq!((db.reap().await, db.reap().await), (2, 0));
    assert_eq!((&*db.status(id(2)).await, &*db.status(id(3)).await), ("DELIVERING", "PENDING"));
}

#[tokio::test]
async fn rows_that_were_edited_by_hand_harm_only_themselves() {
    let db = Db::new().await;
    for number in 1..=7 {
        db.add(number, if number < 6 { "" } else { "k" }).await;
    }
    let edit = async |number, change: &str| {
        db.execute(&format!("UPDATE openoutbox_events SET {change} WHERE event_id = '{}'", id(number))).await;
    };
    db.execute("ALTER TABLE openoutbox_events DROP CONSTRAINT openoutbox_events_status_check").await;
    edit(1, "status = 'nonsense', partition_key = 'k'").await;
    edit(2, "attempts = -5, partition_key = ''").await;
    edit(3, "created_at = 'infinity', available_at = '-infinity'").await;
    edit(4, "created_at = '-infinity', headers = '[1]'").await;
    edit(5, "available_at = 'infinity'").await;
    edit(6, "locked_by = 'someone', locked_at = now(), attempts = -1").await;
    let first = db.claim_with(&request(1)).await;
    assert_eq!(first.events[0].event_id, id(3), "it has been due for ever");
    assert_eq!(first.events[0].created_at, None);
    let rest = db.claim_with(&ClaimRequest { after: first.next, ..request(10) }).await;
    let claimed: Vec<_> = rest.events.iter().map(|event| (event.event_id, event.attempts)).collect();
    assert_eq!(claimed, [(id(4), 0), (id(2), 0), (id(6), 0), (id(7), 0)]);
    assert_eq!(db.storage().due_in(&EventTypes::All, None).await.expect("no failure"), Some(DAY));
    let stats = db.storage().stats(&EventTypes::All, 100).await.expect("counted");
    assert_eq!((stats.delivering, stats.scheduled, stats.oldest_age), (5, 1, Duration::ZERO));
    assert_eq!(db.administration().stats().await.expect("counted"), stats);
}

#[tokio::test]
async fn the_counts_of_a_sample_end_at_its_limit_and_those_of_the_command_do_not() {
    let db = Db::new().await;
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status)
         SELECT gen_random_uuid(), 't', '', s FROM generate_series(1, 25), unnest(ARRAY['PENDING', 'DEAD', 'DELIVERING']) s",
    )
    .await;
    let sample = db.storage().stats(&EventTypes::All, 10).await.expect("counted");
    assert_eq!(sample, Stats { pending: 10, dead: 10, delivering: 10, ..Stats::default() });
    let all = db.administration().stats().await.expect("counted");
    assert_eq!(all, Stats { pending: 25, dead: 25, delivering: 25, ..Stats::default() });
}

#[tokio::test]
async fn dead_events_are_listed_shown_and_requeued() {
    let db = Db::new().await;
    for number in 1..=4 {
        db.add(number, "k").await;
    }
    let (token, claimed) = db.claim(3).await;
    db.pass(MINUTE).await;
    assert_eq!(db.fail(&token, &claimed[..1], FailureKind::Dead).await, [Marked::Applied]);
    db.pass(MINUTE).await;
    assert_eq!(db.fail(&token, &claimed[1..2], FailureKind::Dead).await, [Marked::Applied]);
    let administration = db.administration();
    let dead = administration.list_dead(None, 10).await.expect("listed");
    assert_eq!(dead.iter().map(|event| event.event_id).collect::<Vec<_>>(), ids([2, 1]), "the last first");
    assert_eq!((dead[0].attempts, &*dead[0].last_error, dead[0].payload_bytes), (1, "it broke", 9));
    assert_eq!(administration.list_dead(Some("other"), 10).await.expect("listed"), []);
    let shown = administration.get_event(id(1)).await.expect("read").expect("it exists");
    assert_eq!((shown.payload.as_deref(), shown.headers.as_deref()), (Some(&b"payload 1"[..]), Some("{}")));
    let outcomes = administration.requeue(&ids([1, 3, 99])).await.expect("requeued");
    assert_eq!(outcomes, [Requeued::Done, Requeued::NotDead, Requeued::Unknown]);
    let requeued = db.get(id(1)).await.expect("it exists");
    assert_eq!((&*requeued.status, requeued.attempts, &*requeued.last_error), ("PENDING", 0, ""));
    let dry = administration.requeue_dead(None, true).await.expect("counted");
    assert_eq!((dry.count, dry.first.len()), (1, 1));
    assert_eq!(administration.requeue_dead(Some("other"), false).await.expect("none").count, 0);
    assert_eq!(administration.requeue_dead(None, false).await.expect("requeued").count, 1);
    assert_eq!(administration.list_dead(None, 10).await.expect("listed"), []);
    assert_eq!(db.release(&token, &ids([3])).await, [Marked::Applied]);
    assert_eq!(db.claim(10).await.1, ids([1, 2, 3, 4]));
}

#[tokio::test]
async fn the_dead_of_one_type_are_requeued_chunk_by_chunk_whatever_died_between_them() {
    let db = Db::new().await;
    // A thousand at a time have died in the same moment, so that chunks end among equals.
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status, attempts, updated_at)
         SELECT lpad(to_hex(n), 32, '0')::uuid, CASE n % 2 WHEN 0 THEN 'even' ELSE 'odd' END, '', 'DEAD', 1,
                now() - interval '1 day' + n / 1000 * interval '1 second'
         FROM generate_series(1, 5000) n",
    )
    .await;
    let requeued = db.administration().requeue_dead(Some("odd"), false).await.expect("requeued");
    assert_eq!(requeued.count, 2500);
    let of = async |status: &str| {
        let sql = format!(
            "SELECT string_agg(DISTINCT event_type, ',') || ' ' || count(*) FROM openoutbox_events WHERE status = '{status}'"
        );
        db.value::<String>(&sql).await
    };
    assert_eq!((of("PENDING").await, of("DEAD").await), ("odd 2500".to_owned(), "even 2500".to_owned()));
}

#[tokio::test]
async fn a_row_that_is_held_is_busy_and_its_neighbours_are_marked() {
    let db = Db::new().await;
    for number in 1..=3 {
        db.add(number, "").await;
    }
    let (token, claimed) = db.claim(3).await;
    let blocker =
        db.block(&format!("SELECT FROM openoutbox_events WHERE event_id = '{}' FOR UPDATE", id(2))).await;
    let expected = [Marked::Applied, Marked::Busy, Marked::Applied];
    assert_eq!(db.deliver(&token, &claimed).await, expected);
    assert_eq!(db.release(&token, &claimed).await, [Marked::Lost, Marked::Busy, Marked::Lost]);
    db.pass(LEASE + TICK).await;
    assert_eq!(db.reap().await, 0);
    blocker.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(db.deliver(&token, &claimed[1..2]).await, [Marked::Applied]);
}

#[tokio::test]
async fn a_claim_leaves_out_what_is_held_and_the_later_events_of_its_key() {
    for db in [Db::new().await, Db::without_indexes().await] {
        for (number, key) in [(1, "k"), (2, "k"), (3, "k"), (4, ""), (5, "")] {
            db.add(number, key).await;
        }
        let held =
            format!("SELECT FROM openoutbox_events WHERE event_id IN ('{}', '{}') FOR UPDATE", id(2), id(4));
        let blocker = db.block(&held).await;
        let (token, claimed) = db.claim(10).await;
        assert_eq!(claimed, ids([1, 5]));
        blocker.batch_execute("COMMIT").await.expect("committed");
        assert_eq!(db.deliver(&token, &claimed).await, [Marked::Applied; 2]);
        assert_eq!(db.claim(10).await.1, ids([2, 3, 4]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_changes_while_it_is_claimed_is_not_overtaken() {
    // An operator takes the first of a key out of the queue while a claim is between its snapshot and its locks.
    let db = Db::new().await;
    for number in 1..=2 {
        db.add(number, "k").await;
    }
    let blocker = db
        .block(&format!("UPDATE openoutbox_events SET available_at = now() + interval '1 hour', attempts = 1 WHERE event_id = '{}'", id(1)))
        .await;
    assert_eq!(db.claim(10).await.1, ids([]));
    blocker.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(db.claim(10).await.1, ids([]), "it waits for its retry now");
}

// O-14
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claimers_take_ten_thousand_events_once_each_and_none_waits_for_long() {
    let db = Db::new().await;
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, partition_key)
         SELECT gen_random_uuid(), 't', 'x', 'k' || n % 500 FROM generate_series(1, 10000) n",
    )
    .await;
    let mut claimers = JoinSet::new();
    for _ in 0..8 {
        let storage = db.storage().clone();
        claimers.spawn(async move {
            let mut mine = Vec::new();
            loop {
                let request = request(100);
                let begun = tokio::time::Instant::now();
                let claim = storage.claim_batch(&request).await.expect("no failure");
                assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
                let claimed: Vec<_> = claim.events.iter().map(|event| event.event_id).collect();
                if claimed.is_empty()
                    && storage.stats(&EventTypes::All, 1).await.expect("counted") == Stats::default()
                {
                    return mine;
                }
                let marked =
                    storage.mark_delivered_batch(&request.token, &claimed).await.expect("no failure");
                assert!(marked.iter().all(|marked| *marked == Marked::Applied));
                mine.extend(claimed);
            }
        });
    }
    let mut all = claimers.join_all().await.concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 10_000);
}

/// The first of a key is committed while a claim of the second is between its snapshot and its commit: a claim that did not
/// wait would see the first alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_that_claim_at_once_never_hold_events_of_one_key() {
    let db = Db::new().await;
    db.execute(
        "CREATE FUNCTION test.wait() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NEW; END $$;
         CREATE TRIGGER wait BEFORE UPDATE ON openoutbox_events FOR EACH ROW EXECUTE FUNCTION test.wait()",
    )
    .await;
    db.add(2, "k").await;
    let blocker = db.block("SELECT pg_advisory_xact_lock(42)").await;
    let waiting = async |count: i64| {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        until("a wait", async || db.value::<i64>(waiting).await == count).await;
    };
    let (first, second) = (request(10), request(10));
    let between = async {
        waiting(1).await;
        db.insert_before(1, "k").await;
        let claim = async {
            waiting(2).await;
            blocker.batch_execute("COMMIT").await.expect("committed");
        };
        tokio::join!(db.claim_with(&second), claim).0
    };
    let (first, second) = tokio::join!(db.claim_with(&first), between);
    assert_eq!((first.events.len(), second.events.len()), (1, 0), "{second:?}");
}

#[tokio::test]
async fn a_role_with_another_isolation_level_claims_as_any_other() {
    let db = Db::new().await;
    db.execute("ALTER ROLE svc SET default_transaction_isolation = 'serializable'").await;
    let storage = PostgresStorage::new(pool(db.dsn()), TableName::default());
    for number in 1..=4 {
        db.add(number, "k").await;
    }
    storage.due_in(&EventTypes::All, None).await.expect("it connects");
    // Both claims begin before either of them sees the queue.
    let class = 0x6f_75_74_62;
    let lock = format!(
        "SELECT pg_advisory_xact_lock({class}, ('openoutbox_events'::regclass::oid::bigint - 2147483648)::int)"
    );
    let blocker = db.block(&lock).await;
    let released = async {
        until("two claims that wait", async || {
            db.value::<i64>("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").await
                == 2
        })
        .await;
        blocker.batch_execute("COMMIT").await.expect("committed");
    };
    let requests = [request(2), request(2)];
    let (a, b, ()) =
        tokio::join!(storage.claim_batch(&requests[0]), storage.claim_batch(&requests[1]), released);
    let claimed = a.expect("no failure").events.len() + b.expect("no failure").events.len();
    db.execute("ALTER ROLE svc RESET default_transaction_isolation").await;
    assert_eq!(claimed, 2);
}

#[tokio::test]
async fn what_was_committed_late_is_claimed_in_its_order() {
    let db = Db::new().await;
    db.add(2, "k").await;
    let late = db.block(&format!(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, partition_key, created_at, available_at)
         VALUES ('{}', 't', '', 'k', now() - interval '1 hour', now() - interval '1 hour')", id(1)
    )).await;
    let first = db.claim_with(&request(1)).await;
    assert_eq!(first.events[0].event_id, id(2));
    late.batch_execute("COMMIT").await.expect("committed");
    let beyond = db.claim_with(&ClaimRequest { after: first.next, ..request(1) }).await;
    assert_eq!((beyond.events.len(), beyond.next), (0, None));
    assert_eq!(db.claim(1).await.1, ids([]), "the key is held");
    assert_eq!(db.storage().due_in(&EventTypes::All, None).await.expect("no failure"), Some(Duration::ZERO));
}

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
    let whole = Content::Whole { payload: "{}".into(), headers: "{}".to_owned() };
    assert_eq!(claim.events[0].content, whole);
}

#[tokio::test]
async fn a_partition_key_of_any_length_can_be_written_and_is_kept_in_order() {
    let db = Db::new().await;
    let long = "x".repeat(200_000);
    // Incompressible, as an entry of an index would be.
    db.execute("INSERT INTO openoutbox_events (event_id, event_type, payload, partition_key)
                SELECT gen_random_uuid(), 't', '', string_agg(md5(n::text), '') FROM generate_series(1, 1000) n").await;
    db.add(1, &long).await;
    db.add(2, &long).await;
    let claimed = db.claim(10).await.1;
    assert_eq!((&claimed[..2], claimed.len()), (&ids([1, 2])[..], 3));
}

// What `check` says.

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
    assert_eq!(error, "the role lacks rights on the outbox table openoutbox_events: UPDATE, DELETE");
    db.execute("GRANT DELETE, UPDATE ON openoutbox_events TO svc").await;
    assert_eq!(db.storage().check().await.expect("passes").missing_indexes, [""; 0]);
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
    // One that was left by a build that failed.
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

// What `migrate` does.

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
