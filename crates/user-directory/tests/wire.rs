//! Bytes on the wire: exact requests, bounds, responses that are not HTTP.

use std::time::{Duration, Instant};

use domain::ports::{Lookup, User, UserDirectory};
use local_servers::{StandInDirectory, UserFault};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use user_directory::{HttpUserDirectory, UserDirectorySettings};

/// Long enough for a busy machine; a test that reaches it fails.
const BOUND: Duration = Duration::from_secs(20);
/// A timeout that tests wait for.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);
/// The largest response body that is read.
const ANSWER_MAX: usize = 64 * 1024;

fn settings(base_url: &str) -> UserDirectorySettings {
    UserDirectorySettings {
        base_url: base_url.parse().expect("a URL"),
        timeout: BOUND,
        concurrency: 8,
        cache_ttl: Duration::from_secs(600),
        cache_entries: 100,
    }
}

fn client(settings: UserDirectorySettings) -> HttpUserDirectory {
    // Another test of this process may have installed it already.
    drop(rustls::crypto::ring::default_provider().install_default());
    HttpUserDirectory::new(settings).expect("there are roots of trust")
}

async fn stand_in() -> (StandInDirectory, HttpUserDirectory) {
    let directory = StandInDirectory::start().await.expect("a free port");
    let client = client(settings(&directory.base_url()));
    (directory, client)
}

async fn look_up(client: &HttpUserDirectory, id: &str) -> Lookup {
    let mut answers = client.look_up(&[id]).await;
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

fn found(email: &str, language: &str) -> Lookup {
    Lookup::Found(User { email: email.to_owned(), preferred_language: language.to_owned() })
}

#[track_caller]
fn reason(lookup: Lookup) -> String {
    let Lookup::Unavailable(reason) = lookup else { panic!("it is an answer: {lookup:?}") };
    reason
}

/// A server that sends `answer` to each request and closes; the channel returns the request heads.
async fn raw_server(answer: Vec<u8>) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}", listener.local_addr().expect("it listens"));
    let (heads, asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (heads, answer) = (heads.clone(), answer.clone());
            tokio::spawn(async move {
                let head = head(&mut stream).await;
                // The test may have ended, and the client may have disconnected.
                drop(heads.send(head));
                drop(stream.write_all(&answer).await);
                drop(stream.shutdown().await);
            });
        }
    });
    (base_url, asked)
}

/// Reads a request up to its empty line.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < ANSWER_MAX {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).expect("a request is text")
}

fn with_body(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into()
}

/// A user as JSON, padded to `size` bytes.
fn user_of_size(size: usize) -> String {
    let json = |filler: &str| format!(r#"{{"user":{{"user_id":"u-1","email":"u@e.com"}},"x":"{filler}"}}"#);
    json(&"x".repeat(size - json("").len()))
}

#[tokio::test]
async fn subject_not_found_counts_with_a_404_only() {
    let (directory, client) = stand_in().await;
    for (status, missing) in [(404, true), (200, false), (400, false), (410, false), (500, false)] {
        directory.set_fault(
            "u-1",
            UserFault::Answer(status, r#"{"error":{"code":"subject_not_found"}}"#.to_owned()),
        );
        let lookup = look_up(&client, "u-1").await;
        assert_eq!(lookup == Lookup::Missing, missing, "{status}: {lookup:?}");
        assert!(missing || matches!(lookup, Lookup::Unavailable(_)), "{status}: {lookup:?}");
    }
}

#[tokio::test]
async fn every_other_status_is_unavailable_and_named_whatever_its_body() {
    let (directory, client) = stand_in().await;
    let body = r#"{"user":{"user_id":"u-1","email":"u-1@example.com","preferred_language":"en"}}"#;
    for (status, asked_again) in [
        (201, false),
        (203, false),
        (206, false),
        (304, false),
        (401, false),
        (403, false),
        (429, true),
        (500, false),
        (502, true),
        (503, true),
        (504, true),
    ] {
        let before = directory.requests();
        directory.set_fault("u-1", UserFault::Answer(status, body.to_owned()));
        let reason = reason(look_up(&client, "u-1").await);
        assert!(reason.contains(&format!("status {status}")), "{reason}");
        assert_eq!(directory.requests() - before > 1, asked_again, "{status}");
    }
}

#[tokio::test]
async fn retry_after_is_waited_for_before_a_user_is_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}", listener.local_addr().expect("it listens"));
    let server = tokio::spawn(async move {
        let mut refused_at = None;
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client comes");
            head(&mut stream).await;
            let Some(refused_at) = refused_at else {
                let refusal = b"HTTP/1.1 429 Slow Down\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(refusal).await.expect("the client listens");
                refused_at = Some(Instant::now());
                continue;
            };
            let answer = with_body("404 Not Found", r#"{"error":{"code":"subject_not_found"}}"#);
            stream.write_all(&answer).await.expect("the client listens");
            return refused_at.elapsed();
        }
    });
    assert_eq!(look_up(&client(settings(&base_url)), "u-1").await, Lookup::Missing);
    let waited = server.await.expect("it was asked twice");
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
}

