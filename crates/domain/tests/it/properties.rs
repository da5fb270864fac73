//! Properties of all entries, tested with generated ones.

use std::sync::LazyLock;

use ambient::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use domain::catalog::Catalog;
use domain::entry::{EntryId, RawFields};
use domain::intent::{FIELDS, Intent, decode};
use domain::json::{canonical, parse};
use domain::malformed_intent::{FailureCode, MalformedIntent, Rejection};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{OPEN, entry};

static OPEN_CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::parse(OPEN).expect("valid"));

/// Text of any script without U+0000, including the characters that JSON escapes.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{0,3}", "\\PC{0,8}", "[\u{1}-\u{20}\"\\\\/\u{7f}\u{2028}😀]{0,5}"]
}

fn number() -> impl Strategy<Value = Value> {
    let finite = any::<f64>().prop_filter("JSON has no infinity", |number| number.is_finite());
    prop_oneof![
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        finite.prop_map(Value::from),
        Just(Value::from(-0.0)),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        text().prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![vec(inner.clone(), 0..4).prop_map(Value::from), object(inner)]
    })
}

fn object(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    btree_map(text(), inner, 0..4).prop_map(|members| Value::Object(members.into_iter().collect()))
}

/// All values of an intent of the open type.
#[derive(Clone, Debug)]
struct Said {
    producer: &'static str,
    recipients: Vec<String>,
    occurred_at_ms: i64,
    payload: Value,
}

fn said() -> impl Strategy<Value = Said> {
    let recipient = prop_oneof!["[a-d]{1,2}", "[\u{e0}-\u{ff}😀]{1,3}"];
    (prop_oneof![Just("p"), Just("q")], vec(recipient, 0..5), 0..3_i64, object(value())).prop_map(
        |(producer, recipients, occurred_at_ms, payload)| Said {
            producer,
            recipients,
            occurred_at_ms,
            payload,
        },
    )
}

impl Said {
    fn fields(&self, recipients: &[String], payload: &str) -> RawFields {
        let recipients = if recipients.is_empty() { String::new() } else { json!(recipients).to_string() };
        entry("test.open", self.producer, &recipients, &self.occurred_at_ms.to_string(), payload)
    }

    fn intent(&self) -> Intent {
        accepted(&self.fields(&self.recipients, &self.payload.to_string()))
    }
}

fn accepted(fields: &RawFields) -> Intent {
    decode(fields, &OPEN_CATALOG).expect("a valid intent")
}

/// The same JSON value in another spelling: keys reversed, white space between tokens, all strings escaped.
fn rewritten(value: &Value) -> String {
    let escaped = |text: &str| {
        let units: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
        format!("\"{units}\"")
    };
    match value {
        Value::String(text) => escaped(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(rewritten).collect();
            format!("[\t{} ]", items.join(" ,\r\n"))
        }
        Value::Object(members) => {
            let members =
                members.iter().rev().map(|(key, value)| format!("{} :\n{}", escaped(key), rewritten(value)));
            format!(" {{ {} }} ", members.collect::<Vec<String>>().join(" , "))
        }
        scalar => scalar.to_string(),
    }
}

/// Names and values between valid ones and noise.
fn any_fields() -> impl Strategy<Value = RawFields> {
    let name = prop_oneof![
        8 => proptest::sample::select(&FIELDS[..]).prop_map(|name| name.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..6),
    ];
    let known = vec![
        "test.open",
        "p",
        "user",
        "admin_email",
        "[\"u\"]",
        "1",
        "{}",
        "",
        " ",
        "[\"\\ud800\"]",
        "{\"a\":1e999}",
    ];
    let value = prop_oneof![
        6 => proptest::sample::select(known).prop_map(|text| text.as_bytes().to_vec()),
        2 => value().prop_map(|value| value.to_string().into_bytes()),
        1 => vec(any::<u8>(), 0..12),
    ];
    vec((name, value), 0..12).prop_map(RawFields)
}

