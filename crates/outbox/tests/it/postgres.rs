//! Promises that only a table in PostgreSQL can keep.

use std::time::Duration;

use outbox::{
    Age, BatchClaim, EventContent, EventTypes, FailureKind, Marked, PruneRequest, Pruned, ReapRequest,
    RequeueRequest, Requeued, Stats, Storage,
};
use tokio_util::sync::CancellationToken;

use crate::support::{Db, LEASE, MINUTE, TICK, World, id, ids, kind, request, until};

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
    let prune = async |dry_run| {
        db.administration().prune(&request(dry_run), &CancellationToken::new()).await.expect("pruned")
    };
    let expected = Pruned { delivered: 1, dead: 2, stopped: false };
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
    assert_eq!(
        db.administration().prune(&request, &CancellationToken::new()).await.expect("pruned").delivered,
        0
    );
    db.pass(TICK).await;
    assert_eq!(
        db.administration().prune(&PruneRequest::default(), &CancellationToken::new()).await.expect("pruned"),
        Pruned::default()
    );
    assert_eq!(
        db.administration().prune(&request, &CancellationToken::new()).await.expect("pruned").delivered,
        1
    );
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
    db.administration().prune(&request, &CancellationToken::new()).await.expect_err("refused");
    assert_eq!(db.value::<i64>("SELECT count(*) FROM openoutbox_events").await, 1500);
    db.execute("DROP TRIGGER refuse ON openoutbox_events").await;
    assert_eq!(
        db.administration().prune(&request, &CancellationToken::new()).await.expect("pruned").delivered,
        1500
    );
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

// O-13
#[tokio::test]
async fn a_lease_of_an_event_with_the_highest_number_of_attempts_is_reaped() {
    let db = Db::new().await;
    db.add(1, "").await;
    db.execute(
        "UPDATE openoutbox_events SET status = 'DELIVERING', locked_at = '-infinity', attempts = 2147483647",
    )
    .await;
    assert_eq!((db.reap().await, db.reap().await), (1, 0));
    assert_eq!(&*db.status(id(1)).await, "DEAD");
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
    let rest = db.claim_with(&BatchClaim { after: first.next, ..request(10) }).await;
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
    let all = dead_until_now(&db).await;
    let dry = administration.plan_requeue(&all).await.expect("counted");
    assert_eq!((dry.count, dry.first.len()), (1, 1));
    let others = RequeueRequest { event_type: Some("other"), ..all };
    assert_eq!(administration.requeue_all(&others, &CancellationToken::new()).await.requeued, 0);
    assert_eq!(administration.requeue_all(&all, &CancellationToken::new()).await.requeued, 1);
    assert_eq!(administration.list_dead(None, 10).await.expect("listed"), []);
    assert_eq!(db.release(&token, &ids([3])).await, [Marked::Applied]);
    assert_eq!(db.claim(10).await.1, ids([1, 2, 3, 4]));
}

#[tokio::test]
async fn a_stop_ends_pruning_and_requeueing_before_the_next_chunk() {
    let db = Db::new().await;
    db.add(1, "").await;
    db.execute("UPDATE openoutbox_events SET status = 'DEAD', updated_at = now() - interval '2 days'").await;
    let stop = CancellationToken::new();
    stop.cancel();
    let administration = db.administration();
    let day = Age::parse("1d").expect("an age");
    let old = PruneRequest { dead_age: Some(day), ..PruneRequest::default() };
    let pruned = administration.prune(&old, &stop).await.expect("no error");
    assert_eq!(pruned, Pruned { stopped: true, ..Pruned::default() });
    let report = administration.requeue_all(&dead_until_now(&db).await, &stop).await;
    assert!(report.stopped && report.requeued == 0 && report.error.is_none(), "{report:?}");
    let finished = administration.requeue_all(&dead_until_now(&db).await, &CancellationToken::new()).await;
    assert!(!finished.stopped && finished.requeued == 1, "{finished:?}");
}

/// Requests all events that are DEAD now.
async fn dead_until_now(db: &Db) -> RequeueRequest<'static> {
    RequeueRequest { delivered_since: None, event_type: None, until: db.now().await }
}

