//! Writes JSON as PostgreSQL writes the same `jsonb`, or shorter: without spaces.

use std::fmt::{self, Write};

use super::Json;

impl Json {
    /// The value without spaces, with its numbers as digits and exponents: equal, and no longer than the
    /// original text.
    pub(crate) fn to_short_text(&self) -> String {
        WrittenJson { json: self, is_short: true }.to_string()
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        WrittenJson { json: self, is_short: false }.fmt(f)
    }
}

struct WrittenJson<'a> {
    json: &'a Json,
    is_short: bool,
}

impl fmt::Display for WrittenJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_short = self.is_short;
        let (comma, colon) = if is_short { (",", ":") } else { (", ", ": ") };
        match self.json {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => write!(f, "{value}"),
            Json::Number(number) if is_short => f.write_str(&number.to_scientific()),
            Json::Number(number) => write!(f, "{number}"),
            Json::String(text) => write_string(f, text),
            Json::Array(elements) => {
                f.write_char('[')?;
                for (at, json) in elements.iter().enumerate() {
                    write!(f, "{}{}", if at > 0 { comma } else { "" }, WrittenJson { json, is_short })?;
                }
                f.write_char(']')
            }
            Json::Object(members) => {
                let mut members: Vec<(&String, &Json)> = members.iter().collect();
                // `jsonb` sorts short names first.
                members.sort_by_key(|(name, _)| (name.len(), *name));
                f.write_char('{')?;
                for (at, (name, json)) in members.into_iter().enumerate() {
                    f.write_str(if at > 0 { comma } else { "" })?;
                    write_string(f, name)?;
                    write!(f, "{colon}{}", WrittenJson { json, is_short })?;
                }
                f.write_char('}')
            }
        }
    }
}

fn write_string(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' => f.write_str("\\\""),
            '\\' => f.write_str("\\\\"),
            '\u{8}' => f.write_str("\\b"),
            '\u{c}' => f.write_str("\\f"),
            '\n' => f.write_str("\\n"),
            '\r' => f.write_str("\\r"),
            '\t' => f.write_str("\\t"),
            control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control)),
            other => f.write_char(other),
        }?;
    }
    f.write_char('"')
}

/// The bytes of a string when it is written.
pub(super) fn string_bytes(text: &str) -> usize {
    let bytes = |byte: u8| match byte {
        b'"' | b'\\' | 8 | 9 | 10 | 12 | 13 => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    2 + text.bytes().map(bytes).sum::<usize>()
}
