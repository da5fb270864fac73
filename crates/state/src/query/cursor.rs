//! The start of a page: after a document, identified by its key and its sort values.
//!
//! A cursor is base64 of a checksum and JSON. The checksum covers the query, too: a cursor of another query,
//! or a changed one, is invalid. It contains no secrets, and security does not depend on it being
//! unforgeable: its contents are data, and the prefix of the query bounds the results.
//!
//! Values of up to [`MAX_CURSOR_VALUE_BYTES`] are in the cursor, so that a page starts where the last one
//! ended even if that document was deleted. Longer values would make a cursor too long for a request. They
//! are read again from the document, which must have the same version.

use std::fmt::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value as Plain, json};
use sha2::{Digest, Sha256};

use super::sort::{SortTerm, SortValue, values_of};
use super::{Filter, Query, SortName};
use crate::json::Number;
use crate::{Document, Key, Prefix, StateError, Version};

/// The longest text or number that a cursor contains, in bytes.
const MAX_CURSOR_VALUE_BYTES: usize = 1_024;
/// The length of the checksum in bytes.
const CHECKSUM_BYTES: usize = 16;

/// The document after which a page begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CursorPosition {
    key: Key,
    version: Version,
    /// The sort values, one for each name before the key.
    values: Vec<KnownValue>,
}

/// A sort value of the document.
#[derive(Clone, PartialEq, Eq, Debug)]
enum KnownValue {
    Here(Option<SortValue>),
    /// Too large for the cursor; to be read from the document.
    InDocument,
}

impl CursorPosition {
    pub(super) fn row_needed(&self) -> Option<(&Key, Version)> {
        self.values.contains(&KnownValue::InDocument).then_some((&self.key, self.version))
    }

    pub(super) fn complete(&mut self, sort: &[SortTerm], row: Option<&Document>) -> Result<(), StateError> {
        if self.row_needed().is_none() {
            return Ok(());
        }
        let row = row.filter(|row| row.key == self.key && row.version == self.version).ok_or_else(|| {
            StateError::InvalidQuery(
                "the document after which the cursor continues was changed or deleted; begin again"
                    .to_owned(),
            )
        })?;
        let values = values_of(&sort[..self.values.len()], row);
        self.values = values.into_iter().map(KnownValue::Here).collect();
        Ok(())
    }

    /// The key.
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// The values, one for each name before the key. [`StateError::InvalidQuery`] if some are only in the
    /// document, which was not given.
    pub(super) fn values(&self) -> Result<Vec<Option<SortValue>>, StateError> {
        let known = |known: &KnownValue| match known {
            KnownValue::Here(value) => Ok(value.clone()),
            KnownValue::InDocument => {
                Err(StateError::InvalidQuery("the cursor needs its document".to_owned()))
            }
        };
        self.values.iter().map(known).collect()
    }
}

/// The fingerprint of everything that decides the result of a query: its documents and their order.
pub(super) fn fingerprint(prefix: &Prefix, filter: &Filter, sort: &[SortTerm]) -> [u8; 32] {
    let mut hashed = Hashed(Sha256::new());
    // Cannot fail: a hash accepts every text.
    write!(hashed, "{:?}{filter:?}{sort:?}", prefix.as_str()).expect("a hash takes every text");
    hashed.0.finalize().into()
}

/// Hashes what is written, so that a large filter is not copied in memory.
struct Hashed(Sha256);

impl fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

impl Query {
    /// The cursor of the page after this document.
    pub(super) fn cursor_after(&self, document: &Document) -> String {
        let values: Vec<Plain> = self.sort_values(document).iter().map(encode_value).collect();
        let plain = json!({ "k": document.key.as_str(), "v": document.version.0, "s": values }).to_string();
        let mut bytes = checksum(&self.fingerprint, plain.as_bytes()).to_vec();
        bytes.extend(plain.into_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }
}

fn checksum(fingerprint: &[u8; 32], plain: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hash = Sha256::new();
    hash.update(fingerprint);
    hash.update(plain);
    let whole: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|at| whole[at])
}

fn encode_value(value: &Option<SortValue>) -> Plain {
    let in_document = || json!(["in document"]);
    match value {
        None => json!(["missing"]),
        Some(SortValue::Null) => json!(["null"]),
        Some(SortValue::String(text)) if text.len() > MAX_CURSOR_VALUE_BYTES => in_document(),
        Some(SortValue::String(text)) => json!(["string", text]),
        Some(SortValue::Number(number)) => match number.to_scientific() {
            digits if digits.len() > MAX_CURSOR_VALUE_BYTES => in_document(),
            digits => json!(["number", digits]),
        },
        Some(SortValue::Bool(value)) => json!(["boolean", value]),
        Some(SortValue::Array) => json!(["array"]),
        Some(SortValue::Object) => json!(["object"]),
        Some(SortValue::Micros(micros)) => json!(["micros", micros]),
    }
}

