//! The memory that hostile and large documents take in a process of the state store, with clients on both
//! listeners at once.

use futures_util::future::join_all;
use harness::{HttpResponse, Service, request, request_unix};

use crate::state::State;

/// The maximum memory of the process. The service counts 64 MiB of bodies and responses, and 48 MiB of
/// documents that are being parsed.
const MAX_MEMORY: u64 = 300_000_000;
/// Just below the largest body.
const LARGE: usize = 9 * 1024 * 1024;
const CLIENTS: usize = 30;
/// The number of clients for documents that take long to parse: each listener has room for fewer.
const FEW: usize = 4;
/// The number of exponents whose 4.5 kB become 65 MB when they are written out.
const EXPONENTS: usize = 500;

/// A document with `count` numbers that are short only in a body.
fn exponents(count: usize) -> String {
    format!(r#"{{"x":[{}]}}"#, vec!["1e131071"; count].join(","))
}

/// A text of about `LARGE` bytes: repetitions of `part`.
fn repeated(begin: &str, part: &str, end: &str) -> String {
    let times = LARGE / (part.len() + 1);
    format!("{begin}{}{end}", vec![part; times].join(","))
}

struct Store {
    state: State,
    service: Service,
}

impl Store {
    async fn start(state: State) -> Self {
        let process = state
            .process()
            .env("STATE_PROXY_HTTP_ADDR", "127.0.0.1:0")
            // This test is not about time.
            .env("STATE_PROXY_STATEMENT_TIMEOUT", "100s");
        let service = process.start().await;
        Self { state, service }
    }

    /// Sends a request of one of many clients, which use both listeners alternately.
    async fn ask(&self, client: usize, method: &str, path: &str, body: &str) -> HttpResponse {
        let patch = [("Content-Type", "application/merge-patch+json")];
        let headers = if method == "PATCH" { &patch[..] } else { &[] };
        let answer = if client.is_multiple_of(2) {
            request(&self.service.state_addr(), method, path, headers, body).await
        } else {
            request_unix(&self.state.socket(), method, path, headers, body).await
        };
        answer.expect("it answers")
    }

    /// The statuses of concurrent requests, one for each client, each for a key of its own.
    async fn all(&self, clients: usize, method: &str, body: &str) -> Vec<u16> {
        let each = (0..clients)
            .map(async |client| self.ask(client, method, &format!("/keys/k{client}"), body).await.status);
        join_all(each).await
    }

    fn check_peak(&self, what: &str) {
        let peak = self.service.peak_memory().expect("it runs");
        println!("{what}: {} MB", peak / 1_000_000);
        assert!(peak < MAX_MEMORY, "{what}: {peak} bytes");
    }
}

/// Documents that take the most memory for their bytes in one way or another.
fn hostile() -> [(&'static str, String); 5] {
    [
        ("a long text", format!(r#""{}""#, "x".repeat(LARGE))),
        ("small numbers", repeated("[", "1", "]")),
        ("empty objects", repeated(r#"{"x":["#, "{}", "]}")),
        ("escapes", format!(r#"["{}"]"#, "\\u0001".repeat(LARGE / 6))),
        ("exponents that just fit", exponents(110)),
    ]
}

#[tokio::test]
async fn thirty_clients_with_documents_of_9_mb_on_both_listeners_take_bounded_memory() {
    let mut state = State::new().await;
    for (number, (what, document)) in hostile().into_iter().enumerate() {
        let store = Store::start(state).await;
        let clients = if number == 0 { CLIENTS } else { FEW };
        let steps = [
            ("PUT", &*document, 204),
            ("GET", "", 200),
            ("PATCH", r#"{"a":1}"#, 204),
            ("PATCH", &document, 204),
        ];
        // The document that takes long to parse is parsed less often.
        let steps = if number == 0 { &steps[..] } else { &steps[..3] };
        for &(method, body, expected) in steps {
            let statuses = store.all(clients, method, body).await;
            assert!(
                statuses.iter().all(|status| [expected, 503].contains(status))
                    && statuses.contains(&expected),
                "{what}, {method} {body:.20}: {statuses:?}"
            );
            store.check_peak(&format!("{what}, {method} {body:.20}"));
        }
        let pages = (0..clients).map(|client| store.ask(client, "POST", "/query", r#"{"limit":2}"#));
        let statuses: Vec<u16> = join_all(pages).await.iter().map(|answer| answer.status).collect();
        assert!(statuses.contains(&200), "{what}: {statuses:?}");
        store.check_peak(&format!("{what}, queried"));
        store.service.kill().await;
        state = store.state;
    }
}

#[tokio::test]
async fn queries_and_batches_take_no_more_than_a_few_times_their_bytes() {
    let store = Store::start(State::new().await).await;
    let inner = format!("[{}]", vec!["1"; 999].join(","));
    let arrays = vec![inner; 900].join(",");
    let members: Vec<String> = (0..LARGE / 12).map(|n| format!(r#""m{n:06}":1"#)).collect();
    for (path, body) in [
        ("/query", repeated(r#"{"filter":{"a":{"$contains":["#, "[]", "]}}}")),
        ("/query", format!(r#"{{"filter":{{"a":[{arrays}]}}}}"#)),
        ("/query", format!(r#"{{"filter":{{"a":{{{}}}}}}}"#, members.join(","))),
        ("/keys:batchGet", repeated(r#"{"keys":["#, r#""""#, "]}")),
    ] {
        let asked = (0..FEW).map(async |client| store.ask(client, "POST", path, &body).await.status);
        let statuses = join_all(asked).await;
        assert!(statuses.iter().all(|status| [400, 503].contains(status)), "{body:.40}: {statuses:?}");
        store.check_peak(&format!("{path} {body:.40}"));
    }
}

#[tokio::test]
async fn a_patch_of_very_many_members_takes_bounded_memory() {
    let store = Store::start(State::new().await).await;
    let nulls: Vec<String> = (0..LARGE / 14).map(|n| format!(r#""{n:06}":null"#)).collect();
    let patch = format!("{{{}}}", nulls.join(","));
    assert!((0..FEW).len() == store.all(FEW, "PUT", r#"{"a":1,"000001":2}"#).await.len());
    let statuses = store.all(FEW, "PATCH", &patch).await;
    assert!(statuses.iter().all(|status| *status == 204), "{statuses:?}");
    assert_eq!(store.ask(0, "GET", "/keys/k0", "").await.json()["value"], serde_json::json!({"a": 1}));
    store.check_peak("nulls");
}

/// Another program, or a version without the limit, may have written it.
#[tokio::test]
async fn a_document_that_is_too_large_to_be_read_is_named_and_stays() {
    let store = Store::start(State::new().await).await;
    let put = store.ask(0, "PUT", "/keys/huge", &exponents(EXPONENTS)).await;
    assert_eq!((put.status, put.json()["error"].as_str()), (400, Some("bad_request")), "{}", put.body);
    assert!(put.body.contains("at most 15728640"), "{}", put.body);
    let client = store.state.database.client().await;
    let insert = "INSERT INTO kv (key, value) SELECT key, jsonb_build_object('x', jsonb_agg(n), 's', 's')
                  FROM unnest(ARRAY['huge', 'large']) AS key, generate_series(1, $1) AS g,
                  LATERAL (SELECT ('1' || repeat('0', 131071))::numeric + g AS n WHERE key = 'huge' OR g = 1) AS numbers GROUP BY key";
    client.execute(insert, &[&i32::try_from(EXPONENTS).expect("few")]).await.expect("a document");
    let refused = |answer: &HttpResponse| {
        assert_eq!(
            (answer.status, answer.json()["error"].as_str()),
            (413, Some("too_large")),
            "{}",
            answer.body
        );
        assert!(answer.body.contains("huge"), "{}", answer.body);
    };
    // The others wait for the row.
    let locked = |answer: &HttpResponse| answer.status == 503 && answer.body.contains("nothing was changed");
    for (method, path, body) in [
        ("GET", "/keys/huge", ""),
        ("PATCH", "/keys/huge", r#"{"a":1}"#),
        ("POST", "/query", "{}"),
        ("POST", "/keys:batchGet", r#"{"keys":["huge","large"]}"#),
    ] {
        let answers = join_all((0..FEW).map(|client| store.ask(client, method, path, body))).await;
        let answered: Vec<&HttpResponse> = answers.iter().filter(|answer| !locked(answer)).collect();
        assert!(!answered.is_empty() && (method == "PATCH" || answered.len() == FEW), "{method} {path}");
        answered.into_iter().for_each(refused);
        store.check_peak(&format!("{method} {path}"));
    }
    let heads = (0..CLIENTS).map(|client| store.ask(client, "HEAD", "/keys/huge", ""));
    assert!(join_all(heads).await.iter().all(|head| head.status == 200));
    // A page ends before it, and the others are found.
    let page = store.ask(0, "POST", "/query", r#"{"sort":["-key"]}"#).await.body;
    assert!(page.starts_with(r#"{"rows":[{"key":"large""#), "{page:.100}");
    assert!(page.contains(r#""total":1,"has_more":true"#));
    let count = store.ask(0, "POST", "/query", r#"{"filter":{"s":"s"},"count":true}"#).await.json();
    assert_eq!(count["total"], 2);
    let rows =
        client.query_one("SELECT count(*) FROM kv WHERE octet_length(value::text) > 60000000", &[]).await;
    assert_eq!(rows.expect("a number").get::<_, i64>(0), 1);
    assert_eq!(store.ask(0, "PUT", "/keys/huge", "1").await.status, 204);
    assert_eq!(store.ask(0, "GET", "/keys/huge", "").await.status, 200);
}
