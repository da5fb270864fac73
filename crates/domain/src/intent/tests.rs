//! Every rule of the envelope, alone and in combination with the others.

use super::envelope::*;
use super::*;
use crate::catalog::Catalog;
use crate::entry::RawFields;
use crate::malformed_intent::FailureCode;
use crate::malformed_intent::FailureCode::*;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A rule and a way to break it.
type Breach = (FailureCode, fn(&mut Fields));

/// A valid intent for two users.
fn sound() -> Fields {
    let payload = r#"{"game_id":"g-1","game_name":"Galaxy","turn_number":7}"#;
    RawFields::from_iter([
        (NOTIFICATION_TYPE, "game.turn.ready"),
        (PRODUCER, "game_master"),
        (AUDIENCE_KIND, "user"),
        (RECIPIENTS, r#"["u-2","u-1","u-2"]"#),
        (IDEMPOTENCY_KEY, "key 1"),
        (OCCURRED_AT_MS, "1775121700123"),
        (PAYLOAD, payload),
        (REQUEST_ID, "r-1"),
        (TRACE_ID, "t-1"),
    ])
    .0
}

/// A valid intent for administrators.
fn sound_for_administrators() -> Fields {
    let mut fields = sound();
    set(&mut fields, NOTIFICATION_TYPE, "game.generation_failed");
    set(&mut fields, AUDIENCE_KIND, "admin_email");
    set(&mut fields, PAYLOAD, r#"{"game_id":"g-1","game_name":"Galaxy","failure_reason":"no stars"}"#);
    remove(&mut fields, RECIPIENTS);
    fields
}

fn value<'a>(fields: &'a mut Fields, name: &str) -> &'a mut Vec<u8> {
    &mut fields.iter_mut().find(|(known, _)| known == name.as_bytes()).expect("the field is there").1
}

fn set(fields: &mut Fields, name: &str, text: impl Into<Vec<u8>>) {
    *value(fields, name) = text.into();
}

fn remove(fields: &mut Fields, name: &str) {
    fields.retain(|(known, _)| known != name.as_bytes());
}

/// The code of the first rule broken; `None` if the entry is valid.
fn code(fields: Fields) -> Option<FailureCode> {
    decode(&RawFields(fields), &Catalog::built_in()).err().map(|rejection| rejection.code)
}

/// The code for an otherwise valid intent whose field `name` is `text`.
fn code_with(name: &str, text: impl Into<Vec<u8>>) -> Option<FailureCode> {
    let mut fields = sound();
    set(&mut fields, name, text);
    code(fields)
}

