//! Test data: from real traffic for states, from inserted rows for large numbers.

use harness::{Service, turn_ready, wait_for};
use serde_json::json;

use crate::api::{OPERATOR, accept, ask, body, read};
use crate::world::*;

/// Text with which a producer might harm a reader of the console: scripts, right-to-left text, very long
/// words.
pub(super) const HOSTILE: &str =
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>\u{202e}gnp.exe";

/// Published notifications with receipts, dead letters, a notification to administrators, one without an
/// address, and malformed intents.
pub(super) async fn ten_rows(world: &World, service: &Service) {
    for turn in 1..=6 {
        accept(service, &format!("published-{turn}"), &body(turn)).await;
    }
    let mut hostile = body(7);
    hostile["payload"]["game_name"] = json!(HOSTILE);
    accept(service, &"k".repeat(255), &hostile).await;
    world.settled(7).await;
    receipts(world, service).await;
    let mut redis = world.redis().await;
    redis::cmd("RENAME").arg(PUSH).arg("kept").query_async::<()>(&mut redis).await.expect("Redis is there");
    redis::cmd("SET").arg(PUSH).arg("no stream").query_async::<()>(&mut redis).await.expect("Redis is there");
    for turn in 8..=10 {
        accept(service, &format!("dead-{turn}"), &body(turn)).await;
    }
    malformed(world).await;
    wait_for("dead letters and malformed intents", BOUND, async || {
        let letters = world.number("SELECT count(*) FROM dead_letters").await;
        let malformed = world.number("SELECT count(*) FROM malformed_intents").await;
        (letters == 6 && malformed == 4).then_some(())
    })
    .await;
    repair(world).await;
}

/// Lets publishers of push routes succeed again.
async fn repair(world: &World) {
    let mut redis = world.redis().await;
    redis::cmd("RENAME").arg("kept").arg(PUSH).query_async::<()>(&mut redis).await.expect("Redis is there");
}

async fn receipts(world: &World, service: &Service) {
    let route = world
        .column(
            "SELECT notification_id || '/' || route_id FROM routes WHERE channel = 'push' ORDER BY 1 LIMIT 1",
        )
        .await;
    for (status, detail) in [("delivered", "on a phone"), ("opened", HOSTILE), ("delivered", "again")] {
        let report =
            json!({"id": route[0], "status": status, "at": "2026-04-02T09:30:00Z", "detail": detail});
        let answer =
            ask(service, OPERATOR, "POST", "/v1/receipts", None, &json!({"receipts": [report]}).to_string())
                .await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

/// A hold of a type that no other data has, for a hostile reason.
pub(super) async fn hold(service: &Service) {
    let hold = json!({"scope": "type", "name": "lobby.application.submitted", "reason": HOSTILE});
    let made = ask(service, OPERATOR, "POST", "/v1/holds:hold", Some("hold"), &hold.to_string()).await;
    assert_eq!(made.status, 200, "{}", made.body);
}

/// An unknown field with a hostile name, bytes that are not text, a missing field, a payload that violates
/// its schema.
async fn malformed(world: &World) {
    world.add(&[(HOSTILE.as_bytes(), b"1"), (b"producer", b"game_master")]).await;
    world.add(&[(b"producer", b"game_master"), (b"payload_json", b"\xff\xfe{"), (b"\x80", b"x")]).await;
    world.add(&[(b"producer", b"game_master"), (b"notification_type", b"game.turn.ready")]).await;
    let mut draft = turn_ready(["u-1"], "schema", 1);
    draft.payload_json = r#"{"game_id":"g","game_name":"","turn_number":"x"}"#.to_owned();
    world.add_draft(draft).await;
}

/// 300 notifications of older days, each with a route that is a dead letter and one that failed, and 300
/// malformed intents.
pub(super) async fn many_rows(world: &World) {
    let sql = "INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
            idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 'game.finished', 'game_master', 'user', jsonb_build_array('u-' || n), '{}', 'many-' || n, 'v1:', t, t, t, t
         FROM (SELECT n, timestamptz '2026-01-01' + n * interval '1 s' AS t FROM generate_series(1, 300) n) r;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, attempt_count, max_attempts, created_at, updated_at,
            last_error_classification, last_error_message, last_error_at, dead_lettered_at)
         SELECT notification_id, 'email:user:u', 'email', 'user:u', 'dead_letter', 7, 7, accepted_at, accepted_at,
            'mail_stream_publish_failed', 'WRONGTYPE', accepted_at, accepted_at
         FROM records WHERE idempotency_key LIKE 'many-%';
         INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
            failure_classification, failure_message, recovery_hint, created_at)
         SELECT notification_id, route_id, channel, recipient_ref, 7, 7, 'mail_stream_publish_failed', 'WRONGTYPE', 'h', created_at
         FROM routes WHERE route_id = 'email:user:u';
         INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, producer, failure_code, failure_message, raw_fields,
            recorded_at)
         SELECT 'notification:intents', n || '-0', 'f', 'game_lobby', 'missing_field', 'producer is absent or empty', '[]',
            timestamptz '2026-01-01' + n * interval '1 s' FROM generate_series(1, 300) n;";
    world.database.client().await.batch_execute(sql).await.expect("the rows are right");
}

/// The id of a notification with a dead letter.
pub(super) async fn dead_notification(service: &Service) -> String {
    let letters = read(service, OPERATOR, "/v1/dead-letters?channel=push").await.json();
    letters["dead_letters"][0]["notification_id"].as_str().expect("there is one").to_owned()
}
