//! Documents in a PostgreSQL table.
//!
//! A write without conditions is one statement. A conditional write is one statement too, which also returns
//! the previous state of the row: if that state fulfils the conditions although nothing was written, another
//! writer was faster, and the write is decided again with the row locked, once. A patch locks the row first.

mod in_transaction;
mod operation;
mod reading;
mod rows;
mod writing;

use std::sync::Arc;

use pg::PgPool;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

#[cfg(feature = "memory")]
pub(crate) use self::writing::merged;

pub use self::in_transaction::{delete_many_in, get_many_in, insert_many_in, lock_many_in, put_many_in};
use self::operation::{ManyRead, StoreOperation, deadline_of};
use self::rows::{in_order, last_of_each, members_in_order};
use crate::condition::CurrentRow;
use crate::query::{Query, compile};
use crate::room::{MAX_UNCOUNTED_BYTES, MAX_UNCOUNTED_DOCUMENT, ReservedRoom, Room};
use crate::store::{KeyPage, PROBE_KEY, if_fitting};
use crate::{
    Delete, Document, DocumentMembers, IndexSpec, Key, MAX_ANSWER_BYTES, MAX_KEY_BYTES, Page, Patch, Prefix,
    StateError, Store, TableName, Value, Version, VersionCondition, Write, WriteConditions, statements,
};

/// The default maximum size of a value that is put; [`PostgresStore::with_max_value_bytes`] changes it.
pub const MAX_VALUE_BYTES: usize = 10 * 1024 * 1024;
/// The number of reads of a document that becomes larger between two of them.
const MAX_READS: u32 = 3;
/// The number of responses of the largest size that are read at a time.
const MAX_LARGE_ANSWERS: usize = 3;

/// The most bytes that PostgreSQL's text of a value may have, if the value was put with at most
/// `max_value_bytes`: PostgreSQL writes a space after each comma and colon. Numbers count as PostgreSQL
/// writes them, without an exponent.
pub(crate) fn max_stored_bytes(max_value_bytes: usize) -> usize {
    max_value_bytes / 2 * 3
}

/// Documents in one table, which [`PostgresStore::setup`] or a migration with [`crate::schema_sql`] has
/// created.
///
/// The pool should have [`crate::PLANNER_PARAMETERS`] as session parameters. Every operation ends within the
/// pool's operation timeout plus one second, including waits for a connection.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    /// The pool for single documents.
    pool: PgPool,
    /// The pool for lists and batches.
    list_pool: PgPool,
    query_pool: PgPool,
    table: Arc<TableName>,
    /// The table as queries use it: with its declared indexes.
    target: Arc<compile::Table>,
    max_stored_bytes: usize,
    room: Room,
}

impl PostgresStore {
    /// A store on an existing table.
    pub fn new(pool: PgPool, table: TableName) -> Self {
        let target = Arc::new(compile::Table::new(table.as_str(), Vec::new()));
        let (list_pool, query_pool) = (pool.clone(), pool.clone());
        let (max_stored_bytes, room) = sizes(MAX_VALUE_BYTES);
        Self { pool, list_pool, query_pool, table: Arc::new(table), target, max_stored_bytes, room }
    }

    /// The same store, with one pool for lists and batches, so that slow ones take no connection from single
    /// documents, and one for queries for the same reason. The pool for queries should have
    /// [`crate::QUERY_PARAMETERS`] as session parameters; without them queries return the same documents with
    /// slower plans.
    #[must_use]
    pub fn with_pools(self, list_pool: PgPool, query_pool: PgPool) -> Self {
        Self { list_pool, query_pool, ..self }
    }

    /// The same store, whose queries use the indexes that were given to [`PostgresStore::setup`]. Without
    /// them queries return the same documents.
    #[must_use]
    pub fn with_indexes(self, indexes: &[IndexSpec]) -> Self {
        let indexes = indexes.iter().map(|spec| (spec.member().clone(), spec.kind())).collect();
        Self { target: Arc::new(compile::Table::new(self.table.as_str(), indexes)), ..self }
    }

    /// The same store, for values whose texts have at most `max_value_bytes` when they are put. PostgreSQL's
    /// text of a value may be half as long again. A put with a longer one is rejected; a stored document with
    /// a longer one, which another program wrote, is [`StateError::DocumentTooLarge`].
    #[must_use]
    pub fn with_max_value_bytes(self, max_value_bytes: usize) -> Self {
        let (max_stored_bytes, room) = sizes(max_value_bytes);
        Self { max_stored_bytes, room, ..self }
    }

