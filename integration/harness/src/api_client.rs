//! Requests to the HTTP API of a service.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::world::*;
use crate::{HttpResponse, Service, ServiceBuilder, request, wait_for};

/// The token of the producer `game_master`.
pub const PRODUCER: &str = "producer-token";
/// The token of the producer `geoprofile`.
pub const OTHER: &str = "other-token";
/// The token of an operator.
pub const OPERATOR: &str = "operator-token";
/// The entries of these tokens, with their SHA-256.
pub const TOKENS: &str = r#"
[[token]]
name = "game"
sha256 = "765221e4754f2968efae220b7185addd7b4a9dbaed428d78c7736b8ae14f4e72"
producer = "game_master"

[[token]]
name = "geo"
sha256 = "6c67163bbed989f232b31acc4f04df54b31285bfc01bd022c735b71e041a4754"
producer = "geoprofile"

[[token]]
name = "ops"
sha256 = "0850123315d21ab90f4f7236408a52ef6dbd6a02a6550e5c10dc73f4d993680e"
role = "operator"
"#;

/// A tokens file, removed with the test.
pub struct TokensFile(
    /// The path.
    pub PathBuf,
);

impl TokensFile {
    /// Writes the file.
    pub fn new(world: &World) -> Self {
        let name = format!("tokens-{}-{}.toml", std::process::id(), world.redis.port());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, TOKENS).expect("there is a temporary folder");
        Self(path)
    }
}

impl Drop for TokensFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// The service with its HTTP API, on a free port.
pub fn with_api(service: ServiceBuilder, tokens: &TokensFile) -> ServiceBuilder {
    service
        .env("NOTIFICATION_API_HTTP_ADDR", "127.0.0.1:0")
        .env("NOTIFICATION_API_TOKENS_FILE", tokens.0.display().to_string())
}

/// `game.turn.ready` for two users, as a body.
pub fn body(turn: u32) -> Value {
    json!({
        "notification_type": "game.turn.ready",
        "audience_kind": "user",
        "recipient_user_ids": ["u-1", "u-2"],
        "occurred_at_ms": 1_775_121_700_000_i64,
        "payload": {"game_id": "game-1", "game_name": "Nova", "turn_number": turn},
    })
}

/// Sends a request with a token. `Err` if the connection ends before the whole response.
pub async fn try_ask(
    addr: &str,
    token: &str,
    method: &str,
    path: &str,
    key: Option<&str>,
    body: &str,
) -> std::io::Result<HttpResponse> {
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("Authorization", bearer.as_str())];
    headers.extend(key.map(|key| ("Idempotency-Key", key)));
    if !body.is_empty() {
        headers.push(("Content-Type", "application/json"));
    }
    request(addr, method, path, &headers, body).await
}

/// Sends a request with a token, and returns the response.
pub async fn ask(
    service: &Service,
    token: &str,
    method: &str,
    path: &str,
    key: Option<&str>,
    body: &str,
) -> HttpResponse {
    try_ask(&service.api_addr(), token, method, path, key, body).await.expect("the API answers")
}

/// Submits an intent as the producer `game_master`.
pub async fn send(service: &Service, key: &str, body: &Value) -> HttpResponse {
    ask(service, PRODUCER, "POST", "/v1/intents", Some(key), &body.to_string()).await
}

/// Sends an intent until it is accepted, as a producer does while the service is not available.
pub async fn accept(service: &Service, key: &str, body: &Value) {
    let answer = wait_for("the intent is answered", BOUND, async || {
        Some(send(service, key, body).await).filter(|answer| answer.status != 503)
    });
    assert_eq!(answer.await.status, 202);
}

/// Sends a GET with a token.
pub async fn read(service: &Service, token: &str, path: &str) -> HttpResponse {
    ask(service, token, "GET", path, None, "").await
}
