//! Conversion of rows into documents.

use std::collections::{BTreeMap, HashMap};

use ambient::Timestamp;
use pg::{RawTimestamp, row};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::{Document, DocumentMembers, Key, MemberValue, StateError, TableName, Value, Version};

/// The documents by key, in byte order. Of equal keys the last one.
pub(super) fn last_of_each(documents: &[(Key, Value)]) -> Vec<(&Key, &Value)> {
    let by_key: BTreeMap<&Key, &Value> = documents.iter().map(|(key, value)| (key, value)).collect();
    by_key.into_iter().collect()
}

/// The documents in the order of `keys`; a repeated key counts once.
pub(super) fn in_order(keys: &[Key], documents: Vec<Document>) -> Vec<Document> {
    let found = documents.into_iter().map(|document| (document.key.clone(), document));
    let mut found: HashMap<Key, Document> = found.collect();
    keys.iter().filter_map(|key| found.remove(key)).collect()
}

/// Rows of members, in the order of `keys`; a repeated key counts once.
pub(super) fn members_in_order(
    table: &TableName,
    keys: &[Key],
    rows: &[Row],
) -> Result<Vec<DocumentMembers>, StateError> {
    let read = |row: &Row| {
        let key = Key::from_store(column(table, row, "key")?);
        let texts: Option<Vec<Option<&str>>> = column(table, row, "members")?;
        let members = texts.map(|texts| texts.into_iter().map(MemberValue::from_column).collect());
        Ok((key.clone(), DocumentMembers { key, members }))
    };
    let mut found = rows.iter().map(read).collect::<Result<HashMap<Key, DocumentMembers>, StateError>>()?;
    Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
}

/// A row that was read.
pub(super) enum FoundRow {
    Document(Document),
    /// A document whose value has more bytes than the limit of the statement.
    Larger {
        key: Key,
        bytes: usize,
    },
}

/// Converts a row of [`crate::statements::get`] and similar statements.
pub(super) fn read_found(table: &TableName, row: &Row) -> Result<FoundRow, StateError> {
    let key = Key::from_store(column(table, row, "key")?);
    let Some(text) = column(table, row, "value")? else {
        return Ok(FoundRow::Larger { key, bytes: read_bytes(table, row)? });
    };
    Ok(FoundRow::Document(Document {
        key,
        value: Value::from_store(text),
        version: Version(column(table, row, "version")?),
        created_at: shown(column(table, row, "created_at")?),
        updated_at: shown(column(table, row, "updated_at")?),
    }))
}

/// The length of a value's text, in bytes.
pub(super) fn read_bytes(table: &TableName, row: &Row) -> Result<usize, StateError> {
    let bytes: i64 = column(table, row, "bytes")?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

impl FoundRow {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Document(document) => document.value.as_str().len(),
            Self::Larger { bytes, .. } => *bytes,
        }
    }

    /// The document; [`StateError::DocumentTooLarge`] if it has more than `most` bytes.
    pub(super) fn document(self, most: usize) -> Result<Document, StateError> {
        match self {
            Self::Document(document) => Ok(document),
            Self::Larger { key, bytes } => Err(StateError::DocumentTooLarge { key, bytes, most }),
        }
    }
}

/// The nearest representable time: a time that was written by hand may be infinite, and must not make its
/// document unreadable.
fn shown(time: RawTimestamp) -> Timestamp {
    let nearest = if time < Timestamp::MIN.into() { Timestamp::MIN } else { Timestamp::MAX };
    time.timestamp().unwrap_or(nearest)
}

pub(super) fn column<'a, T: FromSql<'a>>(
    table: &TableName,
    row: &'a Row,
    name: &'static str,
) -> Result<T, StateError> {
    row::get(row, name).map_err(|_| StateError::Corrupt { table: table.to_string(), column: name })
}
