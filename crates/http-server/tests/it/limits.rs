//! Floods of headers, of garbage and of connections.

use std::time::Duration;

use http_server::ListenerSettings;
use tokio::time::{Instant, timeout};

use crate::support::{Client, JSON, LONG, MAX_BATCH_BYTES, MAX_CONNECTIONS, WHILE, settings, start, tokens};

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
        // A reset may destroy the response.
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
    let server = start(ListenerSettings { max_buffered_bytes: 1 << 20, ..settings() }).await;
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
    // The first connection is used again, so the second one is idle for longest.
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
    // All of them precede it in the backlog.
    assert_eq!(server.get("/one").await.status, 200);
    assert!(begun.elapsed() < LONG, "a connection had to reach the header limit");
    drop(silent);
}

#[tokio::test]
async fn more_requests_than_places_wait_within_their_time() {
    // HTTP/1.1 has one request per connection, so places run out with connections: see the test with HTTP/2.
    let server = start(ListenerSettings { max_connections: 1, ..settings() }).await;
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

#[tokio::test]
async fn refused_clients_that_go_on_sending_make_room_within_seconds() {
    let server = start(settings()).await;
    let mut refused = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut client = Client::connect(&server).await;
        client.begin_post("/sent", JSON, 60_000).await;
        assert_eq!(client.answer().await.status, 401);
        client.send("x").await;
        refused.push(client);
    }
    let begun = Instant::now();
    assert_eq!(server.get("/one").await.status, 200);
    assert!(begun.elapsed() < Duration::from_secs(4), "after {:?}", begun.elapsed());
}

#[tokio::test]
async fn connections_of_unknown_clients_make_room_before_idle_ones_of_known_clients() {
    let server = start(ListenerSettings { tokens: Some(tokens()), ..settings() }).await;
    let mut known = Client::connect(&server).await;
    let token = format!("Authorization: Bearer game-token\r\n{JSON}");
    assert_eq!(known.post("/sent", &token, "{}").await.status, 200);
    let mut slow = Vec::new();
    for _ in 1..MAX_CONNECTIONS {
        let mut client = Client::connect(&server).await;
        client.begin_post("/length", JSON, 9).await;
        slow.push(client);
    }
    let mut other = Client::connect(&server).await;
    assert_eq!(other.post("/sent", &token, "{}").await.status, 200);
    assert_eq!(known.post("/sent", &token, "{}").await.status, 200, "an idle connection was closed");
}

#[tokio::test]
async fn a_connection_is_closed_after_some_requests_without_a_known_token_and_they_are_limited() {
    let server = start(settings()).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let mut client = Client::connect(&server).await;
        let mut made = 0;
        loop {
            let head = "POST /sent HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer wrong\r\nContent-Length: 0\r\n\r\n";
            if tokio::io::AsyncWriteExt::write_all(&mut client.stream, head.as_bytes()).await.is_err() {
                break;
            }
            let Some(answer) = client.try_answer().await else { break };
            statuses.push(answer.status);
            made += 1;
            if answer.status == 429 {
                break;
            }
        }
        assert!(made <= 11, "{made} requests of one connection");
    }
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 30);
    assert_eq!(statuses.last(), Some(&429));
    let mut known = Client::connect(&server).await;
    let token = format!("Authorization: Bearer game-token\r\n{JSON}");
    assert_eq!(known.post("/sent", &token, "{}").await.status, 200, "a known token was refused");
}

#[tokio::test]
async fn announced_bodies_that_do_not_come_keep_no_room_from_others() {
    let settings =
        ListenerSettings { max_buffered_bytes: 4 * MAX_BATCH_BYTES, tokens: Some(tokens()), ..settings() };
    let server = start(settings).await;
    let begin = async |token: &str, sent: usize| {
        let mut client = Client::connect(&server).await;
        let headers = format!("Authorization: Bearer {token}\r\n{JSON}");
        client.begin_post("/batch", &headers, MAX_BATCH_BYTES).await;
        client.send(vec![b'x'; sent]).await;
        client
    };
    let mut announced = Vec::new();
    for _ in 0..8 {
        // Some clients send a byte, some more than their share.
        announced.push(begin("game-token", 1).await);
        announced.push(begin("game-token", 40 * 1024).await);
    }
    let mut other = begin("on-call-token", MAX_BATCH_BYTES).await;
    assert_eq!(other.answer().await.body, format!("length {MAX_BATCH_BYTES}"));
}

#[tokio::test]
async fn heads_that_say_two_things_are_400() {
    let server = start(settings()).await;
    for (line, headers, expected) in [
        ("GET /one", "Host: test\r\n", 200),
        ("GET /one#fragment", "Host: test\r\n", 400),
        ("GET /#/one", "Host: test\r\n", 400),
        ("GET /one?a=1#b", "Host: test\r\n", 400),
        ("GET http://test/one#b", "Host: test\r\n", 400),
        ("GET /one%23fragment", "Host: test\r\n", 404),
        ("GET /one", "", 400),
        ("GET /one", "Host: test\r\nHost: test\r\n", 400),
        (
            "POST /length",
            "Host: test\r\nTransfer-Encoding: gzip, chunked\r\nContent-Type: application/json\r\n",
            400,
        ),
    ] {
        let mut client = Client::connect(&server).await;
        client.send(format!("{line} HTTP/1.1\r\n{headers}\r\n")).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, expected, "{line} {headers}");
        if expected == 400 {
            assert_eq!(answer.problem(), "bad-request");
        }
    }
    // Each request is judged by its own head, regardless of packet boundaries.
    let mut client = Client::connect(&server).await;
    let head = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: test\r\nReferer: /#x\r\n\r\n");
    client.send(format!("{}{}{}", head("/one"), head("/one#x"), head("/two"))).await;
    let statuses = [client.answer().await.status, client.answer().await.status, client.answer().await.status];
    assert_eq!(statuses, [200, 400, 200]);
}
