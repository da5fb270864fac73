//! Documents in a transaction of the caller.

use pg::Session;
use tokio_postgres::Row;

use super::rows::{column, in_order, last_of_each, read_found};
use crate::store::if_fitting;
use crate::{Document, Key, MAX_ANSWER_BYTES, StateError, TableName, Value, statements};

/// Returns the existing documents, in the order of `keys`, within the open transaction of `session` if there
/// is one.
pub async fn get_many_in(
    session: &Session,
    table: &TableName,
    keys: &[Key],
) -> Result<Vec<Document>, StateError> {
    let statement = statements::get_many(table, &keys.iter().collect::<Vec<_>>(), MAX_ANSWER_BYTES);
    let rows = session.query(statement).await.map_err(|error| StateError::of_table(table, error))?;
    if_fitting(in_order(keys, documents(table, &rows)?))
}

/// As [`get_many_in`], and locks the rows until the transaction ends. Missing keys are not locked.
pub async fn lock_many_in(
    session: &Session,
    table: &TableName,
    keys: &[Key],
) -> Result<Vec<Document>, StateError> {
    let statement = statements::lock_many(table, &keys.iter().collect::<Vec<_>>());
    let rows = session.query(statement).await.map_err(|error| StateError::of_table(table, error))?;
    Ok(in_order(keys, documents(table, &rows)?))
}

fn documents(table: &TableName, rows: &[Row]) -> Result<Vec<Document>, StateError> {
    rows.iter().map(|row| read_found(table, row)?.document(MAX_ANSWER_BYTES)).collect()
}

/// Stores documents within the open transaction of `session`, as [`crate::PostgresStore::put_many`] does.
pub async fn put_many_in(
    session: &Session,
    table: &TableName,
    documents: &[(Key, Value)],
) -> Result<(), StateError> {
    let statement = statements::upsert_many(table, &last_of_each(documents));
    session.query(statement).await.map(drop).map_err(|error| StateError::of_table(table, error))
}

/// Stores the documents whose keys do not exist, within the open transaction of `session`, and returns their
/// keys. Of equal keys the last one is stored. A key that a concurrent transaction has just inserted counts
/// as existing once that transaction commits.
pub async fn insert_many_in(
    session: &Session,
    table: &TableName,
    documents: &[(Key, Value)],
) -> Result<Vec<Key>, StateError> {
    let statement = statements::insert_many(table, &last_of_each(documents));
    let rows = session.query(statement).await.map_err(|error| StateError::of_table(table, error))?;
    rows.iter().map(|row| Ok(Key::from_store(column(table, row, "key")?))).collect()
}

/// Deletes documents within the open transaction of `session`, and returns the number of those that existed.
pub async fn delete_many_in(session: &Session, table: &TableName, keys: &[Key]) -> Result<u64, StateError> {
    let statement = statements::delete_many(table, &keys.iter().collect::<Vec<_>>());
    session.execute(statement).await.map_err(|error| StateError::of_table(table, error))
}