#[tokio::test]
async fn no_users_need_no_request() {
    let (directory, client) = stand_in().await;
    assert_eq!(client.look_up(&[]).await, []);
    assert_eq!(directory.requests(), 0);
}

#[tokio::test]
async fn without_time_or_room_nothing_is_remembered() {
    let directory = StandInDirectory::start().await.expect("a free port");
    let all = settings(&directory.base_url());
    let no_time = UserDirectorySettings { cache_ttl: Duration::ZERO, ..all.clone() };
    let no_room = UserDirectorySettings { cache_entries: 0, ..all };
    for (settings, id) in [(no_time, "u-1"), (no_room, "u-2")] {
        let client = client(settings);
        for _ in 0..2 {
            assert!(matches!(look_up(&client, id).await, Lookup::Found(_)));
        }
        assert_eq!(directory.requests_for(id), 2, "{id}");
    }
}

#[tokio::test]
async fn an_answer_that_begins_and_does_not_go_on_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}", listener.local_addr().expect("it listens"));
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client comes");
        head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").await.expect("it listens");
        // Until the client gives up.
        drop(stream.read_u8().await);
    });
    let client = client(UserDirectorySettings { timeout: SHORT_TIMEOUT, ..settings(&base_url) });
    let reason = reason(look_up(&client, "u-1").await);
    assert!(reason.contains("300ms"), "{reason}");
    tokio::time::timeout(BOUND, server).await.expect("the connection is closed").expect("no panic");
}

#[tokio::test]
async fn a_cause_is_said_once_and_names_no_address() {
    let (mut directory, client) = stand_in().await;
    directory.stop().await;
    let reason = reason(look_up(&client, "u-1").await);
    assert_eq!(reason.matches("refused").count(), 1, "{reason}");
    assert!(!reason.contains("127.0.0.1") && !reason.contains("u-1"), "{reason}");
}

