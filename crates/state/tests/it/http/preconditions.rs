//! Conditions on version and status, in every form that a client may give them.

use state::MemoryStore;

use super::support::{BOTH, Options, Server};

async fn server() -> Server {
    Server::start(MemoryStore::default(), BOTH[1], Options::default()).await
}

const PATCH: &str = "Content-Type: application/merge-patch+json\r\n";

#[tokio::test]
async fn what_is_no_single_strong_quoted_value_is_400_wherever_it_stands() {
    let server = server().await;
    let mut client = server.connect().await;
    client.ask("PUT /keys/a", "", "1").await;
    for value in ["1", "W/\"1\"", "\"1\", \"2\"", "\"1", "", "*, \"1\"", "**", "\"a b\"", "\"1\" "] {
        for (request, name, body) in [
            ("GET /keys/a", "If-None-Match", ""),
            ("HEAD /keys/a", "If-None-Match", ""),
            ("PUT /keys/a", "If-Match", "2"),
            ("PUT /keys/a", "If-None-Match", "2"),
            ("PATCH /keys/a", "If-Match", "{}"),
            ("DELETE /keys/a", "If-Match", ""),
        ] {
            // White space around a value is not part of it.
            if value == "\"1\" " {
                continue;
            }
            let media = if request.starts_with("PATCH") { PATCH } else { "" };
            let answer = client.ask(request, &format!("{media}{name}: {value}\r\n"), body).await;
            assert_eq!(answer.status, 400, "{request} {name}: {value}");
        }
    }
    let twice = "If-Match: \"1\"\r\nIf-Match: \"1\"\r\n";
    assert_eq!(client.ask("PUT /keys/a", twice, "2").await.status, 400);
    let both = "If-Match: *\r\nIf-None-Match: *\r\n";
    assert_eq!(client.ask("PUT /keys/a", both, "2").await.status, 400);
    assert_eq!(client.ask("PUT /keys/a", "If-None-Match: \"1\"\r\n", "2").await.status, 400);
    assert_eq!(client.ask("GET /keys/a", "If-Match: \"1\"\r\n", "").await.status, 400);
    assert_eq!(client.ask("GET /keys/a", "", "").await.json()["value"], 1, "one of them was carried out");
}

#[tokio::test]
async fn a_quoted_value_that_is_no_version_is_412_and_never_304() {
    let server = server().await;
    let mut client = server.connect().await;
    let tag = client.ask("PUT /keys/a", "", "1").await.etag().trim_matches('"').to_owned();
    for value in ["", "x", "*", "-1", "1.0", "99999999999999999999", &format!("0{tag}"), &format!("+{tag}")] {
        for (request, body) in [("PUT /keys/a", "2"), ("PATCH /keys/a", "{}"), ("DELETE /keys/a", "")] {
            let media = if request.starts_with("PATCH") { PATCH } else { "" };
            let answer = client.ask(request, &format!("{media}If-Match: \"{value}\"\r\n"), body).await;
            assert_eq!(answer.code(), "precondition_failed", "{request} {value}");
        }
        let read = client.ask("GET /keys/a", &format!("If-None-Match: \"{value}\"\r\n"), "").await;
        assert_eq!((read.status, &read.json()["value"]), (200, &1.into()), "{value}");
    }
}

// K-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_writers_with_the_same_status_one_wins() {
    let server = server().await;
    server.ask("PUT /keys/a", "", r#"{"status":"pending"}"#).await;
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..64 {
        let mut client = server.connect().await;
        asking.spawn(async move {
            let body = format!(r#"{{"status":"running","by":{number}}}"#);
            client.ask("PUT /keys/a?if_status=pending", "", body).await.status
        });
    }
    let statuses = asking.join_all().await;
    let count = |status| statuses.iter().filter(|given| **given == status).count();
    assert_eq!((count(204), count(409)), (1, 63));
}

#[tokio::test]
async fn a_status_is_compared_as_it_is_decoded() {
    let server = server().await;
    let mut client = server.connect().await;
    for (query, status) in
        [("a%20b", "a b"), ("a+b", "a b"), ("%C3%BC", "ü"), ("a%26b%3D", "a&b="), ("a=b", "a=b")]
    {
        let body = serde_json::json!({ "status": status }).to_string();
        client.ask("PUT /keys/s", "", &body).await;
        let answer = client.ask(&format!("PUT /keys/s?if_status={query}"), "", &body).await;
        assert_eq!(answer.status, 204, "{query}");
    }
    for broken in [
        "if_status=%",
        "if_status=%ff",
        "if_status=%00",
        "if_status",
        "if_status=a&if_status=a",
        "If_Status=a",
    ] {
        let answer = client.ask(&format!("PUT /keys/s?{broken}"), "", "{}").await;
        assert_eq!(answer.code(), "bad_request", "{broken}");
    }
}
