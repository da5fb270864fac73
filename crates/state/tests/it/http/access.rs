//! Tokens: the operations and keys that each allows.

use http_server::tokens::AccessTokens;
use serde_json::json;
use sha2::{Digest, Sha256};
use state::MemoryStore;
use state::http::AllowedClients;

use super::support::{Answer, BOTH, Options, Server};

const PATCH: &str = "Content-Type: application/merge-patch+json\r\n";

/// `reader` and `writer` of `a/`, `both` of `a/` and `b/`, `all` of everything, `operator` without
/// `prefixes`.
fn tokens() -> AccessTokens {
    let entry = |name: &str, rest: &str| {
        let hash = hex::encode(Sha256::digest(name));
        format!("[[token]]\nname = {name:?}\nsha256 = \"{hash}\"\n{rest}\n")
    };
    let file = [
        entry("reader", "prefixes = [\"a/\"]"),
        entry("writer", "prefixes = [\"a/\"]\naccess = \"write\""),
        entry("both", "prefixes = [\"a/\", \"b/\"]\naccess = \"write\""),
        entry("all", "prefixes = [\"\"]\naccess = \"write\""),
        entry("operator", "role = \"operator\""),
    ];
    AccessTokens::from_toml(&file.concat()).expect("a right file")
}

async fn server() -> Server {
    let options = Options { access: AllowedClients::Tokens(tokens()), ..Options::default() };
    Server::start(MemoryStore::default(), BOTH[0], options).await
}

async fn ask(server: &Server, token: &str, request: &str, body: &str) -> Answer {
    let media = if request.starts_with("PATCH") { PATCH } else { "" };
    server.ask(request, &format!("{media}Authorization: Bearer {token}\r\n"), body).await
}

#[tokio::test]
async fn without_a_token_that_counts_everything_but_the_probes_is_401() {
    let server = server().await;
    let requests = [
        ("GET /keys/a/1", ""),
        ("PUT /keys/a/1", "1"),
        ("PATCH /keys/a/1", "{}"),
        ("DELETE /keys/a/1", ""),
        ("GET /keys/?prefix=a/", ""),
        ("POST /keys:batchGet", "{\"keys\":[]}"),
        ("POST /query", "{\"prefix\":\"a/\"}"),
    ];
    for (request, body) in requests {
        for headers in [
            "",
            "Authorization: Bearer wrong\r\n",
            "Authorization: Basic cmVhZGVyOg==\r\n",
            "Authorization: Bearer operator\r\n",
        ] {
            let answer = server.ask(request, headers, body).await;
            assert_eq!((answer.status, answer.code().as_str()), (401, "unauthorized"), "{request} {headers}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    for probe in ["GET /healthz", "GET /readyz"] {
        assert_eq!(server.ask(probe, "", "").await.body, "ok");
    }
    // Unknown paths and methods get the same response without a token.
    assert_eq!(server.ask("GET /nowhere", "", "").await.status, 404);
    assert_eq!(server.ask("POST /keys/a", "", "").await.status, 405);
}

#[tokio::test]
async fn a_token_reads_and_writes_its_own_keys_alone() {
    let server = server().await;
    let forbidden = |answer: Answer| answer.status == 403 && answer.code() == "forbidden";
    assert_eq!(ask(&server, "writer", "PUT /keys/a/1", "1").await.status, 204);
    assert_eq!(ask(&server, "reader", "GET /keys/a/1", "").await.status, 200);
    for (request, body) in [("PUT /keys/a/1", "2"), ("PATCH /keys/a/1", "{}"), ("DELETE /keys/a/1", "")] {
        assert!(forbidden(ask(&server, "reader", request, body).await), "{request}");
        assert_eq!(ask(&server, "both", request, body).await.status, 204, "{request}");
    }
    for key in ["a", "A/1", "b/1", "%62/1", "x/a/1"] {
        assert!(forbidden(ask(&server, "writer", &format!("GET /keys/{key}"), "").await), "{key}");
        assert!(forbidden(ask(&server, "writer", &format!("PUT /keys/{key}"), "1").await), "{key}");
    }
    // Keys are taken literally: this one starts with the prefix.
    assert_eq!(ask(&server, "writer", "PUT /keys/a/../b/1", "1").await.status, 204);
    assert_eq!(ask(&server, "writer", "PUT /keys/a%2F2", "1").await.status, 204);
    assert_eq!(ask(&server, "all", "PUT /keys/z", "1").await.status, 204);
}

#[tokio::test]
async fn a_list_a_batch_or_a_query_wider_than_the_token_is_403() {
    let server = server().await;
    for (token, prefix, status) in [
        ("reader", "", 403),
        ("reader", "a", 403),
        ("reader", "a/", 200),
        ("reader", "a/b", 200),
        ("reader", "b/", 403),
        ("both", "b/x", 200),
        ("both", "", 403),
        ("all", "", 200),
    ] {
        let list = ask(&server, token, &format!("GET /keys/?prefix={prefix}"), "").await;
        assert_eq!(list.status, status, "{token} {prefix}");
        let query = ask(&server, token, "POST /query", &json!({ "prefix": prefix }).to_string()).await;
        assert_eq!(query.status, status, "{token} {prefix}");
    }
    assert_eq!(ask(&server, "reader", "GET /keys/", "").await.status, 403);
    assert_eq!(ask(&server, "reader", "POST /query", "{}").await.status, 403);
    let batch = |keys: &[&str]| json!({ "keys": keys }).to_string();
    assert_eq!(ask(&server, "reader", "POST /keys:batchGet", &batch(&["a/1", "a/2"])).await.status, 200);
    assert_eq!(ask(&server, "reader", "POST /keys:batchGet", &batch(&["a/1", "b/2"])).await.status, 403);
}

#[tokio::test]
async fn a_refused_token_is_told_nothing_about_the_document() {
    let server = server().await;
    ask(&server, "all", "PUT /keys/secret", r#"{"status":"x"}"#).await;
    for (request, body) in [
        ("GET /keys/secret", ""),
        ("GET /keys/absent", ""),
        ("PUT /keys/secret?if_status=y", "1"),
        ("PUT /keys/secret?nonsense=y", "1"),
        ("DELETE /keys/absent", ""),
    ] {
        assert_eq!(ask(&server, "writer", request, body).await.status, 403, "{request}");
    }
}