fn decode_value(term: &SortTerm, plain: &Plain) -> Option<KnownValue> {
    let parts = plain.as_array()?;
    let value = match (parts.first()?.as_str()?, parts.get(1)) {
        ("in document", None) => return Some(KnownValue::InDocument),
        ("missing", None) => None,
        ("null", None) => Some(SortValue::Null),
        ("string", Some(text)) => {
            let text = text.as_str()?;
            (!text.contains('\0')).then(|| SortValue::String(text.to_owned())).map(Some)?
        }
        ("number", Some(digits)) => Some(SortValue::Number(Number::parse(digits.as_str()?)?)),
        ("boolean", Some(value)) => Some(SortValue::Bool(value.as_bool()?)),
        ("array", None) => Some(SortValue::Array),
        ("object", None) => Some(SortValue::Object),
        ("micros", Some(micros)) => Some(SortValue::Micros(micros.as_i64()?)),
        _ => return None,
    };
    let is_time = matches!(value, Some(SortValue::Micros(_)));
    let is_column = !matches!(term.name, SortName::Member(_));
    (is_time == is_column).then_some(KnownValue::Here(value))
}

/// Decodes a cursor; `None` if it is not a cursor of the query with this fingerprint.
///
/// The prefix must cover its document: a forged cursor must not reveal documents that its sender may not
/// read.
pub(super) fn decode(
    cursor: &str,
    of_query: &[u8; 32],
    prefix: &Prefix,
    sort: &[SortTerm],
) -> Option<CursorPosition> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (sum, plain) = bytes.split_at_checked(CHECKSUM_BYTES)?;
    if sum != checksum(of_query, plain) {
        return None;
    }
    let plain: Plain = serde_json::from_slice(plain).ok()?;
    let terms = sort.iter().take_while(|term| term.name != SortName::Key);
    let values = plain.get("s")?.as_array()?;
    if values.len() != terms.clone().count() {
        return None;
    }
    let key = Key::from_cursor(plain.get("k")?.as_str()?).filter(|key| prefix.is_of(key))?;
    let version = Version(plain.get("v")?.as_i64()?);
    let values = terms.zip(values).map(|(term, value)| decode_value(term, value)).collect::<Option<_>>()?;
    Some(CursorPosition { key, version, values })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::CursorPosition;

    #[test]
    fn a_forged_cursor_cannot_name_a_document_outside_the_prefix() {
        let query = Query::parse(br#"{"prefix": "mine/", "sort": ["f"]}"#).expect("a query");
        let decoded = |key: &str| -> Option<CursorPosition> {
            let plain = json!({ "k": key, "v": 1, "s": [["in document"]] }).to_string();
            let mut bytes = checksum(&query.fingerprint, plain.as_bytes()).to_vec();
            bytes.extend(plain.into_bytes());
            decode(&URL_SAFE_NO_PAD.encode(bytes), &query.fingerprint, &query.prefix, &query.sort)
        };
        assert!(decoded("mine/1").is_some());
        assert_eq!(decoded("other/1"), None);
        assert_eq!(decoded("mine/\0"), None);
    }

    #[test]
    fn what_a_cursor_must_not_have_makes_it_none() {
        let query = Query::parse(br#"{"sort": ["f", "created_at"]}"#).expect("a query");
        let decoded = |plain: &str| {
            let mut bytes = checksum(&query.fingerprint, plain.as_bytes()).to_vec();
            bytes.extend(plain.as_bytes());
            decode(&URL_SAFE_NO_PAD.encode(bytes), &query.fingerprint, &query.prefix, &query.sort)
        };
        let with = |f: &str, created_at: &str| format!(r#"{{"k": "a", "v": 1, "s": [{f}, {created_at}]}}"#);
        assert!(decoded(&with(r#"["number", "1e131071"]"#, r#"["micros", 1]"#)).is_some());
        for (f, created_at) in [
            (r#"["number", "1e131072"]"#, r#"["micros", 1]"#),
            (r#"["number", "1; DROP TABLE kv"]"#, r#"["micros", 1]"#),
            (r#"["number", 1]"#, r#"["micros", 1]"#),
            (r#"["string", "\u0000"]"#, r#"["micros", 1]"#),
            (r#"["string"]"#, r#"["micros", 1]"#),
            (r#"["micros", 1]"#, r#"["micros", 1]"#),
            (r#"["null"]"#, r#"["null"]"#),
            (r#"["null"]"#, r#"["micros", 1.5]"#),
            (r#"["other"]"#, r#"["micros", 1]"#),
            (r#"["null"], ["null"]"#, r#"["micros", 1]"#),
        ] {
            assert_eq!(decoded(&with(f, created_at)), None, "{f}, {created_at}");
        }
        assert_eq!(decoded("[]"), None);
        assert_eq!(decoded(""), None);
    }
}
