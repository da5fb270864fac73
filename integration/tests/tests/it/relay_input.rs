//! Input of producers and operators to an outbox that a relay must tolerate.

use std::time::Duration;

use harness::{Service, wait_for};
use redis::streams::StreamId;

use crate::outbox::*;
use crate::world::*;

/// The maximum memory of a relay that reads an event of 100 MB, in bytes.
const MAX_RESIDENT_BYTES: u64 = 200_000 * 1_024;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn an_event_that_the_service_would_find_malformed_is_dead_at_once_with_its_failure_code() {
    let outbox = Outbox::new().await;
    let with = |member: &str, value: serde_json::Value| {
        let mut changed = payload(1);
        changed[member] = value;
        changed.to_string().into_bytes()
    };
    let good = payload(1).to_string();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("game.turn.ready", b"\xff\xfe".to_vec(), "invalid_encoding"),
        ("game.turn.ready", b"not JSON".to_vec(), "invalid_payload_json"),
        ("game.turn.ready", b"[1]".to_vec(), "invalid_payload_json"),
        ("game.turn.ready", Vec::new(), "invalid_payload_json"),
        ("game.turn.ready", with("producer", "game_master".into()), "unknown_field"),
        ("game.turn.ready", with("occurred_at_ms", "soon".into()), "invalid_field"),
        ("game.turn.ready", with("recipient_user_ids", "u-1".into()), "invalid_recipients"),
        ("game.turn.ready", with("payload", serde_json::json!({"game_id": 1})), "payload_schema_violation"),
        ("game.over", good.clone().into_bytes(), "unknown_notification_type"),
        ("lobby.runtime_paused_after_start", good.into_bytes(), "producer_not_allowed"),
        ("game.turn.ready", vec![b' '; (512 << 10) + 1], "entry_too_large"),
    ];
    for (n, (event_type, payload, _)) in (0..).zip(&cases) {
        let row = format!("('{}', '{event_type}', '\\x{}')", event_id(n), hex(payload));
        outbox.execute(&format!("{INSERT} {row}")).await;
    }
    let good_one = u32::try_from(cases.len()).expect("few");
    outbox.insert(good_one..good_one + 1).await;
    let _relay = outbox.relay().start().await;
    outbox.drained().await;
    for (n, (_, _, code)) in (0..).zip(&cases) {
        let error = outbox.becomes(&event_id(n), "DEAD").await;
        assert!(error.starts_with(code), "{code}: {error}");
    }
    outbox.check_stream([good_one]).await;
    assert_eq!(outbox.number("SELECT max(attempts)::bigint FROM openoutbox_events").await, 1);
}

#[tokio::test]
async fn a_payload_of_100_mb_is_dead_without_being_read() {
    let outbox = Outbox::new().await;
    let relay = outbox.relay().start().await;
    outbox
        .execute(&format!(
            "INSERT INTO openoutbox_events (event_id, event_type, payload)
             SELECT '{}', 'game.turn.ready', convert_to(string_agg(md5(n::text), ''), 'UTF8') FROM generate_series(1, 3276800) n",
            event_id(0)
        ))
        .await;
    let error = outbox.becomes(&event_id(0), "DEAD").await;
    assert!(error.starts_with("entry_too_large"), "{error}");
    let peak = relay.peak_memory().expect("it runs");
    assert!(peak < MAX_RESIDENT_BYTES, "{peak} bytes");
}

/// A relay for mode `streams`.
async fn streams_relay(outbox: &Outbox) -> Service {
    let relay = outbox.relay().env("NOTIFICATION_OUTBOX_MODE", "streams");
    relay.env("NOTIFICATION_OUTBOX_STREAMS", "orders,invoices").start().await
}

fn fields(entry: &StreamId) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> =
        entry.map.keys().map(|name| (name.clone(), entry.get(name).expect("text"))).collect();
    fields.sort();
    fields
}

