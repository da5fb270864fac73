//! The fields of an entry as JSON, whole or truncated, in as little memory as possible.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use base64::Engine;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::entry::{FIELD_COST, RawFields};

/// Up to this [cost](crate::entry::cost) the fields of an entry are kept whole; of a larger one no more than this many bytes
/// are kept.
pub const RAW_FIELDS_MAX: usize = 16 * 1024 * 1024;

/// The longest JSON of fields that are kept whole, in bytes: enough for [`RAW_FIELDS_MAX`] as base64. Text of control
/// characters, which JSON writes six times as long, is cut like an entry that is too large.
pub const RAW_FIELDS_JSON_MAX: usize = 22 * 1024 * 1024;

/// How many bytes are kept of a long name or value of an entry that is not kept whole.
pub const TRUNCATED_HEAD: usize = 64 * 1024;

/// Beyond this length, the JSON of few and long fields is generated piece by piece when it is needed.
const MAX_BUFFERED_JSON: usize = 1024 * 1024;

/// How many bytes of a name or value one piece has: a multiple of three, so that the base64 of the pieces is that of the whole.
const PIECE: usize = 48 * 1024;

/// What is kept of the fields of an entry: an array of `[name, value]` in the order received. A name or value that is not
/// UTF-8 or holds U+0000 is `{"base64": …}`. Beyond [`RAW_FIELDS_MAX`] or [`RAW_FIELDS_JSON_MAX`] long ones are
/// `{"truncated": {"bytes": …, "sha256": …, "head_base64": …}}`, and where even that is too much the last pair is
/// `{"omitted": {"fields": …}}` and `{"omitted": {"bytes": …}}`.
///
/// Clones share it: it may be most of the service's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptFields {
    length: usize,
    source: Source,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    Text(Arc<String>),
    Whole(Arc<RawFields>),
}

impl KeptFields {
    /// What is kept of `fields`.
    pub fn of(fields: RawFields) -> Self {
        Self::within(fields, RAW_FIELDS_MAX, RAW_FIELDS_JSON_MAX)
    }

    /// All fields if they cost at most `max` and their JSON has at most `json_max` bytes, else as much as fits into `max` bytes.
    fn within(fields: RawFields, max: usize, json_max: usize) -> Self {
        if fields.cost() > max {
            return Self::text_of(&cut(&fields, max));
        }
        let length = json_length(&Whole(&fields));
        match length {
            _ if length > json_max => Self::text_of(&cut(&fields, max)),
            // As JSON they would be in memory twice for a moment; many short ones take less as JSON.
            _ if length > MAX_BUFFERED_JSON && FIELD_COST * fields.0.len() < fields.size() => {
                Self { length, source: Source::Whole(Arc::new(fields)) }
            }
            _ => Self { length, source: Source::Text(Arc::new(json(&Whole(&fields), length))) },
        }
    }

    /// One pair: the name `raw_fields` and the truncated form of the JSON. `None` if it has this form already.
    pub(super) fn reduced(&self) -> Option<Self> {
        let text = self.text();
        let raw_fields = || Part::Truncated { truncated: Truncated::of(text.as_bytes()) };
        (!text.starts_with(REDUCED)).then(|| Self::text_of(&[(Part::Text("raw_fields"), raw_fields())]))
    }

    fn text_of(pairs: &[(Part<'_>, Part<'_>)]) -> Self {
        let length = json_length(&pairs);
        Self { length, source: Source::Text(Arc::new(json(&pairs, length))) }
    }

    /// The length of the JSON in bytes.
    pub fn json_length(&self) -> usize {
        self.length
    }

    /// The JSON in one piece.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.source {
            Source::Text(text) => Cow::Borrowed(text),
            Source::Whole(fields) => Cow::Owned(json(&Whole(fields), self.length)),
        }
    }

    /// The JSON in pieces of at most some hundred kilobytes, each generated when it is requested.
    pub fn pieces(&self) -> Pieces {
        Pieces { source: self.source.clone(), part: 0, is_text: false, offset: 0 }
    }
}

/// How the JSON of [`KeptFields::reduced`] begins.
const REDUCED: &str = r#"[["raw_fields",{"truncated":"#;

