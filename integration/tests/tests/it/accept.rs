//! The four outcomes of an intent, and its outbound entries, as other services see them.

use domain::intent::IntentDraft;
use redis::streams::StreamRangeReply;

use crate::world::*;

async fn entries(world: &World, stream: &str) -> Vec<Vec<(String, String)>> {
    let raw: Vec<(String, Vec<String>)> = redis::cmd("XRANGE")
        .arg(stream)
        .arg("-")
        .arg("+")
        .query_async(&mut world.redis().await)
        .await
        .expect("Redis is there");
    raw.into_iter()
        .map(|(_, flat)| flat.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        .collect()
}

#[tokio::test]
async fn a_user_intent_becomes_an_event_and_a_command_for_each_user_field_for_field() {
    let world = World::new().await;
    world.directory.set_user("u-1", "u-1@example.com", "en-GB");
    world.directory.set_user("u-101", "", "");
    let _service = world.service().start().await;
    let draft = IntentDraft { request_id: Some("r-1".to_owned()), ..intent_draft(1) };
    let id = world.add_draft(draft).await;
    world.settled(1).await;

    let event = |user: &str| {
        [
            ("event_id", format!("{id}/push:user:{user}")),
            ("event_type", "game.turn.ready".to_owned()),
            ("user_id", user.to_owned()),
            ("notification_id", id.clone()),
            ("route_id", format!("push:user:{user}")),
            ("payload_json", r#"{"game_id":"game-1","game_name":"Nova","turn_number":1}"#.to_owned()),
            ("occurred_at_ms", "1775121700000".to_owned()),
            ("attempt", "1".to_owned()),
            ("request_id", "r-1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    };
    assert_eq!(entries(&world, PUSH).await, [event("u-1"), event("u-101")]);

    let accepted_ms = world
        .column("SELECT floor(extract(epoch FROM accepted_at) * 1000)::bigint::text FROM records")
        .await
        .remove(0);
    let command = [
        ("delivery_id", format!("{id}/email:user:u-1")),
        ("source", "notification".to_owned()),
        ("payload_mode", "template".to_owned()),
        ("idempotency_key", format!("notification:{id}/email:user:u-1")),
        ("requested_at_ms", accepted_ms),
        (
            "payload_json",
            r#"{"to":["u-1@example.com"],"cc":[],"bcc":[],"reply_to":[],"template_id":"game.turn.ready","locale":"en","variables":{"game_id":"game-1","game_name":"Nova","turn_number":1},"attachments":[]}"#.to_owned(),
        ),
        ("request_id", "r-1".to_owned()),
    ];
    assert_eq!(entries(&world, MAIL).await, [command.map(|(name, value)| (name.to_owned(), value)).to_vec()]);
    let skipped = world
        .column("SELECT route_id || ' ' || last_error_classification FROM routes WHERE status = 'skipped'")
        .await;
    assert_eq!(skipped, ["email:user:u-101 no_email_address"]);
}

// INV-01
#[tokio::test]
async fn each_of_the_four_outcomes_moves_the_checkpoint_past_its_entry() {
    let world = World::new().await;
    let _service = world.service().start().await;
    world.directory.remove_user("u-102");
    world.send([1, 1]).await;
    let payload_json = intent_draft(99).payload_json;
    let conflict_id = world.add_draft(IntentDraft { payload_json, ..intent_draft(1) }).await;
    let unknown_id = world.add(&[(b"nonsense", b"x")]).await;
    world.send([2]).await;
    let missing_id = world.last_entry().await;
    world.send([3]).await;
    world.settled(2).await;

    let malformed = world.column("SELECT stream_entry_id || ' ' || failure_code FROM malformed_intents ORDER BY recorded_at, stream_entry_id").await;
    assert_eq!(
        malformed,
        [
            format!("{conflict_id} idempotency_conflict"),
            format!("{unknown_id} unknown_field"),
            format!("{missing_id} recipient_not_found")
        ]
    );
    let last = world.last_entry().await;
    harness::wait_for("the cached checkpoint is at the last entry", BOUND, async || {
        (world.cached_entry_id().await.as_deref() == Some(&last)).then_some(())
    })
    .await;
    assert_eq!(world.column("SELECT last_entry_id FROM intake").await, [last]);
    world.check([1, 3]).await;
}

#[tokio::test]
async fn a_replay_of_the_whole_stream_writes_nothing_and_looks_up_no_user() {
    let world = World::new().await;
    let service = world.service().start().await;
    world.send(0..50).await;
    world.settled(50).await;
    service.kill().await;
    // Neither store has the checkpoint of the intake any more.
    world.execute("DELETE FROM intake").await;
    redis::cmd("DEL")
        .arg(CACHED_CHECKPOINT)
        .query_async::<()>(&mut world.redis().await)
        .await
        .expect("Redis is there");
    let asked = world.directory.requests();

    let _next = world.service().start().await;
    let last = world.last_entry().await;
    harness::wait_for("the stream is read again", BOUND, async || {
        (world.cached_entry_id().await.as_deref() == Some(&last)).then_some(())
    })
    .await;
    assert_eq!(world.directory.requests(), asked);
    world.check(0..50).await;
}

#[tokio::test]
async fn a_type_for_administrators_is_sent_to_the_configured_addresses() {
    let world = World::new().await;
    let _service = world.service().start().await;
    let payload = r#"{"user_id":"u","user_email":"u@example.com","observed_country":"FR","usual_connection_country":"DE","review_reason":"moved"}"#;
    for (kind, producer, payload) in [
        ("geo.review_recommended", "geoprofile", payload),
        ("game.generation_failed", "game_master", r#"{"game_id":"g","game_name":"n","failure_reason":"r"}"#),
    ] {
        world
            .add(&[
                (b"notification_type", kind.as_bytes()),
                (b"producer", producer.as_bytes()),
                (b"audience_kind", b"admin_email"),
                (b"idempotency_key", kind.as_bytes()),
                (b"occurred_at_ms", b"253402300799999"),
                (b"payload_json", payload.as_bytes()),
            ])
            .await;
    }
    world.settled(2).await;
    let routes = world.column("SELECT route_id || ' ' || status || ' ' || last_error_classification FROM routes ORDER BY route_id").await;
    assert_eq!(
        routes,
        [
            "email:config:game.generation_failed skipped no_admin_recipients",
            "email:email:ops@example.com published "
        ]
    );
    assert_eq!(
        world.column("SELECT DISTINCT occurred_at::text FROM records").await,
        ["9999-12-31 23:59:59.999+00"]
    );
    let reply: StreamRangeReply = redis::cmd("XRANGE")
        .arg(MAIL)
        .arg("-")
        .arg("+")
        .query_async(&mut world.redis().await)
        .await
        .expect("Redis is there");
    assert_eq!(reply.ids.len(), 1);
}
