//! Operators' changes by HTTP that take longer than their requests.

use harness::wait_for;
use serde_json::json;

use crate::api::*;
use crate::world::*;

#[tokio::test]
async fn an_operators_change_that_outlasts_its_request_is_made_once_and_a_repeat_gets_its_answer() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens)
        .env("NOTIFICATION_PUSH_MAX_ATTEMPTS", "1")
        .env("NOTIFICATION_API_REQUEST_TIMEOUT", "1s")
        .env("NOTIFICATION_POSTGRES_OPERATION_TIMEOUT", "10s")
        .env("NOTIFICATION_PUBLISH_DEDUPE_TTL", "5m")
        .start()
        .await;
    let mut redis = world.redis().await;
    redis::cmd("SET").arg(PUSH).arg("no stream").query_async::<()>(&mut redis).await.expect("Redis is there");
    world.send([1]).await;
    wait_for("the push routes are dead letters", BOUND, async || {
        (world.number("SELECT count(*) FROM dead_letters").await == 2).then_some(())
    })
    .await;
    // The change of a chunk takes three times as long as its request may.
    world
        .execute("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3); RETURN NEW; END'")
        .await;
    world
        .execute("CREATE TRIGGER slow BEFORE INSERT ON operator_actions FOR EACH ROW EXECUTE FUNCTION slow()")
        .await;
    let replay = json!({"filter": {"channel": "push"}}).to_string();
    let send = || ask(&service, OPERATOR, "POST", "/v1/dead-letters:replay", Some("r-1"), &replay);
    assert_eq!(send().await.status, 503, "the request takes too long");
    let answer = wait_for("the change has ended", BOUND, async || {
        let answer = send().await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    assert_eq!(answer.json()["replayed"], 2, "{}", answer.body);
    assert_eq!(world.column("SELECT affected::text FROM operator_actions").await, ["2"]);
}
