//! Bytes of an HTTP/1 connection. The first byte chooses how they are sent.

use std::sync::LazyLock;

use axum::Router;
use axum::http::request::Parts;
use axum::routing::{get, post};
use http_server::problem::{FORBIDDEN, Problem, refuse, with_fallbacks};
use http_server::tokens::{AccessTokens, Principal, TokenGuard, token_sha256};
use http_server::{JsonText, RequestId, TrustedProxies};

use super::listener::{Listener, Plain, Sending, first_status};
use crate::Target;

pub(super) const TARGET: Target = Target { name: "http1", max_bytes: 8 * 1024, check };

/// The most bytes that the listener takes of a head that it has not answered: the longest head, and what is
/// in its buffers.
const MAX_UNANSWERED_BYTES: usize = 4 * 64 * 1024;
/// Statuses of the server library's own responses and of the routes below, and no others.
const STATUSES: [u16; 15] = [100, 200, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 429, 431, 505];
/// A token that seeds have.
const TOKEN: &str = "token";

static TOKENS: LazyLock<AccessTokens> = LazyLock::new(|| {
    let hash = hex::encode(token_sha256(TOKEN));
    let text = format!("[[token]]\nname = \"game\"\nsha256 = \"{hash}\"\nproducer = \"game\"\n");
    AccessTokens::from_toml(&text).expect("a file of tokens")
});

fn check(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else { return };
    let listener = Listener { router: router(), refuse, tokens: Some(TOKENS.clone()), tls: None };
    let valid = b"GET /one HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let talk = listener.converse(&Plain, (Sending::of(*first), bytes), valid);
    let status = first_status(&talk.received);
    assert!(status.is_none_or(|status| STATUSES.contains(&status)), "{status:?}");
    let statuses = talk.statuses.iter().map(|status| status.as_u16());
    assert!(statuses.clone().all(|status| STATUSES.contains(&status)), "{:?}", talk.statuses);
    if status.is_none() && talk.statuses.is_empty() {
        assert!(talk.taken <= MAX_UNANSWERED_BYTES, "{} bytes are taken without a response", talk.taken);
    }
    assert_eq!(first_status(&talk.afterwards), Some(200), "a valid request gets no 200 afterwards");
}

fn router() -> Router {
    let length = |JsonText(body): JsonText| async move { format!("length {}", body.len()) };
    let id = |id: RequestId| async move { id.as_str().to_owned() };
    let client = |head: Parts| async move {
        let proxies: TrustedProxies = "192.0.2.0/24".parse().unwrap_or_default();
        format!("{:?}", proxies.client(&head))
    };
    let send = |who: Principal, JsonText(_): JsonText| async move { who.name.to_string() };
    let may_send = |who: &Principal, _: &Parts| match who.producer {
        Some(_) => Ok(()),
        None => Err(Problem::new(FORBIDDEN, "Only a producer's token sends.")),
    };
    let routes = Router::new()
        .route("/one", get(|| async { "one" }))
        .route("/length", post(length))
        .route("/id/{name}", get(id))
        .route("/client", get(client))
        .route("/sent", TokenGuard::new(TOKENS.clone(), 5).protect(post(send), may_send));
    with_fallbacks(routes)
}
