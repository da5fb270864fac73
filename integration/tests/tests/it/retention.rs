//! Retention beside running traffic.

use harness::wait_for;

use crate::world::*;

#[tokio::test]
async fn exactly_what_is_older_than_its_knob_goes_and_live_routes_keep_their_record() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.add(&[(b"nonsense", b"old")]).await;
    world.add(&[(b"nonsense", b"young")]).await;
    world.send(0..4).await;
    world.settled(4).await;
    service.kill().await;
    // Two are old; one of them has a route that still waits, long from now.
    world.execute("UPDATE records SET accepted_at = accepted_at - interval '31 days' WHERE idempotency_key IN ('game-1:turn-0', 'game-1:turn-1')").await;
    world
        .execute(
            "UPDATE routes SET status = 'failed', next_attempt_at = now() + interval '1 day' WHERE route_id = 'push:user:u-1'",
        )
        .await;
    world.execute("UPDATE malformed_intents SET recorded_at = recorded_at - interval '31 days' WHERE raw_fields::text LIKE '%old%'").await;

    let next = world.service().start().await;
    wait_for("the old ones are gone", BOUND, async || {
        let records = world.column("SELECT idempotency_key FROM records ORDER BY 1").await;
        let malformed = world.column("SELECT raw_fields::text FROM malformed_intents").await;
        (records == ["game-1:turn-1", "game-1:turn-2", "game-1:turn-3"]
            && malformed.len() == 1
            && malformed[0].contains("young"))
        .then_some(())
    })
    .await;
    wait_for("it says that one stays", BOUND, async || {
        next.logged("expired records stay because a route of theirs is still live")
            .filter(|line| line["records"] == 1)
    })
    .await;
    assert_eq!(world.number("SELECT count(*) FROM routes").await, 12, "routes go with their record only");
}

#[tokio::test]
async fn many_old_records_go_beside_the_traffic_of_two_replicas() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO records (notification_id, notification_type, producer, audience_kind, payload_json, idempotency_key,
                request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
             SELECT 'old-' || n, 't', 'old', 'user', '{}', n::text, 'v1:', now(), now() - interval '31 days', now(), now()
             FROM generate_series(1, 20000) n",
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
