//! Claims on a table in PostgreSQL while other transactions lock, change or late commit the same rows.

use std::time::Duration;

use outbox::{BatchClaim, EventTypes, Marked, PostgresStorage, Stats, Storage, TableName};
use tokio::task::JoinSet;

use crate::support::{Db, LEASE, TICK, World, id, ids, pool, request, until};

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
    // An operator removes the first event of a key from the queue while a claim is between its snapshot and
    // its locks.
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

/// The first event of a key is committed while a claim of the second is between its snapshot and its commit.
/// A claim that did not wait would see the first event alone.
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
    // Both claims begin before either of them reads the queue.
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
    let beyond = db.claim_with(&BatchClaim { after: first.next, ..request(1) }).await;
    assert_eq!((beyond.events.len(), beyond.next), (0, None));
    assert_eq!(db.claim(1).await.1, ids([]), "the key is held");
    assert_eq!(db.storage().due_in(&EventTypes::All, None).await.expect("no failure"), Some(Duration::ZERO));
}
