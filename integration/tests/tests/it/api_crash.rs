//! A replica that is killed while it accepts intents by HTTP: the rows that remain, and the response to a
//! repeated request.

use harness::{Proxy, ServiceBuilder, wait_for};

use crate::api::*;
use crate::world::*;

//
#[tokio::test]
async fn of_fifty_repeats_with_a_crash_in_between_there_is_one_record_and_one_answer() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let tokens = TokensFile::new(&world);
    let lock_ttl = |service: ServiceBuilder| {
        service
            .env("NOTIFICATION_API_REQUEST_TIMEOUT", "2s")
            .env("NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL", "12s")
    };
    let service =
        lock_ttl(with_api(world.service_via(world.redis.port(), postgres.port()), &tokens)).start().await;
    let addr = service.api_addr();
    let accepting = postgres.hold_request(b"Nova");
    let body = body(54).to_string();
    let repeats = |addr: String| {
        let body = body.clone();
        async move {
            let asked = (0..50).map(|_| try_ask(&addr, PRODUCER, "POST", "/v1/intents", Some("k-1"), &body));
            futures_util::future::join_all(asked).await
        }
    };
    let asking = tokio::spawn(repeats(addr));
    accepting.reached(BOUND).await;
    service.kill().await;
    for answer in asking.await.expect("no panic").into_iter().flatten() {
        assert_ne!(answer.status, 202, "nothing was committed: {}", answer.body);
    }
    assert_eq!(world.number("SELECT count(*) FROM records").await, 0);

    let service = lock_ttl(with_api(world.service(), &tokens)).start().await;
    let first = wait_for("the claim of the dead replica has expired", BOUND, async || {
        let answer =
            try_ask(&service.api_addr(), PRODUCER, "POST", "/v1/intents", Some("k-1"), &body).await.ok()?;
        assert!([202, 409].contains(&answer.status), "{}", answer.body);
        (answer.status == 202).then_some(answer)
    })
    .await;
    for answer in repeats(service.api_addr()).await {
        let answer = answer.expect("the API answers");
        assert_eq!((answer.status, &answer.body), (202, &first.body));
    }
    world.settled(1).await;
    assert_eq!(world.outbound().await.len(), 4);
}

// CRASH-15
#[tokio::test]
async fn killed_after_the_claims_nothing_else_is_left_and_a_repeat_waits_until_they_expire() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service_via(world.redis.port(), postgres.port()), &tokens).start().await;
    let at_acceptance = postgres.hold_request(b"Nova");
    let (addr, intent) = (service.api_addr(), body(54).to_string());
    let asked = try_ask(&addr, PRODUCER, "POST", "/v1/intents", Some("k-1"), &intent);
    let killed = async {
        at_acceptance.reached(BOUND).await;
        service.kill().await;
    };
    let (asked, ()) = tokio::join!(asked, killed);
    assert!(asked.is_err(), "the caller learns nothing");
    assert_eq!(world.column("SELECT state FROM idempotency_keys").await, ["pending"]);
    assert_eq!(world.number("SELECT count(*) FROM records").await, 0);

    let service = with_api(world.service(), &tokens).start().await;
    let waiting = send(&service, "k-1", &body(54)).await;
    is(&waiting, 409, "in-progress", "");
    assert!(waiting.header("retry-after").is_some());
    // Simulates that the lock TTL has passed.
    world.execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 second'").await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    world.settled(1).await;
    assert_eq!(world.outbound().await.len(), 4);
}

// CRASH-15
#[tokio::test]
async fn killed_before_the_commit_of_an_intent_for_cached_users_its_key_is_free_at_once() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service_via(world.redis.port(), postgres.port()), &tokens).start().await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202, "both users are cached from now on");
    let at_acceptance = postgres.hold_request(b"Nova");
    let (addr, intent) = (service.api_addr(), body(55).to_string());
    let asked = try_ask(&addr, PRODUCER, "POST", "/v1/intents", Some("k-2"), &intent);
    let killed = async {
        at_acceptance.reached(BOUND).await;
        service.kill().await;
    };
    let (asked, ()) = tokio::join!(asked, killed);
    assert!(asked.is_err(), "the caller learns nothing");
    assert_eq!(world.column("SELECT key FROM idempotency_keys").await, ["k-1"]);
    assert_eq!(world.column("SELECT idempotency_key FROM records").await, ["k-1"]);

    let service = with_api(world.service(), &tokens).start().await;
    assert_eq!(send(&service, "k-2", &body(55)).await.status, 202);
    world.settled(2).await;
    let outbound = world.outbound().await;
    assert_eq!(outbound.len(), 8);
    assert!(outbound.values().all(|entries| entries.len() == 1), "{outbound:?}");
}

// CRASH-16
#[tokio::test]
async fn killed_after_the_commit_before_the_answer_a_repeat_gets_the_stored_answer() {
    let world = World::new().await;
    let postgres = Proxy::start(world.database.port()).await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service_via(world.redis.port(), postgres.port()), &tokens).start().await;
    // The request with the routes contains the COMMIT, too. The one before it contains the stored response,
    // but no address.
    let committing = postgres.hold_reply(b"u-1@example.com");
    let (addr, intent) = (service.api_addr(), body(54).to_string());
    let asked = try_ask(&addr, PRODUCER, "POST", "/v1/intents", Some("k-1"), &intent);
    let killed = async {
        committing.reached(BOUND).await;
        wait_for("it is committed", BOUND, async || {
            (world.number("SELECT count(*) FROM records").await == 1).then_some(())
        })
        .await;
        service.kill().await;
    };
    let (asked, ()) = tokio::join!(asked, killed);
    assert!(asked.is_err(), "the caller learns nothing");
    let stored = world.column("SELECT convert_from(response_body, 'UTF8') FROM idempotency_keys").await;

    let service = with_api(world.service(), &tokens).start().await;
    for _ in 0..2 {
        let repeated = send(&service, "k-1", &body(54)).await;
        assert_eq!((repeated.status, repeated.header("idempotency-replayed")), (202, Some("true")));
        assert_eq!(repeated.body, stored[0]);
    }
    // Their dispatch was lost: they become due one lease TTL after acceptance.
    world.settled(1).await;
    assert_eq!(world.outbound().await.len(), 4);
}
