//! The raw fields of a malformed intent, with the field that breaks the rule marked.

use domain::conflict::Difference;
use domain::intent::FIELDS;
use domain::malformed_intent::{FailureCode, StoredPart, read_fields, text_of};
use maud::{Markup, html};
use serde_json::Value;

use crate::pages::parts::pretty;
use crate::widgets::{Tone, badge, column, number, table, too_many, visible};

/// The most bytes of names and values that a page shows, for all its malformed intents together.
const MAX_SHOWN_BYTES: usize = 128 * 1024;
/// The most bytes of a name or value that a page shows.
const PART_SHOWN: usize = 20_000;
/// The share of [`MAX_SHOWN_BYTES`] that a field takes besides its text: its row of the table.
const ROW_COST: usize = 256;
/// The advice for the rest.
const REST: &str = "notification malformed show --raw writes them all.";

/// The number of bytes that a page may still show.
pub(super) struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(MAX_SHOWN_BYTES)
    }
}

impl Budget {
    /// The most bytes of the next part.
    fn part(&self) -> usize {
        self.0.min(PART_SHOWN)
    }

    fn spend(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(bytes);
    }
}

/// The field that breaks the rule.
enum Broken<'a> {
    /// The name of the field.
    Named(&'a str),
    /// The field's name, quoted as in messages; if it ends in an ellipsis, the beginning of the name.
    Quoted(&'a str),
    /// The field's name is not UTF-8.
    NoText,
    /// The message does not name a field.
    Unknown,
}

impl<'a> Broken<'a> {
    /// The first field in the message, or the field that the code refers to.
    fn of(code: &str, message: &'a str) -> Self {
        // A conflict breaks no rule of a field, and the messages of both name other words than fields.
        if code == FailureCode::IdempotencyConflict.as_str() {
            return Self::Unknown;
        }
        if code == FailureCode::RecipientNotFound.as_str() {
            return Self::Named("recipient_user_ids_json");
        }
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
        let named = message.split(|character| !is_name(character)).find(|word| FIELDS.contains(word));
        named.map_or(Self::Unknown, Self::Named)
    }

    fn is(&self, name: &StoredPart) -> bool {
        let (Self::Named(broken) | Self::Quoted(broken)) = self else {
            return matches!((self, name), (Self::NoText, StoredPart::Whole(bytes)) if str::from_utf8(bytes).is_err());
        };
        // If a name was cut, the kept part may end within a character.
        let beginning = name.kept().utf8_chunks().next().map_or("", |chunk| chunk.valid());
        if beginning.len() < name.kept().len() && matches!(name, StoredPart::Whole(_)) {
            return false;
        }
        match (self, broken.strip_suffix('…')) {
            (Self::Quoted(_), Some(broken)) => quoted(beginning, broken.chars().count()).starts_with(broken),
            (Self::Quoted(_), None) => quoted(beginning, broken.chars().count() + 1) == *broken,
            _ => beginning == *broken,
        }
    }
}

/// The first characters of a name, quoted as in messages.
fn quoted(name: &str, characters: usize) -> String {
    name.chars().take(characters).flat_map(char::escape_debug).collect()
}

/// Renders both values of each member in which two intents differ.
pub(super) fn differences(differs: &[Difference], budget: &mut Budget) -> Markup {
    let mut value = |value: &Value| part(&StoredPart::Whole(value.to_string().into_bytes()), true, budget);
    let row = |difference: &Difference| {
        let name = html! { code { (difference.member) } };
        vec![name, value(&difference.refused), value(&difference.accepted)]
    };
    let rows: Vec<Vec<Markup>> = differs.iter().map(row).collect();
    table("Members that differ", &[column("Member"), column("Refused"), column("Accepted")], &rows)
}

/// Renders the table of the fields; `json` is their stored form.
pub(super) fn show(json: &str, code: &str, message: &str, budget: &mut Budget) -> Markup {
    let Some(fields) = read_fields(json) else {
        let (text, is_whole) = text_of(json.as_bytes(), budget.part());
        budget.spend(text.len());
        return html! {
            pre tabindex="0" { (visible(&text)) }
            @if !is_whole { (too_many("The rest is not shown.", "notification malformed show prints more of it.")) }
        };
    };
    let broken = Broken::of(code, message);
    let mut rows = Vec::new();
    for (name, value) in &fields {
        if budget.0 < ROW_COST {
            break;
        }
        rows.push(row(name, value, broken.is(name), budget));
    }
    let left = fields.len() - rows.len();
    if let (Broken::Named(name), "missing_field") = (&broken, code)
        && !fields.iter().any(|(found, _)| broken.is(found))
    {
        rows.push(vec![
            html! { code { (visible(name)) } " " (badge(Tone::Bad, "missing")) },
            html! { span.soft { "The entry has no such field." } },
        ]);
    }
    html! {
        @if !rows.is_empty() {
            (table("In the order received", &[column("Field"), column("Value")], &rows))
        } @else if left == 0 {
            p.soft { "The entry has no fields." }
        }
        @if left > 0 {
            (too_many(&format!("{} further fields are not shown.", number(left as u64)), REST))
        }
    }
}

fn row(name: &StoredPart, value: &StoredPart, is_broken: bool, budget: &mut Budget) -> Vec<Markup> {
    budget.spend(ROW_COST);
    let name = part(name, false, budget);
    let value = part(value, true, budget);
    vec![
        html! { (name) @if is_broken { " " (badge(Tone::Bad, "breaks the rule")) } },
        html! { @if is_broken { mark.broken { (value) } } @else { (value) } },
    ]
}

/// Renders a name or value. Bytes that are not UTF-8 are shown as `\xNN`, JSON on several lines.
fn part(part: &StoredPart, is_value: bool, budget: &mut Budget) -> Markup {
    let bytes = part.kept();
    let json = str::from_utf8(bytes).ok().filter(|text| is_value && is_json(text));
    let (text, is_whole) = match json {
        Some(json) => pretty(json, budget.part()),
        None => text_of(bytes, budget.part()),
    };
    budget.spend(text.len());
    html! {
        @if str::from_utf8(bytes).is_err() { (badge(Tone::Warning, "not UTF-8")) " " }
        @match part.not_kept() {
            Some(rest) => span.soft { "(" (rest) ") " },
            None => { @if bytes.is_empty() { span.soft { "empty" } } }
        }
        @if is_value { code.value { (visible(&text)) } } @else { code { (visible(&text)) } }
        @if !is_whole { " " span.soft { "(the beginning of " (number(bytes.len() as u64)) " bytes)" } }
    }
}

fn is_json(text: &str) -> bool {
    text.starts_with(['{', '[']) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(json: &str, code: &str, message: &str) -> String {
        show(json, code, message, &mut Budget::default()).into_string()
    }

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
            let named = |name: &str| StoredPart::Whole(name.as_bytes().to_vec());
            assert!(broken.is(&named(expected)), "{code}: {message}");
            assert!(!broken.is(&named("other")), "{code}: {message}");
        }
        let too_large = Broken::of("entry_too_large", "the entry has 300000 bytes and takes at most 262144");
        assert!(matches!(too_large, Broken::Unknown));
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such_and_text_is_escaped() {
        let json = r#"[["a",{"base64":"ef8="}],["<script>","\u202e"],[{"base64":"/w=="},""]]"#;
        let html = shown(json, "unknown_field", "\"<script>\" is not a field of an intent");
        assert!(html.contains("not UTF-8") && html.contains("y\\xff"), "{html}");
        assert!(html.contains("&lt;script&gt;") && !html.contains("<script>"), "{html}");
        assert!(html.contains("U+202E") && html.contains("breaks the rule"), "{html}");
    }

    #[test]
    fn a_field_that_is_missing_is_named_and_what_is_no_list_of_fields_is_shown_as_it_is() {
        let html = shown("[]", "missing_field", "producer is absent or empty");
        assert!(html.contains("producer") && html.contains("missing"), "{html}");
        assert!(shown("{\"a\": 1}", "x", "y").contains("<pre"));
    }

    #[test]
    fn a_page_shows_no_more_than_its_budget_and_says_what_is_left() {
        let value = "x".repeat(50_000);
        let many: Vec<(String, &str)> = (0..40).map(|index| (format!("f{index}"), value.as_str())).collect();
        let json = serde_json::to_string(&many).expect("JSON");
        let mut budget = Budget::default();
        let html = show(&json, "unknown_field", "", &mut budget).into_string();
        assert!(
            html.contains("the beginning of 50,000 bytes") && html.contains("further fields are not shown")
        );
        let again = show(&json, "unknown_field", "", &mut budget).into_string();
        assert!(again.contains("40 further fields are not shown"), "{again}");
        let short = vec![("", ""); 100_000];
        let json = serde_json::to_string(&short).expect("JSON");
        assert!(shown(&json, "repeated_field", "").len() < 2 * MAX_SHOWN_BYTES);
        let other = format!("{{\"a\":\"{}\"}}", "y".repeat(1_000_000));
        let html = shown(&other, "x", "y");
        assert!(html.len() < MAX_SHOWN_BYTES && html.contains("The rest is not shown"));
    }

    #[test]
    fn deep_json_in_a_field_is_shown_within_the_bound() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let json = serde_json::to_string(&[("payload_json", deep)]).expect("JSON");
        let html = shown(&json, "invalid_payload_json", "");
        assert!(html.len() < 2 * PART_SHOWN && html.contains("the beginning of 200,000 bytes"));
    }
}