#[tokio::test]
async fn an_answer_may_have_64_kib_and_no_more() {
    let (base_url, _asked) = raw_server(with_body("200 OK", &user_of_size(ANSWER_MAX))).await;
    assert_eq!(look_up(&client(settings(&base_url)), "u-1").await, found("u@e.com", ""));
    let (base_url, _asked) = raw_server(with_body("200 OK", &user_of_size(ANSWER_MAX + 1))).await;
    let reason = reason(look_up(&client(settings(&base_url)), "u-1").await);
    assert!(reason.contains("limit"), "{reason}");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_or_no_http_is_unavailable() {
    let body = user_of_size(200);
    let mut cut_off = with_body("200 OK", &body);
    cut_off.truncate(cut_off.len() - 1);
    for answer in [cut_off, Vec::new(), b"+PONG\r\n".to_vec()] {
        let (base_url, _asked) = raw_server(answer.clone()).await;
        let lookup = look_up(&client(settings(&base_url)), "u-1").await;
        assert!(matches!(lookup, Lookup::Unavailable(_)), "{lookup:?} from {}", answer.escape_ascii());
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (directory, _) = stand_in().await;
    let location = format!("{}/api/v1/internal/users/u-1", directory.base_url());
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"] {
        let answer = format!("HTTP/1.1 {status}\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
        let (base_url, _asked) = raw_server(answer.into()).await;
        let reason = reason(look_up(&client(settings(&base_url)), "u-1").await);
        assert!(reason.contains(&format!("status {}", &status[..3])), "{reason}");
    }
    assert_eq!(directory.requests(), 0);
}

#[tokio::test]
async fn every_user_id_is_one_segment_on_the_wire() {
    let (base_url, mut asked) = raw_server(with_body("500 No", "")).await;
    let client = client(settings(&base_url));
    for (id, segment) in [
        ("u-1_~", "u-1_~"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("../admin", "%2E%2E%2Fadmin"),
        ("a/b", "a%2Fb"),
        ("a\\b", "a%5Cb"),
        ("a?b#c", "a%3Fb%23c"),
        ("%2e%2E", "%252e%252E"),
        ("a b+c", "a%20b%2Bc"),
        ("a;b:c@d", "a%3Bb%3Ac%40d"),
        ("ü😀", "%C3%BC%F0%9F%98%80"),
        ("a\r\nx: y", "a%0D%0Ax%3A%20y"),
    ] {
        reason(look_up(&client, id).await);
        let head = asked.recv().await.expect("it was asked");
        let line = head.lines().next().expect("a request line");
        assert_eq!(line, format!("GET /api/v1/internal/users/{segment} HTTP/1.1"), "{id:?}");
    }
}

#[tokio::test]
async fn the_path_of_the_base_url_is_kept_and_the_host_is_named() {
    for path in ["/users-service/v2", "/users-service/v2/"] {
        let (base_url, mut asked) = raw_server(with_body("500 No", "")).await;
        reason(look_up(&client(settings(&format!("{base_url}{path}"))), "u-1").await);
        let head = asked.recv().await.expect("it was asked");
        assert!(head.starts_with("GET /users-service/v2/api/v1/internal/users/u-1 HTTP/1.1\r\n"), "{head}");
        let host = base_url.strip_prefix("http://").expect("a URL");
        assert!(head.to_lowercase().contains(&format!("\r\nhost: {host}\r\n")), "{head}");
    }
}

#[tokio::test]
async fn as_many_requests_as_allowed_are_under_way_and_no_more() {
    const AT_A_TIME: usize = 3;
    const ROUNDS: usize = 4;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}", listener.local_addr().expect("it listens"));
    let server = tokio::spawn(async move {
        for round in 0..ROUNDS {
            let mut requests = Vec::new();
            for _ in 0..AT_A_TIME {
                let (mut stream, _) = listener.accept().await.expect("a client comes");
                head(&mut stream).await;
                requests.push(stream);
            }
            // A fourth request would have connected together with those three, and would be waiting here.
            let one_more = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
            assert!(one_more.is_err(), "a fourth request in round {round}");
            for mut stream in requests {
                let answer = with_body("404 Not Found", r#"{"error":{"code":"subject_not_found"}}"#);
                stream.write_all(&answer).await.expect("the client listens");
            }
        }
    });
    let client = client(UserDirectorySettings { concurrency: AT_A_TIME, ..settings(&base_url) });
    let ids: Vec<String> = (0..AT_A_TIME * ROUNDS).map(|n| n.to_string()).collect();
    let answers = client.look_up(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(answers, vec![Lookup::Missing; ids.len()]);
    server.await.expect("no request too many");
}

#[tokio::test]
async fn a_concurrency_of_zero_still_sends_requests() {
    let directory = StandInDirectory::start().await.expect("a free port");
    let client = client(UserDirectorySettings { concurrency: 0, ..settings(&directory.base_url()) });
    let answers = tokio::time::timeout(BOUND, client.look_up(&["u-1", "u-2"])).await;
    assert_eq!(answers.expect("it ends"), [found("u-1@example.com", "en"), found("u-2@example.com", "en")]);
}

#[tokio::test]
async fn no_reason_repeats_what_the_directory_said_or_who_was_asked_about() {
    let (directory, client) = stand_in().await;
    let secret = r#"{"user":{"user_id":7,"email":"secret@example.com"},"secret":1}"#;
    for (status, body) in [(200, secret), (200, "secret"), (404, secret), (404, "secret"), (500, secret)] {
        directory.set_fault("private-id", UserFault::Answer(status, body.to_owned()));
        let reason = reason(look_up(&client, "private-id").await);
        for private in ["secret", "private-id", "127.0.0.1"] {
            assert!(!reason.contains(private), "{reason}");
        }
    }
}