// O-25
#[tokio::test]
async fn mode_streams_appends_an_event_with_the_fields_of_the_original_relay() {
    let outbox = Outbox::new().await;
    let _relay = streams_relay(&outbox).await;
    let insert =
        "INSERT INTO openoutbox_events (event_id, event_type, payload, partition_key, headers) VALUES";
    let rows = [
        format!("('{}', 'orders', '\\x00ff', 'order-7', '{{\"b\": \"2\", \"a\": \"\"}}')", event_id(0)),
        format!("('{}', 'orders', 'plain', NULL, '{{}}')", event_id(1)),
        format!("('{}', 'invoices', '', '', '{{}}')", event_id(2)),
    ];
    outbox.execute(&format!("{insert} {}", rows.join(","))).await;
    outbox.drained().await;
    assert_eq!(outbox.count("DELIVERED").await, 3);
    let orders = outbox.entries("orders").await;
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let first = orders.iter().find(|entry| entry.contains_key("partition_key")).expect("it has a key");
    let payload: Vec<u8> = first.get("payload").expect("bytes");
    assert_eq!(payload, [0, 0xff]);
    let mut names: Vec<&String> = first.map.keys().collect();
    names.sort();
    assert_eq!(names, ["h:a", "h:b", "id", "partition_key", "payload"]);
    assert_eq!(first.get::<String>("id"), Some(event_id(0)));
    assert_eq!(first.get::<String>("partition_key").as_deref(), Some("order-7"));
    assert_eq!(first.get::<String>("h:b").as_deref(), Some("2"));
    let second = orders.iter().find(|entry| !entry.contains_key("partition_key")).expect("it has none");
    assert_eq!(fields(second), pairs(&[("id", &event_id(1)), ("payload", "plain")]));
    let invoices = outbox.entries("invoices").await;
    assert_eq!(fields(&invoices[0]), pairs(&[("id", &event_id(2)), ("payload", "")]));
}

