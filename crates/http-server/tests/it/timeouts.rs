//! Time limits of clients and of handlers.

use std::time::Duration;

use http_server::{ListenerSettings, Timeouts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::{Instant, interval};

use crate::support::{
    Client, JSON, LONG, LONG_TIMEOUTS, MAX_BATCH_BYTES, SHORT, Server, WHILE, settings, start,
};

async fn with(timeouts: Timeouts) -> Server {
    start(ListenerSettings { timeouts, ..settings() }).await
}

#[tokio::test]
async fn a_head_that_trickles_in_is_cut_off_at_the_header_limit_with_408() {
    let server = with(Timeouts { read_header: WHILE, ..LONG_TIMEOUTS }).await;
    let begun = Instant::now();
    let (mut reader, mut writer) = Client::connect(&server).await.stream.into_split();
    let mut pace = interval(Duration::from_millis(20));
    let mut endless = b"GET /one HTTP/1.1\r\nX: ".iter().copied().chain(std::iter::repeat(b'x'));
    let mut answer = Vec::new();
    loop {
        tokio::select! {
            outcome = reader.read_buf(&mut answer) => if !matches!(outcome, Ok(1..)) { break },
            _ = pace.tick() => {
                let next = endless.next().expect("is endless");
                // An error is the end, which the reader also sees.
                let _ = writer.write_all(&[next]).await;
            }
        }
        assert!(begun.elapsed() < LONG, "the connection was kept");
    }
    assert!(begun.elapsed() >= WHILE);
    assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_cut_off_at_the_header_limit() {
    let server = with(Timeouts { read_header: SHORT, ..LONG_TIMEOUTS }).await;
    assert_eq!(Client::connect(&server).await.until_closed().await, "");
}

#[tokio::test]
async fn an_idle_connection_outlives_the_other_limits_and_serves_again() {
    let server = with(Timeouts { read_header: SHORT, request: SHORT, idle: LONG }).await;
    let mut client = Client::connect(&server).await;
    // The machine may be too busy for the request limit, which is not tested here.
    while client.get("/one").await.status != 200 {}
    assert!(client.is_silent().await, "the idle connection was closed");
    while client.get("/one").await.status != 200 {}
}

#[tokio::test]
async fn an_idle_connection_is_closed_at_the_idle_limit() {
    let server = with(Timeouts { idle: WHILE, ..LONG_TIMEOUTS }).await;
    let mut client = Client::connect(&server).await;
    let begun = Instant::now();
    assert_eq!(client.get("/one").await.status, 200);
    assert_eq!(client.until_closed().await, "");
    assert!(begun.elapsed() >= WHILE);
}

#[tokio::test]
async fn a_second_head_has_the_header_limit_too() {
    let server = with(Timeouts { read_header: WHILE, ..LONG_TIMEOUTS }).await;
    let mut client = Client::connect(&server).await;
    assert_eq!(client.get("/one").await.status, 200);
    let begun = Instant::now();
    client.send("GET /one ").await;
    assert_eq!(client.answer().await.status, 408);
    assert_eq!(client.until_closed().await, "");
    assert!(begun.elapsed() >= WHILE);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408_at_the_request_limit_and_closes_the_connection() {
    let server = with(Timeouts { request: WHILE, ..LONG_TIMEOUTS }).await;
    let mut client = Client::connect(&server).await;
    let begun = Instant::now();
    client.begin_post("/length", JSON, 9).await;
    client.send("x").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.problem().as_str()), (408, "request-timeout"));
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(client.until_closed().await, "");
    assert!(begun.elapsed() >= WHILE);
}

#[tokio::test]
async fn a_client_whose_body_had_to_wait_for_room_is_not_told_that_it_was_slow() {
    let timeouts = Timeouts { request: Duration::from_secs(2), ..LONG_TIMEOUTS };
    // In addition to the shares there is room for one of the largest bodies.
    let server =
        start(ListenerSettings { timeouts, max_buffered_bytes: 2 * MAX_BATCH_BYTES, ..settings() }).await;
    let begin = async || {
        let mut client = Client::connect(&server).await;
        client.begin_post("/held", JSON, MAX_BATCH_BYTES).await;
        // More than the share, so that the rest is reserved.
        client.send([b'x'; 17 * 1024]).await;
        client
    };
    let mut slow = begin().await;
    assert!(slow.is_silent().await);
    // It gets the room of the first request shortly before its own time is over.
    let mut paused = begin().await;
    assert_eq!(slow.answer().await.status, 408);
    let answer = paused.answer().await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "unavailable"));
}

