//! Tests of which intents are sent and which are rejected before.

use std::time::Duration;

use domain::catalog::Catalog;
use tokio::net::TcpListener;

use super::*;

const PAYLOAD: &str = r#"{"game_id":"g-1","game_name":"Nova","turn_number":54}"#;

fn turn_ready() -> SendArgs {
    SendArgs {
        notification_type: Some("game.turn.ready".to_owned()),
        producer: Some("game_master".to_owned()),
        users: vec!["u-2".to_owned(), "u-1".to_owned()],
        key: Some("g-1:54".to_owned()),
        payload: Some(PAYLOAD.to_owned()),
        ..SendArgs::default()
    }
}

fn value<'a>(fields: &'a RawFields, name: &str) -> Option<&'a str> {
    let (_, value) = fields.0.iter().find(|(known, _)| known == name.as_bytes())?;
    Some(std::str::from_utf8(value).expect("UTF-8"))
}

fn vars(addr: &str) -> Vars {
    let set = |name: &str, value: &str| (format!("NOTIFICATION_{name}"), value.to_owned());
    vec![set("REDIS_MASTER_ADDR", addr), set("REDIS_OPERATION_TIMEOUT", "200ms")]
}

#[test]
fn flags_become_an_entry_that_the_service_accepts() {
    let draft = draft(turn_ready(), 1_775_121_700_000);
    let intent = draft.decode(&Catalog::built_in()).expect("accepted");
    let fields = draft.into_entry();
    assert_eq!(intent.audience.users(), ["u-1", "u-2"]);
    assert_eq!(intent.payload_json, PAYLOAD);
    assert_eq!(value(&fields, "occurred_at_ms"), Some("1775121700000"));
    assert_eq!((value(&fields, "request_id"), value(&fields, "trace_id")), (None, None));
}

#[test]
fn an_entry_for_administrators_names_no_recipients() {
    let args = SendArgs {
        notification_type: Some("lobby.runtime_paused_after_start".to_owned()),
        producer: Some("game_lobby".to_owned()),
        users: Vec::new(),
        admin: true,
        payload: Some(r#"{"game_id":"g-1","game_name":"Nova"}"#.to_owned()),
        ..turn_ready()
    };
    let draft = draft(args, 0);
    draft.decode(&Catalog::built_in()).expect("accepted");
    assert_eq!(value(&draft.into_entry(), "recipient_user_ids_json"), None);
}

#[test]
fn a_file_gives_the_same_intent_as_flags() {
    let text = format!(
        r#"{{"type": "game.turn.ready", "producer": "game_master", "users": ["u-2", "u-1"], "key": "g-1:54",
            "payload": {PAYLOAD}, "occurred_at_ms": 7, "request_id": "r", "trace_id": "t"}}"#
    );
    let from_file = draft(parse_file(&text).expect("an intent"), 0);
    let flags = SendArgs {
        occurred_at_ms: Some("7".to_owned()),
        request_id: Some("r".to_owned()),
        trace_id: Some("t".to_owned()),
        ..turn_ready()
    };
    assert_eq!(from_file, draft(flags, 0));
}

#[test]
fn a_payload_reaches_the_rules_as_it_was_written() {
    let text = r#"{"type": "t", "producer": "p", "admin": true, "key": "k", "payload": {"a": 1, "a": 2}}"#;
    assert_eq!(parse_file(text).expect("an intent").payload.as_deref(), Some(r#"{"a": 1, "a": 2}"#));
}

#[test]
fn a_file_that_is_no_intent_is_refused_with_its_reason() {
    let file =
        |members: &str| format!(r#"{{"type": "t", "producer": "p", "key": "k", "payload": {{}}{members}}}"#);
    for (text, reason) in [
        ("[]".to_owned(), "invalid length"),
        ("{}".to_owned(), "missing field"),
        (file(r#", "users": ["u"], "priority": 1"#), "unknown field `priority`"),
        (file(r#", "users": ["u"], "key": "k2""#), "duplicate field `key`"),
        (file(r#", "users": ["u"], "admin": true"#), "either users or"),
        (file(""), "either users or"),
    ] {
        let error = parse_file(&text).expect_err("no intent");
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_file_that_is_too_large_is_refused_as_that() {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&vec![b' '; 1 << 20]).expect("it can be written");
    let path = file.path().to_str().expect("a path in UTF-8");
    let said = || read_file(path).expect_err("no intent").to_string();
    assert!(said().contains("is no intent"), "{}", said());
    file.as_file().write_all(b"{").expect("it can be written");
    assert!(said().ends_with("cannot be read: it is larger than 1 MiB"), "{}", said());
}

#[tokio::test]
async fn what_the_service_would_not_accept_is_not_sent() {
    let redis = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let vars = vars(&redis.local_addr().expect("bound").to_string());
    let args = SendArgs { producer: Some("nobody".to_owned()), ..turn_ready() };
    let mut out = Vec::new();

    let failure = run(args, vars, &mut out).await.expect_err("malformed");
    assert_eq!(failure.exit_code(), 2);
    assert!(failure.to_string().starts_with("failure producer_not_allowed: "), "{failure}");
    assert_eq!(out, b"");
    // No command was sent: the deadline passes without a connection.
    tokio::time::timeout(Duration::from_millis(50), redis.accept()).await.expect_err("Redis was called");
}

#[tokio::test]
async fn a_redis_that_does_not_answer_is_a_failure_within_the_deadline() {
    let redis = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = redis.local_addr().expect("bound").to_string();
    let sending = tokio::time::timeout(Duration::from_secs(30), async {
        run(turn_ready(), vars(&addr), &mut Vec::new()).await
    });
    let failure = sending.await.expect("within its deadline").expect_err("no answer");
    assert_eq!(failure.exit_code(), 1);
    assert!(failure.to_string().contains(&addr), "{failure}");
    assert!(!failure.to_string().contains("it may be there"), "nothing was sent: {failure}");
}

#[test]
fn what_makes_a_repetition_safe_is_said_for_flags_and_files() {
    let given = SendArgs { occurred_at_ms: Some("7".to_owned()), ..turn_ready() };
    assert_eq!(how_to_repeat(&given, false, 8), "it is safe to send the same again");
    assert!(how_to_repeat(&turn_ready(), false, 8).ends_with("add --occurred-at-ms 8"));
    assert!(how_to_repeat(&turn_ready(), true, 8).ends_with(r#"add "occurred_at_ms": 8 to the file"#));
}