// O-25
#[tokio::test]
async fn mode_streams_finds_headers_of_the_wrong_shape_and_streams_that_are_not_allowed_dead() {
    let outbox = Outbox::new().await;
    let _relay = streams_relay(&outbox).await;
    let insert = "INSERT INTO openoutbox_events (event_id, event_type, payload, headers) VALUES";
    let cases = [
        ("orders", r#"{"a": 1}"#, "INVALID_HEADERS"),
        ("orders", r#"{"a": null}"#, "INVALID_HEADERS"),
        ("orders", r#"["a"]"#, "INVALID_HEADERS"),
        ("orders", r#""a""#, "INVALID_HEADERS"),
        ("orders", "null", "INVALID_HEADERS"),
        ("notification:intents", "{}", "STREAM_NOT_ALLOWED"),
        ("orders ", "{}", "STREAM_NOT_ALLOWED"),
        ("", "{}", "STREAM_NOT_ALLOWED"),
    ];
    for (n, (stream, headers, _)) in (0..).zip(cases) {
        outbox.execute(&format!("{insert} ('{}', '{stream}', 'x', '{headers}')", event_id(n))).await;
    }
    for (n, (stream, headers, code)) in (0..).zip(cases) {
        let error = outbox.becomes(&event_id(n), "DEAD").await;
        assert!(error.starts_with(code), "{stream} {headers}: {error}");
    }
    assert!(outbox.entries("orders").await.is_empty() && outbox.entries(INTENTS).await.is_empty());
}

#[tokio::test]
async fn a_stream_that_answers_with_an_error_of_its_own_is_a_failed_attempt_and_dead_at_the_limit() {
    let outbox = Outbox::new().await;
    let mut redis = outbox.world.redis().await;
    redis::cmd("SET").arg(INTENTS).arg("a text").query_async::<()>(&mut redis).await.expect("Redis is there");
    let relay = outbox
        .relay()
        .env("NOTIFICATION_OUTBOX_RETRY_MAX_ATTEMPTS", "2")
        .env("NOTIFICATION_OUTBOX_RETRY_BASE_DELAY", "200ms")
        .start()
        .await;
    outbox.insert(0..1).await;
    let error = outbox.becomes(&event_id(0), "DEAD").await;
    assert!(error.contains("WRONGTYPE"), "{error}");
    assert_eq!(outbox.number("SELECT attempts::bigint FROM openoutbox_events").await, 2);
    shows(&relay, "running").await;

    redis::cmd("DEL").arg(INTENTS).query_async::<()>(&mut redis).await.expect("Redis is there");
    let requeued = outbox.command(&["outbox", "requeue", &event_id(0)]).await;
    assert_eq!(requeued.code, Some(0), "{requeued:?}");
    outbox.becomes(&event_id(0), "DELIVERED").await;
    outbox.check_stream(0..1).await;
}

#[tokio::test]
async fn a_row_that_was_edited_by_hand_harms_no_other() {
    let outbox = Outbox::new().await;
    outbox.insert(0..8).await;
    let check = "SELECT conname::text FROM pg_constraint WHERE conrelid = 'openoutbox_events'::regclass AND contype = 'c'";
    let check = outbox.text(check).await;
    outbox
        .execute(&format!(
            "ALTER TABLE openoutbox_events DROP CONSTRAINT \"{check}\";
             UPDATE openoutbox_events SET status = 'nonsense' WHERE event_id = '{}';
             UPDATE openoutbox_events SET attempts = -7 WHERE event_id = '{}';
             UPDATE openoutbox_events SET status = 'DELIVERING', locked_at = NULL, locked_by = NULL WHERE event_id = '{}';
             UPDATE openoutbox_events SET created_at = 'infinity' WHERE event_id = '{}';
             UPDATE openoutbox_events SET available_at = '-infinity' WHERE event_id = '{}';
             UPDATE openoutbox_events SET attempts = 2147483647 WHERE event_id = '{}';",
            event_id(0), event_id(1), event_id(2), event_id(3), event_id(4), event_id(5),
        ))
        .await;
    let _relay = outbox.relay().start().await;
    for n in [1, 2, 4, 5, 6, 7] {
        outbox.becomes(&event_id(n), "DELIVERED").await;
    }
    // Its time cannot be represented.
    let error = outbox.becomes(&event_id(3), "DEAD").await;
    assert!(error.starts_with("invalid_field"), "{error}");
    assert_eq!(outbox.count("nonsense").await, 1);
    outbox.check_stream([1, 2, 4, 5, 6, 7]).await;
}

#[tokio::test]
async fn a_producer_that_holds_a_transaction_open_delays_no_other_event() {
    let outbox = Outbox::new().await;
    let _relay = outbox.relay().start().await;
    let held = outbox.database.client().await;
    held.batch_execute(&format!("BEGIN; {INSERT} {}", event_row(0))).await.expect("it is inserted");
    for n in 1..20 {
        outbox.insert(n..n + 1).await;
        outbox.becomes(&event_id(n), "DELIVERED").await;
    }
    held.batch_execute("COMMIT").await.expect("it is committed");
    outbox.becomes(&event_id(0), "DELIVERED").await;
    outbox.check_stream(0..20).await;
}

#[tokio::test]
async fn an_operator_who_holds_rows_locked_delays_only_these() {
    let outbox = Outbox::new().await;
    let _relay = outbox.relay().start().await;
    outbox.execute(&format!(
        "INSERT INTO openoutbox_events (event_id, event_type, payload, available_at) VALUES ('{}', 'game.turn.ready', \
         convert_to('{}', 'UTF8'), now() + interval '1 second')",
        event_id(0), payload(0),
    )).await;
    let operator = outbox.database.client().await;
    let lock = "BEGIN; SELECT FROM openoutbox_events FOR UPDATE";
    operator.batch_execute(lock).await.expect("it is locked");
    let due = "SELECT count(*) FROM openoutbox_events WHERE available_at <= now()";
    wait_for("the locked event is due", Duration::from_secs(30), async || {
        (outbox.number(due).await == 1).then_some(())
    })
    .await;
    outbox.insert(1..50).await;
    wait_for("the others are delivered", BOUND, async || {
        (outbox.count("DELIVERED").await == 49).then_some(())
    })
    .await;
    operator.batch_execute("COMMIT").await.expect("it is unlocked");
    outbox.becomes(&event_id(0), "DELIVERED").await;
    outbox.check_stream(0..50).await;
}

/// Redis closes the connection after it has rejected a value for its size.
#[tokio::test]
async fn an_event_that_redis_refuses_for_its_size_fails_and_the_others_go_on() {
    let outbox = Outbox::new().await;
    let mut redis = outbox.world.redis().await;
    let limit = redis::cmd("CONFIG").arg(&["SET", "proto-max-bulk-len", "1mb"]).clone();
    limit.query_async::<()>(&mut redis).await.expect("Redis carries it out");
    let large =
        format!("('{}', 'orders', 'x', jsonb_build_object('h', repeat('y', 1500000)), 'k')", event_id(5));
    let small =
        |n: u32| format!("('{}', 'orders', 'x', '{{}}', '{}')", event_id(n), if n == 7 { "k" } else { "" });
    let rows: Vec<String> = (0..10).filter(|n| *n != 5).map(small).collect();
    let insert =
        "INSERT INTO openoutbox_events (event_id, event_type, payload, headers, partition_key) VALUES";
    outbox.execute(&format!("{insert} {large}, {}", rows.join(","))).await;
    let _relay = outbox
        .relay()
        .env("NOTIFICATION_OUTBOX_MODE", "streams")
        .env("NOTIFICATION_OUTBOX_STREAMS", "orders")
        .env("NOTIFICATION_OUTBOX_RETRY_MAX_ATTEMPTS", "2")
        .env("NOTIFICATION_OUTBOX_RETRY_BASE_DELAY", "100ms")
        .start()
        .await;
    let error = outbox.becomes(&event_id(5), "DEAD").await;
    assert!(error.contains("invalid bulk length"), "{error}");
    outbox.drained().await;
    assert_eq!((outbox.count("DELIVERED").await, outbox.entries("orders").await.len()), (9, 9));
    let attempts = "SELECT sum(attempts) FROM openoutbox_events WHERE status = 'DELIVERED'";
    assert_eq!(outbox.number(attempts).await, 0);
}
