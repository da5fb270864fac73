//! Retention during traffic.

use harness::wait_for;

use crate::world::*;

// INV-14
#[tokio::test]
async fn exactly_the_rows_older_than_their_retention_are_deleted_and_live_routes_keep_their_record() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.add(&[(b"nonsense", b"old")]).await;
    world.add(&[(b"nonsense", b"young")]).await;
    world.send(0..4).await;
    world.settled(4).await;
    service.kill().await;
    // Two are old; one of them has a route that still waits, for a time far in the future.
    world.execute("UPDATE records SET accepted_at = accepted_at - interval '31 days', idempotency_expires_at = idempotency_expires_at - interval '31 days' WHERE idempotency_key IN ('game-1:turn-0', 'game-1:turn-1')").await;
    world
        .execute(
            "UPDATE routes SET status = 'failed', next_attempt_at = now() + interval '1 day' WHERE route_id = 'push:user:u-1'",
        )
        .await;
    world.execute("UPDATE malformed_intents SET recorded_at = recorded_at - interval '31 days' WHERE raw_fields::text LIKE '%old%'").await;

    // The first one may have been killed during a pass, and its term must expire.
    let next = world.service().env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await;
    wait_for("the old ones are gone", BOUND, async || {
        let records = world.column("SELECT idempotency_key FROM records ORDER BY 1").await;
        let malformed = world.column("SELECT raw_fields::text FROM malformed_intents").await;
        (records == ["game-1:turn-1", "game-1:turn-2", "game-1:turn-3"]
            && malformed.len() == 1
            && malformed[0].contains("young"))
        .then_some(())
    })
    .await;
    wait_for("the log reports the record that is kept", BOUND, async || {
        next.logged("expired records stay because a route of theirs is still live")
            .filter(|line| line["records"] == 1)
    })
    .await;
    assert_eq!(world.number("SELECT count(*) FROM routes").await, 12, "routes go with their record only");
}

// INV-14
#[tokio::test]
async fn many_old_records_go_beside_the_traffic_of_two_replicas() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
                request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
             SELECT 'old-' || n, 't', 'old', 'user', '{}', n::text, 'v1:', now(), now() - interval '31 days', now(), now()
             FROM generate_series(1, 10000) n",
        )
        .await;
    world
        .execute(
            "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at, updated_at)
             SELECT notification_id, c || ':user:u', c, 'user:u', 'skipped', 3, now(), now() FROM records, unnest(ARRAY['push', 'email']) c",
        )
        .await;
    let _one = world.service().start().await;
    let _two = world.service().start().await;
    world.send(0..200).await;
    wait_for("the old ones are gone", BOUND, async || {
        (world.number("SELECT count(*) FROM records WHERE producer = 'old'").await == 0).then_some(())
    })
    .await;
    world.settled(200).await;
    world.check(0..200).await;
}

/// A record of 31 days ago with a dead letter.
async fn with_an_old_dead_letter(world: &World) {
    let service = world.service().start().await;
    world.send(0..2).await;
    world.settled(2).await;
    service.kill().await;
    world
        .database
        .client()
        .await
        .batch_execute(
            "UPDATE records SET accepted_at = accepted_at - interval '31 days', idempotency_expires_at = idempotency_expires_at - interval '31 days';
             UPDATE routes SET status = 'dead_letter', attempt_count = max_attempts, dead_lettered_at = now()
             WHERE route_id = 'push:user:u-1';
             INSERT INTO dead_letters
             SELECT notification_id, route_id, channel, recipient_ref, 3, 3, 'c', 'm', 'h', now() FROM routes
             WHERE status = 'dead_letter'",
        )
        .await
        .expect("the statements are right");
}

#[tokio::test]
async fn a_dead_letter_that_an_operator_retries_while_retention_passes_stays_until_it_is_published() {
    let world = World::new().await;
    with_an_old_dead_letter(&world).await;
    let operator = world.database.client().await;
    operator
        .batch_execute(
            "BEGIN;
             UPDATE routes SET status = 'pending', attempt_count = 0, next_attempt_at = now() + interval '1 day',
                 dead_lettered_at = NULL, updated_at = clock_timestamp()
             WHERE status = 'dead_letter';
             DELETE FROM dead_letters",
        )
        .await
        .expect("the statements are right");
    let service = world.service().env("NOTIFICATION_CLEANUP_INTERVAL", "500ms").start().await;
    wait_for("the pass has met the open transaction", BOUND, async || {
        service
            .logged("expired rows stay because another transaction holds them; the next pass tries again")
            .filter(|line| line["rows"] == 1 && line["table"] == "records")
    })
    .await;
    assert_eq!(world.column("SELECT idempotency_key FROM records").await, ["game-1:turn-1"]);
    operator.batch_execute("COMMIT").await.expect("is there");
    wait_for("a pass has seen the live route", BOUND, async || {
        service.logged("expired records stay because a route of theirs is still live")
    })
    .await;
    let due = "UPDATE routes SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL";
    assert_eq!(world.execute(due).await, 1);
    wait_for("it is published, and then goes with its record", BOUND, async || {
        (world.number("SELECT count(*) FROM records WHERE idempotency_key = 'game-1:turn-1'").await == 0)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn malformed_intents_of_which_few_can_be_deleted_in_time_go_all_the_same() {
    let world = World::new().await;
    world
        .database
        .client()
        .await
        .batch_execute(
            "INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, failure_code, failure_message, raw_fields,
                recorded_at)
             SELECT 's', n || '-0', 'f', 'c', 'm', '[]', now() - interval '31 days' FROM generate_series(1, 24) n;
             CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.15); RETURN OLD; END';
             CREATE TRIGGER slow BEFORE DELETE ON malformed_intents FOR EACH ROW EXECUTE FUNCTION slow()",
        )
        .await
        .expect("the statements are right");
    let service = world.service().env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "1s").start().await;
    wait_for("they are gone", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await == 0).then_some(())
    })
    .await;
    wait_for("the pass has ended", BOUND, async || {
        service.logged("retention removed old rows").filter(|line| line["malformed_intents"] == 24)
    })
    .await;
}