#[tokio::test]
async fn the_dead_of_one_type_are_requeued_chunk_by_chunk_whatever_died_between_them() {
    let db = Db::new().await;
    // Batches of a thousand died at the same moment, so that chunks end among equal times.
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status, attempts, updated_at)
         SELECT lpad(to_hex(n), 32, '0')::uuid, CASE n % 2 WHEN 0 THEN 'even' ELSE 'odd' END, '', 'DEAD', 1,
                now() - interval '1 day' + n / 1000 * interval '1 second'
         FROM generate_series(1, 5000) n",
    )
    .await;
    let odd = RequeueRequest { event_type: Some("odd"), ..dead_until_now(&db).await };
    let report = db.administration().requeue_all(&odd, &CancellationToken::new()).await;
    assert_eq!((report.requeued, report.locked, report.error.is_none()), (2500, 0, true), "{report:?}");
    let of = async |status: &str| {
        let sql = format!(
            "SELECT string_agg(DISTINCT event_type, ',') || ' ' || count(*) FROM openoutbox_events WHERE status = '{status}'"
        );
        db.value::<String>(&sql).await
    };
    assert_eq!((of("PENDING").await, of("DEAD").await), ("odd 2500".to_owned(), "even 2500".to_owned()));
}

/// Creates a trigger that rejects this change of event 3.
fn refusing(condition: &str) -> String {
    format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = 'check_violation'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON openoutbox_events FOR EACH ROW
         WHEN (OLD.event_id = '{}' AND {condition}) EXECUTE FUNCTION refuse()",
        id(3)
    )
}

#[tokio::test]
async fn a_lease_that_the_table_refuses_to_end_is_named_and_the_others_end() {
    let db = Db::new().await;
    for number in 1..=20 {
        db.add(number, "").await;
    }
    assert_eq!(db.claim(20).await.1.len(), 20);
    db.execute(&refusing("NEW.status = 'PENDING'")).await;
    db.pass(LEASE + TICK).await;
    let request =
        ReapRequest { types: EventTypes::All, lease_timeout: LEASE, limit: 1_000, except: Vec::new() };
    let reaped = db.storage().reap_expired_leases(&request, &kind).await.expect("no failure");
    assert_eq!((reaped.count, &reaped.refused), (19, &ids([3])));
    let except = ReapRequest { except: reaped.refused, ..request };
    let again = db.storage().reap_expired_leases(&except, &kind).await.expect("no failure");
    assert_eq!((again.count, again.refused), (0, Vec::new()));
}

#[tokio::test]
async fn a_lease_whose_end_a_trigger_skips_or_a_function_fails_is_named_and_the_others_end() {
    for body in ["RETURN NULL", "PERFORM lastval()"] {
        let db = Db::new().await;
        for number in 1..=20 {
            db.add(number, "").await;
        }
        assert_eq!(db.claim(20).await.1.len(), 20);
        db.execute(&refusing("NEW.status = 'PENDING'")).await;
        let replace = "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS";
        db.execute(&format!("{replace} $$ BEGIN {body}; END $$")).await;
        db.pass(LEASE + TICK).await;
        let request =
            ReapRequest { types: EventTypes::All, lease_timeout: LEASE, limit: 1_000, except: Vec::new() };
        let reaped = db.storage().reap_expired_leases(&request, &kind).await.expect("no failure");
        assert_eq!((reaped.count, &reaped.refused), (19, &ids([3])), "{body}");
    }
}

#[tokio::test]
async fn leases_that_were_not_tried_because_others_fail_slowly_are_not_named_and_end_with_the_next_look() {
    let db = Db::new().await;
    for number in 1..=20 {
        db.add(number, "").await;
    }
    assert_eq!(db.claim(20).await.1.len(), 20);
    db.execute(&format!(
        "CREATE FUNCTION fail_slowly() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN PERFORM pg_sleep(0.3); PERFORM lastval(); END $$;
         CREATE TRIGGER fail_slowly BEFORE UPDATE ON openoutbox_events FOR EACH ROW
         WHEN (OLD.event_id <= '{}') EXECUTE FUNCTION fail_slowly()",
        id(4)
    ))
    .await;
    db.pass(LEASE + TICK).await;
    let request =
        ReapRequest { types: EventTypes::All, lease_timeout: LEASE, limit: 1_000, except: Vec::new() };
    let first = db.storage().reap_expired_leases(&request, &kind).await.expect("no failure");
    assert_eq!((first.refused.len(), first.count), (3, 0), "it ends after three and two seconds");
    let except = ReapRequest { except: first.refused.clone(), ..request };
    let second = db.storage().reap_expired_leases(&except, &kind).await.expect("no failure");
    assert_eq!(second.count, 16, "the others end");
    let mut named = [first.refused, second.refused].concat();
    named.sort_unstable();
    assert_eq!(named, ids([1, 2, 3, 4]));
}

