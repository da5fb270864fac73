//! A document: the content of one row of the table.

use std::fmt;
use std::sync::Arc;

use ambient::Timestamp;

use crate::json::Json;
use crate::room::ReservedRoom;
use crate::{Key, StateError};

/// The version of a document. It comes from one sequence for each table and never repeats, not even for a key
/// that was deleted. Every write raises it. Rows that were taken over from an older table have version 0
/// until their next write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(pub i64);

/// JSON text that PostgreSQL's `jsonb` accepts. Numbers keep every digit.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    text: Arc<str>,
    /// The length of the text as PostgreSQL writes it.
    stored_bytes: usize,
    held: ReservedRoom,
}

impl Value {
    /// Accepts any JSON that `jsonb` accepts, with at most [`crate::json::MAX_LEVELS`] levels. The text is
    /// kept unchanged. [`StateError::InvalidValue`] contains the fault and its place.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, StateError> {
        let text = text.as_ref();
        let stored_bytes = Json::check(text).map_err(|error| StateError::InvalidValue(error.to_string()))?;
        // Cannot fail: JSON is UTF-8.
        let text = std::str::from_utf8(text).expect("JSON is UTF-8").into();
        Ok(Self { text, stored_bytes, held: ReservedRoom::default() })
    }

    /// The text as a tree, which takes many times the memory of the text. [`StateError::InvalidValue`] if the
    /// value came from a row that another program wrote and that is nested too deeply to read.
    pub fn to_json(&self) -> Result<Json, StateError> {
        Json::parse_stored(&self.text).map_err(|error| StateError::InvalidValue(error.to_string()))
    }

    /// A value that the store read back; the database has validated it.
    pub(crate) fn from_store(text: &str) -> Self {
        Self { text: text.into(), stored_bytes: text.len(), held: ReservedRoom::default() }
    }

    /// The same value, counted as part of `held`.
    pub(crate) fn within(self, held: &ReservedRoom) -> Self {
        Self { held: held.clone(), ..self }
    }

    /// The reserved room that counts this value.
    pub(crate) fn held(&self) -> &ReservedRoom {
        &self.held
    }

    /// The text, shared.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// [`StateError::InvalidValue`] if PostgreSQL's text of the value is longer than `most` bytes.
    pub(crate) fn check_stored(&self, most: usize) -> Result<(), StateError> {
        if self.stored_bytes <= most {
            return Ok(());
        }
        Err(StateError::InvalidValue(format!(
            "the document has {} bytes when its numbers are written out, as it would be read; at most {most}",
            self.stored_bytes
        )))
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Value").field(&self.text).finish()
    }
}

/// Writes the value in PostgreSQL's form.
impl From<&Json> for Value {
    fn from(json: &Json) -> Self {
        Self::from_store(&json.to_string())
    }
}

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Document {
    /// The key.
    pub key: Key,
    /// The content.
    pub value: Value,
    /// The version of the last write.
    pub version: Version,
    /// The time at which the key was first written.
    pub created_at: Timestamp,
    /// The time of the last write; increases strictly with every write.
    pub updated_at: Timestamp,
}
