//! Random requests: whatever a client sends, it gets a response of the contract, and the connection remains
//! usable.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use state::MemoryStore;

use super::support::{BOTH, Client, Options, Server};

/// The number of requests of one run.
const REQUESTS: u32 = 1_500;

const METHODS: [&str; 11] =
    ["GET", "GET", "HEAD", "PUT", "PUT", "PATCH", "DELETE", "POST", "POST", "OPTIONS", "PURGE"];
const CODES: [(u16, &[&str]); 8] = [
    (400, &["bad_request"]),
    (404, &["not_found", "key_not_found"]),
    (405, &["method_not_allowed"]),
    (409, &["conflict"]),
    (412, &["precondition_failed"]),
    (413, &["too_large"]),
    (415, &["unsupported_media_type"]),
    (504, &["timeout"]),
];

#[derive(Clone, Debug)]
struct Drawn {
    method: &'static str,
    target: String,
    headers: String,
    body: Vec<u8>,
    chunked: bool,
}

fn targets() -> impl Strategy<Value = String> {
    let path = prop_oneof![
        6 => prop::collection::vec(
            prop::sample::select(vec!["a", "b", "/", "//", ".", "..", "%2F", "%00", "%ff", "%", "%zz", "%C3%BC", "+", ":", "x"]),
            0..4,
        )
        .prop_map(|parts| format!("/keys/{}", parts.concat())),
        1 => prop::sample::select(vec!["/keys/", "/keys:batchGet", "/query", "/healthz", "/readyz", "/", "/keys", "//", "/.."])
            .prop_map(str::to_owned),
    ];
    let query = prop::collection::vec(
        prop::sample::select(vec![
            "prefix=a",
            "prefix=",
            "limit=1",
            "limit=10000",
            "limit=x",
            "after=a",
            "if_status=new",
            "if_status=",
            "if_status=%00",
            "x=1",
            "&",
            "=",
            "%",
            "prefix=%ff",
            "limit",
        ]),
        0..3,
    );
    (path, query).prop_map(|(path, query)| match query.is_empty() {
        true => path,
        false => format!("{path}?{}", query.join("&")),
    })
}

fn headers() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec![
            "Content-Type: application/json",
            "Content-Type: application/merge-patch+json",
            "Content-Type: text/plain",
            "Content-Type: application/json; charset=latin1",
            "Content-Type:",
            "Content-Encoding: gzip",
            "If-Match: *",
            "If-Match: \"1\"",
            "If-Match: W/\"1\"",
            "If-None-Match: *",
            "If-None-Match: \"2\"",
            "If-None-Match: 1",
            "Authorization: Bearer x",
            "Expect: nothing",
            "Range: bytes=0-1",
            "Accept: text/html",
        ]),
        0..3,
    )
    .prop_map(|headers| headers.iter().map(|header| format!("{header}\r\n")).collect())
}

fn bodies() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "", "1", "{}", "{\"status\":\"new\"}", "{\"status\":null,\"a\":[1]}", "[1,2]", "null", "\"\\u0000\"", "1e400", "1e999999999",
            "{\"keys\":[\"a\",\"b\"]}", "{\"keys\":[\"\"]}", "{\"keys\":1}", "{\"filter\":{\"a\":{\"$gt\":1}}}",
            "{\"filter\":{\"a\":{\"$x\":1}}}", "{\"limit\":-1}", "{\"sort\":[\"-a\"]}", "{\"count\":true}", "{\"cursor\":\"x\"}", "{", "GET / HTTP/1.1\r\n\r\n",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (1_usize..100).prop_map(|levels| "[".repeat(levels).into_bytes()),
    ]
}

fn requests() -> impl Strategy<Value = Drawn> {
    let method = prop::sample::select(METHODS.to_vec());
    (method, targets(), headers(), bodies(), any::<bool>())
        .prop_map(|(method, target, headers, body, chunked)| Drawn { method, target, headers, body, chunked })
}

async fn check(client: &mut Client, drawn: &Drawn) -> Result<(), String> {
    let Drawn { method, target, headers, body, chunked } = drawn;
    let answer = if *chunked {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: state\r\n{headers}Transfer-Encoding: chunked\r\n\r\n"
        );
        let piece = if body.is_empty() {
            Vec::new()
        } else {
            [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()
        };
        client.send([head.as_bytes(), &piece, b"0\r\n\r\n"].concat()).await;
        client.answer(*method == "HEAD").await
    } else {
        client.ask(&format!("{method} {target}"), headers, body).await
    };
    let is_success = [200, 204, 304].contains(&answer.status);
    if !is_success && *method != "HEAD" {
        let codes = CODES.iter().find(|(status, _)| *status == answer.status);
        let codes = codes.ok_or_else(|| format!("an unexpected status: {answer:?}"))?.1;
        if !codes.contains(&answer.code().as_str()) {
            return Err(format!("an unexpected code: {answer:?}"));
        }
    }
    if answer.status >= 500 {
        return Err(format!("a client caused {answer:?}"));
    }
    let alive = client.ask("GET /healthz", "", "").await;
    if (alive.status, alive.body.as_str()) == (200, "ok") {
        Ok(())
    } else {
        Err(format!("{alive:?} after {answer:?}"))
    }
}

// K-01
#[test]
fn whatever_is_sent_is_answered_by_the_contract_and_the_connection_stays_usable() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    for transport in BOTH {
        let server = runtime.block_on(Server::start(MemoryStore::default(), transport, Options::default()));
        let mut runner = TestRunner::new(Config { cases: REQUESTS, ..Config::default() });
        let client = std::cell::RefCell::new(runtime.block_on(server.connect()));
        let outcome = runner.run(&requests(), |drawn| {
            runtime.block_on(check(&mut client.borrow_mut(), &drawn)).map_err(TestCaseError::fail)
        });
        outcome.unwrap_or_else(|failure| panic!("{transport:?}: {failure}"));
    }
}
