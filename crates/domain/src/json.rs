//! Strict JSON and its normal form.
//!
//! A text that [`parse`] accepts has one meaning for every reader: no repeated keys, no number that a 64-bit
//! integer or a double cannot hold, no text that PostgreSQL cannot store. [`canonical`] writes equal values
//! as equal bytes, from which fingerprints are computed. [`normalise`] does the same from text to text,
//! without a tree of values, which takes 85 times the memory of its text. Errors contain the position and the
//! rule and never repeat the text.

use std::fmt;
use std::io;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::ser::{CompactFormatter, Formatter};
use serde_json::{Map, Number, Value};

mod normal;

pub use normal::{NormalForm, has_more_values_than, least_normal_length, normalise};

/// The most levels of nested arrays and objects; the outermost one is level 1.
pub const MAX_LEVELS: usize = 64;

/// The error for a text that is not strict JSON.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StrictJsonError(String);

const WIDE_INTEGER: &str = "an integer outside [-2^63, 2^64)";
const REPEATED_KEY: &str = "a repeated key";
const BEYOND_DOUBLES: &str = "a number beyond the doubles";

/// Parses one JSON value with nothing after it.
///
/// The following are also errors: a repeated key, more than [`MAX_LEVELS`] levels, an integer outside [-2^63,
/// 2^64), a number beyond the doubles, a lone surrogate, and U+0000 in a string or key.
pub fn parse(text: &str) -> Result<Value, StrictJsonError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict { level: 0 }.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let value = value.map_err(|error| StrictJsonError(error.to_string()))?;
    match has_wide_integer(text) {
        true => Err(StrictJsonError(WIDE_INTEGER.to_owned())),
        false => Ok(value),
    }
}

/// Returns the normal form: compact, keys sorted by their bytes at every level, integers exact, other numbers
/// as the shortest text of their double, negative zero as `-0`.
pub fn canonical(value: &Value) -> String {
    to_text(&Canonical(value))
}

/// Writes compact JSON with numbers in normal form. For types whose serialization cannot fail and that
/// contain no map except [`Canonical`].
pub(crate) fn to_text(value: &impl Serialize) -> String {
    let mut text = Vec::with_capacity(256);
    let mut writer = serde_json::Serializer::with_formatter(&mut text, NormalNumbers);
    // Cannot fail: memory takes every byte, and the types given have string keys only.
    value.serialize(&mut writer).expect("memory takes every byte");
    // Cannot fail: serde_json writes UTF-8.
    String::from_utf8(text).expect("serde_json writes UTF-8")
}

/// A value that is serialized with sorted keys, whatever map type holds its objects.
pub(crate) struct Canonical<'a>(pub(crate) &'a Value);

impl Serialize for Canonical<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(Canonical)),
            Value::Object(members) => {
                let mut members: Vec<(&String, &Value)> = members.iter().collect();
                members.sort_unstable_by(|one, other| one.0.cmp(other.0));
                serializer.collect_map(members.into_iter().map(|(key, value)| (key, Canonical(value))))
            }
            scalar => scalar.serialize(serializer),
        }
    }
}

/// Writes numbers as serde_json does, except negative zero, which is `-0` instead of `-0.0`.
struct NormalNumbers;

impl Formatter for NormalNumbers {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        match value == 0.0 && value.is_sign_negative() {
            true => writer.write_all(b"-0"),
            false => CompactFormatter.write_f64(writer, value),
        }
    }
}

/// Deserializes a value that is nested in `level` arrays and objects.
#[derive(Clone, Copy)]
struct Strict {
    level: usize,
}

impl Strict {
    fn inside<E: de::Error>(self) -> Result<Self, E> {
        Ok(Self { level: inside(self.level)? })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom(BEYOND_DOUBLES))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        without_nul(text.to_owned()).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inside = self.inside()?;
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(inside)? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let inside = self.inside()?;
        let mut object = Map::new();
        while let Some(key) = members.next_key()? {
            let key = without_nul(key)?;
            let value = members.next_value_seed(inside)?;
            if object.insert(key, value).is_some() {
                return Err(de::Error::custom(REPEATED_KEY));
            }
        }
        Ok(Value::Object(object))
    }
}

/// Returns the level inside an array or object at `level`.
fn inside<E: de::Error>(level: usize) -> Result<usize, E> {
    match level {
        MAX_LEVELS => Err(E::custom(format_args!("more than {MAX_LEVELS} levels"))),
        level => Ok(level + 1),
    }
}

/// PostgreSQL cannot store U+0000, in `text` or in `jsonb`.
fn without_nul<E: de::Error, T: AsRef<str>>(text: T) -> Result<T, E> {
    match text.as_ref().contains('\0') {
        true => Err(E::custom("U+0000 in a string")),
        false => Ok(text),
    }
}

