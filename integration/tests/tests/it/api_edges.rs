//! The HTTP API during faults of its files, its dependencies and its callers, and during its stop.

use std::path::Path;
use std::sync::Arc;

use harness::{HttpResponse, Proxy, Service, UserFault, wait_for};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::api::*;
use crate::world::*;

/// The log message about a changed file that is wrong.
const REFUSED: &str = "reload failed; keeping the previous file";
/// A token that is added later, and its entry.
const LATE: &str = "late-token";
const LATE_ENTRY: &str = r#"
[[token]]
name = "late"
sha256 = "a37d12117f072c57ebd30d5036334817604d4661025e83e78e9e8a27774e1282"
producer = "game_master"
"#;

fn intent_for(user: &str) -> Value {
    let mut intent = body(54);
    intent["recipient_user_ids"] = json!([user]);
    intent
}

fn times_logged(service: &Service, message: &str) -> usize {
    service.output().iter().filter(|line| line.contains(message)).count()
}

#[tokio::test]
async fn a_tokens_file_that_is_wrong_ends_the_start_with_2_and_an_empty_one_lets_no_one_in() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let half = &TOKENS[..TOKENS.len() / 2];
    let twice = format!("{TOKENS}{TOKENS}");
    for wrong in [half, twice.as_str(), "[[token]]\nname = \"a\"\n"] {
        std::fs::write(&tokens.0, wrong).expect("it is there");
        let mut service = with_api(world.service(), &tokens).spawn();
        assert_eq!(service.wait_exit(BOUND).await.code(), Some(2), "{wrong}");
        let output = service.output().join("\n");
        assert!(output.contains("NOTIFICATION_API_TOKENS_FILE"), "{output}");
    }
    std::fs::write(&tokens.0, "").expect("it is there");
    let service = with_api(world.service(), &tokens).start().await;
    is(&send(&service, "k-1", &body(54)).await, 401, "unauthorized", "");
}

#[tokio::test]
async fn a_tokens_file_that_becomes_wrong_leaves_the_old_tokens_in_force_and_is_logged_once() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    std::fs::write(&tokens.0, &TOKENS[..TOKENS.len() / 2]).expect("it is there");
    wait_for("the file is refused", BOUND, async || service.logged(REFUSED)).await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    std::fs::write(&tokens.0, format!("{TOKENS}{LATE_ENTRY}")).expect("it is there");
    wait_for("the new token is in force", BOUND, async || {
        let answer = read(&service, LATE, "/v1/notifications").await;
        (answer.status == 200).then_some(())
    })
    .await;
    assert_eq!(times_logged(&service, REFUSED), 1);
}

/// Writes a new certificate for `localhost` to the files that the service reads; returns the roots that a
/// client must trust.
fn renew_certificate(folder: &Path) -> RootCertStore {
    let pair = generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let CertifiedKey { cert, signing_key } = pair;
    std::fs::write(folder.join("cert.pem"), cert.pem()).expect("is written");
    std::fs::write(folder.join("key.pem"), signing_key.serialize_pem()).expect("is written");
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("it is a certificate");
    roots
}

/// The status line of a read by TLS. An error if the certificate is not trusted.
async fn read_by_tls(addr: &str, roots: RootCertStore) -> std::io::Result<String> {
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = connector.connect(name, TcpStream::connect(addr).await?).await?;
    let request = format!(
        "GET /v1/notifications HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {PRODUCER}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let folder = TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let old = renew_certificate(folder.path());
    let service = with_api(world.service(), &tokens)
        .env("NOTIFICATION_API_TLS_CERT_FILE", path("cert.pem"))
        .env("NOTIFICATION_API_TLS_KEY_FILE", path("key.pem"))
        .start()
        .await;
    let addr = service.api_addr();
    let first = read_by_tls(&addr, old.clone()).await.expect("it is trusted");
    assert_eq!(first, "HTTP/1.1 200 OK");
    let new = renew_certificate(folder.path());
    wait_for("the new certificate is used", BOUND, async || read_by_tls(&addr, new.clone()).await.ok()).await;
    read_by_tls(&addr, old).await.expect_err("the old certificate is used no more");
}

#[tokio::test]
async fn every_accepted_intent_has_a_record_when_the_service_is_stopped_under_load() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let mut service = with_api(world.service(), &tokens).start().await;
    let addr = service.api_addr();
    let callers = (0..16).map(|caller| {
        let addr = addr.clone();
        tokio::spawn(async move {
            let mut accepted = Vec::new();
            // Ends when the listener is closed.
            for n in 0.. {
                let (key, intent) = (format!("{caller}-{n}"), body(n).to_string());
                match try_ask(&addr, PRODUCER, "POST", "/v1/intents", Some(&key), &intent).await {
                    Ok(answer) if answer.status == 202 => accepted.push(key),
                    Ok(answer) => assert_eq!(answer.status, 503, "{}", answer.body),
                    Err(_) => break,
                }
            }
            accepted
        })
    });
    let callers: Vec<_> = callers.collect();
    wait_for("many are accepted", BOUND, async || {
        (world.number("SELECT count(*) FROM records").await >= 100).then_some(())
    })
    .await;
    service.signal("TERM");
    assert_eq!(service.wait_exit(BOUND).await.code(), Some(0), "{:?}", service.output());
    let stored = world.column("SELECT idempotency_key FROM records").await;
    for caller in callers {
        for key in caller.await.expect("no panic") {
            assert!(stored.contains(&key), "{key} was answered with 202 and has no record");
        }
    }
    // No claim remains that would make a repeated request wait.
    assert_eq!(world.number("SELECT count(*) FROM idempotency_keys WHERE state = 'pending'").await, 0);
}

