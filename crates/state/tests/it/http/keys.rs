//! Keys in paths: taken literally, to the byte.

use serde_json::json;
use state::{MAX_KEY_BYTES, MemoryStore};

use super::support::{BOTH, Options, Server};
use crate::support::Db;

/// The path of a key, with everything encoded that is not a letter or a digit.
fn encoded(key: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    key.bytes().map(byte).collect()
}

#[tokio::test]
async fn every_key_is_a_document_of_its_own_however_its_path_is_written() {
    let keys = [
        "/",
        "//",
        "///",
        ".",
        "..",
        "./a",
        "../a",
        "a/../b",
        "a/./b",
        "a//b",
        "a/",
        "/a",
        " ",
        "a b",
        "%",
        "%2F",
        "%252F",
        "+",
        "?",
        "#",
        "&",
        "=",
        ":",
        ":batchGet",
        "query",
        "keys/",
        "\"",
        "\\",
        "{}",
        "ü",
        "\u{10ffff}",
        "\u{7f}",
        "\n",
        "\u{1}",
        "😀",
        "healthz",
    ];
    for transport in BOTH {
        let server = Server::start(MemoryStore::default(), transport, Options::default()).await;
        let mut client = server.connect().await;
        for key in keys {
            let request = format!("PUT /keys/{}", encoded(key));
            let answer = client.ask(&request, "", json!(key).to_string()).await;
            assert_eq!(answer.status, 204, "{key:?}");
        }
        for key in keys {
            let read = client.ask(&format!("GET /keys/{}", encoded(key)), "", "").await.json();
            assert_eq!((&read["key"], &read["value"]), (&json!(key), &json!(key)));
        }
        // Unencoded, where that is possible.
        for key in
            ["/", "//", ".", "..", "../a", "a/../b", "a/./b", "a//b", "a/", "/a", "+", ":batchGet", "keys/"]
        {
            let read = client.ask(&format!("GET /keys/{key}"), "", "").await.json();
            assert_eq!(read["key"], json!(key));
        }
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        assert_eq!(client.ask("GET /keys/", "", "").await.json()["keys"], json!(sorted));
    }
}

#[tokio::test]
async fn a_key_has_1_to_1024_bytes_after_decoding() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    let longest =
        ["x".repeat(MAX_KEY_BYTES), "%78".repeat(MAX_KEY_BYTES), "%c3%bc".repeat(MAX_KEY_BYTES / 2)];
    for key in longest {
        assert_eq!(client.ask(&format!("PUT /keys/{key}"), "", "1").await.status, 204);
        assert_eq!(client.ask(&format!("GET /keys/{key}"), "", "").await.status, 200);
        let answer = client.ask(&format!("PUT /keys/{key}y"), "", "1").await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"));
    }
    assert_eq!(client.ask("PUT /keys/", "", "1").await.code(), "method_not_allowed");
}

#[tokio::test]
async fn what_is_no_utf_8_or_holds_nul_or_is_broken_is_400() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    for path in ["%00", "a%00b", "%ff", "%c3", "%ed%a0%80", "%", "%4", "%zz", "a%"] {
        for request in ["GET", "PUT", "DELETE", "PATCH"] {
            let media =
                if request == "PATCH" { "Content-Type: application/merge-patch+json\r\n" } else { "" };
            let body = if request == "GET" || request == "DELETE" { "" } else { "{}" };
            let answer = client.ask(&format!("{request} /keys/{path}"), media, body).await;
            assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"), "{request} {path}");
        }
        for parameter in ["prefix", "after"] {
            let answer = client.ask(&format!("GET /keys/?{parameter}={path}"), "", "").await;
            assert_eq!(answer.code(), "bad_request", "{parameter}={path}");
        }
    }
    let long = "x".repeat(MAX_KEY_BYTES + 1);
    assert_eq!(client.ask(&format!("GET /keys/?prefix={long}"), "", "").await.code(), "bad_request");
}

#[tokio::test]
async fn pages_go_on_after_a_key_of_a_table_that_was_taken_over_however_long_it_is() {
    let db = Db::with_table().await;
    let long = "x".repeat(2 * MAX_KEY_BYTES);
    db.execute(&format!("INSERT INTO test.kv (key, value) VALUES ('{long}', '1'), ('y', '2')")).await;
    let server = Server::start(db.store(), BOTH[0], Options::default()).await;
    let first = server.ask("GET /keys/?limit=1", "", "").await.json();
    assert_eq!(first, json!({"keys": [&long], "next_after": &long}));
    let second = server.ask(&format!("GET /keys/?limit=1&after={long}"), "", "").await.json();
    assert_eq!(second, json!({"keys": ["y"], "next_after": null}));
}

#[tokio::test]
async fn a_path_in_raw_utf_8_or_behind_a_host_names_the_same_key() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    for (path, key) in
        [("/keys/ü/😀", "ü/😀"), ("http://elsewhere/keys//../a", "/../a"), ("http://x/keys/%2e", ".")]
    {
        assert_eq!(client.ask(&format!("PUT {path}"), "", "1").await.status, 204, "{path}");
        assert_eq!(
            client.ask(&format!("GET /keys/{}", encoded(key)), "", "").await.json()["key"],
            json!(key)
        );
    }
}

// K-05
#[tokio::test]
async fn a_prefix_is_taken_literally() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    for key in ["a_b/1", "aXb/1", "a%25c/1"] {
        assert_eq!(client.ask(&format!("PUT /keys/{key}"), "", "1").await.status, 204);
    }
    for (prefix, keys) in
        [("a_", json!(["a_b/1"])), ("a%25", json!(["a%c/1"])), ("a", json!(["a%c/1", "aXb/1", "a_b/1"]))]
    {
        let listed = client.ask(&format!("GET /keys/?prefix={prefix}"), "", "").await;
        assert_eq!(listed.json()["keys"], keys, "{prefix}");
    }
}

#[tokio::test]
async fn pages_of_any_size_list_every_key_once() {
    let server = Server::start(MemoryStore::default(), BOTH[0], Options::default()).await;
    let mut client = server.connect().await;
    let keys: Vec<String> = (0..40).map(|number| format!("k/{number:02}")).collect();
    for key in &keys {
        client.ask(&format!("PUT /keys/{key}"), "", "1").await;
    }
    for limit in [1, 3, 39, 40, 41] {
        let (mut listed, mut after) = (Vec::new(), String::new());
        loop {
            let request = format!("GET /keys/?prefix=k/&limit={limit}&after={after}");
            let mut page = client.ask(&request, "", "").await.json();
            let found: Vec<String> = serde_json::from_value(page["keys"].take()).expect("keys");
            assert!(found.len() <= limit && !found.is_empty(), "{found:?}");
            listed.extend(found);
            match page["next_after"].as_str() {
                Some(next) => next.clone_into(&mut after),
                None => break,
            }
        }
        assert_eq!(listed, keys, "{limit}");
    }
}
