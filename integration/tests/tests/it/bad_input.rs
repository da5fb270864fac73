//! Every entry, however bad, has a clear outcome, nothing is lost, and its neighbours are not affected.

use harness::{UserFault, wait_for};

use crate::world::*;

/// Names and values as bytes, in order.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A well-formed intent with one field replaced, removed (no value) or added.
fn with(n: u32, name: &str, value: Option<&[u8]>) -> Fields {
    let mut fields: Fields =
        intent_fields(n).into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    let place = fields.iter().position(|(field, _)| field == name.as_bytes());
    match (place, value) {
        (Some(place), Some(value)) => fields[place].1 = value.to_vec(),
        (Some(place), None) => drop(fields.remove(place)),
        (None, Some(value)) => fields.push((name.into(), value.to_vec())),
        (None, None) => {}
    }
    fields
}

async fn add(world: &World, fields: &[(Vec<u8>, Vec<u8>)]) -> String {
    let pairs: Vec<(&[u8], &[u8])> =
        fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
    world.add(&pairs).await
}

#[tokio::test]
async fn every_kind_of_bad_entry_has_its_code_and_harms_no_neighbour() {
    let world = World::new().await;
    let _service = world.service().start().await;
    let large = vec![b'x'; 300 * 1024];
    let deep = format!("{}1{}", r#"{"a":"#.repeat(70), "}".repeat(70));
    let repeated = {
        let mut fields = with(1, "", None);
        fields.push(fields[0].clone());
        fields
    };
    let long_key = vec![b'k'; 256];
    let cases: Vec<(&str, Fields)> = vec![
        ("entry_too_large", with(1, "payload_json", Some(&large))),
        ("invalid_encoding", with(1, "producer", Some(b"game\xffmaster"))),
        ("repeated_field", repeated),
        ("unknown_field", with(1, "colour", Some(b"red"))),
        ("missing_field", with(1, "payload_json", None)),
        ("missing_field", with(1, "idempotency_key", Some(b""))),
        ("unknown_notification_type", with(1, "notification_type", Some(b"game.turn.unready"))),
        ("producer_not_allowed", with(1, "producer", Some(b"geoprofile"))),
        ("audience_not_allowed", with(1, "audience_kind", Some(b"everybody"))),
        ("invalid_recipients", with(1, "recipient_user_ids_json", Some(b"[]"))),
        ("invalid_field", with(1, "idempotency_key", Some(b"a\0b"))),
        ("invalid_field", with(1, "idempotency_key", Some(&long_key))),
        ("invalid_field", with(1, "occurred_at_ms", Some(b"253402300800000"))),
        ("invalid_payload_json", with(1, "payload_json", Some(deep.as_bytes()))),
        ("invalid_payload_json", with(1, "payload_json", Some(br#"{"turn_number":1e400}"#))),
        ("invalid_payload_json", with(1, "payload_json", Some(br#"{"turn_number":18446744073709551616}"#))),
        ("invalid_payload_json", with(1, "payload_json", Some(br#"{"game_id":"\u0000"}"#))),
        (
            "payload_schema_violation",
            with(1, "payload_json", Some(br#"{"game_id":"g","game_name":"n","turn_number":"1"}"#)),
        ),
    ];
    let mut expected = Vec::new();
    for (n, (code, fields)) in (100..).zip(&cases) {
        expected.push((add(&world, fields).await, (*code).to_owned()));
        world.send([n]).await;
    }
    let neighbours = 100..100 + cases.len() as u32;
    world.settled(cases.len() as i64).await;
    world.check(neighbours).await;

    let rows = world.column("SELECT stream_entry_id || ' ' || failure_code FROM malformed_intents").await;
    let mut rows: Vec<(String, String)> = rows
        .iter()
        .filter_map(|row| row.split_once(' '))
        .map(|(id, code)| (id.to_owned(), code.to_owned()))
        .collect();
    rows.sort();
    expected.sort();
    assert_eq!(rows, expected);
    // Nothing is lost: a byte that is not text, and a NUL, are kept unchanged.
    let raw = world
        .column("SELECT raw_fields::text FROM malformed_intents WHERE failure_code = 'invalid_encoding'")
        .await;
    assert!(raw[0].contains(r#"["producer", {"base64": "Z2FtZf9tYXN0ZXI="}]"#), "{}", raw[0]);
}

#[tokio::test]
async fn a_stream_key_of_the_wrong_type_is_said_and_waited_for() {
    let world = World::new().await;
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(INTENTS).arg("x").query_async::<()>(&mut redis).await.expect("Redis is there");
    let service = world.service().start().await;
    let waiting = intake_waits(&service).await;
    assert!(waiting["cause"].as_str().expect("a cause").contains("WRONGTYPE"), "{waiting}");
    redis::cmd("DEL").arg(INTENTS).query_async::<()>(&mut redis).await.expect("Redis is there");
    world.send(0..3).await;
    world.settled(3).await;
    world.check(0..3).await;
}

// INV-09
#[tokio::test]
async fn an_outbound_key_of_the_wrong_type_spends_the_budget_of_its_channel_and_delays_no_other() {
    let world = World::new().await;
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(PUSH).arg("x").query_async::<()>(&mut redis).await.expect("Redis is there");
    let _service = world
        .service()
        .env("NOTIFICATION_ROUTE_BACKOFF_MIN", "50ms")
        .env("NOTIFICATION_ROUTE_BACKOFF_MAX", "100ms")
        .start()
        .await;
    world.send(0..5).await;
    world.settled(5).await;
    let by_status = world
        .column("SELECT concat_ws(' ', channel, status, attempt_count, count(*)) FROM routes GROUP BY channel, status, attempt_count ORDER BY 1")
        .await;
    assert_eq!(by_status, ["email published 0 10", "push dead_letter 3 10"]);
    let letters = world
        .column("SELECT DISTINCT concat_ws('|', failure_classification, final_attempt_count, failure_message LIKE 'WRONGTYPE%', recovery_hint <> '') FROM dead_letters")
        .await;
    assert_eq!(letters, ["gateway_stream_publish_failed|3|t|t"]);
    world.check_tables().await;
}

#[tokio::test]
async fn a_recreated_stream_with_lower_ids_is_read_from_its_beginning_under_new_ids() {
    let world = World::new().await;
    let _service = world.service().start().await;
    let mut redis = world.redis().await;
    let mut add_at = async |id: &str, n: u32| {
        let mut command = redis::cmd("XADD");
        command.arg(INTENTS).arg(id);
        for (name, value) in intent_fields(n) {
            command.arg(name).arg(value);
        }
        command.query_async::<String>(&mut redis).await.expect("Redis is there")
    };
    add_at("5-0", 1).await;
    add_at("1000-0", 2).await;
    world.settled(2).await;
    redis::cmd("DEL").arg(INTENTS).query_async::<()>(&mut world.redis().await).await.expect("Redis is there");
    add_at("5-0", 3).await;
    add_at("6-0", 4).await;
    world.settled(4).await;
    let ids = world.column("SELECT notification_id || ' ' || idempotency_key FROM records ORDER BY 1").await;
    assert_eq!(
        ids,
        ["1000-0 game-1:turn-2", "5-0 game-1:turn-1", "5-0~1 game-1:turn-3", "6-0 game-1:turn-4"]
    );
    world.check(1..=4).await;
}

#[tokio::test]
async fn a_lost_or_garbled_cached_checkpoint_is_reported_and_intake_resumes_after_the_durable_one() {
    for garbled in
        [None, Some("garbage"), Some("12"), Some("99999999999999-0@x"), Some("1-0@999999999999999")]
    {
        let world = World::new().await;
        let service = world.service().start().await;
        world.send(0..5).await;
        world.settled(5).await;
        let last = world.last_entry().await;
        wait_for("the checkpoint is cached", BOUND, async || {
            (world.cached_entry_id().await.as_ref() == Some(&last)).then_some(())
        })
        .await;
        service.kill().await;
        let mut redis = world.redis().await;
        let mut command = match garbled {
            None => redis::cmd("DEL"),
            Some(_) => redis::cmd("SET"),
        };
        command.arg(CACHED_CHECKPOINT);
        garbled.map(|text| command.arg(text));
        command.query_async::<()>(&mut redis).await.expect("Redis is there");

        let next = world.service().start().await;
        wait_for("the cached checkpoint is fixed", BOUND, async || {
            (world.cached_entry_id().await.as_ref() == Some(&last)).then_some(())
        })
        .await;
        // The line may arrive after the checkpoint.
        wait_for("it is reported", BOUND, async || {
            next.logged(
                "the checkpoint cached in Redis is lost or garbled; resuming after the one in PostgreSQL",
            )
        })
        .await;
        world.send(5..6).await;
        world.settled(6).await;
        world.check(0..6).await;
    }
}

#[tokio::test]
async fn a_route_row_edited_by_hand_is_given_up_with_a_reason_and_harms_no_other() {
    let world = World::new().await;
    let _service = world
        .service()
        .env("NOTIFICATION_ROUTE_BACKOFF_MIN", "50ms")
        .env("NOTIFICATION_ROUTE_BACKOFF_MAX", "100ms")
        .start()
        .await;
    world.send(0..3).await;
    world.settled(3).await;
    // A mistake that an operator might make who wants to send a mail again.
    world
        .execute(
            "UPDATE routes SET status = 'pending', next_attempt_at = now(), updated_at = clock_timestamp(), resolved_email = ''
             WHERE route_id = 'email:user:u-1'",
        )
        .await;
    wait_for("the route is given up", BOUND, async || {
        let row = world.column("SELECT failure_classification FROM dead_letters").await;
        (row == ["payload_encoding_failed"]).then_some(())
    })
    .await;
    world.send(3..4).await;
    world.settled(4).await;
    world.check_tables().await;
}

#[tokio::test]
async fn a_published_route_that_an_operator_sets_back_is_published_again() {
    let world = World::new().await;
    // The shortest TTL that markers can have.
    let _service = world
        .service()
        .env("NOTIFICATION_REDIS_OPERATION_TIMEOUT", "300ms")
        .env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "1s")
        .env("NOTIFICATION_ROUTE_LEASE_TTL", "1s")
        .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "5s")
        .start()
        .await;
    world.send(0..1).await;
    world.settled(1).await;
    // The marker of the first time expires first; until then it is returned.
    let mut redis = world.redis().await;
    wait_for("the receipts have run out", BOUND, async || {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("notification:route_leases:*").query_async(&mut redis).await.ok()?;
        keys.is_empty().then_some(())
    })
    .await;
    world
        .execute("UPDATE routes SET status = 'pending', next_attempt_at = now(), updated_at = clock_timestamp() WHERE channel = 'push'")
        .await;
    wait_for("there are two events for each user", BOUND, async || {
        let pushes: Vec<usize> = world
            .outbound()
            .await
            .iter()
            .filter(|(id, _)| id.contains("/push:"))
            .map(|(_, entries)| entries.len())
            .collect();
        (pushes == [2, 2]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_wrong_or_garbled_answer_of_the_directory_makes_the_stream_wait_and_accepts_no_wrong_user() {
    for fault in [
        UserFault::WrongUser,
        UserFault::Answer(200, "<html>".to_owned()),
        UserFault::Answer(
            200,
            format!(r#"{{"user":{{"user_id":"u-1","email":"{}"}}}}"#, "x".repeat(100_000)),
        ),
        UserFault::Answer(404, r#"{"error":{"code":"no_such_route"}}"#.to_owned()),
        UserFault::Answer(500, "{}".to_owned()),
        UserFault::Answer(302, "{}".to_owned()),
    ] {
        let world = World::new().await;
        world.directory.set_fault("u-1", fault.clone());
        let service = world.service().start().await;
        world.send(1..2).await;
        let waiting = intake_waits(&service).await;
        assert!(
            waiting["cause"].as_str().expect("a cause").contains("user directory"),
            "{fault:?}: {waiting}"
        );
        assert_eq!(world.number("SELECT count(*) FROM records").await, 0, "{fault:?}");
        assert_eq!(world.number("SELECT count(*) FROM malformed_intents").await, 0, "{fault:?}");
        world.directory.clear_faults();
        world.settled(1).await;
    }
}

#[tokio::test]
async fn a_user_id_that_looks_like_a_path_is_asked_for_as_it_is() {
    let world = World::new().await;
    let _service = world.service().start().await;
    let ids = ["..", ".", "a/b", "a b%2F", "ü?x=1#y"];
    let recipients = serde_json::json!(ids).to_string();
    add(&world, &with(1, "recipient_user_ids_json", Some(recipients.as_bytes()))).await;
    world.settled(1).await;
    for id in ids {
        assert_eq!(world.directory.requests_for(id), 1, "{id}");
    }
}
