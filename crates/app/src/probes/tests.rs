//! The responses of the probes, and their format.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceExt;

use super::*;

const BOUND: Duration = Duration::from_secs(60);

async fn ask(state: &ReadyState, method: &str, path: &str) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
    let response = router(state.clone()).oneshot(request).await.expect("infallible");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 4096).await.expect("a short body");
    (status, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test]
async fn the_process_is_alive_in_every_phase_and_ready_in_one() {
    let state = ReadyState::default();
    for (phase, status, word) in
        [(Phase::Starting, 503, "starting"), (Phase::Ready, 200, "ready"), (Phase::Stopping, 503, "stopping")]
    {
        state.set(phase);
        assert_eq!(ask(&state, "GET", "/healthz").await, (200, json!({"status": "ok"})));
        assert_eq!(ask(&state, "GET", "/readyz").await, (status, json!({"status": word})));
    }
}

#[tokio::test]
async fn workers_add_members_but_cannot_change_the_status() {
    let state = ReadyState::default();
    state.set(Phase::Ready);
    state.add_detail("intake", || json!({"waiting_for": "1-0"}));
    state.add_detail("silent", || Value::Null);
    state.add_detail("status", || json!("dancing"));
    let expected = json!({"status": "ready", "intake": {"waiting_for": "1-0"}});
    assert_eq!(ask(&state, "GET", "/readyz").await, (200, expected));
}

#[tokio::test(start_paused = true)]
async fn stats_are_those_of_a_relay_and_unavailable_without_an_answer_in_time() {
    let state = ReadyState::default();
    assert_eq!(ask(&state, "GET", "/stats").await, (404, json!({"error": {"code": "not_found"}})));
    state.set_stats(|| async { Ok(json!({"pending_count": 10})) });
    assert_eq!(ask(&state, "GET", "/stats").await, (200, json!({"pending_count": 10})));
    state.set_stats(|| async { Err("could not read the outbox".to_owned()) });
    let failed = json!({"error": {"code": "unavailable", "cause": "could not read the outbox"}});
    assert_eq!(ask(&state, "GET", "/stats").await, (503, failed));
    state.set_stats(std::future::pending);
    assert_eq!(ask(&state, "GET", "/stats").await.0, 503);
}

#[tokio::test]
async fn anything_else_is_refused_in_json() {
    let state = ReadyState::default();
    assert_eq!(ask(&state, "GET", "/").await, (404, json!({"error": {"code": "not_found"}})));
    assert_eq!(ask(&state, "GET", "/readyz/x").await, (404, json!({"error": {"code": "not_found"}})));
    assert_eq!(ask(&state, "POST", "/readyz").await, (405, json!({"error": {"code": "method_not_allowed"}})));
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_in_json() {
    let listener = http_server::bind(Some("127.0.0.1"), 0).await.expect("a free port");
    let addr = listener.local_addr().expect("bound");
    let timeouts = Timeouts { read_header: BOUND, request: BOUND, idle: BOUND };
    tokio::spawn(serve(listener, ReadyState::default(), timeouts, CancellationToken::new()));
    let mut stream = TcpStream::connect(addr).await.expect("is listening");
    let head =
        format!("POST /readyz HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", MAX_BODY_BYTES + 1);
    stream.write_all(head.as_bytes()).await.expect("is open");
    stream.write_all(&[b'x'; MAX_BODY_BYTES + 1]).await.expect("is open");
    let expected = br#"{"error":{"code":"body_too_large"}}"#;
    let mut response = Vec::new();
    while !response.ends_with(expected) {
        let count = tokio::time::timeout(BOUND, stream.read_buf(&mut response)).await.expect("in time");
        assert_ne!(count.expect("is open"), 0, "{}", String::from_utf8_lossy(&response));
    }
    assert!(response.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&response));
}

#[tokio::test]
async fn metrics_are_there_only_if_prometheus_is_on() {
    let state = ReadyState::default();
    assert_eq!(ask(&state, "GET", "/metrics").await, (404, json!({"error": {"code": "not_found"}})));
    let (exposition, _reader) = Exposition::new().expect("a reader");
    state.set_exposition(Some(exposition));
    let request = Request::builder().uri("/metrics").body(Body::empty()).expect("a request");
    let response = router(state.clone()).oneshot(request).await.expect("infallible");
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
    assert_eq!((response.status().as_u16(), kind.as_deref()), (200, Some("text/plain; version=0.0.4")));
}
