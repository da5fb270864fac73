//! Converts a JSON text to its normal form within a bounded buffer.
//!
//! Values are written as they are read. For an open object, only the positions of its members are kept, eight
//! bytes each. When the object ends, its members are sorted within the buffer.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde::Serialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{
    BEYOND_DOUBLES, NormalNumbers, REPEATED_KEY, StrictJsonError, WIDE_INTEGER, has_wide_integer, inside,
    without_nul,
};

/// The result of [`normalise`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NormalForm {
    /// The normal form.
    Text(String),
    /// The normal form exceeds the limit. The rest of the text was not read.
    TooLong,
}

/// Returns the normal form of one JSON value if it has at most `limit` bytes. The errors are those of
/// [`super::parse`].
pub fn normalise(text: &str, limit: usize) -> Result<NormalForm, StrictJsonError> {
    let mut out = Out { bytes: Vec::new(), limit, is_too_long: false };
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = Writer { out: &mut out, level: 0 }.deserialize(&mut reader).and_then(|()| reader.end());
    if out.is_too_long {
        return Ok(NormalForm::TooLong);
    }
    read.map_err(|error| StrictJsonError(error.to_string()))?;
    if has_wide_integer(text) {
        return Err(StrictJsonError(WIDE_INTEGER.to_owned()));
    }
    // Cannot fail: serde_json writes UTF-8.
    Ok(NormalForm::Text(String::from_utf8(out.bytes).expect("serde_json writes UTF-8")))
}

/// Returns a lower bound for the length of the normal form of a valid JSON text, in bytes. White space counts
/// nothing; an escape and a number count one byte each. Counting stops at `limit + 1`.
pub fn least_normal_length(text: &str, limit: usize) -> usize {
    let (mut length, mut in_string, mut in_number, mut bytes) = (0, false, false, text.bytes());
    while let Some(byte) = bytes.next().filter(|_| length <= limit) {
        let continues = in_number && matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        in_number = !in_string && (continues || matches!(byte, b'-' | b'0'..=b'9'));
        match byte {
            // An escape yields at least one byte. A `\u` escape is skipped with its four digits.
            b'\\' if in_string && bytes.next() == Some(b'u') => drop(bytes.nth(3)),
            b'"' => in_string = !in_string,
            b' ' | b'\t' | b'\n' | b'\r' if !in_string => continue,
            _ => {}
        }
        length += usize::from(!continues);
    }
    length
}

/// Returns true if a valid JSON text has more than `most` values and keys. In a tree, each of them takes many
/// times the memory of its text. The outermost value is not counted, and an empty array or object counts
/// twice.
pub fn has_more_values_than(text: &str, most: usize) -> bool {
    let (mut count, mut in_string, mut bytes) = (0, false, text.bytes());
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if in_string => drop(bytes.next()),
            b'"' => in_string = !in_string,
            b',' | b':' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count > most
}

struct Out {
    bytes: Vec<u8>,
    limit: usize,
    is_too_long: bool,
}

impl Out {
    fn write<E: de::Error>(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), E> {
        let mut writer = serde_json::Serializer::with_formatter(&mut self.bytes, NormalNumbers);
        value.serialize(&mut writer).map_err(E::custom)?;
        self.check()
    }

    fn push<E: de::Error>(&mut self, byte: u8) -> Result<(), E> {
        self.bytes.push(byte);
        self.check()
    }

    fn check<E: de::Error>(&mut self) -> Result<(), E> {
        self.is_too_long = self.bytes.len() > self.limit;
        if self.is_too_long { Err(E::custom("too long")) } else { Ok(()) }
    }

    /// Sorts the members of an object, which begin at `start`, by the bytes of their keys.
    fn sort(&mut self, start: usize, mut members: Vec<MemberSpan>) -> Result<(), &'static str> {
        let key = |member: &MemberSpan| MemberKey(&self.bytes[member.start as usize..member.end as usize]);
        if members.is_sorted_by(|one, other| key(one) < key(other)) {
            return Ok(());
        }
        members.sort_unstable_by(|one, other| key(one).cmp(&key(other)));
        if members.windows(2).any(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(REPEATED_KEY);
        }
        let mut sorted = Vec::with_capacity(self.bytes.len() - start);
        for member in members {
            if !sorted.is_empty() {
                sorted.push(b',');
            }
            sorted.extend_from_slice(&self.bytes[member.start as usize..member.end as usize]);
        }
        self.bytes.truncate(start);
        self.bytes.append(&mut sorted);
        Ok(())
    }
}

/// The position of a member of an open object, key and value.
struct MemberSpan {
    start: u32,
    end: u32,
}

/// The key at the beginning of a member's text, compared by its unescaped bytes.
struct MemberKey<'a>(&'a [u8]);

impl MemberKey<'_> {
    fn bytes(&self) -> impl Iterator<Item = u8> {
        let mut rest = self.0[1..].iter().copied();
        std::iter::from_fn(move || match rest.next()? {
            b'"' => None,
            b'\\' => Some(match rest.next()? {
                b'b' => 8,
                b't' => 9,
                b'n' => 10,
                b'f' => 12,
                b'r' => 13,
                // Only control characters are written as \u00xx.
                b'u' => {
                    let mut digit =
                        || rest.next().and_then(|byte| char::from(byte).to_digit(16)).unwrap_or(0);
                    u8::try_from((0..4).fold(0, |code, _| code * 16 + digit())).unwrap_or(u8::MAX)
                }
                other => other,
            }),
            byte => Some(byte),
        })
    }
}