#[tokio::test]
async fn a_lease_from_the_future_that_the_table_refuses_to_change_is_named_and_the_others_begin_now() {
    let db = Db::new().await;
    for number in 1..=20 {
        db.add(number, "").await;
    }
    assert_eq!(db.claim(20).await.1.len(), 20);
    db.execute("UPDATE openoutbox_events SET locked_at = now() + interval '1 hour'").await;
    db.execute(&refusing("NEW.locked_at < OLD.locked_at")).await;
    let request =
        ReapRequest { types: EventTypes::All, lease_timeout: LEASE, limit: 1_000, except: Vec::new() };
    let reaped = db.storage().reap_expired_leases(&request, &kind).await.expect("no failure");
    assert_eq!((reaped.count, &reaped.refused), (0, &ids([3])));
    db.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    .await;
    let skipped = db.storage().reap_expired_leases(&request, &kind).await.expect("no failure");
    assert_eq!(skipped.refused, ids([3]));
    let early = "SELECT count(*) FROM openoutbox_events WHERE locked_at > now() + interval '1 minute'";
    assert_eq!(db.value::<i64>(early).await, 1);
}

// O-13
#[tokio::test]
async fn a_lease_that_begins_in_the_future_begins_now_and_is_over_after_its_time() {
    let db = Db::new().await;
    for number in 1..=3 {
        db.add(number, "").await;
    }
    let (token, _) = db.claim(3).await;
    db.execute(&format!(
        "UPDATE openoutbox_events SET locked_at = now() + interval '1 hour';
         UPDATE openoutbox_events SET locked_at = 'infinity' WHERE event_id = '{}'",
        id(2)
    ))
    .await;
    assert_eq!(db.reap().await, 0);
    assert_eq!(db.deliver(&token, &ids([3])).await, [Marked::Applied], "the claim still holds it");
    db.pass(LEASE).await;
    assert_eq!(db.reap().await, 0);
    db.pass(TICK).await;
    assert_eq!(db.reap().await, 2);
    assert_eq!(&*db.status(id(2)).await, "PENDING");
}

#[tokio::test]
async fn dead_events_are_counted_in_a_table_without_an_index_of_them_too() {
    let db = Db::without_indexes().await;
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, status)
         SELECT gen_random_uuid(), 't', convert_to(repeat('x', 500), 'UTF8'), (ARRAY['DEAD', 'DELIVERED', 'PENDING'])[n % 3 + 1]
         FROM generate_series(1, 30000) n",
    )
    .await;
    let dead = async |limit| db.storage().stats(&EventTypes::All, limit).await.expect("counted").dead;
    until("the whole table is counted", async || dead(20_000).await == 10_000).await;
    assert_eq!(dead(20_000).await, 10_000, "nor does it fall while it is counted again");
    assert_eq!(dead(7).await, 7);
    let other = EventTypes::Only(vec!["other".to_owned()]);
    let fresh = Db::without_indexes().await;
    assert_eq!(fresh.storage().stats(&other, 10).await.expect("counted").dead, 0);
}

#[tokio::test]
async fn headers_count_as_long_as_they_are_read_however_small_they_are_stored() {
    let db = Db::new().await;
    // 2 MB of text each, stored in a hundredth of that.
    db.execute(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, headers)
         SELECT gen_random_uuid(), 't', 'x', jsonb_build_object('h', repeat('a', 2000000)) FROM generate_series(1, 20) n",
    )
    .await;
    let large = BatchClaim { max_event_bytes: 16 << 20, max_bytes: 16 << 20, ..request(500) };
    let claim = db.claim_with(&large).await;
    assert_eq!(claim.events.len(), 8, "16 MiB are not exceeded");
    let small = db.claim_with(&request(500)).await;
    assert_eq!(small.events.len(), 12);
    assert!(
        small
            .events
            .iter()
            .all(|event| matches!(event.content, EventContent::TooLarge { bytes } if bytes > 2_000_000))
    );
}
