//! The listener as clients meet it, over real sockets.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout};

use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};

use super::*;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(60);
/// Longer than the short limits, to see that nothing happens.
const WHILE: Duration = Duration::from_millis(240);

const LONG_TIMEOUTS: Timeouts = Timeouts { read_header: LONG, read: LONG, idle: LONG };
const MAX_CONNECTIONS: usize = 32;
const MAX_BODY_BYTES: usize = 64 * 1024;
const REQUEST: &[u8] = b"GET /one HTTP/1.1\r\nHost: test\r\n\r\n";

struct Server {
    addr: SocketAddr,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

async fn start(timeouts: Timeouts) -> Server {
    let listener = bind(Some("127.0.0.1"), 0).await.expect("a free port");
    let (addr, stop) = (listener.local_addr().expect("bound"), CancellationToken::new());
    let router = Router::new()
        .route("/one", get(|| async { "answer one" }))
        .route("/two", get(|| async { "answer two" }))
        .route("/length", post(|body: String| async move { format!("length {}", body.len()) }));
    let settings = Settings {
        max_connections: MAX_CONNECTIONS,
        max_body_bytes: MAX_BODY_BYTES,
        timeouts,
        body_too_large: || (StatusCode::PAYLOAD_TOO_LARGE, "too large").into_response(),
    };
    let serving = tokio::spawn(serve(listener, router, settings, stop.clone()));
    Server { addr, stop, serving }
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.addr).await.expect("is listening")
}

/// Sends a request and reads its response, which is a success.
async fn ask(stream: &mut TcpStream) {
    stream.write_all(REQUEST).await.expect("is open");
    let mut answer = Vec::new();
    while !answer.ends_with(b"answer one") {
        let count = timeout(LONG, stream.read_buf(&mut answer)).await.expect("is answered").expect("is open");
        assert_ne!(count, 0, "closed after {}", String::from_utf8_lossy(&answer));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&answer));
}

