//! The raw fields of a malformed intent, read back from the JSON that is stored: the bytes as they were received.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

/// A name or a value, as far as it was kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoredPart {
    /// All of it.
    Whole(Vec<u8>),
    /// It was too long.
    Truncated {
        /// How long it was, in bytes.
        bytes: u64,
        /// The SHA-256 of all of it, in hexadecimal digits.
        sha256: String,
        /// How it began.
        head: Vec<u8>,
    },
    /// So many fields, or bytes, were left out from here on.
    Omitted(u64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Text(String),
    Base64 { base64: String },
    Truncated { truncated: Truncated },
    Omitted { omitted: Omitted },
}

#[derive(Deserialize)]
struct Truncated {
    bytes: u64,
    sha256: String,
    head_base64: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Omitted {
    Fields(u64),
    Bytes(u64),
}

/// The fields in `json`, in the order received; `None` if this service did not write it.
pub fn read_fields(json: &str) -> Option<Vec<(StoredPart, StoredPart)>> {
    let pairs: Vec<(Part, Part)> = serde_json::from_str(json).ok()?;
    pairs.into_iter().map(|(name, value)| Some((read(name)?, read(value)?))).collect()
}

fn read(part: Part) -> Option<StoredPart> {
    Some(match part {
        Part::Text(text) => StoredPart::Whole(text.into_bytes()),
        Part::Base64 { base64 } => StoredPart::Whole(BASE64.decode(base64).ok()?),
        Part::Truncated { truncated: Truncated { bytes, sha256, head_base64 } } => {
            StoredPart::Truncated { bytes, sha256, head: BASE64.decode(head_base64).ok()? }
        }
        Part::Omitted { omitted: Omitted::Fields(count) | Omitted::Bytes(count) } => {
            StoredPart::Omitted(count)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::RawFields;
    use crate::malformed::KeptFields;

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
        assert_eq!((*bytes, head.len()), (17 << 20, crate::malformed::TRUNCATED_HEAD));
        let json = r#"[[{"omitted":{"fields":3}},{"omitted":{"bytes":9}}]]"#;
        assert_eq!(read_fields(json), Some(vec![(StoredPart::Omitted(3), StoredPart::Omitted(9))]));
    }

    #[test]
    fn what_another_program_wrote_is_not_guessed_at() {
        for json in ["", "{}", "[1]", r#"[["a"]]"#, r#"[["a",{"base64":"?"}]]"#, r#"[["a",1]]"#] {
            assert_eq!(read_fields(json), None, "{json}");
        }
    }
}