#[test]
fn an_intent_for_users_comes_out_in_normal_form() {
    let intent = decode(&RawFields(sound()), &Catalog::built_in()).expect("valid");
    assert_eq!(intent.notification_type, "game.turn.ready");
    assert_eq!(intent.key(), IdempotencyKey { producer: "game_master".into(), key: "key 1".into() });
    assert_eq!(intent.audience, Audience::Users(vec!["u-1".into(), "u-2".into()]));
    assert_eq!(intent.occurred_at.as_millis(), 1_775_121_700_123);
    assert_eq!(intent.payload_json, r#"{"game_id":"g-1","game_name":"Galaxy","turn_number":7}"#);
    assert_eq!((intent.request_id.as_str(), intent.trace_id.as_str()), ("r-1", "t-1"));
}

#[test]
fn an_intent_for_administrators_has_no_recipients() {
    let intent = decode(&RawFields(sound_for_administrators()), &Catalog::built_in()).expect("valid");
    assert_eq!(intent.audience, Audience::AdminEmail);
    assert_eq!(intent.audience.users(), [] as [String; 0]);
}

#[test]
fn an_optional_field_that_is_empty_is_absent() {
    let mut without = sound();
    let mut empty = sound();
    for name in [REQUEST_ID, TRACE_ID] {
        remove(&mut without, name);
        set(&mut empty, name, "");
    }
    let catalog = Catalog::built_in();
    let intent = decode(&RawFields(without), &catalog).expect("valid");
    assert_eq!((intent.request_id.as_str(), intent.trace_id.as_str()), ("", ""));
    assert_eq!(decode(&RawFields(empty), &catalog), Ok(intent));
}

/// For each rule, in the order of application, a way to break it without breaking the others.
const BREACHES: [Breach; 12] = [
    (EntryTooLarge, |fields| value(fields, PAYLOAD).extend([b' '; MAX_ENTRY])),
    (InvalidEncoding, |fields| value(fields, TRACE_ID).push(0xff)),
    (RepeatedField, |fields| fields.push((PRODUCER.into(), "game_master".into()))),
    (UnknownField, |fields| fields.push(("colour".into(), "red".into()))),
    (MissingField, |fields| remove(fields, OCCURRED_AT_MS)),
    (UnknownNotificationType, |fields| set(fields, NOTIFICATION_TYPE, "game.turn")),
    (ProducerNotAllowed, |fields| set(fields, PRODUCER, "game_lobby")),
    (AudienceNotAllowed, |fields| set(fields, AUDIENCE_KIND, "admin_email")),
    (InvalidRecipients, |fields| set(fields, RECIPIENTS, "[]")),
    (InvalidField, |fields| set(fields, IDEMPOTENCY_KEY, " ")),
    (InvalidPayloadJson, |fields| value(fields, PAYLOAD).extend([b' '; MAX_PAYLOAD])),
    (PayloadSchemaViolation, |fields| set(fields, PAYLOAD, "{}")),
];

#[test]
fn every_rule_has_its_code() {
    assert_eq!(code(sound()), None);
    for (expected, breach) in BREACHES {
        let mut fields = sound();
        breach(&mut fields);
        assert_eq!(code(fields), Some(expected));
    }
}

#[test]
fn of_two_rules_broken_the_first_gives_the_code() {
    for (at, (first, breach_first)) in BREACHES.into_iter().enumerate() {
        for (second, breach_second) in BREACHES.into_iter().skip(at + 1) {
            let mut fields = sound();
            breach_second(&mut fields);
            breach_first(&mut fields);
            assert_eq!(code(fields), Some(first), "{first:?} and {second:?}");
        }
    }
}

#[test]
fn an_entry_takes_exactly_256_kib_names_and_values_together() {
    let mut fields = sound();
    let room = MAX_ENTRY - RawFields(fields.clone()).size();
    value(&mut fields, RECIPIENTS).extend(vec![b' '; room]);
    assert_eq!(code(fields.clone()), None);
    value(&mut fields, RECIPIENTS).push(b' ');
    assert_eq!(code(fields), Some(EntryTooLarge));
}

#[test]
fn names_and_values_must_be_utf_8() {
    assert_eq!(code_with(PAYLOAD, b"{\"a\":\"\xed\xa0\x80\"}"), Some(InvalidEncoding));
    let mut fields = sound();
    fields.push((b"\xc3".to_vec(), b"x".to_vec()));
    assert_eq!(code(fields), Some(InvalidEncoding));
}

#[test]
fn an_unknown_field_that_is_repeated_is_repeated_first_of_all() {
    let mut fields = sound();
    fields.extend([(b"x".to_vec(), b"1".to_vec()), (b"x".to_vec(), b"2".to_vec())]);
    assert_eq!(code(fields), Some(RepeatedField));
    assert_eq!(code(vec![Default::default(); 100_000]), Some(RepeatedField));
}

#[test]
fn names_are_taken_as_they_are_spelled() {
    for name in ["", "Producer", " producer", "producer\0", "recipient_user_ids"] {
        let mut fields = sound();
        fields.push((name.into(), "x".into()));
        assert_eq!(code(fields), Some(UnknownField), "{name:?}");
    }
}

#[test]
fn each_required_field_is_missed_when_it_is_absent_or_empty() {
    for name in REQUIRED.into_iter().chain([RECIPIENTS]) {
        let mut fields = sound();
        remove(&mut fields, name);
        assert_eq!(code(fields), Some(MissingField), "{name}");
        assert_eq!(code_with(name, ""), Some(MissingField), "{name}");
    }
    assert_eq!(code(Vec::new()), Some(MissingField));
}

#[test]
fn type_producer_and_audience_are_taken_as_they_are_spelled() {
    for (name, text, expected) in [
        (NOTIFICATION_TYPE, "Game.Turn.Ready", UnknownNotificationType),
        (NOTIFICATION_TYPE, "game.turn.ready ", UnknownNotificationType),
        (NOTIFICATION_TYPE, "\0", UnknownNotificationType),
        (PRODUCER, "game_master\n", ProducerNotAllowed),
        (PRODUCER, "geoprofile", ProducerNotAllowed),
        (AUDIENCE_KIND, "users", AudienceNotAllowed),
        (AUDIENCE_KIND, "User", AudienceNotAllowed),
        (AUDIENCE_KIND, "user ", AudienceNotAllowed),
    ] {
        assert_eq!(code_with(name, text), Some(expected), "{name} {text:?}");
    }
}

#[test]
fn an_audience_that_the_type_does_not_allow_is_refused_with_and_without_recipients() {
    let mut fields = sound_for_administrators();
    set(&mut fields, AUDIENCE_KIND, "user");
    assert_eq!(code(fields.clone()), Some(MissingField));
    fields.push((RECIPIENTS.into(), "[\"u-1\"]".into()));
    assert_eq!(code(fields), Some(AudienceNotAllowed));
    let mut fields = sound();
    remove(&mut fields, RECIPIENTS);
    set(&mut fields, AUDIENCE_KIND, "everyone");
    assert_eq!(code(fields), Some(AudienceNotAllowed));
}

#[test]
fn administrators_take_no_recipients_not_even_none() {
    for text in ["", "[]", "[\"u-1\"]"] {
        let mut fields = sound_for_administrators();
        fields.push((RECIPIENTS.into(), text.into()));
        assert_eq!(code(fields), Some(InvalidRecipients), "{text:?}");
    }
}

#[test]
fn recipients_are_a_strict_array_of_strings_of_an_allowed_length() {
    let long = format!("[\"{}\"]", "é".repeat(64) + "x");
    for text in [
        " ",
        "u-1",
        "null",
        "{}",
        "\"u-1\"",
        "[]",
        "[1]",
        "[null]",
        "[\"\"]",
        "[\"u-1\",\"\"]",
        "[[\"u-1\"]]",
        "[\"u-1\",]",
        "[\"u-1\"] []",
        "[\"\\ud800\"]",
        "[\"u\\u0000\"]",
        "[\"u\n\"]",
        long.as_str(),
    ] {
        assert_eq!(code_with(RECIPIENTS, text), Some(InvalidRecipients), "{text}");
    }
    assert_eq!(code_with(RECIPIENTS, format!(" [ \"{}\" ]\n", "é".repeat(64))), None);
}

#[test]
fn a_thousand_recipients_are_counted_before_repeats_are_removed() {
    let repeated = |count: usize| format!("[{}]", vec!["\"u-1\""; count].join(","));
    assert_eq!(code_with(RECIPIENTS, repeated(1_000)), None);
    assert_eq!(code_with(RECIPIENTS, repeated(1_001)), Some(InvalidRecipients));
}

#[test]
fn identifiers_take_no_white_space_at_their_ends_and_no_control_characters() {
    for text in [
        " x",
        "x ",
        "\u{a0}x",
        "x\u{2003}",
        "x\u{3000}",
        "\tx",
        "x\u{2029}",
        "a\0b",
        "a\u{7f}b",
        "a\u{9f}b",
        "a\nb",
    ] {
        for name in [IDEMPOTENCY_KEY, REQUEST_ID, TRACE_ID] {
            assert_eq!(code_with(name, text), Some(InvalidField), "{name} {text:?}");
        }
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let expected = if text.contains('\0') { InvalidRecipients } else { InvalidField };
        assert_eq!(code_with(RECIPIENTS, format!("[\"u-1\",\"{escaped}\"]")), Some(expected), "{text:?}");
    }
    for text in ["a b", "a\u{a0}b", "\u{200b}x\u{feff}", "é😀"] {
        for name in [IDEMPOTENCY_KEY, REQUEST_ID, TRACE_ID] {
            assert_eq!(code_with(name, text), None, "{name} {text:?}");
        }
        assert_eq!(code_with(RECIPIENTS, format!("[\"{text}\"]")), None, "{text:?}");
    }
}

#[test]
fn identifiers_take_255_bytes() {
    for name in [IDEMPOTENCY_KEY, REQUEST_ID, TRACE_ID] {
        assert_eq!(code_with(name, "é".repeat(127) + "x"), None, "{name}");
        assert_eq!(code_with(name, "é".repeat(128)), Some(InvalidField), "{name}");
    }
}

#[test]
fn the_time_is_decimal_digits_up_to_the_year_9999() {
    for text in ["0", "253402300799999", "0000000000000000000000000000000001775121700123"] {
        assert_eq!(code_with(OCCURRED_AT_MS, text), None, "{text}");
    }
    for text in [
        "253402300800000",
        "-1",
        "+1",
        "1.0",
        "1e3",
        " 1",
        "1 ",
        "0x1",
        "１",
        "9223372036854775808",
        "99999999999999999999999999",
        "1775121700123\0",
    ] {
        assert_eq!(code_with(OCCURRED_AT_MS, text), Some(InvalidField), "{text:?}");
    }
}

#[test]
fn among_fields_with_one_code_the_message_names_the_first() {
    let order = [IDEMPOTENCY_KEY, OCCURRED_AT_MS, REQUEST_ID, TRACE_ID, RECIPIENTS];
    for at in 0..order.len() {
        let mut fields = sound();
        for name in &order[at..] {
            set(&mut fields, name, if *name == RECIPIENTS { "[\" x\"]" } else { " x" });
        }
        let message = decode(&RawFields(fields), &Catalog::built_in()).expect_err("malformed").message;
        let named = if order[at] == RECIPIENTS { "a recipient" } else { order[at] };
        assert!(message.starts_with(named), "{named}: {message}");
    }
}

#[test]
fn the_payload_is_a_strict_object_of_at_most_64_kib() {
    for text in
        [" ", "null", "[]", "\"{}\"", "{", "{} {}", r#"{"a":1,"a":1}"#, r#"{"a":1e400}"#, r#"{"a":"\u0000"}"#]
    {
        assert_eq!(code_with(PAYLOAD, text), Some(InvalidPayloadJson), "{text}");
    }
    let short = r#"{"game_id":"g","game_name":"n","turn_number":1}"#;
    let padded = |size: usize| format!("{short}{}", " ".repeat(size - short.len()));
    assert_eq!(code_with(PAYLOAD, padded(MAX_PAYLOAD)), None);
    assert_eq!(code_with(PAYLOAD, padded(MAX_PAYLOAD + 1)), Some(InvalidPayloadJson));
}

#[test]
fn the_schema_of_another_type_does_not_do() {
    let others = r#"{"game_id":"g-1","game_name":"Galaxy","final_turn_number":7}"#;
    assert_eq!(code_with(PAYLOAD, others), Some(PayloadSchemaViolation));
    let mut fields = sound();
    set(&mut fields, NOTIFICATION_TYPE, "game.finished");
    set(&mut fields, PAYLOAD, others);
    assert_eq!(code(fields), None);
}

// INV-16
#[test]
fn messages_do_not_repeat_payloads_recipients_or_identifiers() {
    for (name, text) in [
        (NOTIFICATION_TYPE, "secret"),
        (PRODUCER, "secret"),
        (AUDIENCE_KIND, "secret"),
        (RECIPIENTS, "secret"),
        (RECIPIENTS, "[\"secret \"]"),
        (IDEMPOTENCY_KEY, "secret "),
        (OCCURRED_AT_MS, "secret"),
        (PAYLOAD, "{\"secret\":\"secret\" secret}"),
        (PAYLOAD, r#"{"game_id":"secret","game_name":"secret","turn_number":"secret"}"#),
    ] {
        let mut fields = sound();
        set(&mut fields, name, text);
        let message = decode(&RawFields(fields), &Catalog::built_in()).expect_err("malformed").message;
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn a_message_repeats_a_field_name_escaped_and_cut() {
    let mut fields = sound();
    fields.push((format!("\n\u{202e}{}", "x".repeat(100)).into(), "secret".into()));
    let message = decode(&RawFields(fields), &Catalog::built_in()).expect_err("malformed").message;
    assert_eq!(message, format!("\"\\n\\u{{202e}}{}…\" is not a field of an intent", "x".repeat(62)));
}