/// Returns true if the valid JSON text contains a number that is written as an integer and fits neither `i64`
/// nor `u64`. serde_json silently rounds such a number to a double, so it has to be found in the text.
fn has_wide_integer(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let token = bytes[at..]
                    .iter()
                    .take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
                let end = at + token.count();
                if is_wide_integer(&text[at..end]) {
                    return true;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    false
}

/// Returns the position after the string that begins at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

fn is_wide_integer(number: &str) -> bool {
    /// A number of at most this many characters is always in range.
    const ALWAYS_FITS: usize = 18;
    number.len() > ALWAYS_FITS
        && !number.contains(['.', 'e', 'E'])
        && number.parse::<i64>().is_err()
        && number.parse::<u64>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the normal form of a text, or the parse error.
    fn normal(text: &str) -> Result<String, StrictJsonError> {
        parse(text).map(|value| canonical(&value))
    }

    fn assert_refused(text: &str, reason: &str) {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }

    #[test]
    fn keys_are_sorted_by_bytes_at_every_level() {
        // U+FF61 sorts before U+10000 by bytes, but after it by UTF-16 units.
        let text = "{ \"\u{10000}\":1, \"\u{ff61}\":2, \"b\":{\"z\":[ {\"y\":1,\"x\":2} ],\"B\":null}, \"a\":true, \"\":0 }";
        let sorted =
            "{\"\":0,\"a\":true,\"b\":{\"B\":null,\"z\":[{\"x\":2,\"y\":1}]},\"\u{ff61}\":2,\"\u{10000}\":1}";
        assert_eq!(normal(text), Ok(sorted.to_owned()));
    }

    #[test]
    fn integers_are_exact_and_other_numbers_the_shortest_text_of_their_double() {
        for (text, expected) in [
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("9007199254740993", "9007199254740993"),
            ("0", "0"),
            ("1.0", "1.0"),
            ("1e2", "100.0"),
            ("1E+2", "100.0"),
            ("0.1000", "0.1"),
            ("123456789.12345678901234567890", "123456789.12345679"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("5e-324", "5e-324"),
            ("18446744073709551616.0", "1.8446744073709552e+19"),
        ] {
            assert_eq!(normal(text), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn negative_zero_stays_negative_and_has_one_form() {
        for text in ["-0", "-0.0", "-0e5", "-1e-400"] {
            assert_eq!(normal(text), Ok("-0".to_owned()), "{text}");
        }
        assert_eq!(normal("[0,0.0,-0]"), Ok("[0,0.0,-0]".to_owned()));
    }

    #[test]
    fn strings_are_escaped_no_more_than_json_asks() {
        let text = r#""\u0041\/\u00e9\ud83d\ude00\u007f\u0001\n\"\\""#;
        assert_eq!(normal(text), Ok("\"A/é😀\u{7f}\\u0001\\n\\\"\\\\\"".to_owned()));
    }

    #[test]
    fn a_repeated_key_is_refused_however_it_is_spelled_and_wherever_it_stands() {
        assert_refused(r#"{"a":1,"a":1}"#, "repeated key");
        assert_refused(r#"{"a":1,"\u0061":2}"#, "repeated key");
        assert_refused(r#"[{"x":{"b":null,"c":1,"b":null}}]"#, "repeated key");
        assert!(parse(r#"[{"a":1},{"a":{"a":1}}]"#).is_ok());
    }

    #[test]
    fn the_sixty_fifth_level_is_refused() {
        let arrays = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let objects = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        assert!(parse(&arrays(64)).is_ok());
        assert!(parse(&objects(64)).is_ok());
        assert_refused(&arrays(65), "64 levels");
        assert_refused(&objects(65), "64 levels");
        assert_refused(&"[".repeat(100_000), "64 levels");
    }

    #[test]
    fn an_integer_beyond_64_bits_is_refused_and_its_double_is_not() {
        for text in ["18446744073709551616", "-9223372036854775809", "[1,{\"a\":100000000000000000000}]"] {
            assert_refused(text, "an integer outside");
        }
        for text in ["18446744073709551616.0", "1e20", "-9223372036854775809E0", "\"18446744073709551616\""] {
            assert!(parse(text).is_ok(), "{text}");
        }
        assert!(parse(r#"["\"18446744073709551616",0]"#).is_ok());
    }

    #[test]
    fn a_number_beyond_the_doubles_is_refused() {
        for text in ["1e400", "-1e400", "[1.8e308]"] {
            assert_refused(text, "number out of range");
        }
        assert!(parse(&"9".repeat(400)).is_err());
    }

    #[test]
    fn a_lone_surrogate_is_refused() {
        for text in
            [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#""\ude00\ud83d""#, r#"{"\ud800":1}"#]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn u0000_is_refused_in_strings_and_keys() {
        assert_refused(r#""a\u0000""#, "U+0000");
        assert_refused(r#"{"\u0000":1}"#, "U+0000");
        assert!(parse("\"a\0\"").is_err());
        assert!(parse(r#""\\u0000""#).is_ok());
    }

    #[test]
    fn what_is_not_one_json_value_is_refused() {
        for text in [
            "",
            " ",
            "{} {}",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "+1",
            ".5",
            "1.",
            "NaN",
            "'a'",
            "nul",
            "\u{feff}1",
            "\"\t\"",
            "//\n1",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert_eq!(parse(" \t\r\n1 \t\r\n"), Ok(Value::from(1)));
    }

    #[test]
    fn an_error_does_not_repeat_the_text() {
        for text in [r#"{"secret":1,"secret":2}"#, r#"{"a":"secret"#, r#"["secret" "secret"]"#, "secret"] {
            let error = parse(text).expect_err(text).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