    /// The table.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// Checks that PostgreSQL responds.
    pub async fn ping(&self) -> Result<(), StateError> {
        let operation = self.operation("reach PostgreSQL").await?;
        operation.run(operation.session.execute_batch("SELECT 1")).await
    }

    /// Stores many documents without conditions, in one statement: all or none. Of equal keys the last one is
    /// stored. Keep a batch to some MiB, to limit memory.
    pub async fn put_many(&self, documents: &[(Key, Value)]) -> Result<(), StateError> {
        documents.iter().try_for_each(|(_, value)| value.check_stored(self.max_stored_bytes))?;
        let operation = self.operation("put documents").await?;
        operation.query(statements::upsert_many(&self.table, &last_of_each(documents))).await.map(drop)
    }

    async fn operation(&self, name: &'static str) -> Result<StoreOperation<'_>, StateError> {
        StoreOperation::open(&self.pool, &self.table, name, deadline_of(&self.pool)).await
    }

    async fn list_operation(&self, name: &'static str) -> Result<StoreOperation<'_>, StateError> {
        StoreOperation::open(&self.list_pool, &self.table, name, deadline_of(&self.list_pool)).await
    }

    /// Reads the document's state from a row of a conditional statement; `None` if there was no document.
    fn seen(&self, row: &Row) -> Result<Option<CurrentRow>, StateError> {
        let version: Option<i64> = self.column(row, "version")?;
        let status = self.column(row, "status")?;
        Ok(version.map(|version| CurrentRow { version: Version(version), status }))
    }

    /// A column of the first row.
    fn version(&self, rows: &[Row], name: &'static str) -> Result<Option<Version>, StateError> {
        let version = rows.first().map(|row| self.column::<Option<i64>>(row, name)).transpose()?;
        Ok(version.flatten().map(Version))
    }

    fn column<'a, T: FromSql<'a>>(&self, row: &'a Row, name: &'static str) -> Result<T, StateError> {
        rows::column(&self.table, row, name)
    }

    fn corrupt(&self, column: &'static str) -> StateError {
        StateError::Corrupt { table: self.table.to_string(), column }
    }
}

/// The most bytes of a stored text, and the room for reading.
fn sizes(max_value_bytes: usize) -> (usize, Room) {
    let max_stored_bytes = max_stored_bytes(max_value_bytes);
    (max_stored_bytes, Room::new(MAX_LARGE_ANSWERS * max_stored_bytes.max(MAX_ANSWER_BYTES)))
}

impl Store for PostgresStore {
    async fn get(&self, key: &Key) -> Result<Option<Document>, StateError> {
        self.read_one(key).await
    }

    async fn get_version(&self, key: &Key) -> Result<Option<Version>, StateError> {
        let operation = self.operation("get a version").await?;
        let rows = operation.query(statements::get_version(&self.table, key)).await?;
        self.version(&rows, "version")
    }

    async fn check_ready(&self) -> Result<(), StateError> {
        let operation = self.operation("look whether documents can be written").await?;
        let rows = operation.query(statements::probe(&self.table, &Key::new(PROBE_KEY)?)).await?;
        match rows.first().map(|row| self.column(row, "read_only")).transpose()? {
            Some(true) => Err(StateError::ReadOnly),
            _ => Ok(()),
        }
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Document>, StateError> {
        let deadline = deadline_of(&self.list_pool);
        let all: Vec<&Key> = keys.iter().collect();
        let mut counted = self.counted();
        for _ in 0..MAX_READS {
            let operation =
                StoreOperation::open(&self.list_pool, &self.table, "get documents", deadline).await?;
            let most = counted.held.as_ref().map_or(MAX_UNCOUNTED_DOCUMENT, |_| self.max_stored_bytes);
            let statement = statements::get_many(&self.table, &all, most);
            if let ManyRead::Read { found, .. } = operation.read_many(statement, &mut counted).await? {
                let held = counted.held.unwrap_or_default();
                let documents = found.into_iter().map(|found| {
                    let document = found.document(self.max_stored_bytes)?;
                    Ok(Document { value: document.value.within(&held), ..document })
                });
                return if_fitting(in_order(keys, documents.collect::<Result<_, StateError>>()?));
            }
            drop(operation);
            counted.held = Some(self.room.take(counted.bytes, deadline).await?);
        }
        Err(StateError::NoRoom)
    }

    async fn get_members(
        &self,
        keys: &[Key],
        names: &[&str],
        max_bytes: usize,
    ) -> Result<Vec<DocumentMembers>, StateError> {
        let operation = self.list_operation("get members of documents").await?;
        let rows = operation.query(statements::get_members(&self.table, keys, names, max_bytes)).await?;
        members_in_order(&self.table, keys, &rows)
    }

    async fn put(&self, key: &Key, value: &Value, conditions: &WriteConditions) -> Result<Write, StateError> {
        value.check_stored(self.max_stored_bytes)?;
        let operation = self.operation("put a document").await?;
        let outcome = self.put_by(&operation, key, value, conditions).await;
        operation.retire_after(value.as_str().len());
        outcome
    }

    async fn patch(
        &self,
        key: &Key,
        patch: &Value,
        conditions: &WriteConditions,
    ) -> Result<Patch, StateError> {
        let deadline = deadline_of(&self.pool);
        let (mut most, mut _held) = (MAX_UNCOUNTED_DOCUMENT, ReservedRoom::default());
        for _ in 0..MAX_READS {
            let operation =
                StoreOperation::open(&self.pool, &self.table, "patch a document", deadline).await?;
            match self.patch_within(&operation, key, patch, conditions, most).await? {
                Ok(outcome) => return Ok(outcome),
                Err(bytes) if bytes <= self.max_stored_bytes => {
                    drop(operation);
                    // Room for the merged value. The previous room is released first: an operation that
                    // waits for room holds none.
                    _held = ReservedRoom::default();
                    _held = self.room.take(bytes + patch.as_str().len(), deadline).await?;
                    most = bytes;
                }
                Err(bytes) => {
                    let (key, most) = (key.clone(), self.max_stored_bytes);
                    return Err(StateError::DocumentTooLarge { key, bytes, most });
                }
            }
        }
        Err(StateError::NoRoom)
    }

    async fn delete(&self, key: &Key, condition: VersionCondition) -> Result<Delete, StateError> {
        let operation = self.operation("delete a document").await?;
        let version = match condition {
            VersionCondition::Any | VersionCondition::Exists => None,
            VersionCondition::Is(Some(version)) => Some(version),
            // Never fulfilled by an existing row.
            VersionCondition::Is(None) | VersionCondition::Absent => {
                let rows = operation.query(statements::get_version(&self.table, key)).await?;
                return Ok(if rows.is_empty() { Delete::NotFound } else { Delete::VersionMismatch });
            }
        };
        let rows = operation.query(statements::delete(&self.table, key, version)).await?;
        let (applied, seen) = (self.version(&rows, "applied")?, self.version(&rows, "version")?);
        Ok(match (applied, seen) {
            (Some(_), _) => Delete::Applied,
            (None, None) => Delete::NotFound,
            // The row existed when the statement began, and another transaction has deleted it since.
            (None, Some(_)) if version.is_none() => Delete::NotFound,
            // The row had this version when the statement began, and another transaction has deleted or
            // replaced it since.
            (None, Some(seen)) if version == Some(seen) => {
                let rows = operation.query(statements::get_version(&self.table, key)).await?;
                if rows.is_empty() { Delete::NotFound } else { Delete::VersionMismatch }
            }
            (None, Some(_)) => Delete::VersionMismatch,
        })
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: u32) -> Result<KeyPage, StateError> {
        let bytes = limit as usize * MAX_KEY_BYTES;
        let held = match bytes > MAX_UNCOUNTED_BYTES {
            true => self.room.take(bytes, deadline_of(&self.list_pool)).await?,
            false => ReservedRoom::default(),
        };
        let operation = self.list_operation("list keys").await?;
        let statement = statements::list(&self.table, prefix, after, limit.saturating_add(1));
        let rows = operation.query(statement).await?;
        let keys = rows.iter().map(|row| Ok(Key::from_store(self.column(row, "key")?)));
        Ok(KeyPage { held, ..KeyPage::of(keys.collect::<Result<_, StateError>>()?, limit) })
    }

    async fn query(&self, query: &Query) -> Result<Page, StateError> {
        let mut query = query.clone();
        if let Some((key, _)) = query.row_needed() {
            let row = self.read_one(key).await?;
            query = query.with_row(row.as_ref())?;
        }
        let deadline = deadline_of(&self.query_pool);
        let mut counted = self.counted();
        for _ in 0..MAX_READS {
            let operation =
                StoreOperation::open(&self.query_pool, &self.table, "query documents", deadline).await?;
            if let Some(page) = self.query_within(&operation, &query, &mut counted).await? {
                return Ok(page);
            }
            drop(operation);
            counted.held = Some(self.room.take(counted.bytes, deadline).await?);
        }
        Err(StateError::NoRoom)
    }
}
