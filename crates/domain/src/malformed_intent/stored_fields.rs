//! Decodes the raw fields of a malformed intent from the stored JSON to the bytes as received.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

use super::raw_fields::{Omitted, Truncated};
use crate::entry::RawFields;

/// A name or value, as far as it was kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoredPart {
    /// The complete bytes.
    Whole(Vec<u8>),
    /// The beginning of a part that was too long.
    Truncated {
        /// The original length in bytes.
        bytes: u64,
        /// The SHA-256 of the complete bytes, in hexadecimal digits; `None` if only the head was read.
        sha256: Option<String>,
        /// The first bytes.
        head: Vec<u8>,
    },
    /// The number of fields, or of bytes, that were left out from here on.
    Omitted(u64),
}

impl StoredPart {
    /// Returns the bytes that were kept: all of them, or the head.
    pub fn kept(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Truncated { head, .. } => head,
            Self::Omitted(_) => &[],
        }
    }

    /// Describes for a person which part was not kept, without a full stop; `None` if it is complete.
    pub fn not_kept(&self) -> Option<String> {
        match self {
            Self::Whole(_) => None,
            Self::Truncated { bytes, sha256, head } => {
                let hash = sha256.as_ref().map(|sha256| format!(", SHA-256 {sha256}")).unwrap_or_default();
                Some(format!("{bytes} bytes{hash}; its first {} are kept", head.len()))
            }
            Self::Omitted(count) => Some(format!("{count} more were not kept")),
        }
    }
}

/// Converts bytes to text of at most `max` bytes, and returns whether the text is complete. Bytes that are
/// not UTF-8 become `\xNN`. Characters that control a terminal or a browser are not changed.
pub fn text_of(bytes: &[u8], max: usize) -> (String, bool) {
    let mut text = String::with_capacity(max.min(bytes.len()));
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid();
        let end = valid.floor_char_boundary(max - text.len());
        text.push_str(&valid[..end]);
        if end < valid.len() {
            return (text, false);
        }
        for byte in chunk.invalid() {
            let shown = format!("\\x{byte:02x}");
            if text.len() + shown.len() > max {
                return (text, false);
            }
            text.push_str(&shown);
        }
    }
    (text, true)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonPart {
    Text(String),
    Base64 { base64: String },
    Truncated { truncated: Truncated },
    Omitted { omitted: Omitted },
}

/// Returns the fields in `json`, in the order received; `None` if this service did not write it.
pub fn read_fields(json: &str) -> Option<Vec<(StoredPart, StoredPart)>> {
    let pairs: Vec<(JsonPart, JsonPart)> = serde_json::from_str(json).ok()?;
    pairs.into_iter().map(|(name, value)| Some((read(name)?, read(value)?))).collect()
}

/// The fields in `json` as received; `None` if not all of them were kept, or this service did not write it.
/// An entry has fields, so those of a row without any were erased.
pub fn whole_fields(json: &str) -> Option<RawFields> {
    let whole = |part| match part {
        StoredPart::Whole(bytes) => Some(bytes),
        StoredPart::Truncated { .. } | StoredPart::Omitted(_) => None,
    };
    let fields = read_fields(json).filter(|fields| !fields.is_empty())?;
    fields.into_iter().map(|(name, value)| Some((whole(name)?, whole(value)?))).collect()
}

fn read(part: JsonPart) -> Option<StoredPart> {
    Some(match part {
        JsonPart::Text(text) => StoredPart::Whole(text.into_bytes()),
        JsonPart::Base64 { base64 } => StoredPart::Whole(BASE64.decode(base64).ok()?),
        JsonPart::Truncated { truncated: Truncated { bytes, sha256, head_base64, .. } } => {
            StoredPart::Truncated { bytes, sha256, head: BASE64.decode(head_base64).ok()? }
        }
        JsonPart::Omitted { omitted: Omitted::Fields(count) | Omitted::Bytes(count) } => {
            StoredPart::Omitted(count)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::malformed_intent::KeptFields;

    fn whole(text: &[u8]) -> StoredPart {
        StoredPart::Whole(text.to_vec())
    }

    #[test]
    fn fields_come_back_byte_for_byte() {
        let fields = RawFields::from_iter([("a", b"x\0\xff".to_vec()), ("a", b"\"\n".to_vec())]);
        let stored = read_fields(&KeptFields::of(fields).text()).expect("written by this service");
        assert_eq!(stored, [(whole(b"a"), whole(b"x\0\xff")), (whole(b"a"), whole(b"\"\n"))]);
    }

    #[test]
    fn what_was_cut_says_how_long_it_was_and_how_it_began() {
        let fields = RawFields::from_iter([("a", vec![0xff; 17 << 20])]);
        let stored = read_fields(&KeptFields::of(fields).text()).expect("written by this service");
        let StoredPart::Truncated { bytes, head, .. } = &stored[0].1 else { panic!("it was too long") };
        assert_eq!((*bytes, head.len()), (17 << 20, crate::malformed_intent::TRUNCATED_HEAD));
        let json = r#"[[{"omitted":{"fields":3}},{"omitted":{"bytes":9}}]]"#;
        assert_eq!(read_fields(json), Some(vec![(StoredPart::Omitted(3), StoredPart::Omitted(9))]));
    }

    #[test]
    fn only_fields_that_were_all_kept_are_whole() {
        let fields = RawFields::from_iter([("a", b"x".to_vec())]);
        assert_eq!(whole_fields(r#"[["a","x"]]"#), Some(fields));
        for json in [r#"[["a",{"omitted":{"bytes":9}}]]"#, "[]", "{}"] {
            assert_eq!(whole_fields(json), None, "{json}");
        }
    }

    #[test]
    fn bytes_are_shown_as_text_up_to_the_bound() {
        for (max, expected) in [
            (100, ("a\\xff\0é\\xc3", true)),
            (12, ("a\\xff\0é\\xc3", true)),
            (11, ("a\\xff\0é", false)),
            (7, ("a\\xff\0", false)),
            (4, ("a", false)),
            (0, ("", false)),
        ] {
            assert_eq!(text_of(b"a\xff\0\xc3\xa9\xc3", max), (expected.0.to_owned(), expected.1), "{max}");
        }
        assert_eq!(text_of(b"", 0), (String::new(), true));
    }

    #[test]
    fn what_another_program_wrote_is_not_guessed_at() {
        for json in ["", "{}", "[1]", r#"[["a"]]"#, r#"[["a",{"base64":"?"}]]"#, r#"[["a",1]]"#] {
            assert_eq!(read_fields(json), None, "{json}");
        }
    }
}
