//! The text that PostgreSQL writes for the same `jsonb`.

use std::fmt::{self, Write};

use super::Json;

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::String(text) => write_string(f, text),
            Self::Array(elements) => {
                f.write_char('[')?;
                for (at, element) in elements.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    write!(f, "{comma}{element}")?;
                }
                f.write_char(']')
            }
            Self::Object(members) => {
                let mut members: Vec<(&String, &Json)> = members.iter().collect();
                // jsonb keeps short names first.
                members.sort_by_key(|(name, _)| (name.len(), *name));
                f.write_char('{')?;
                for (at, (name, value)) in members.into_iter().enumerate() {
                    f.write_str(if at > 0 { ", " } else { "" })?;
                    write_string(f, name)?;
                    write!(f, ": {value}")?;
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
