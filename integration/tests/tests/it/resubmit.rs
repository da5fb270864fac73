//! Resubmission of malformed intents, by the command and by HTTP: once their cause is fixed they are
//! accepted, and each is published once.

use harness::{Finished, private_redis, turn_ready, wait_for};
use serde_json::{Value, json};

use crate::api::*;
use crate::world::*;

async fn run(world: &World, line: &str) -> (Finished, Value) {
    let finished = world.service().env("USER", "ada").arguments(line.split_whitespace()).run().await;
    let document = serde_json::from_str(&finished.stdout).unwrap_or_default();
    (finished, document)
}

async fn malformed(world: &World, count: i64) {
    wait_for("the malformed intents are stored", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn intents_without_a_user_are_accepted_and_published_once_after_the_user_was_imported() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    world.directory.remove_user("u-9");
    let service = with_api(world.service(), &tokens).start().await;
    let mut entries = Vec::new();
    for n in 1..=3 {
        entries.push(world.add_draft(turn_ready(["u-9"], &key(n), n)).await);
    }
    let taken = world.add_draft(turn_ready(["u-1"], "taken", 1)).await;
    let conflict = world.add_draft(turn_ready(["u-1"], "taken", 2)).await;
    let broken = world.add(&[(b"idempotency_key", b"k-broken"), (b"producer", b"game_master")]).await;
    malformed(&world, 5).await;
    let (shown, document) = run(&world, &format!("malformed show {conflict} --json")).await;
    let differs = &document["malformed_intents"][0]["conflict"];
    assert_eq!(differs["notification_id"], taken, "{shown:?}");
    assert_eq!(differs["differs"][0]["member"], "payload", "{shown:?}");
    let turn = |side: &str| differs["differs"][0][side]["turn_number"].clone();
    assert_eq!((turn("refused"), turn("accepted")), (json!(2), json!(1)));
    let (explained, _) = run(&world, &format!("explain {conflict}")).await;
    assert!(explained.stdout.contains("it differs in payload"), "{explained:?}");

    let by_code = "malformed resubmit --code recipient_not_found --since 1h --reason imported";
    let (dry, plan) = run(&world, &format!("{by_code} --dry-run --json")).await;
    assert_eq!((dry.code, &plan["count"], &plan["refused"]), (Some(0), &json!(3), &json!(0)), "{dry:?}");
    let body = json!({"filter": {"code": "recipient_not_found"}, "dry_run": true}).to_string();
    let by_http = ask(&service, OPERATOR, "POST", "/v1/malformed-intents:resubmit", None, &body).await;
    assert_eq!((by_http.status, by_http.json()), (200, plan), "{}", by_http.body);
    let refused = ask(&service, PRODUCER, "POST", "/v1/malformed-intents:resubmit", None, &body).await;
    assert_eq!(refused.status, 403);
    assert_eq!(world.number("SELECT count(*) FROM operator_actions").await, 0);

    world.directory.set_user("u-9", "u-9@example.com", "en");
    let body = json!({"ids": [entries[0], broken, conflict]}).to_string();
    for replayed in [None, Some("true")] {
        let done =
            ask(&service, OPERATOR, "POST", "/v1/malformed-intents:resubmit", Some("h-1"), &body).await;
        assert_eq!(
            (done.status, &done.json()["resubmitted"], &done.json()["refused"]),
            (200, &json!(2), &json!(1))
        );
        assert_eq!(done.header("idempotency-replayed"), replayed);
    }
    let (done, report) = run(&world, &format!("{by_code} --yes --json")).await;
    assert_eq!((done.code, &report["resubmitted"]), (Some(0), &json!(2)), "{done:?}");
    let (again, report) = run(&world, &format!("{by_code} --yes --json")).await;
    assert_eq!((again.code, &report["resubmitted"]), (Some(0), &json!(0)), "{again:?}");
    let (refused, _) = run(&world, &format!("malformed resubmit --id {conflict} --yes")).await;
    assert!(refused.code == Some(1) && refused.stdout.contains("belongs to another intent"), "{refused:?}");
    let sql = format!(
        r#"UPDATE malformed_intents SET raw_fields = '[["a", {{"truncated": {{"bytes": 9, "head_base64": "", "sha256": "0"}}}}]]',
            failure_code = 'entry_too_large' WHERE stream_entry_id = '{conflict}'"#
    );
    world.execute(&sql).await;
    let (cut, _) = run(&world, &format!("malformed resubmit --id {conflict} --yes")).await;
    assert!(cut.code == Some(1) && cut.stdout.contains("not all of its fields were kept"), "{cut:?}");
    // As an erasure leaves it.
    world
        .execute(&format!(
            "UPDATE malformed_intents SET raw_fields = '[]' WHERE stream_entry_id = '{conflict}'"
        ))
        .await;
    let body = json!({"filter": {"code": "entry_too_large"}}).to_string();
    let erased = ask(&service, OPERATOR, "POST", "/v1/malformed-intents:resubmit", Some("h-2"), &body).await;
    let report = erased.json();
    assert_eq!(
        (erased.status, &report["resubmitted"], &report["refused"]),
        (200, &json!(0), &json!(1)),
        "{report}"
    );

    world.settled(4).await;
    malformed(&world, 6).await;
    let published = world.outbound().await;
    assert_eq!(published.len(), 8, "four notifications with two routes each: {published:?}");
    assert!(published.values().all(|entries| entries.len() == 1), "{published:?}");
    for entry in &entries {
        let (_, document) = run(&world, &format!("malformed show {entry} --json")).await;
        let new = document["malformed_intents"][0]["resubmitted_entry_id"].as_str().expect("an id");
        let outcome = &document["malformed_intents"][0]["resubmitted_outcome"];
        assert_eq!((&outcome["outcome"], &outcome["notification_id"]), (&json!("accepted"), &json!(new)));
        let (_, found) = run(&world, &format!("explain {entry} --json")).await;
        let outcomes: Vec<&Value> =
            found["found"].as_array().expect("an array").iter().map(|one| &one["outcome"]).collect();
        assert_eq!(outcomes, ["malformed", "accepted"], "{found}");
    }
    let sql =
        format!("SELECT resubmitted_entry_id FROM malformed_intents WHERE stream_entry_id = '{broken}'");
    let again = world.column(&sql).await.remove(0);
    let shown = read(&service, OPERATOR, &format!("/v1/malformed-intents/{again}")).await.json();
    assert_eq!(shown["malformed_intents"][0]["resubmitted_from"], broken, "{shown}");
    let actions = world.column("SELECT action || ' ' || affected FROM operator_actions ORDER BY id").await;
    assert_eq!(actions, ["resubmit_malformed_intents 2", "resubmit_malformed_intents 2"]);
    world.check_audit().await;
}

#[tokio::test]
async fn nothing_is_resubmitted_to_a_redis_that_the_service_does_not_read_or_that_is_away() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    world.directory.remove_user("u-9");
    let service = with_api(world.service(), &tokens).start().await;
    let entry = world.add_draft(turn_ready(["u-9"], "k-1", 1)).await;
    malformed(&world, 1).await;
    world.caught_up().await;
    wait_for("the server of the stream is saved", BOUND, async || {
        (world.number("SELECT count(*) FROM intake WHERE server_run_id IS NOT NULL").await == 1).then_some(())
    })
    .await;

    let elsewhere = private_redis().await;
    let line = format!("malformed resubmit --id {entry} --yes");
    let resubmit = async |addr: String| {
        let command = world.service().env("NOTIFICATION_REDIS_MASTER_ADDR", addr);
        command.arguments(line.split_whitespace()).run().await
    };
    let refused = resubmit(elsewhere.addr()).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("does not have the stream"), "{refused:?}");
    let other = World { redis: elsewhere, ..World::new().await };
    other.add(&[(b"a", b"b")]).await;
    let refused = resubmit(other.redis.addr()).await;
    assert!(refused.code == Some(1) && refused.stderr.contains("on another Redis server"), "{refused:?}");
    let away = resubmit("127.0.0.1:1".to_owned()).await;
    assert!(away.code == Some(1) && away.stderr.contains("To continue, run"), "{away:?}");
    let untouched = "SELECT count(*) FROM malformed_intents WHERE resubmitted_at IS NULL";
    assert_eq!(world.number(untouched).await, 1);
    assert_eq!(world.number("SELECT count(*) FROM operator_actions").await, 0);

    world.redis.pause();
    let body = json!({"ids": [entry]}).to_string();
    let away = ask(&service, OPERATOR, "POST", "/v1/malformed-intents:resubmit", Some("h-1"), &body).await;
    world.redis.resume();
    assert_eq!(away.status, 503, "{}", away.body);
    world.directory.set_user("u-9", "u-9@example.com", "en");
    wait_for("Redis is used again", BOUND, async || {
        let key = Some("h-2");
        let done = ask(&service, OPERATOR, "POST", "/v1/malformed-intents:resubmit", key, &body).await;
        (done.status == 200).then_some(())
    })
    .await;
    world.settled(1).await;
    assert_eq!(world.outbound().await.values().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
}