/// The bytes as text, if PostgreSQL can store them as such.
pub(super) fn storable_text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// JSON, piece by piece.
#[derive(Clone, Debug)]
pub struct Pieces {
    source: Source,
    /// Which name or value is next: two for each field.
    part: usize,
    /// Whether it is text.
    is_text: bool,
    /// How many bytes of it have been written.
    offset: usize,
}

impl Iterator for Pieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut piece = Vec::new();
        match self.source.clone() {
            Source::Text(text) => {
                let rest = &text.as_bytes()[self.offset..];
                piece.extend_from_slice(&rest[..rest.len().min(PIECE)]);
                self.offset += piece.len();
            }
            Source::Whole(fields) => {
                while piece.len() < PIECE && self.part < 2 * fields.0.len() {
                    self.write_some(&fields, &mut piece);
                }
            }
        }
        (!piece.is_empty()).then_some(piece)
    }
}

impl Pieces {
    /// Writes up to [`PIECE`] bytes of the next name or value, with the JSON syntax before its first and after its last byte.
    fn write_some(&mut self, fields: &RawFields, piece: &mut Vec<u8>) {
        let (name, value) = &fields.0[self.part / 2];
        let is_name = self.part.is_multiple_of(2);
        let bytes = if is_name { name } else { value };
        if self.offset == 0 {
            self.is_text = storable_text(bytes).is_some();
            let between: &[u8] = match self.part {
                0 => b"[[",
                _ if is_name => b",[",
                _ => b",",
            };
            piece.extend_from_slice(between);
            piece.extend_from_slice(if self.is_text { b"\"" } else { br#"{"base64":""# });
        }
        let mut end = bytes.len().min(self.offset + PIECE);
        // A character is never split between pieces.
        while self.is_text && bytes.get(end).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000) {
            end -= 1;
        }
        let some = &bytes[self.offset..end];
        match str::from_utf8(some) {
            Ok(text) if self.is_text => {
                // Cannot fail: a string has a JSON form.
                let quoted = serde_json::to_string(text).expect("a string has a JSON form");
                piece.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
            }
            _ => piece.extend_from_slice(BASE64.encode(some).as_bytes()),
        }
        self.offset = end;
        if end == bytes.len() {
            piece.extend_from_slice(if self.is_text { b"\"" } else { br#""}"# });
            self.part += 1;
            self.offset = 0;
            if !is_name {
                piece.push(b']');
            }
            if self.part == 2 * fields.0.len() {
                piece.push(b']');
            }
        }
    }
}

/// A name or value. It is serialized twice, for its length and for its text, without an intermediate copy of long parts.
#[derive(Serialize)]
#[serde(untagged)]
enum Part<'a> {
    Text(&'a str),
    Base64 { base64: Base64<'a> },
    Truncated { truncated: Box<Truncated> },
    Omitted { omitted: Omitted },
}

/// What is kept of a part that is too long.
#[derive(Serialize)]
struct Truncated {
    bytes: usize,
    sha256: String,
    head_base64: String,
}

/// The place of fields that do not fit.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Omitted {
    Fields(usize),
    Bytes(usize),
}

/// Bytes that are encoded while they are written.
struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &BASE64))
    }
}

impl<'a> Part<'a> {
    fn whole(bytes: &'a [u8]) -> Self {
        storable_text(bytes).map_or(Self::Base64 { base64: Base64(bytes) }, Self::Text)
    }

    /// The whole part, or its truncated form if it is longer than [`TRUNCATED_HEAD`].
    fn head(bytes: &'a [u8]) -> Self {
        match bytes.len() > TRUNCATED_HEAD {
            true => Self::Truncated { truncated: Truncated::of(bytes) },
            false => Self::whole(bytes),
        }
    }
}

impl Truncated {
    fn of(bytes: &[u8]) -> Box<Self> {
        let head = &bytes[..bytes.len().min(TRUNCATED_HEAD)];
        let sha256 = hex::encode(Sha256::digest(bytes));
        Box::new(Self { bytes: bytes.len(), sha256, head_base64: BASE64.encode(head) })
    }
}

