//! The memory that hostile bodies take.
//!
//! Each body is sent to a real process, whose peak is reset before it. The peak may grow by four times the
//! bytes of the body, and by a fixed amount for the allocator and the threads.

use harness::Service;

use crate::api_client::*;
use crate::world::*;

const MIB: usize = 1 << 20;
/// The memory that a request may take beside four times its body, in bytes: one payload of 64 KiB as a tree
/// on each of two threads, and pages that the allocator keeps.
const ALLOWANCE: u64 = 16 * MIB as u64;

/// Text of about `length` bytes: `before`, repetitions of `item`, and `after`.
fn filled(before: &str, item: &str, length: usize, after: &str) -> String {
    let items = vec![item; (length - before.len() - after.len()) / (item.len() + 1)];
    format!("{before}{}{after}", items.join(","))
}

fn resident(service: &Service) -> u64 {
    harness::memory::resident(service.pid()).expect("it runs")
}

/// Resets the peak to the resident memory, which it returns.
fn reset_peak(service: &Service) -> u64 {
    std::fs::write(format!("/proc/{}/clear_refs", service.pid()), "5").expect("the process is ours");
    resident(service)
}

struct Hostile {
    what: &'static str,
    token: &'static str,
    path: &'static str,
    body: String,
    status: u16,
}

fn table() -> Vec<Hostile> {
    let element = |member: &str| {
        format!(
            r#"{{"intents":[{{"notification_type":"game.turn.ready","audience_kind":"user","idempotency_key":"k","occurred_at_ms":1,{member}"#
        )
    };
    let batch =
        |what, body, status| Hostile { what, token: PRODUCER, path: "/v1/intents:batch", body, status };
    let payload = element(r#""recipient_user_ids":["u-1"],"payload":{"a":["#);
    let long = |item| filled(&payload, item, 8 * MIB - 1_024, "]}}]}");
    let small = filled(
        "{\"payload\":{\"a\":[",
        "{\"a\":0}",
        60 * 1_024,
        "]},\"notification_type\":\"game.turn.ready\",\"audience_kind\":\"user\",\"recipient_user_ids\":[\"u-1\"],\"occurred_at_ms\":1,\"idempotency_key\":\"k\"}",
    );
    vec![
        batch("objects in a payload", long(r#"{"a":0}"#), 200),
        batch("arrays in a payload", long("[]"), 200),
        batch("numbers in a payload", long("1e9"), 200),
        batch("escapes in a payload", long(r#""\u0041""#), 200),
        batch("payloads of the largest size", filled("{\"intents\":[", &small, 8 * MIB - 1_024, "]}"), 200),
        batch("elements that are no objects", filled("{\"intents\":[", "0", 8 * MIB - 1_024, "]}"), 400),
        batch(
            "recipients",
            filled(&element(r#""payload":{},"recipient_user_ids":["#), r#""a""#, 8 * MIB - 1_024, "]}]}"),
            400,
        ),
        batch("members", filled("{\"intents\":[{", r#""a":0"#, 8 * MIB - 1_024, "}]}"), 200),
        batch("empty elements", filled("{\"intents\":[", "{}", 3_000, "]}"), 200),
        Hostile {
            what: "a single intent",
            token: PRODUCER,
            path: "/v1/intents",
            body: filled("{\"payload\":{\"a\":[", r#"{"a":0}"#, MIB - 1_024, "]}}"),
            status: 422,
        },
        Hostile {
            what: "members of a single intent",
            token: PRODUCER,
            path: "/v1/intents",
            body: filled("{", r#""":0"#, MIB - 1_024, "}"),
            status: 422,
        },
        Hostile {
            what: "receipts",
            token: OPERATOR,
            path: "/v1/receipts",
            body: filled("{\"receipts\":[", "0", 8 * MIB - 1_024, "]}"),
            status: 400,
        },
        Hostile {
            what: "conditions of a search",
            token: OPERATOR,
            path: "/v1/notifications:query",
            body: filled("{\"filter\":{\"$and\":[", r#"{"a":0}"#, MIB - 1_024, "]}}"),
            status: 400,
        },
        Hostile {
            what: "ids of dead letters",
            token: OPERATOR,
            path: "/v1/dead-letters:replay",
            body: filled("{\"dry_run\":true,\"ids\":[", r#""""#, MIB - 1_024, "]}"),
            status: 400,
        },
    ]
}

#[tokio::test]
async fn no_body_takes_more_than_four_times_its_bytes() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    // This test is not about time.
    let service = with_api(world.service(), &tokens)
        .env("NOTIFICATION_API_REQUEST_TIMEOUT", "120s")
        .env("NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL", "200s");
    let service = service.start().await;
    assert_eq!(send(&service, "first", &body(54)).await.status, 202);
    let mut failed = Vec::new();
    for Hostile { what, token, path, body, status } in table() {
        // Several at once for the first body alone: a body of 8 MiB takes a debug build seconds.
        let first = what == "objects in a payload";
        for callers in [1, 3].into_iter().take(if first { 2 } else { 1 }) {
            let before = reset_peak(&service);
            let requests = (0..callers).map(|n| {
                let key = format!("{what} {n}");
                let (service, body) = (&service, &body);
                async move { ask(service, token, "POST", path, Some(&key), body).await }
            });
            for answer in futures_util::future::join_all(requests).await {
                if answer.status != status {
                    failed
                        .push(format!("{what}: {} instead of {status}: {:.300}", answer.status, answer.body));
                }
            }
            let grown = service.peak_memory().expect("it runs").saturating_sub(before);
            let allowed = 4 * (callers * body.len()) as u64 + ALLOWANCE;
            println!("{what} x{callers}: {} KiB, {} KiB more at the peak", body.len() / 1_024, grown / 1_024);
            if grown > allowed {
                failed.push(format!("{what} x{callers}: {grown} bytes more, allowed {allowed}"));
            }
        }
    }
    assert_eq!(failed, Vec::<String>::new());
    assert_eq!(send(&service, "last", &crate::api_client::body(55)).await.status, 202);
}
