//! The table of requests and responses, row by row.

use serde_json::{Value, json};
use state::{MemoryStore, Store};

use super::support::{Answer, BOTH, Options, Server};
use crate::support::Db;

/// The expected response in addition to its status.
#[derive(Clone, Debug)]
enum Expected {
    /// No body and no `ETag`.
    Nothing,
    /// No body, and the version.
    Tag,
    Text(&'static str),
    /// An error with this code.
    Code(&'static str),
    /// These members, possibly with others.
    Members(Value),
    /// The whole body.
    Whole(Value),
}

use Expected::{Code, Members, Nothing, Tag, Text, Whole};

/// Method and path, headers, body, status, other expectations.
type Row = (&'static str, &'static str, &'static str, u16, Expected);

const PATCH: &str = "Content-Type: application/merge-patch+json\r\n";
const PATCH_OF_0: &str = "Content-Type: application/merge-patch+json\r\nIf-Match: \"0\"\r\n";
const PATCH_OF_NONE: &str = "Content-Type: application/merge-patch+json\r\nIf-None-Match: *\r\n";

fn bad(request: &'static str, body: &'static str) -> Row {
    (request, "", body, 400, Code("bad_request"))
}

fn conflict(request: &'static str, body: &'static str, status: Option<&str>) -> Row {
    (request, "", body, 409, Members(json!({"error": "conflict", "current_status": status})))
}

fn document(key: &str, value: Value) -> Expected {
    Members(json!({ "key": key, "value": value }))
}

/// The last page of a list.
fn keys(keys: Value) -> Expected {
    Whole(json!({"keys": keys, "next_after": null}))
}

/// The requests in their order. `<tag>` is the last `ETag`.
fn rows() -> Vec<Row> {
    let sections = [
        probes(),
        absent(),
        writing(),
        status(),
        merging(),
        lists(),
        batches(),
        queries(),
        deleting(),
        values(),
        paths(),
    ];
    sections.concat()
}

fn probes() -> Vec<Row> {
    vec![
        ("GET /healthz", "", "", 200, Text("ok")),
        ("HEAD /healthz", "", "", 200, Text("")),
        ("GET /readyz", "", "", 200, Text("ok")),
    ]
}

fn absent() -> Vec<Row> {
    vec![
        ("GET /keys/a", "", "", 404, Code("key_not_found")),
        ("HEAD /keys/a", "", "", 404, Text("")),
        ("DELETE /keys/a", "", "", 404, Code("key_not_found")),
        ("PATCH /keys/a", PATCH, "{}", 404, Code("key_not_found")),
        conflict("PUT /keys/a?if_status=new", "{}", None),
        ("GET /keys/a", "", "", 404, Code("key_not_found")),
        ("GET /keys/", "", "", 200, keys(json!([]))),
    ]
}

fn writing() -> Vec<Row> {
    vec![
        ("PUT /keys/a", "", r#"{"status":"new","n":1.50}"#, 204, Tag),
        ("GET /keys/a", "", "", 200, document("a", json!({"status": "new", "n": 1.50}))),
        ("HEAD /keys/a", "", "", 200, Text("")),
        ("GET /keys/a", "If-None-Match: <tag>\r\n", "", 304, Tag),
        ("GET /keys/a", "If-None-Match: *\r\n", "", 304, Tag),
        ("PUT /keys/a", "If-Match: <tag>\r\n", r#"{"status":"new","n":2}"#, 204, Tag),
        ("PUT /keys/a", "If-Match: \"0\"\r\n", "1", 412, Code("precondition_failed")),
        ("PUT /keys/a", "If-None-Match: *\r\n", "1", 412, Code("precondition_failed")),
        ("PUT /keys/b", "If-Match: *\r\n", "1", 412, Code("precondition_failed")),
        ("PUT /keys/b", "If-None-Match: *\r\n", "[1,null,\"x\"]", 204, Tag),
    ]
}

fn status() -> Vec<Row> {
    vec![
        conflict("PUT /keys/a?if_status=old", "1", Some("new")),
        conflict("PUT /keys/b?if_status=old", "1", None),
        ("PUT /keys/a?if_status=new", "", r#"{"status":"old"}"#, 204, Tag),
        bad("PUT /keys/a?if_status=", "1"),
        ("PUT /keys/a?if_status=new", "If-Match: \"0\"\r\n", "1", 412, Code("precondition_failed")),
        ("GET /keys/a", "", "", 200, document("a", json!({"status": "old"}))),
    ]
}

fn merging() -> Vec<Row> {
    vec![
        ("PATCH /keys/a", PATCH, r#"{"n":{"m":1},"status":null}"#, 204, Tag),
        ("GET /keys/a", "", "", 200, document("a", json!({"n": {"m": 1}}))),
        ("PATCH /keys/a?if_status=x", PATCH, "{}", 409, Members(json!({"current_status": null}))),
        ("PATCH /keys/a", PATCH_OF_0, "{}", 412, Code("precondition_failed")),
        ("PATCH /keys/absent", PATCH_OF_0, "{}", 404, Code("key_not_found")),
        ("PATCH /keys/a", PATCH_OF_NONE, "{}", 400, Code("bad_request")),
        ("PATCH /keys/a", "Content-Type: application/json\r\n", "{}", 415, Code("unsupported_media_type")),
        ("PATCH /keys/a", "", "{}", 415, Code("unsupported_media_type")),
    ]
}

fn lists() -> Vec<Row> {
    vec![
        ("PUT /keys/c%2F1", "", "true", 204, Tag),
        ("PUT /keys/c/2", "", "null", 204, Tag),
        ("GET /keys/", "", "", 200, keys(json!(["a", "b", "c/1", "c/2"]))),
        ("GET /keys/?prefix=c/", "", "", 200, keys(json!(["c/1", "c/2"]))),
        ("GET /keys/?limit=3", "", "", 200, Whole(json!({"keys": ["a", "b", "c/1"], "next_after": "c/1"}))),
        ("GET /keys/?limit=3&after=c/1", "", "", 200, keys(json!(["c/2"]))),
        ("GET /keys/?limit=4", "", "", 200, keys(json!(["a", "b", "c/1", "c/2"]))),
        ("GET /keys/?limit=10000&prefix=x", "", "", 200, keys(json!([]))),
        bad("GET /keys/?limit=0", ""),
        bad("GET /keys/?limit=10001", ""),
        bad("GET /keys/?limit=-1", ""),
        bad("GET /keys/?limit=", ""),
        bad("GET /keys/?limit=1&limit=1", ""),
        bad("GET /keys/?delimiter=/", ""),
    ]
}

fn batches() -> Vec<Row> {
    vec![
        (
            "POST /keys:batchGet",
            "",
            r#"{"keys":["c/2","absent","a","c/2"]}"#,
            200,
            Members(json!({"rows": [{"key": "c/2"}, {"key": "a"}]})),
        ),
        ("POST /keys:batchGet", "", r#"{"keys":[]}"#, 200, Whole(json!({"rows": []}))),
        bad("POST /keys:batchGet", r#"{"keys":[""]}"#),
        bad("POST /keys:batchGet", r#"{"keys":"a"}"#),
        bad("POST /keys:batchGet", r#"{"keys":[],"more":1}"#),
        bad("POST /keys:batchGet", r#"[["a"]]"#),
        bad("POST /keys:batchGet", ""),
        bad("POST /keys:batchGet?x=1", r#"{"keys":[]}"#),
    ]
}

fn queries() -> Vec<Row> {
    vec![
        (
            "POST /query",
            "",
            "{}",
            200,
            Members(
                json!({"rows": [{"key": "a"}, {"key": "b"}, {"key": "c/1"}, {"key": "c/2"}], "total": 4, "has_more": false, "next_cursor": null}),
            ),
        ),
        (
            "POST /query",
            "",
            r#"{"prefix":"c/","limit":1}"#,
            200,
            Members(json!({"rows": [{"key": "c/1", "value": true}], "total": 1, "has_more": true})),
        ),
        (
            "POST /query",
            "",
            r#"{"filter":{"n":{"$exists":true}},"matched":true}"#,
            200,
            Members(json!({"rows": [{"key": "a"}], "total": 1, "matched": 1})),
        ),
        (
            "POST /query",
            "",
            r#"{"count":true,"prefix":"c/"}"#,
            200,
            Whole(json!({"rows": [], "total": 2, "has_more": false, "next_cursor": null})),
        ),
        bad("POST /query", r#"{"filter":{"n":{"$unknown":1}}}"#),
        bad("POST /query", r#"{"filters":{}}"#),
        bad("POST /query", r#"{"cursor":"x"}"#),
        bad("POST /query", r#"{"limit":10001}"#),
        bad("POST /query", ""),
        bad("POST /query?limit=1", "{}"),
        (
            "POST /query",
            "Content-Type: application/x-www-form-urlencoded\r\n",
            "{}",
            415,
            Code("unsupported_media_type"),
        ),
    ]
}

fn deleting() -> Vec<Row> {
    vec![
        ("DELETE /keys/b", "If-Match: \"0\"\r\n", "", 412, Code("precondition_failed")),
        ("DELETE /keys/b", "If-None-Match: *\r\n", "", 400, Code("bad_request")),
        bad("DELETE /keys/b?if_status=x", ""),
        ("DELETE /keys/b", "If-Match: *\r\n", "", 204, Nothing),
        ("DELETE /keys/b", "If-Match: *\r\n", "", 404, Code("key_not_found")),
    ]
}

fn values() -> Vec<Row> {
    vec![
        bad("PUT /keys/v", ""),
        bad("PUT /keys/v", "{"),
        bad("PUT /keys/v", "1 2"),
        bad("PUT /keys/v", r#""\u0000""#),
        bad("PUT /keys/v", r#""\ud800""#),
        bad("PUT /keys/v", "1e200000"),
        ("PUT /keys/v", "Content-Type: text/plain\r\n", "1", 415, Code("unsupported_media_type")),
        (
            "PUT /keys/v",
            "Content-Type: application/json\r\nContent-Encoding: gzip\r\n",
            "1",
            415,
            Code("unsupported_media_type"),
        ),
        ("PUT /keys/v", "Content-Type: application/json; charset=utf-8\r\n", r#"{"a":1,"a":2}"#, 204, Tag),
        ("GET /keys/v", "", "", 200, document("v", json!({"a": 2}))),
    ]
}

fn paths() -> Vec<Row> {
    vec![
        ("GET /", "", "", 404, Code("not_found")),
        ("GET /keys", "", "", 404, Code("not_found")),
        ("PUT /keysx", "", "1", 404, Code("not_found")),
        ("GET /query/", "", "", 404, Code("not_found")),
        ("GET /%6Beys/a", "", "", 404, Code("not_found")),
        bad("GET /healthz?x=1", ""),
        bad("GET /keys/a?x=1", ""),
    ]
}

fn includes(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => expected
            .iter()
            .all(|(name, expected)| found.get(name).is_some_and(|found| includes(found, expected))),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| includes(found, expected))
        }
        _ => found == expected,
    }
}

fn check(answer: &Answer, expected: &Expected) -> bool {
    match expected {
        Nothing => answer.body.is_empty() && answer.header("etag").is_none(),
        Tag => {
            let tag = answer.etag().trim_matches('"');
            answer.body.is_empty() && tag.parse::<i64>().is_ok_and(|version| version > 0)
        }
        Text(text) => answer.body == *text,
        Code(code) => answer.code() == *code && answer.header("etag").is_none(),
        Members(members) => includes(&answer.json(), members),
        Whole(whole) => answer.json() == *whole,
    }
}

/// Runs all rows over one connection.
async fn run(store: impl Store, transport: super::support::Transport) {
    let server = Server::start(store, transport, Options::default()).await;
    let mut client = server.connect().await;
    let mut tag = String::new();
    for (request, headers, body, status, expected) in rows() {
        let answer = client.ask(request, &headers.replace("<tag>", &tag), body).await;
        assert!(
            answer.status == status && check(&answer, &expected),
            "{transport:?}: {request} {headers:?} {body}: {answer:?}, not {status} {expected:?}"
        );
        if let Some(given) = answer.header("etag") {
            given.clone_into(&mut tag);
        }
    }
}

// K-01
#[tokio::test]
async fn every_row_of_the_table_holds_over_tcp_and_over_a_socket() {
    for transport in BOTH {
        run(MemoryStore::default(), transport).await;
        run(Db::with_table().await.store(), transport).await;
    }
}

// K-01
#[tokio::test]
async fn other_methods_are_405_with_those_that_the_path_takes() {
    for transport in BOTH {
        let server = Server::start(MemoryStore::default(), transport, Options::default()).await;
        let mut client = server.connect().await;
        for (path, allow) in [
            ("/keys/a", "GET, HEAD, PUT, PATCH, DELETE"),
            ("/keys/", "GET"),
            ("/keys/?prefix=x", "GET"),
            ("/keys:batchGet", "POST"),
            ("/query", "POST"),
            ("/healthz", "GET, HEAD"),
            ("/readyz", "GET, HEAD"),
        ] {
            let allowed: Vec<&str> = allow.split(", ").collect();
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE"] {
                let answer = client.ask(&format!("{method} {path}"), "", "").await;
                if allowed.contains(&method) {
                    assert_ne!(answer.status, 405, "{method} {path}");
                } else {
                    assert_eq!((answer.status, answer.code().as_str()), (405, "method_not_allowed"));
                    assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
                }
            }
        }
        let answer = client.ask("HEAD /keys/", "", "").await;
        assert_eq!((answer.status, answer.body.as_str()), (405, ""));
    }
}

#[tokio::test]
async fn a_document_has_its_times_with_microseconds_and_its_version_as_the_etag() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let written = server.ask("PUT /keys/a", "", "1").await;
    let read = server.ask("GET /keys/a", "", "").await;
    assert_eq!(read.etag(), written.etag());
    let body = read.json();
    assert_eq!(format!("\"{}\"", body["version"]), read.etag());
    for time in ["created_at", "updated_at"] {
        let text = body[time].as_str().expect("a time");
        assert!(text.len() == 27 && text.ends_with('Z') && text.as_bytes()[19] == b'.', "{text}");
    }
}

#[tokio::test]
async fn the_digits_of_numbers_come_back() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let digits = "123456789012345678901234567890.123456789012345678901234567890";
    assert_eq!(server.ask("PUT /keys/n", "", digits).await.status, 204);
    let read = server.ask("GET /keys/n", "", "").await;
    assert!(read.body.contains(&format!("\"value\":{digits},")), "{}", read.body);
}

#[tokio::test]
async fn the_observer_is_told_the_operation_and_nothing_that_a_client_chose() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    for request in
        ["GET /keys/a", "HEAD /keys/b", "GET /keys/", "GET /nowhere", "POST /healthz", "GET /healthz"]
    {
        client.ask(request, "", "").await;
    }
    let answered = server.answered.lock().expect("not poisoned").clone();
    let expected = [
        (Some("get"), 404),
        (Some("head"), 404),
        (Some("list"), 200),
        (None, 404),
        (None, 405),
        (Some("healthz"), 200),
    ];
    assert_eq!(answered, expected.map(|(name, status)| (name.map(str::to_owned), status)));
}