#[tokio::test]
async fn without_postgresql_a_caller_is_told_to_retry_and_the_same_key_is_accepted_afterwards() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let postgres = Proxy::start(world.database.port()).await;
    let service = with_api(world.service_via(world.redis.port(), postgres.port()), &tokens).start().await;
    postgres.cut();
    let refused = send(&service, "k-1", &body(54)).await;
    is(&refused, 503, "unavailable", "");
    assert!(refused.header("retry-after").is_some(), "{:?}", refused.headers);
    postgres.heal();
    let accepted = accepted_at_last(&service, "k-1", &body(54)).await;
    assert_eq!(accepted.json()["outcome"], "accepted", "{}", accepted.body);
    world.settled(1).await;
}

/// The first response to an intent that is neither 503 nor 409.
async fn accepted_at_last(service: &Service, key: &str, intent: &Value) -> HttpResponse {
    wait_for("the intent is accepted", BOUND, async || {
        let answer = send(service, key, intent).await;
        assert!([202, 409, 503].contains(&answer.status), "{}", answer.body);
        (answer.status == 202).then_some(answer)
    })
    .await
}

#[tokio::test]
async fn without_redis_intents_are_accepted_and_published_when_it_is_back() {
    let mut world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    world.redis.kill().await;
    let accepted = send(&service, "k-1", &body(54)).await;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    world.redis.start_again().await.expect("it starts again");
    world.settled(1).await;
    let outbound = world.outbound().await;
    assert_eq!(outbound.len(), 4);
    assert!(outbound.values().all(|entries| entries.len() == 1), "{outbound:?}");
}

#[tokio::test]
async fn a_user_whose_look_up_hangs_delays_the_intents_of_no_other() {
    let world = World::new().await;
    world.directory.set_fault("u-hung", UserFault::Hang);
    let tokens = TokensFile::new(&world);
    let service =
        with_api(world.service(), &tokens).env("NOTIFICATION_USER_SERVICE_TIMEOUT", "8s").start().await;
    let (addr, intent) = (service.api_addr(), intent_for("u-hung").to_string());
    let hung = tokio::spawn(async move {
        try_ask(&addr, PRODUCER, "POST", "/v1/intents", Some("hung"), &intent).await.expect("the API answers")
    });
    wait_for("the look-up has begun", BOUND, async || {
        (world.directory.requests_for("u-hung") > 0).then_some(())
    })
    .await;
    for n in 0..20 {
        let answer = send(&service, &format!("k-{n}"), &intent_for("u-1")).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    assert!(!hung.is_finished(), "the others waited for the look-up");
    is(&hung.await.expect("no panic"), 503, "unavailable", "");
    world.directory.clear_faults();
    accepted_at_last(&service, "hung", &intent_for("u-hung")).await;
    world.settled(21).await;
}

#[tokio::test]
async fn paths_and_parameters_that_are_no_text_are_problems_and_never_5xx() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    for (path, status, name) in [
        ("/v1/notifications/%FF", 400, "bad-request"),
        ("/v1/notifications/%C3%28", 400, "bad-request"),
        ("/v1/malformed-intents/%FF", 400, "bad-request"),
        ("/v1/notifications/%00", 404, "not-found"),
        ("/v1/malformed-intents/1-0%00", 404, "not-found"),
        ("/v1/notifications/%", 404, "not-found"),
        ("/v1/notifications/a/b", 404, "not-found"),
        ("/v1/notifications?recipient=%00", 400, "bad-request"),
        ("/v1/malformed-intents/1-0?stream=%00", 400, "bad-request"),
        ("/v1/dead-letters?classification=%00", 400, "bad-request"),
        ("/v1/notifications?cursor=%FF", 400, "bad-request"),
    ] {
        let answer = read(&service, OPERATOR, path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        is(&answer, status, name, "");
    }
    let nul = json!({"ids": ["1-0/push:user:\u{0}"], "dry_run": true}).to_string();
    let plan = ask(&service, OPERATOR, "POST", "/v1/dead-letters:replay", None, &nul).await;
    assert!(plan.status < 500, "{}: {}", plan.status, plan.body);
    let with_body = ask(&service, OPERATOR, "GET", "/v1/notifications", None, "{}").await;
    assert_eq!(with_body.status, 200, "{}", with_body.body);
}

#[tokio::test]
async fn expired_idempotency_keys_are_deleted_by_the_elected_replica_and_others_stay() {
    let world = World::new().await;
    let insert = "INSERT INTO idempotency_keys (scope, key, state, token, fingerprint, expires_at, created_at)
         SELECT 's', n::text, 'pending', 't', 'f', now() + (CASE WHEN n = 1 THEN 1 ELSE -1 END) * interval '1 hour', now()
         FROM generate_series(1, 3000) n";
    world.execute(insert).await;
    let replicas = [
        world.service().start().await,
        world.service().env("NOTIFICATION_CLEANUP_INTERVAL", "1s").start().await,
    ];
    wait_for("the expired keys are deleted", BOUND, async || {
        (world.column("SELECT key FROM idempotency_keys").await == ["1"]).then_some(())
    })
    .await;
    wait_for("it is logged", BOUND, async || {
        replicas.iter().find_map(|replica| replica.logged("retention removed old rows"))
    })
    .await;
}

#[tokio::test]
async fn a_start_logs_of_no_request_that_it_could_not_be_answered() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).env("NOTIFICATION_LOG_LEVEL", "debug").start().await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    assert_eq!(times_logged(&service, "a request could not be answered"), 0);
}
