//! A document: what a row of the table is.

use std::sync::Arc;

use ambient::Timestamp;

use crate::Key;

/// The version of a document. It comes from one sequence for each table and never repeats, not even for a key that was
/// deleted. Every write raises it. Rows that were taken over from an older table have version 0 until their next write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(pub i64);

/// JSON text that PostgreSQL's `jsonb` takes. Numbers keep every digit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value(Arc<str>);

impl Value {
    /// What the store read back: the database has checked it.
    pub(crate) fn from_store(text: &str) -> Self {
        Self(text.into())
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
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