/// All fields, each whole.
struct Whole<'a>(&'a RawFields);

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.0.iter().map(|(name, value)| (Part::whole(name), Part::whole(value))))
    }
}

/// The fields from the first on for which there is room in `max` bytes, long ones truncated.
fn cut(fields: &RawFields, max: usize) -> Vec<(Part<'_>, Part<'_>)> {
    let mut room = max;
    let mut pairs = Vec::new();
    for (at, (name, value)) in fields.0.iter().enumerate() {
        let pair = (Part::head(name), Part::head(value));
        let cost = FIELD_COST + json_length(&pair);
        if cost > room {
            let rest = &fields.0[at..];
            let bytes = rest.iter().map(|(name, value)| name.len() + value.len()).sum();
            let omitted = |omitted| Part::Omitted { omitted };
            pairs.push((omitted(Omitted::Fields(rest.len())), omitted(Omitted::Bytes(bytes))));
            break;
        }
        room -= cost;
        pairs.push(pair);
    }
    pairs
}

/// The JSON in a string of exactly its `length`: growing one would copy it.
fn json(value: &impl Serialize, length: usize) -> String {
    let mut text = Vec::with_capacity(length);
    // Cannot fail: memory takes every byte, and no type here fails to serialize.
    serde_json::to_writer(&mut text, value).expect("memory takes every byte");
    // Cannot fail: serde_json writes UTF-8.
    String::from_utf8(text).expect("serde_json writes UTF-8")
}

fn json_length(value: &impl Serialize) -> usize {
    let mut length = Length(0);
    // Cannot fail: a number takes every byte.
    serde_json::to_writer(&mut length, value).expect("a number takes every byte");
    length.0
}

