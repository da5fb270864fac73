//! A document: what a row of the table is.

use std::sync::Arc;

use ambient::Timestamp;

use crate::json::Json;
use crate::{Key, StateError};

/// The version of a document. It comes from one sequence for each table and never repeats, not even for a key that was
/// deleted. Every write raises it. Rows that were taken over from an older table have version 0 until their next write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(pub i64);

/// JSON text that PostgreSQL's `jsonb` takes. Numbers keep every digit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value(Arc<str>);

impl Value {
    /// Any JSON that `jsonb` takes, of at most [`crate::json::MAX_LEVELS`] levels. The text is kept as it is.
    /// [`StateError::InvalidValue`] says what is wrong with it, and where.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, StateError> {
        let text = text.as_ref();
        Json::check(text).map_err(|error| StateError::InvalidValue(error.to_string()))?;
        // Cannot fail: JSON is UTF-8.
        Ok(Self(std::str::from_utf8(text).expect("JSON is UTF-8").into()))
    }

    /// The text as a tree. [`StateError::InvalidValue`] if it came from a row that another program wrote and that is
    /// nested too deeply to be read.
    pub fn to_json(&self) -> Result<Json, StateError> {
        Json::parse_stored(&self.0).map_err(|error| StateError::InvalidValue(error.to_string()))
    }

    /// What the store read back: the database has checked it.
    pub(crate) fn from_store(text: &str) -> Self {
        Self(text.into())
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// In the form in which PostgreSQL writes it.
impl From<&Json> for Value {
    fn from(json: &Json) -> Self {
        Self(json.to_string().into())
    }
}

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Document {
    /// Its name.
    pub key: Key,
    /// Its content.
    pub value: Value,
    /// Of its last write.
    pub version: Version,
    /// When the key was written first.
    pub created_at: Timestamp,
    /// When it was written last; grows strictly with every write.
    pub updated_at: Timestamp,
}
