//! Bodies: their exact size limit, their form, and the rest of a rejected body.

use serde_json::json;
use state::MemoryStore;

use super::support::{BOTH, MAX_BODY_BYTES, Options, Server};

/// A JSON string of so many bytes.
fn text_of(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

// K-12
#[tokio::test]
async fn a_body_of_10_mib_is_stored_and_one_byte_more_is_413() {
    for transport in BOTH {
        let server = Server::start(MemoryStore::default(), transport, Options::default()).await;
        let mut client = server.connect().await;
        let largest = text_of(MAX_BODY_BYTES);
        assert_eq!(client.ask("PUT /keys/a", "", &largest).await.status, 204);
        let read = client.ask("GET /keys/a", "", "").await;
        assert!(read.body.contains(&largest), "it came back with {} bytes", read.body.len());
        for request in ["PUT /keys/b", "POST /query", "POST /keys:batchGet"] {
            let answer = client.ask(request, "", text_of(MAX_BODY_BYTES + 1)).await;
            assert_eq!((answer.status, answer.code().as_str()), (413, "too_large"), "{request}");
        }
        assert_eq!(client.ask("GET /keys/b", "", "").await.status, 404);
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_has_the_same_limit() {
    let server = Server::start(MemoryStore::default(), BOTH[1], Options::default()).await;
    for (length, status) in [(MAX_BODY_BYTES, 204), (MAX_BODY_BYTES + 1, 413)] {
        let mut client = server.connect().await;
        client.send("PUT /keys/a HTTP/1.1\r\nHost: state\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        for piece in text_of(length).as_bytes().chunks(1 << 20) {
            client.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).await;
        }
        client.send("0\r\n\r\n").await;
        assert_eq!(client.answer(false).await.status, status, "{length}");
    }
}

// K-12
#[tokio::test]
async fn json_is_nested_64_levels_deep_at_most() {
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    assert_eq!(client.ask("PUT /keys/a", "", nested(64)).await.status, 204);
    for levels in [65, 1_000, 1_000_000] {
        assert_eq!(client.ask("PUT /keys/a", "", nested(levels)).await.code(), "bad_request");
        for request in ["POST /query", "POST /keys:batchGet"] {
            assert_eq!(client.ask(request, "", nested(levels)).await.code(), "bad_request", "{request}");
        }
    }
}

#[tokio::test]
async fn what_is_not_utf_8_is_400() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    for body in [&b"\"\xff\""[..], b"\"\xed\xa0\x80\"", b"\xef\xbb\xbf1", b"\0", b"{\"keys\":[\"\xff\"]}"] {
        for request in ["PUT /keys/a", "POST /query", "POST /keys:batchGet"] {
            assert_eq!(client.ask(request, "", body).await.code(), "bad_request", "{request} {body:?}");
        }
    }
}

#[tokio::test]
async fn a_batch_has_1000_keys_at_most() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    client.ask("PUT /keys/999", "", "1").await;
    let keys = |count: usize| json!({ "keys": (0..count).map(|n| n.to_string()).collect::<Vec<_>>() });
    let answer = client.ask("POST /keys:batchGet", "", keys(1_000).to_string()).await;
    assert_eq!((answer.status, &answer.json()["rows"][0]["key"]), (200, &json!("999")));
    let answer = client.ask("POST /keys:batchGet", "", keys(1_001).to_string()).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"));
}

/// The body of a rejected request looks like a request; it must never be handled as one.
#[tokio::test]
async fn the_body_of_a_refused_request_is_not_the_next_request() {
    let smuggled = "PUT /keys/smuggled HTTP/1.1\r\nHost: state\r\nContent-Length: 1\r\n\r\n1";
    for transport in BOTH {
        let server = Server::start(MemoryStore::default(), transport, Options::default()).await;
        for (request, headers, status) in [
            ("PUT /nowhere", "", 404),
            ("POST /keys/a", "", 405),
            ("GET /keys/a", "", 404),
            ("DELETE /keys/a", "", 404),
            ("GET /healthz", "", 200),
            ("PUT /keys/a", "Content-Type: text/plain\r\n", 415),
            ("PUT /keys/%00", "", 400),
            ("PUT /keys/a", "If-Match: 1\r\n", 400),
            ("PATCH /keys/a", "Content-Encoding: gzip\r\n", 415),
        ] {
            let mut client = server.connect().await;
            // In one piece with the head, and followed by a genuine request.
            let head = format!(
                "{request} HTTP/1.1\r\nHost: state\r\n{headers}Content-Length: {}\r\n\r\n",
                smuggled.len()
            );
            let next = "GET /keys/?prefix=smuggled HTTP/1.1\r\nHost: state\r\n\r\n";
            client.send([&head, smuggled, next].concat()).await;
            let answer = client.answer(false).await;
            assert_eq!(answer.status, status, "{request}: {answer:?}");
            // The connection may be closed instead; a second response must be that of the genuine request.
            if let Some(answer) = client.try_answer(false).await {
                assert_eq!(answer.json(), json!({"keys": [], "next_after": null}), "{request}");
            }
        }
        let listed = server.ask("GET /keys/", "", "").await.json();
        assert_eq!(listed["keys"], json!([]), "a body was carried out as a request");
    }
}

#[tokio::test]
async fn a_refusal_over_the_limit_leaves_no_request_behind_either() {
    let server = Server::start(MemoryStore::default(), BOTH[1], Options::default()).await;
    let mut client = server.connect().await;
    let smuggled = "PUT /keys/smuggled HTTP/1.1\r\nHost: state\r\nContent-Length: 1\r\n\r\n1";
    let body = smuggled.repeat(MAX_BODY_BYTES / smuggled.len() + 1);
    let answer = client.ask("PUT /keys/a", "", &body).await;
    assert_eq!(answer.status, 413);
    assert_eq!(client.ask("GET /keys/", "", "").await.json()["keys"], json!([]));
}
