//! Rows as documents.

use std::collections::{BTreeMap, HashMap};

use ambient::Timestamp;
use pg::{RawTimestamp, row};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::{Document, Key, Member, Members, StateError, TableName, Value, Version};

/// By key, in the order of its bytes. Of equal keys the last one.
pub(super) fn last_of_each(documents: &[(Key, Value)]) -> Vec<(&Key, &Value)> {
    let by_key: BTreeMap<&Key, &Value> = documents.iter().map(|(key, value)| (key, value)).collect();
    by_key.into_iter().collect()
}

/// The documents in the order of `keys`, one that is named twice once.
pub(super) fn in_order(table: &TableName, keys: &[Key], rows: &[Row]) -> Result<Vec<Document>, StateError> {
    let mut found = rows
        .iter()
        .map(|row| read_document(table, row).map(|document| (document.key.clone(), document)))
        .collect::<Result<HashMap<Key, Document>, StateError>>()?;
    Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
}

/// Rows of members, in the order of `keys`, one that is named twice once.
pub(super) fn members_in_order(
    table: &TableName,
    keys: &[Key],
    rows: &[Row],
) -> Result<Vec<Members>, StateError> {
    let read = |row: &Row| {
        let key = Key::from_store(column(table, row, "key")?);
        let texts: Option<Vec<Option<&str>>> = column(table, row, "members")?;
        let members = texts.map(|texts| texts.into_iter().map(Member::from_column).collect());
        Ok((key.clone(), Members { key, members }))
    };
    let mut found = rows.iter().map(read).collect::<Result<HashMap<Key, Members>, StateError>>()?;
    Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
}

/// A row with the columns [`crate::statements::DOCUMENT`].
pub(super) fn read_document(table: &TableName, row: &Row) -> Result<Document, StateError> {
    Ok(Document {
        key: Key::from_store(column(table, row, "key")?),
        value: Value::from_store(column(table, row, "value")?),
        version: Version(column(table, row, "version")?),
        created_at: shown(column(table, row, "created_at")?),
        updated_at: shown(column(table, row, "updated_at")?),
    })
}

/// The nearest time that can be: one that was written by hand may be infinite, and does not make its document unreadable.
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