/// What still comes until the server closes the connection.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    // Closing with unread bytes resets the connection, which is an end as well.
    let outcome =
        timeout(LONG, stream.read_to_end(&mut rest)).await.expect("the server closes the connection");
    assert!(outcome.is_ok() || rest.is_empty(), "{outcome:?}");
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test]
async fn a_head_that_trickles_in_is_cut_off_at_the_header_limit() {
    let server = start(Timeouts { read_header: WHILE, ..LONG_TIMEOUTS }).await;
    let begun = Instant::now();
    let (mut reader, mut writer) = connect(&server).await.into_split();
    let mut pace = interval(Duration::from_millis(20));
    let mut endless = b"GET /one HTTP/1.1\r\nX: ".iter().copied().chain(std::iter::repeat(b'x'));
    let mut byte = [0; 1];
    loop {
        tokio::select! {
            outcome = reader.read(&mut byte) => {
                assert!(!matches!(outcome, Ok(1..)), "half a head was answered");
                break;
            }
            _ = pace.tick() => {
                let next = endless.next().expect("is endless");
                // An error is the end, which the reader sees too.
                let _ = writer.write_all(&[next]).await;
            }
        }
        assert!(begun.elapsed() < LONG, "the connection was kept");
    }
    assert!(begun.elapsed() >= WHILE);
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_cut_off_at_the_header_limit() {
    let server = start(Timeouts { read_header: SHORT, ..LONG_TIMEOUTS }).await;
    assert_eq!(until_closed(&mut connect(&server).await).await, "");
}

#[tokio::test]
async fn an_idle_connection_outlives_the_header_limit_and_serves_again() {
    let server = start(Timeouts { read_header: SHORT, read: SHORT, idle: LONG }).await;
    let mut stream = connect(&server).await;
    ask(&mut stream).await;
    assert!(timeout(WHILE, stream.read_u8()).await.is_err(), "the idle connection was closed");
    ask(&mut stream).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_at_the_idle_limit() {
    let server = start(Timeouts { idle: WHILE, ..LONG_TIMEOUTS }).await;
    let mut stream = connect(&server).await;
    let begun = Instant::now();
    ask(&mut stream).await;
    assert_eq!(until_closed(&mut stream).await, "");
    assert!(begun.elapsed() >= WHILE);
}

#[tokio::test]
async fn a_second_head_has_the_header_limit_too() {
    let server = start(Timeouts { read_header: WHILE, ..LONG_TIMEOUTS }).await;
    let mut stream = connect(&server).await;
    ask(&mut stream).await;
    let begun = Instant::now();
    stream.write_all(&REQUEST[..9]).await.expect("is open");
    assert_eq!(until_closed(&mut stream).await, "");
    assert!(begun.elapsed() >= WHILE);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up_at_the_read_limit() {
    let server = start(Timeouts { read: WHILE, ..LONG_TIMEOUTS }).await;
    let mut stream = connect(&server).await;
    let begun = Instant::now();
    stream
        .write_all(b"GET /one HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nx")
        .await
        .expect("is open");
    assert_eq!(until_closed(&mut stream).await, "");
    assert!(begun.elapsed() >= WHILE);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let server = start(LONG_TIMEOUTS).await;
    let mut stream = connect(&server).await;
    let head = format!(
        "POST /length HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        MAX_BODY_BYTES + 1
    );
    stream.write_all(head.as_bytes()).await.expect("is open");
    stream.write_all(&vec![b'x'; MAX_BODY_BYTES + 1]).await.expect("is open");
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.expect("an answer");
    assert_eq!(&line, b"HTTP/1.1 413");
}

#[tokio::test]
async fn a_body_within_the_limit_reaches_the_handler_complete() {
    let server = start(LONG_TIMEOUTS).await;
    let mut stream = connect(&server).await;
    let head = format!(
        "POST /length HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {MAX_BODY_BYTES}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("is open");
    stream.write_all(&vec![b'x'; MAX_BODY_BYTES]).await.expect("is open");
    let response = until_closed(&mut stream).await;
    assert!(response.ends_with(&format!("length {MAX_BODY_BYTES}")), "{response}");
}

#[tokio::test]
async fn two_requests_in_one_packet_are_both_answered() {
    let server = start(LONG_TIMEOUTS).await;
    let mut stream = connect(&server).await;
    let both = [REQUEST, b"GET /two HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"].concat();
    stream.write_all(&both).await.expect("is open");
    let answers = until_closed(&mut stream).await;
    assert!(answers.contains("answer one") && answers.ends_with("answer two"), "{answers}");
}

#[tokio::test]
async fn stopping_closes_idle_connections_and_the_listener() {
    let server = start(LONG_TIMEOUTS).await;
    let mut stream = connect(&server).await;
    ask(&mut stream).await;
    server.stop.cancel();
    timeout(LONG, server.serving).await.expect("stops in time").expect("does not panic");
    assert_eq!(until_closed(&mut stream).await, "");
    assert!(TcpStream::connect(server.addr).await.is_err(), "still listening");
}

#[tokio::test]
async fn stopping_does_not_wait_for_a_request_that_never_ends() {
    let server = start(LONG_TIMEOUTS).await;
    let mut stream = connect(&server).await;
    stream.write_all(&REQUEST[..9]).await.expect("is open");
    server.stop.cancel();
    timeout(DRAIN_TIMEOUT * 20, server.serving).await.expect("stops in time").expect("does not panic");
}

#[tokio::test]
async fn a_connection_over_the_limit_waits_for_another_to_end() {
    let server = start(LONG_TIMEOUTS).await;
    let mut taken = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = connect(&server).await;
        ask(&mut stream).await;
        taken.push(stream);
    }
    let mut waiting = connect(&server).await;
    waiting.write_all(REQUEST).await.expect("the system takes it");
    assert!(timeout(WHILE, waiting.readable()).await.is_err(), "more connections than allowed");
    taken.pop();
    timeout(LONG, waiting.readable()).await.expect("is served").expect("is open");
}

#[tokio::test]
async fn an_address_without_a_host_is_reached_from_this_machine() {
    let listener = bind(None, 0).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    assert_ne!(port, 0);
    TcpStream::connect(("127.0.0.1", port)).await.expect("is reached by IPv4");
}