/// Counts what is written to it.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).expect("JSON")
    }

    fn kept(fields: &RawFields, max: usize) -> Value {
        parsed(&KeptFields::within(fields.clone(), max, usize::MAX).text())
    }

    fn joined(kept: &KeptFields) -> String {
        String::from_utf8(kept.pieces().flatten().collect()).expect("UTF-8")
    }

    #[test]
    fn fields_are_kept_in_the_order_received_with_repeats() {
        let fields = RawFields::from_iter([("b", "1"), ("a", "\u{1}é\""), ("b", ""), ("", "2")]);
        let expected = json!([["b", "1"], ["a", "\u{1}é\""], ["b", ""], ["", "2"]]);
        assert_eq!(parsed(&KeptFields::of(fields).text()), expected);
        assert_eq!(KeptFields::of(RawFields::default()).text(), "[]");
    }

    #[test]
    fn what_is_not_utf_8_or_holds_a_nul_is_kept_as_base64() {
        let fields =
            RawFields::from_iter([(b"\xff".to_vec(), b"x\0".to_vec()), (b"a".to_vec(), b"\xc3".to_vec())]);
        let expected = json!([[{"base64": "/w=="}, {"base64": "eAA="}], ["a", {"base64": "ww=="}]]);
        assert_eq!(parsed(&KeptFields::of(fields).text()), expected);
    }

    #[test]
    fn the_pieces_of_few_long_fields_are_the_whole_and_none_is_large() {
        // Characters of one to four bytes and escapes, shifted over the ends of pieces.
        for shift in 0..4 {
            let text = format!("{}{}", "x".repeat(shift), "aé€😀\"\\\u{1}".repeat(90_000));
            let fields = RawFields::from_iter([
                (b"text".to_vec(), text.into_bytes()),
                (vec![0xff; PIECE + shift], b"\0".repeat(3 * PIECE + shift)),
                (Vec::new(), Vec::new()),
                (vec![b'n'; PIECE], vec![b'v'; 2 * PIECE]),
            ]);
            let kept = KeptFields::of(fields.clone());
            assert!(matches!(kept.source, Source::Whole(_)));
            let whole = json(&Whole(&fields), 0);
            assert!(joined(&kept) == whole && kept.text() == whole && kept.json_length() == whole.len());
            assert!(kept.pieces().all(|piece| piece.len() <= 7 * PIECE));
        }
    }

    #[test]
    fn the_pieces_of_short_fields_are_the_whole() {
        let fields = RawFields(vec![(b"name".to_vec(), b"value".to_vec()); 20_000]);
        let kept = KeptFields::of(fields);
        assert!(matches!(kept.source, Source::Text(_)) && kept.pieces().count() > 1);
        assert_eq!(joined(&kept), kept.text());
        assert_eq!(joined(&KeptFields::of(RawFields::default())), "[]");
    }

    #[test]
    fn of_an_entry_that_is_too_large_long_parts_keep_size_hash_and_head() {
        let long = vec![0xff; TRUNCATED_HEAD + 1];
        let edge = "x".repeat(TRUNCATED_HEAD);
        let fields = RawFields::from_iter([
            (b"a".to_vec(), long.clone()),
            (b"b".to_vec(), edge.clone().into_bytes()),
            (b"c".to_vec(), vec![0xff; 1 << 20]),
        ]);
        assert_eq!(kept(&fields, fields.cost())[0], json!(["a", {"base64": BASE64.encode(&long)}]));
        let truncated = json!({
            "bytes": TRUNCATED_HEAD + 1,
            "sha256": hex::encode(Sha256::digest(&long)),
            "head_base64": BASE64.encode(&long[..TRUNCATED_HEAD]),
        });
        assert_eq!(kept(&fields, fields.cost() - 1)[0], json!(["a", {"truncated": truncated}]));
        assert_eq!(kept(&fields, fields.cost() - 1)[1], json!(["b", edge]));
    }

    #[test]
    fn text_that_json_writes_many_times_as_long_is_cut_like_what_is_too_large() {
        let fields = RawFields::from_iter([("a", "\u{1}".repeat(TRUNCATED_HEAD + 1))]);
        let whole = KeptFields::within(fields.clone(), usize::MAX, usize::MAX);
        assert!(whole.json_length() > 6 * TRUNCATED_HEAD);
        assert_eq!(KeptFields::within(fields.clone(), usize::MAX, whole.json_length()), whole);
        let cut = KeptFields::within(fields, usize::MAX, whole.json_length() - 1);
        assert_eq!(parsed(&cut.text())[0][1]["truncated"]["bytes"], TRUNCATED_HEAD + 1);
    }

    #[test]
    fn what_is_kept_of_the_largest_entries_is_bounded_whatever_their_fields_are() {
        for (value, count) in
            [(vec![0xff_u8; 1_000], 30_000), (vec![1; 60_000], 1_000), (Vec::new(), 300_000)]
        {
            let fields = RawFields(vec![(b"f".to_vec(), value); count]);
            let length = KeptFields::within(fields, 1 << 20, 1 << 21).json_length();
            assert!(length < (1 << 20) + 100, "{count} fields: {length} bytes");
        }
    }

    #[test]
    fn fields_for_which_there_is_no_room_are_counted() {
        let fields = RawFields::from_iter(vec![("name", "value"); 10]);
        let three = 3 * (r#"["name","value"]"#.len() + FIELD_COST);
        let last = json!([{"omitted": {"fields": 7}}, {"omitted": {"bytes": 63}}]);
        let pair = json!(["name", "value"]);
        assert_eq!(kept(&fields, three), json!([pair, pair, pair, last]));
        assert_eq!(kept(&fields, three + 24), json!([pair, pair, pair, last]));
    }

    #[test]
    fn what_is_reduced_is_small_and_is_not_reduced_again() {
        for size in [200_000, 2_000_000] {
            let whole = KeptFields::of(RawFields::from_iter([("a", "x".repeat(size))]));
            let reduced = whole.reduced().expect("it was not reduced before");
            let text = whole.text();
            let truncated = json!({
                "bytes": text.len(),
                "sha256": hex::encode(Sha256::digest(text.as_bytes())),
                "head_base64": BASE64.encode(&text.as_bytes()[..TRUNCATED_HEAD]),
            });
            assert_eq!(parsed(&reduced.text()), json!([["raw_fields", {"truncated": truncated}]]));
            assert_eq!(reduced.reduced(), None);
        }
    }
}
