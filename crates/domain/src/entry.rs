//! One entry of a Redis stream, as received.

use std::fmt;
use std::str::FromStr;

use ambient::Timestamp;
use schemars::json_schema;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::document::inline_schema;

/// The id of a stream entry, `<milliseconds>-<sequence>`, ordered as Redis orders it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EntryId {
    /// Unix milliseconds, or another number chosen by the producer.
    pub millis: u64,
    /// The number that distinguishes entries of the same millisecond.
    pub sequence: u64,
}

impl EntryId {
    /// `0-0`, which no entry has. Reading after it reads from the beginning.
    pub const ZERO: Self = Self { millis: 0, sequence: 0 };

    /// The id `millis-sequence`.
    pub fn new(millis: u64, sequence: u64) -> Self {
        Self { millis, sequence }
    }

    /// The id just before this one; `None` for `0-0`.
    pub fn before(self) -> Option<Self> {
        match (self.sequence.checked_sub(1), self.millis.checked_sub(1)) {
            (Some(sequence), _) => Some(Self { sequence, ..self }),
            (None, Some(millis)) => Some(Self { millis, sequence: u64::MAX }),
            (None, None) => None,
        }
    }

    /// The time in the id, which the producer may have chosen. [`Timestamp::MAX`] if the number is too large.
    pub fn time(self) -> Timestamp {
        let millis = i64::try_from(self.millis).ok();
        millis.and_then(|millis| Timestamp::from_millis(millis).ok()).unwrap_or(Timestamp::MAX)
    }
}

impl Serialize for EntryId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

inline_schema!(EntryId, json_schema!({"type": "string"}));

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.sequence)
    }
}

/// The error for a text that is not `<digits>-<digits>`, each within 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a stream entry id (<milliseconds>-<sequence>)")]
pub struct NotAnEntryId;

impl FromStr for EntryId {
    type Err = NotAnEntryId;
    fn from_str(text: &str) -> Result<Self, NotAnEntryId> {
        let number = |digits: &str| match digits.bytes().all(|b| b.is_ascii_digit()) {
            true => digits.parse().map_err(|_| NotAnEntryId),
            false => Err(NotAnEntryId),
        };
        let (millis, sequence) = text.split_once('-').ok_or(NotAnEntryId)?;
        Ok(Self { millis: number(millis)?, sequence: number(sequence)? })
    }
}

/// The memory that each field takes beyond its bytes, in bytes: two values of the Redis client (56 bytes
/// each) and the two vectors that they become (24 bytes each). Both are in memory while a reply is read.
pub const FIELD_COST: usize = 160;

/// The memory that each entry takes beyond its fields, in bytes: its id, its decoded form and its row.
pub const ENTRY_COST: usize = 256;

/// The memory that an entry of `bytes` bytes in `fields` fields takes, in bytes. Reads, batches, malformed
/// rows and retention use the same measure, so that many empty fields are bounded like one long field.
pub fn cost(bytes: usize, fields: usize) -> usize {
    ENTRY_COST + FIELD_COST * fields + bytes
}

/// The names and values of an entry, byte for byte and in the order received.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawFields(pub Vec<(Vec<u8>, Vec<u8>)>);

impl RawFields {
    /// The length of all names and values, in bytes.
    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// The [`cost`] of an entry with these fields.
    pub fn cost(&self) -> usize {
        cost(self.size(), self.0.len())
    }

    /// Lower-case hex SHA-256 over every name and value, each preceded by its length. It is part of the key
    /// of `malformed_intents`, so that an entry that is read twice is written once.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for part in self.0.iter().flat_map(|(name, value)| [name, value]) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hex::encode(hash.finalize())
    }
}

impl<N: Into<Vec<u8>>, V: Into<Vec<u8>>> FromIterator<(N, V)> for RawFields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// An entry of the intents stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawEntry {
    /// The id in the stream.
    pub id: EntryId,
    /// The content.
    pub fields: RawFields,
}

/// The beginning of a name or value that was not read completely.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LargePart {
    /// The full length in bytes.
    pub bytes: u64,
    /// The first bytes.
    pub head: Vec<u8>,
}

/// An entry that exceeds the read limit. No valid intent is that large.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LargeEntry {
    /// The id in the stream.
    pub id: EntryId,
    /// The number of fields.
    pub fields: u64,
    /// The length of all names and values, in bytes.
    pub bytes: u64,
    /// The names and values of the first fields.
    pub heads: Vec<(LargePart, LargePart)>,
}

impl LargeEntry {
    /// Lower-case hex SHA-256 over the known part of the entry. Every read of the same entry yields the same
    /// value.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.fields.to_be_bytes());
        hash.update(self.bytes.to_be_bytes());
        for part in self.heads.iter().flat_map(|(name, value)| [name, value]) {
            hash.update(part.bytes.to_be_bytes());
            hash.update((part.head.len() as u64).to_be_bytes());
            hash.update(&part.head);
        }
        hex::encode(hash.finalize())
    }
}

/// The longest head of a name or value of a [`LargeEntry`], in bytes.
pub const MAX_HEAD: usize = 64 * 1024;
/// The most fields of a [`LargeEntry`] whose heads are kept.
pub const MAX_HEAD_FIELDS: usize = 256;
/// The most bytes that all heads of a [`LargeEntry`] take.
pub const MAX_HEADS: usize = 1024 * 1024;

/// The reason why the fields of an entry were not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// They exceed the limit of one read. No valid intent does.
    TooLarge,
    /// They did not arrive within the time of a read, although the server responds. Their content is unknown.
    TooSlow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ordered_by_number_not_by_text() {
        let id = |text: &str| text.parse::<EntryId>().expect("an id");
        assert!(id("9-1") < id("10-0"));
        assert!(id("5-9") < id("5-10"));
    }

    #[test]
    fn the_time_of_an_id_that_no_clock_can_have_given_is_the_last_one() {
        let expected = "2026-04-02T09:21:40Z".parse().expect("a time");
        assert_eq!(EntryId::new(1_775_121_700_000, 7).time(), expected);
        assert_eq!(EntryId::new(u64::MAX, 0).time(), Timestamp::MAX);
    }

    #[test]
    fn what_is_not_two_numbers_is_no_id() {
        for text in ["", "5", "5-", "-5", "+5-1", "5-+1", "5-1-1", "5-18446744073709551616", "a-b", " 5-1"] {
            assert_eq!(text.parse::<EntryId>(), Err(NotAnEntryId), "{text}");
        }
        assert_eq!("18446744073709551615-18446744073709551615".parse(), Ok(EntryId::new(u64::MAX, u64::MAX)));
    }

    #[test]
    fn empty_fields_have_a_cost() {
        let fields = RawFields(vec![Default::default(); 100_000]);
        assert_eq!((fields.size(), fields.cost()), (0, 100_000 * FIELD_COST + ENTRY_COST));
    }

    #[test]
    fn moving_a_byte_from_name_to_value_changes_the_fingerprint() {
        let one = RawFields::from_iter([("ab", "c")]);
        let other = RawFields::from_iter([("a", "bc")]);
        assert_ne!(one.fingerprint(), other.fingerprint());
    }
}
