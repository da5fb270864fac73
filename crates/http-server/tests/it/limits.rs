//! Floods: of headers, of garbage, of connections.

use std::time::Duration;

use http_server::Settings;
use tokio::time::{Instant, timeout};

use crate::support::{Client, JSON, LONG, MAX_CONNECTIONS, WHILE, settings, start};

#[tokio::test]
async fn floods_of_headers_and_long_paths_are_refused_without_a_body() {
    let server = start(settings()).await;
    let many: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
    let long = format!("X: {}\r\n", "y".repeat(100 * 1024));
    for (request, status) in [
        (format!("GET /one HTTP/1.1\r\nHost: test\r\n{many}\r\n"), "431"),
        (format!("GET /one HTTP/1.1\r\nHost: test\r\n{long}\r\n"), "431"),
        (format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "x".repeat(100 * 1024)), "4"),
        ("GET /one HTTP/1.1\r\nHost: test\r\nBroken\r\n\r\n".to_owned(), "400"),
        (
            "POST /length HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"
                .to_owned(),
            "400",
        ),
        ("POST /length HTTP/1.1\r\nHost: test\r\nContent-Length: x\r\n\r\nabc".to_owned(), "400"),
        ("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}".to_owned(), "400"),
    ] {
        let mut client = Client::connect(&server).await;
        // The server may have closed before everything was sent.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut client.stream, request.as_bytes()).await;
        let answer = client.until_closed().await;
        let start = &request[..request.len().min(60)];
        // A reset may take the answer.
        assert!(answer.is_empty() || answer.starts_with(&format!("HTTP/1.1 {status}")), "{start}: {answer}");
        assert!(answer.is_empty() || answer.ends_with("\r\n\r\n"), "{start}: {answer}");
    }
}

#[tokio::test]
async fn two_requests_in_one_packet_are_both_answered() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    client.send("GET /one HTTP/1.1\r\nHost: test\r\n\r\nGET /two HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert_eq!(client.answer().await.body, "answer one");
    assert_eq!(client.answer().await.body, "answer two");
}

#[tokio::test]
async fn a_probe_is_answered_while_an_answer_that_nobody_takes_leaves_no_room_for_other_requests() {
    let server = start(Settings { max_buffered_bytes: 1 << 20, ..settings() }).await;
    let mut stalled = Client::connect(&server).await;
    stalled.send("GET /bytes/33554432 HTTP/1.1\r\nHost: test\r\n\r\n").await;
    stalled.stream.readable().await.expect("something comes");
    let mut waiting = Client::connect(&server).await;
    waiting.send("GET /one HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert!(waiting.is_silent().await, "there was room");
    assert_eq!(server.get("/two").await.body, "answer two");
    drop(stalled);
    assert_eq!(waiting.answer().await.body, "answer one");
}

#[tokio::test]
async fn garbage_after_a_request_ends_the_connection_after_its_answer() {
    let server = start(settings()).await;
    let mut client = Client::connect(&server).await;
    let garbage = "\u{1}garbage\r\n\r\n".repeat(10_000);
    let both = format!("POST /length HTTP/1.1\r\nHost: test\r\n{JSON}Content-Length: 3\r\n\r\nabc{garbage}");
    let _ = tokio::io::AsyncWriteExt::write_all(&mut client.stream, both.as_bytes()).await;
    let answers = client.until_closed().await;
    assert!(answers.is_empty() || answers.starts_with("HTTP/1.1 200 "), "{answers}");
    assert!(!answers.contains("HTTP/1.1 5"), "{answers}");
    assert_eq!(server.get("/one").await.status, 200);
}

#[tokio::test]
async fn a_connection_over_the_limit_waits_for_a_busy_one_to_end() {
    let server = start(settings()).await;
    let mut busy = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut client = Client::connect(&server).await;
        client.begin_post("/held", JSON, 2).await;
        client.send("{}").await;
        busy.push(client);
    }
    server.wait_for_held(u32::try_from(MAX_CONNECTIONS).expect("a small number")).await;
    let mut waiting = Client::connect(&server).await;
    waiting.send("GET /one HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert!(waiting.is_silent().await, "more connections than allowed");
    server.release.add_permits(1);
    assert_eq!(waiting.answer().await.status, 200);
}

#[tokio::test]
async fn idle_connections_make_room_the_longest_idle_first() {
    let server = start(settings()).await;
    let mut idle = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut client = Client::connect(&server).await;
        assert_eq!(client.get("/one").await.status, 200);
        idle.push(client);
    }
    // The first one is used again, so the second one is idle for longest.
    assert_eq!(idle[0].get("/one").await.status, 200);
    assert_eq!(server.get("/one").await.status, 200);
    assert_eq!(idle[1].until_closed().await, "");
    assert_eq!(idle[0].get("/one").await.status, 200);
}

#[tokio::test]
async fn connections_that_say_nothing_do_not_keep_others_out() {
    let server = start(settings()).await;
    let begun = Instant::now();
    let mut silent = Vec::new();
    for n in 0..10 * MAX_CONNECTIONS {
        let mut client = Client::connect(&server).await;
        if n % 2 == 0 {
            client.send("GET /one HT").await;
        }
        silent.push(client);
    }
    // All of them wait before it in the backlog.
    assert_eq!(server.get("/one").await.status, 200);
    assert!(begun.elapsed() < LONG, "a connection had to reach the header limit");
    drop(silent);
}

#[tokio::test]
async fn more_requests_than_places_wait_within_their_time() {
    // HTTP/1.1 has one request a connection, so places run out with connections: see the test with HTTP/2.
    let server = start(Settings { max_connections: 1, ..settings() }).await;
    let mut first = Client::connect(&server).await;
    first.begin_post("/held", JSON, 2).await;
    first.send("{}").await;
    server.wait_for_held(1).await;
    let second = timeout(WHILE, server.get("/one")).await;
    assert!(second.is_err(), "two requests at once");
    server.release.add_permits(1);
    assert_eq!(first.answer().await.status, 200);
    assert_eq!(
        timeout(LONG + Duration::from_secs(1), server.get("/one")).await.map(|answer| answer.status),
        Ok(200)
    );
}
