//! Bytes of an HTTP/1 connection to the state store. The first byte chooses how they are sent.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use state::MemoryStore;
use state::http::{AllowedClients, StateService, refuse, router};

use super::listener::{Listener, Plain, Sending, first_status};
use crate::Target;

pub(super) const TARGET: Target = Target { name: "state_http", max_bytes: 4 * 1024, check };

/// Statuses of the server library's own responses and of the store, and no others.
const STATUSES: [u16; 17] =
    [100, 200, 201, 204, 304, 400, 404, 405, 408, 409, 411, 412, 413, 414, 415, 431, 505];
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(3);

fn check(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else { return };
    let service = StateService {
        store: Arc::new(MemoryStore::default()),
        access: AllowedClients::Everyone,
        statement_timeout: STATEMENT_TIMEOUT,
    };
    let listener = Listener { router: router(service), refuse, tokens: None, tls: None };
    let valid = b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let talk = listener.converse(&Plain, (Sending::of(*first), bytes), valid);
    let status = first_status(&talk.received);
    assert!(status.is_none_or(|status| STATUSES.contains(&status)), "{status:?}");
    let statuses = talk.statuses.iter().map(|status| status.as_u16());
    assert!(statuses.clone().all(|status| STATUSES.contains(&status)), "{:?}", talk.statuses);
    // A response to HEAD has no body; the library's own ones have none either.
    if !talk.statuses.is_empty() && !bytes.starts_with(b"HEAD") {
        check_body(&talk.received);
    }
    assert_eq!(first_status(&talk.afterwards), Some(200), "a valid request gets no 200 afterwards");
}

/// Checks that the body of the first response is JSON, if it has one.
fn check_body(received: &[u8]) {
    let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else { return };
    let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let length = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let Some(body) = received.get(end + 4..end + 4 + length) else { return };
    if length > 0 && header("content-type").is_some_and(|kind| kind.starts_with("application/json")) {
        let json: Result<Value, _> = serde_json::from_slice(body);
        // Documents may have numbers that the library does not read.
        let is_number = json.as_ref().is_err_and(|error| error.to_string().contains("number out of range"));
        assert!(json.is_ok() || is_number, "{json:?}: {}", String::from_utf8_lossy(body));
    }
}
