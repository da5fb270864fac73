//! The fields of an entry as JSON, complete or truncated, in as little memory as possible.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use base64::Engine;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::entry::{FIELD_COST, LargeEntry, LargePart, RawFields};

/// The limit on the [cost](crate::entry::cost) up to which the fields of an entry are kept complete. At most
/// this many bytes are kept of a larger entry.
pub const RAW_FIELDS_MAX: usize = 16 * 1024 * 1024;

/// The longest JSON of fields that are kept complete, in bytes: enough for [`RAW_FIELDS_MAX`] as base64. Text
/// of control characters, which takes six times its length in JSON, is cut like an entry that is too large.
pub const RAW_FIELDS_JSON_MAX: usize = 22 * 1024 * 1024;

/// The most bytes kept of a name or value in an entry that is not kept complete.
pub const TRUNCATED_HEAD: usize = 64 * 1024;

/// The length beyond which the JSON of few and long fields is generated in pieces when it is needed.
const MAX_BUFFERED_JSON: usize = 1024 * 1024;

/// The number of bytes of a name or value in one piece: a multiple of three, so that the base64 of the pieces
/// equals the base64 of the whole.
const PIECE: usize = 48 * 1024;

/// The kept part of an entry's fields: an array of `[name, value]` in the order received. A name or value
/// that is not UTF-8 or contains U+0000 is `{"base64": …}`. Beyond [`RAW_FIELDS_MAX`] or
/// [`RAW_FIELDS_JSON_MAX`], long ones are `{"truncated": {"bytes": …, "sha256": …, "head_base64": …}}`, with
/// `head_sha256` instead of `sha256` if only the head was read. If even that is too much, the last pair is
/// `{"omitted": {"fields": …}}` and `{"omitted": {"bytes": …}}`.
///
/// Clones share the content, because it may be most of the service's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptFields {
    length: usize,
    source: FieldsSource,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum FieldsSource {
    Text(Arc<String>),
    Whole(Arc<RawFields>),
}

impl KeptFields {
    /// Returns the part of `fields` that is kept.
    pub fn of(fields: RawFields) -> Self {
        Self::within(fields, RAW_FIELDS_MAX, RAW_FIELDS_JSON_MAX)
    }

    /// Returns the heads of an entry that was not read, and the size of the omitted rest.
    pub(super) fn of_large(entry: &LargeEntry) -> Self {
        let known: u64 = entry.heads.iter().map(|(name, value)| name.bytes + value.bytes).sum();
        let heads = entry.heads.iter().map(|(name, value)| (Part::of_large(name), Part::of_large(value)));
        let omitted = |omitted| Part::Omitted { omitted };
        let fields = entry.fields.saturating_sub(entry.heads.len() as u64);
        let rest = (fields > 0).then(|| {
            (omitted(Omitted::Fields(fields)), omitted(Omitted::Bytes(entry.bytes.saturating_sub(known))))
        });
        Self::text_of(&heads.chain(rest).collect::<Vec<_>>())
    }

    /// Returns all fields if they cost at most `max` and their JSON has at most `json_max` bytes, otherwise
    /// as much as fits into `max` bytes.
    fn within(fields: RawFields, max: usize, json_max: usize) -> Self {
        if fields.cost() > max {
            return Self::text_of(&cut(&fields, max));
        }
        let length = json_length(&Whole(&fields));
        match length {
            _ if length > json_max => Self::text_of(&cut(&fields, max)),
            // As JSON, the fields would briefly be in memory twice. Many short fields take less memory as
            // JSON.
            _ if length > MAX_BUFFERED_JSON && FIELD_COST * fields.0.len() < fields.size() => {
                Self { length, source: FieldsSource::Whole(Arc::new(fields)) }
            }
            _ => Self { length, source: FieldsSource::Text(Arc::new(json(&Whole(&fields), length))) },
        }
    }

    /// Returns one pair: the name `raw_fields` and the truncated form of the JSON. `None` if the JSON has
    /// this form already.
    pub(super) fn reduced(&self) -> Option<Self> {
        let text = self.text();
        let raw_fields = || Part::Truncated { truncated: Truncated::of(text.as_bytes()) };
        (!text.starts_with(REDUCED)).then(|| Self::text_of(&[(Part::Text("raw_fields"), raw_fields())]))
    }

    fn text_of(pairs: &[(Part<'_>, Part<'_>)]) -> Self {
        let length = json_length(&pairs);
        Self { length, source: FieldsSource::Text(Arc::new(json(&pairs, length))) }
    }

    /// The length of the JSON in bytes.
    pub fn json_length(&self) -> usize {
        self.length
    }

