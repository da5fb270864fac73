//! The raw fields of a malformed intent, with the one marked that breaks the rule.

use domain::malformed::FailureCode;
use maud::{Markup, html};
use serde_json::Value;

use crate::pages::parts::pretty;
use crate::widgets::{Tone, badge, column, number, table, too_many, visible};

/// The most fields that a page shows.
const FIELDS_SHOWN: usize = 200;
/// The most characters of a value that a page shows.
const VALUE_SHOWN: usize = 20_000;

/// The fields of the envelope.
const ENVELOPE: [&str; 9] = [
    "notification_type",
    "producer",
    "audience_kind",
    "recipient_user_ids_json",
    "idempotency_key",
    "occurred_at_ms",
    "payload_json",
    "request_id",
    "trace_id",
];

/// The field that breaks the rule.
enum Broken<'a> {
    /// It has this name.
    Named(&'a str),
    /// Its name, as messages quote names, is this or begins with this.
    Quoted(&'a str),
    /// Its name is no text.
    NoText,
    /// The message names none.
    Unknown,
}

impl<'a> Broken<'a> {
    /// The first field that the message names, or the one that the code is about.
    fn of(code: &str, message: &'a str) -> Self {
        let quotes = [FailureCode::RepeatedField, FailureCode::UnknownField, FailureCode::InvalidEncoding];
        if quotes.iter().any(|about| about.as_str() == code) {
            let quoted = message.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"'));
            return match quoted {
                Some((name, _)) => Self::Quoted(name),
                None if code == FailureCode::InvalidEncoding.as_str() => Self::NoText,
                None => Self::Unknown,
            };
        }
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let named = message.split(|character| !is_name(character)).find(|word| ENVELOPE.contains(word));
        match (named, code) {
            (Some(name), _) => Self::Named(name),
            (None, "idempotency_conflict") => Self::Named("idempotency_key"),
            (None, "recipient_not_found") => Self::Named("recipient_user_ids_json"),
            _ => Self::Unknown,
        }
    }

    fn is(&self, name: &Value) -> bool {
        let Some(name) = name.as_str() else { return matches!(self, Self::NoText) };
        match self {
            Self::Named(broken) => name == *broken,
            Self::Quoted(broken) => {
                let name: String = name.chars().flat_map(char::escape_debug).collect();
                match broken.strip_suffix('…') {
                    Some(beginning) => name.starts_with(beginning),
                    None => name == *broken,
                }
            }
            Self::NoText | Self::Unknown => false,
        }
    }
}

/// The table of the fields; `json` is what the store keeps of them.
pub(super) fn show(json: &str, code: &str, message: &str) -> Markup {
    let fields: Vec<(Value, Value)> = match serde_json::from_str(json) {
        Ok(fields) => fields,
        Err(_) => return html! { pre tabindex="0" { (visible(json)) } },
    };
    let broken = Broken::of(code, message);
    let mut rows: Vec<Vec<Markup>> =
        fields.iter().take(FIELDS_SHOWN).map(|(name, value)| row(name, value, broken.is(name))).collect();
    if let (Broken::Named(name), "missing_field") = (&broken, code)
        && !fields.iter().any(|(found, _)| broken.is(found))
    {
        rows.push(vec![
            html! { code { (visible(name)) } " " (badge(Tone::Bad, "missing")) },
            html! { span.soft { "The entry has no such field." } },
        ]);
    }
    html! {
        @if rows.is_empty() {
            p.soft { "The entry has no fields." }
        } @else {
            (table("In the order received", &[column("Field"), column("Value")], &rows))
        }
        @if fields.len() > FIELDS_SHOWN {
            (too_many(
                &format!("{} further fields are not shown.", number((fields.len() - FIELDS_SHOWN) as u64)),
                "notification malformed show prints them all.",
            ))
        }
    }
}

fn row(name: &Value, value: &Value, is_broken: bool) -> Vec<Markup> {
    vec![
        html! {
            (part(name, false))
            @if is_broken { " " (badge(Tone::Bad, "breaks the rule")) }
        },
        html! { @if is_broken { mark.broken { (part(value, true)) } } @else { (part(value, true)) } },
    ]
}

/// A name or value: text, or bytes that are none.
fn part(part: &Value, is_value: bool) -> Markup {
    let shown = |text: &str| -> String { text.chars().take(VALUE_SHOWN).collect() };
    let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match part {
        Value::String(text) if text.is_empty() => html! { span.soft { "empty" } },
        Value::String(text) => {
            let is_json = is_value
                && text.starts_with(['{', '['])
                && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            let laid_out = if is_json { shown(&pretty(text)) } else { shown(text) };
            html! {
                @if is_value { code.value { (visible(&laid_out)) } } @else { code { (visible(&laid_out)) } }
                @if laid_out.chars().count() == VALUE_SHOWN { " " span.soft { "(the beginning)" } }
            }
        }
        Value::Object(members) if members.contains_key("base64") => html! {
            (badge(Tone::Warning, "no UTF-8 text, or with U+0000")) " in base64: " code.value { (visible(&shown(&text_of(&part["base64"])))) }
        },
        Value::Object(members) if members.contains_key("truncated") => {
            let kept = &part["truncated"];
            html! {
                (badge(Tone::Warning, "too large to be kept")) " "
                (number(kept["bytes"].as_u64().unwrap_or_default())) " bytes, SHA-256 " code { (visible(&text_of(&kept["sha256"]))) }
                ", the beginning in base64: " code.value { (visible(&shown(&text_of(&kept["head_base64"])))) }
            }
        }
        Value::Object(members) if members.contains_key("omitted") => {
            let left = &part["omitted"];
            html! {
                @if let Some(fields) = left["fields"].as_u64() { (number(fields)) " further fields were not kept" }
                @if let Some(bytes) = left["bytes"].as_u64() { (number(bytes)) " bytes in all" }
            }
        }
        other => html! { code { (visible(&other.to_string())) } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_that_the_message_names_is_the_broken_one() {
        let long = format!("<b>'{}", "x".repeat(60));
        for (code, message, expected) in [
            ("payload_schema_violation", "payload_json at /producer breaks the rule", "payload_json"),
            ("unknown_field", "\"colour\" is not a field of an intent", "colour"),
            ("repeated_field", "the field \"a\\\"b\" is there more than once", "a\"b"),
            ("unknown_field", "\"<b>\\'xxx…\" is not a field of an intent", &long),
            ("missing_field", "occurred_at_ms is absent or empty", "occurred_at_ms"),
            ("producer_not_allowed", "producer of game.finished takes game_master", "producer"),
            ("recipient_not_found", "the user directory does not know u-1", "recipient_user_ids_json"),
        ] {
            let broken = Broken::of(code, message);
            assert!(broken.is(&Value::from(expected)), "{code}: {message}");
            assert!(!broken.is(&Value::from("other")), "{code}: {message}");
        }
        let too_large = Broken::of("entry_too_large", "the entry has 300000 bytes and takes at most 262144");
        assert!(matches!(too_large, Broken::Unknown));
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such_and_text_is_escaped() {
        let html = show(
            r#"[["a",{"base64":"/w=="}],["<script>","\u202e"],[{"base64":"/w=="},""]]"#,
            "unknown_field",
            "\"<script>\" is not a field of an intent",
        )
        .into_string();
        assert!(html.contains("no UTF-8 text") && html.contains("/w=="), "{html}");
        assert!(html.contains("&lt;script&gt;") && !html.contains("<script>"), "{html}");
        assert!(html.contains("U+202E") && html.contains("breaks the rule"), "{html}");
    }

    #[test]
    fn a_field_that_is_missing_is_named_and_what_is_no_list_of_fields_is_shown_as_it_is() {
        let html = show("[]", "missing_field", "producer is absent or empty").into_string();
        assert!(html.contains("producer") && html.contains("missing"), "{html}");
        assert!(show("{\"a\": 1}", "x", "y").into_string().contains("<pre"));
    }
}
