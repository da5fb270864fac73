use serde_json::{Value, json as value};

use super::*;
use crate::intent::decode;

const CONTEXT: BodyContext<'_> =
    BodyContext { producer: "game_master", idempotency_key: Some("k-1"), request_id: None };

/// An intent of type `game.turn.ready` for two users.
fn turn_ready() -> Value {
    value!({
        "notification_type": "game.turn.ready",
        "audience_kind": "user",
        "recipient_user_ids": ["u-2", "u-1", "u-2"],
        "occurred_at_ms": 1_775_121_700_000_i64,
        "payload": {"game_id": "g", "game_name": "n", "turn_number": 54},
    })
}

fn with(member: &str, received: Value) -> String {
    let mut body = turn_ready();
    body[member] = received;
    body.to_string()
}

fn decoded(text: &str) -> Result<Intent, Rejection> {
    IntentBody::parse(text).expect("an object").decode(CONTEXT, &Catalog::built_in())
}

fn code(text: &str) -> FailureCode {
    decoded(text).expect_err("it breaks a rule").code
}

#[test]
fn a_body_is_the_intent_that_its_entry_would_be() {
    let intent = decoded(&turn_ready().to_string()).expect("well formed");
    let entry = RawFields::from_iter([
        (NOTIFICATION_TYPE, "game.turn.ready"),
        (PRODUCER, "game_master"),
        (AUDIENCE_KIND, "user"),
        (RECIPIENTS, r#"["u-1","u-2"]"#),
        (IDEMPOTENCY_KEY, "k-1"),
        (OCCURRED_AT_MS, "1775121700000"),
        (PAYLOAD, r#"{"turn_number":54,"game_name":"n","game_id":"g"}"#),
    ]);
    assert_eq!(Ok(intent), decode(&entry, &Catalog::built_in()));
}

#[test]
fn messages_name_the_members_that_the_client_sent_and_what_their_rule_takes() {
    let payload = |turn: Value| value!({"game_id": "g", "game_name": "n", "turn_number": turn});
    for (member, received, expected) in [
        (
            "payload",
            payload("54".into()),
            "payload at /turn_number breaks the rule /properties/turn_number/type of the type's schema: \
             it is not of type \"integer\"",
        ),
        ("payload", Value::Null, "payload is absent or empty"),
        ("recipient_user_ids", value!([]), "recipient_user_ids has 0 elements and takes 1 to 1000"),
        (
            "recipient_user_ids",
            value!([" u-1"]),
            "a recipient of recipient_user_ids takes no white space at either end",
        ),
    ] {
        assert_eq!(decoded(&with(member, received)).expect_err("it breaks a rule").message, expected);
    }
}

#[test]
fn each_member_of_the_wrong_type_breaks_the_rule_of_the_contract() {
    for (member, received, expected) in [
        ("notification_type", value!(1), FailureCode::InvalidField),
        ("audience_kind", value!(["user"]), FailureCode::InvalidField),
        ("recipient_user_ids", value!("u-1"), FailureCode::InvalidRecipients),
        ("recipient_user_ids", value!(["u-1", 2]), FailureCode::InvalidRecipients),
        ("occurred_at_ms", value!("1775121700000"), FailureCode::InvalidField),
        ("occurred_at_ms", value!(1.5), FailureCode::InvalidField),
        ("occurred_at_ms", value!(-1), FailureCode::InvalidField),
        ("payload", value!("{}"), FailureCode::InvalidPayloadJson),
        ("payload", value!([]), FailureCode::InvalidPayloadJson),
        ("request_id", value!(7), FailureCode::InvalidField),
        ("trace_id", value!({}), FailureCode::InvalidField),
        ("colour", value!("red"), FailureCode::UnknownField),
        ("producer", value!("game_master"), FailureCode::UnknownField),
        ("idempotency_key", value!("k-2"), FailureCode::UnknownField),
        ("recipient_user_ids_json", value!("[]"), FailureCode::UnknownField),
    ] {
        assert_eq!(code(&with(member, received.clone())), expected, "{member}: {received}");
    }
}

#[test]
fn a_number_that_is_not_written_as_an_integer_is_none() {
    for number in ["1.0", "1e3", "1E3", "0.0", "-0"] {
        let text = turn_ready().to_string().replace("1775121700000", number);
        assert_eq!(code(&text), FailureCode::InvalidField, "{number}");
    }
}

#[test]
fn null_is_absent() {
    assert_eq!(code(&with("payload", Value::Null)), FailureCode::MissingField);
    assert!(decoded(&with("request_id", Value::Null)).is_ok());
}

#[test]
fn a_repeated_member_is_refused_at_the_top_and_in_the_payload() {
    let text = turn_ready().to_string();
    let twice = text.replacen('{', r#"{"payload":{},"#, 1);
    assert_eq!(code(&twice), FailureCode::RepeatedField);
    let inside = text.replace(r#""game_id":"g""#, r#""game_id":"g","game_id":"h""#);
    assert_eq!(code(&inside), FailureCode::InvalidPayloadJson);
}

#[test]
fn sizes_are_those_of_the_normal_form() {
    let padding = " ".repeat(MAX_PAYLOAD);
    let spaced =
        turn_ready().to_string().replace(r#""turn_number":"#, &format!(r#""turn_number":{padding}"#));
    assert!(spaced.len() > MAX_PAYLOAD && decoded(&spaced).is_ok());
    let repeated = vec!["u".repeat(128); MAX_RECIPIENTS];
    assert_eq!(
        decoded(&with("recipient_user_ids", value!(repeated))).expect("one user").audience.users().len(),
        1
    );
    let too_many = vec!["u-1"; MAX_RECIPIENTS + 1];
    assert_eq!(code(&with("recipient_user_ids", value!(too_many))), FailureCode::InvalidRecipients);
    // Found by a review: 3,000 repeats of 128 bytes are one user, but too many elements.
    let repeated = vec!["u".repeat(128); 3_000];
    assert_eq!(code(&with("recipient_user_ids", value!(repeated))), FailureCode::InvalidRecipients);
    let distinct: Vec<String> = (0..3_000).map(|n| format!("{n:0>128}")).collect();
    assert_eq!(code(&with("recipient_user_ids", value!(distinct))), FailureCode::EntryTooLarge);
}

#[test]
fn a_payload_that_is_too_long_breaks_the_rule_of_its_size_in_its_place() {
    let payload = |items: usize| value!({"a": vec![value!({"a": 0}); items]});
    assert_eq!(code(&with("payload", payload(10_000))), FailureCode::InvalidPayloadJson);
    assert_eq!(code(&with("payload", payload(40_000))), FailureCode::EntryTooLarge);
    // Its numbers are longer than the least length that is computed for them.
    let widened = value!({"a": vec![f64::MAX; 30_000]}).to_string();
    let text =
        turn_ready().to_string().replace(r#"{"game_id":"g","game_name":"n","turn_number":54}"#, &widened);
    assert_eq!(code(&text), FailureCode::EntryTooLarge);
    // Rules that precede the rule of the payload are applied first.
    let mut body = turn_ready();
    (body["payload"], body["notification_type"]) = (payload(10_000), value!("none"));
    assert_eq!(code(&body.to_string()), FailureCode::UnknownNotificationType);
}

#[test]
fn a_name_with_a_lone_surrogate_is_that_of_no_member() {
    let text = turn_ready().to_string().replacen('{', r#"{"\ud800":1,"#, 1);
    assert_eq!(code(&text), FailureCode::UnknownField);
}

#[test]
fn of_very_many_members_one_is_unknown_or_repeated() {
    let many = |name: fn(usize) -> String| {
        let members: Vec<String> = (0..100_000).map(|n| format!("\"{}\":0", name(n))).collect();
        format!("{{{}}}", members.join(","))
    };
    assert_eq!(code(&many(|n| n.to_string())), FailureCode::UnknownField);
    assert_eq!(code(&many(|_| "payload".to_owned())), FailureCode::RepeatedField);
}

#[test]
fn the_levels_of_a_payload_count_from_the_payload() {
    let nested =
        |levels: usize| format!("{}{}", r#"{"a":"#.repeat(levels - 1), "{}") + &"}".repeat(levels - 1);
    let deepest =
        turn_ready().to_string().replace(r#""game_id":"g""#, &format!(r#""game_id":"g","x":{}"#, nested(63)));
    assert_ne!(decoded(&deepest).map_err(|rejection| rejection.code), Err(FailureCode::InvalidPayloadJson));
    let deeper =
        turn_ready().to_string().replace(r#""game_id":"g""#, &format!(r#""game_id":"g","x":{}"#, nested(64)));
    assert_eq!(code(&deeper), FailureCode::InvalidPayloadJson);
}

#[test]
fn the_request_id_of_the_caller_is_for_intents_without_one() {
    let context = BodyContext { request_id: Some("r-header"), ..CONTEXT };
    let request_id = |text: &str| {
        let body = IntentBody::parse(text).expect("an object");
        body.decode(context, &Catalog::built_in()).expect("well formed").request_id
    };
    assert_eq!(request_id(&turn_ready().to_string()), "r-header");
    assert_eq!(request_id(&with("request_id", value!("r-body"))), "r-body");
}

#[test]
fn an_element_of_a_batch_names_its_key() {
    let context = BodyContext { idempotency_key: None, ..CONTEXT };
    let decode =
        |text: &str| IntentBody::parse(text).expect("an object").decode(context, &Catalog::built_in());
    assert_eq!(decode(&turn_ready().to_string()).expect_err("no key").code, FailureCode::MissingField);
    assert_eq!(decode(&with("idempotency_key", value!("k"))).expect("well formed").idempotency_key, "k");
    let long = "k".repeat(256);
    assert_eq!(
        decode(&with("idempotency_key", value!(long))).expect_err("too long").code,
        FailureCode::InvalidField
    );
}

#[test]
fn what_is_no_object_has_no_members() {
    for text in ["", "[]", "1", "\"{}\"", "{", "{}x", "{\"a\":}", "nul"] {
        assert!(IntentBody::parse(text).is_err(), "{text}");
    }
}