    /// The JSON in one piece.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.source {
            FieldsSource::Text(text) => Cow::Borrowed(text),
            FieldsSource::Whole(fields) => Cow::Owned(json(&Whole(fields), self.length)),
        }
    }

    /// Returns the JSON in pieces of at most some hundred kilobytes, each generated on request.
    pub fn pieces(&self) -> Pieces {
        Pieces { source: self.source.clone(), part: 0, is_text: false, offset: 0 }
    }
}

/// The beginning of the JSON of [`KeptFields::reduced`].
const REDUCED: &str = r#"[["raw_fields",{"truncated":"#;

/// Returns the bytes as text if PostgreSQL can store them as text.
pub(super) fn storable_text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// An iterator over the JSON in pieces.
#[derive(Clone, Debug)]
pub struct Pieces {
    source: FieldsSource,
    /// The index of the next name or value: two for each field.
    part: usize,
    /// True if that name or value is text.
    is_text: bool,
    /// The number of its bytes that have been written.
    offset: usize,
}

impl Iterator for Pieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut piece = Vec::new();
        match self.source.clone() {
            FieldsSource::Text(text) => {
                let rest = &text.as_bytes()[self.offset..];
                piece.extend_from_slice(&rest[..rest.len().min(PIECE)]);
                self.offset += piece.len();
            }
            FieldsSource::Whole(fields) => {
                while piece.len() < PIECE && self.part < 2 * fields.0.len() {
                    self.write_some(&fields, &mut piece);
                }
            }
        }
        (!piece.is_empty()).then_some(piece)
    }
}

impl Pieces {
    /// Writes up to [`PIECE`] bytes of the next name or value, with the JSON syntax before its first byte and
    /// after its last byte.
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

/// A name or value. It is serialized twice, first for its length and then for its text, so that long parts
/// are not copied in between.
#[derive(Serialize)]
#[serde(untagged)]
enum Part<'a> {
    Text(&'a str),
    Base64 { base64: Base64<'a> },
    Truncated { truncated: Box<Truncated> },
    Omitted { omitted: Omitted },
}

/// The kept part of a name or value that is too long.
#[derive(Serialize, Deserialize)]
pub(super) struct Truncated {
    pub(super) bytes: u64,
    /// The hash of the complete bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<String>,
    /// The hash of the head, if only the head was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    head_sha256: Option<String>,
    pub(super) head_base64: String,
}

/// The placeholder for fields that do not fit.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Omitted {
    Fields(u64),
    Bytes(u64),
}

/// Bytes that are encoded as base64 while they are written.
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

    /// Returns the complete part, or its truncated form if it is longer than [`TRUNCATED_HEAD`].
    fn head(bytes: &'a [u8]) -> Self {
        match bytes.len() > TRUNCATED_HEAD {
            true => Self::Truncated { truncated: Truncated::of(bytes) },
            false => Self::whole(bytes),
        }
    }

    fn of_large(part: &'a LargePart) -> Self {
        match part.head.len() as u64 == part.bytes {
            true => Self::whole(&part.head),
            false => Self::Truncated { truncated: Truncated::of_large(part) },
        }
    }
}

impl Truncated {
    fn of(bytes: &[u8]) -> Box<Self> {
        let head = &bytes[..bytes.len().min(TRUNCATED_HEAD)];
        let sha256 = Some(hex::encode(Sha256::digest(bytes)));
        let head_base64 = BASE64.encode(head);
        Box::new(Self { bytes: bytes.len() as u64, sha256, head_sha256: None, head_base64 })
    }

    fn of_large(part: &LargePart) -> Box<Self> {
        let head_sha256 = Some(hex::encode(Sha256::digest(&part.head)));
        let head_base64 = BASE64.encode(&part.head);
        Box::new(Self { bytes: part.bytes, sha256: None, head_sha256, head_base64 })
    }
}

/// All fields, each complete.
struct Whole<'a>(&'a RawFields);

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.0.iter().map(|(name, value)| (Part::whole(name), Part::whole(value))))
    }
}

/// Returns the first fields that fit into `max` bytes, with long names and values truncated.
fn cut(fields: &RawFields, max: usize) -> Vec<(Part<'_>, Part<'_>)> {
    let mut room = max;
    let mut pairs = Vec::new();
    for (at, (name, value)) in fields.0.iter().enumerate() {
        let pair = (Part::head(name), Part::head(value));
        let cost = FIELD_COST + json_length(&pair);
        if cost > room {
            let rest = &fields.0[at..];
            let bytes: usize = rest.iter().map(|(name, value)| name.len() + value.len()).sum();
            let omitted = |omitted| Part::Omitted { omitted };
            let fields = Omitted::Fields(rest.len() as u64);
            pairs.push((omitted(fields), omitted(Omitted::Bytes(bytes as u64))));
            break;
        }
        room -= cost;
        pairs.push(pair);
    }
    pairs
}

/// Writes the JSON to a string of exactly `length` bytes. Growing a string would copy it.
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

/// A writer that only counts the bytes.
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
mod tests;