/// Decodes a name or value of `raw_fields`.
fn bytes_of(part: &Value) -> Vec<u8> {
    match part {
        Value::String(text) => text.clone().into_bytes(),
        other => BASE64.decode(other["base64"].as_str().expect("base64")).expect("base64"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn decoding_never_panics_and_what_it_accepts_is_in_normal_form(fields in any_fields()) {
        if let Ok(intent) = decode(&fields, &OPEN_CATALOG) {
            let users = intent.audience.users();
            prop_assert!(users.is_sorted_by(|one, next| one < next));
            prop_assert_eq!(parse(&intent.payload_json).map(|payload| canonical(&payload)), Ok(intent.payload_json));
        }
    }

    #[test]
    fn parsing_never_panics(text in "[\\[\\]{}\",:\\\\ue0-9.+ é-]{0,24}") {
        if let Ok(value) = parse(&text) {
            prop_assert_eq!(parse(&canonical(&value)), Ok(value));
        }
    }

    #[test]
    fn the_normal_form_of_a_normal_form_is_itself(value in value()) {
        let text = canonical(&value);
        prop_assert_eq!(parse(&text).map(|value| canonical(&value)), Ok(text));
        prop_assert_eq!(parse(&rewritten(&value)).map(|value| canonical(&value)), Ok(canonical(&value)));
    }

    #[test]
    fn how_an_intent_is_written_does_not_change_its_fingerprint(
        (said, recipients, order) in said().prop_flat_map(|said| {
            let repeated = [said.recipients.clone(), said.recipients.clone()].concat();
            (Just(said), Just(repeated).prop_shuffle(), Just((0..9_usize).collect::<Vec<usize>>()).prop_shuffle())
        }),
        request_id in "[a-z]{0,3}",
        trace_id in "[a-z]{0,3}",
        key in "[a-z]{1,3}",
    ) {
        let mut other = said.fields(&recipients, &rewritten(&said.payload));
        other.0.extend([("request_id".into(), request_id.into()), ("trace_id".into(), trace_id.into())]);
        other.0.iter_mut().filter(|(name, _)| name == b"idempotency_key").for_each(|(_, value)| *value = key.clone().into());
        let mut shuffled = order.into_iter().filter_map(|at| other.0.get(at).cloned()).collect::<Vec<_>>();
        prop_assert_eq!(shuffled.len(), other.0.len());
        let one = said.intent();
        let two = accepted(&RawFields(std::mem::take(&mut shuffled)));
        prop_assert_eq!(&one.fingerprint, &two.fingerprint);
        prop_assert_eq!((one.audience, one.payload_json), (two.audience, two.payload_json));
    }

    #[test]
    fn whatever_is_fingerprinted_changes_the_fingerprint(one in said(), two in said()) {
        let intent = one.intent();
        let swapped = [
            Said { producer: two.producer, ..one.clone() },
            Said { recipients: two.recipients, ..one.clone() },
            Said { occurred_at_ms: two.occurred_at_ms, ..one.clone() },
            Said { payload: two.payload, ..one.clone() },
        ];
        for other in swapped.map(|said| said.intent()) {
            let says = |intent: &Intent| {
                (intent.producer.clone(), intent.audience.clone(), intent.occurred_at, intent.payload_json.clone())
            };
            prop_assert_eq!(intent.fingerprint == other.fingerprint, says(&intent) == says(&other));
        }
    }

    #[test]
    fn the_fields_of_a_malformed_intent_are_kept_without_loss(fields in any_fields()) {
        let rejection = Rejection { code: FailureCode::MissingField, message: String::new() };
        let row = MalformedIntent::new("intents", EntryId::ZERO, fields.clone(), rejection, Timestamp::UNIX_EPOCH);
        let kept: Vec<(Value, Value)> = serde_json::from_str(&row.raw_fields.text()).expect("an array of pairs");
        let read = kept.iter().map(|(name, value)| (bytes_of(name), bytes_of(value))).collect();
        prop_assert_eq!(RawFields(read), fields);
        prop_assert!(!row.raw_fields.text().contains("\\u0000"), "PostgreSQL would refuse it");
    }
}