impl Ord for MemberKey<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl PartialOrd for MemberKey<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MemberKey<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for MemberKey<'_> {}

/// Writes a value that is nested in `level` arrays and objects.
struct Writer<'a> {
    out: &'a mut Out,
    level: usize,
}

impl<'de> DeserializeSeed<'de> for Writer<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.out.write(&())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.out.write(&value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.out.write(&value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.out.write(&value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        if value.is_finite() { self.out.write(&value) } else { Err(E::custom(BEYOND_DOUBLES)) }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.out.write(without_nul(text)?)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let level = inside(self.level)?;
        self.out.push(b'[')?;
        let start = self.out.bytes.len();
        loop {
            let end = self.out.bytes.len();
            if end > start {
                self.out.push(b',')?;
            }
            if items.next_element_seed(Writer { out: self.out, level })?.is_none() {
                self.out.bytes.truncate(end);
                return self.out.push(b']');
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let level = inside(self.level)?;
        self.out.push(b'{')?;
        let (start, mut members) = (self.out.bytes.len(), Vec::new());
        while let Some(key) = entries.next_key::<Name<'de>>()? {
            if self.out.bytes.len() > start {
                self.out.push(b',')?;
            }
            let begin = place(self.out.bytes.len())?;
            self.out.write(without_nul(&*key.0)?)?;
            self.out.push(b':')?;
            entries.next_value_seed(Writer { out: self.out, level })?;
            members.push(MemberSpan { start: begin, end: place(self.out.bytes.len())? });
        }
        self.out.sort(start, members).map_err(de::Error::custom)?;
        self.out.push(b'}')
    }
}

/// A key, borrowed if it has no escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

fn place<E: de::Error>(at: usize) -> Result<u32, E> {
    u32::try_from(at).map_err(E::custom)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::json::{canonical, parse};

    fn normal(text: &str) -> Result<String, StrictJsonError> {
        normalise(text, usize::MAX).map(|form| match form {
            NormalForm::Text(text) => text,
            NormalForm::TooLong => unreachable!("there is no limit"),
        })
    }

    #[test]
    fn the_normal_form_is_the_canonical_text_of_the_value() {
        for text in [
            "1",
            "-0",
            "-0.0",
            "1e2",
            "0.1000",
            "18446744073709551615",
            "[]",
            "{}",
            " [ 1 , 2 ] ",
            "\"\\u0041\\n\\u0001\"",
            r#"{"b":1,"a":{"z":[{"y":1,"x":2}],"B":null},"":0}"#,
            r#"{"\n":1,"\"":2,"\\":3,"!":4,"a":5,"\u0001":6,"\u001f":7," ":8,"\r":9}"#,
            "{\"\u{10000}\":1,\"\u{ff61}\":2}",
            r#"{"aa":1,"a":2,"ab":3}"#,
        ] {
            assert_eq!(normal(text), Ok(canonical(&parse(text).expect(text))), "{text}");
        }
    }

    #[test]
    fn what_is_not_strict_is_refused_as_it_is_as_a_value() {
        for text in [
            r#"{"a":1,"b":2,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"x":{"b":null,"c":1,"b":null}}]"#,
            "1e400",
            "18446744073709551616",
            r#""\ud800""#,
            r#"{"\u0000":1}"#,
            r#""a\u0000""#,
            "[1,]",
            "{} {}",
            "",
        ] {
            assert!(normal(text).is_err() && parse(text).is_err(), "{text}");
        }
        assert!(normal(&"[".repeat(65)).expect_err("too deep").to_string().contains("64 levels"));
    }

    #[test]
    fn a_text_that_is_too_long_is_given_up() {
        assert_eq!(normalise("[1,2,3]", 6), Ok(NormalForm::TooLong));
        assert_eq!(normalise(" [ 1,2,3 ] ", 7), Ok(NormalForm::Text("[1,2,3]".to_owned())));
        // The text after the limit is ignored, even if it is invalid.
        assert_eq!(normalise("[1,2,3,{\"a\":1,\"a\":1}]", 6), Ok(NormalForm::TooLong));
    }

    #[test]
    fn values_and_keys_are_counted_and_what_strings_hold_is_not() {
        let text = r#"{"a":[1,2,{"b,:[{\"":null}]}"#;
        assert!(has_more_values_than(text, 6) && !has_more_values_than(text, 7));
    }

    fn values() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_filter("no U+0000", |text| !text.contains('\0')).prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::hash_map("[^\0]*", inner, 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_has_one_normal_form_which_is_as_long_as_it_must_be(value in values()) {
            let expected = canonical(&value);
            for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("JSON"), expected.clone()] {
                prop_assert_eq!(normal(&text), Ok(expected.clone()));
                prop_assert!(least_normal_length(&text, usize::MAX - 1) <= expected.len());
            }
        }
    }
}