#[tokio::test]
async fn a_handler_is_told_when_the_first_byte_of_its_request_came() {
    let server = with(LONG_TIMEOUTS).await;
    let mut client = Client::connect(&server).await;
    client.send("GET /started HTTP/1.1\r\n").await;
    assert!(client.is_silent().await);
    client.send("host: localhost\r\n\r\n").await;
    let elapsed: u128 = client.answer().await.body.parse().expect("milliseconds");
    assert!((WHILE.as_millis()..LONG.as_millis()).contains(&elapsed), "{elapsed}");
}

#[tokio::test]
async fn a_handler_that_does_not_end_is_503_at_the_request_limit_and_the_connection_serves_again() {
    let server = with(Timeouts { request: WHILE, ..LONG_TIMEOUTS }).await;
    let mut client = Client::connect(&server).await;
    let answer = client.get("/never").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "unavailable"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(client.get("/bytes/1").await.body, "x");
}

#[tokio::test]
async fn a_handler_that_has_the_whole_body_is_never_408() {
    let server = with(Timeouts { request: WHILE, ..LONG_TIMEOUTS }).await;
    let answer = Client::connect(&server).await.post("/held", JSON, "body").await;
    assert_eq!(answer.problem(), "unavailable");
}

#[tokio::test]
async fn an_answer_that_is_not_taken_ends_the_connection_after_request_and_idle_limit() {
    let timeouts = Timeouts { request: Duration::from_secs(2), idle: WHILE, ..LONG_TIMEOUTS };
    let server = start(ListenerSettings { timeouts, max_connections: 1, ..settings() }).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("is taken");
    let mut stream = socket.connect(server.addr).await.expect("is listening");
    let begun = Instant::now();
    stream.write_all(b"GET /bytes/33554432 HTTP/1.1\r\nHost: test\r\n\r\n").await.expect("is open");
    stream.readable().await.expect("something comes");
    // There is room for a second connection only after the first one is closed.
    assert_eq!(server.get("/one").await.status, 200);
    assert!(begun.elapsed() >= timeouts.request + timeouts.idle);
}

#[tokio::test]
async fn a_refused_body_that_arrives_after_its_answer_begins_no_further_request() {
    let limit = Duration::from_secs(1);
    let server = with(Timeouts { read_header: limit, ..LONG_TIMEOUTS }).await;
    let mut client = Client::connect(&server).await;
    client.begin_post("/length", "", 5).await;
    assert_eq!(client.answer().await.status, 415);
    client.send("12345").await;
    let closed = tokio::time::timeout(limit * 2, client.stream.readable()).await;
    assert!(closed.is_err(), "an idle connection was closed at the header limit");
    assert_eq!(client.get("/one").await.status, 200);
}

#[tokio::test]
async fn a_head_of_which_a_part_came_with_the_request_before_has_the_header_limit_too() {
    let server = with(Timeouts { read_header: WHILE, ..LONG_TIMEOUTS }).await;
    for before in [
        "GET /one HTTP/1.1\r\nHost: test\r\n\r\n".to_owned(),
        format!(
            "POST /length HTTP/1.1\r\nHost: test\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
        ),
        format!("POST /length HTTP/1.1\r\nHost: test\r\n{JSON}Content-Length: 1\r\n\r\nx"),
    ] {
        let mut client = Client::connect(&server).await;
        client.send(format!("{before}GET /one HT")).await;
        assert_eq!(client.answer().await.status, 200, "{before}");
        assert_eq!(client.answer().await.status, 408, "{before}");
        assert_eq!(client.until_closed().await, "");
    }
}
