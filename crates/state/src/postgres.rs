//! Documents in a table of PostgreSQL.
//!
//! A write without conditions is one statement. One with conditions is one statement too, which also says what the row was: if
//! that fulfils the conditions although nothing was written, another writer was faster, and the write is decided again with
//! the row locked, once. A patch locks the row first.

mod in_transaction;
mod operation;
mod rows;

use std::sync::Arc;

use pg::PgPool;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

pub use self::in_transaction::{
    delete_many_in, get_many_in, insert_many_in, lock_many_in, prepare_many_in, put_many_in,
};
use self::operation::Operation;
use self::rows::{in_order, last_of_each, members_in_order, read_document};
use crate::condition::Seen;
use crate::json::{Json, MAX_LEVELS, merge};
use crate::query::{Query, compile};
use crate::store::if_fitting;
use crate::{
    Delete, Document, IndexSpec, Key, KeyPage, Members, Page, Patch, Prefix, StateError, Store, TableName,
    Value, Version, VersionCondition, Write, WriteConditions, statements,
};

/// The largest value that a patch makes, unless [`PostgresStore::with_max_value_bytes`] says otherwise.
pub const MAX_VALUE_BYTES: usize = 10 * 1024 * 1024;

/// Documents in one table, which [`PostgresStore::setup`] or a migration with [`crate::schema_sql`] has made.
///
/// Its pool should have [`crate::PLANNER_PARAMETERS`] as session parameters. Every operation ends within the pool's operation
/// timeout and a second, waits for a connection included.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    /// For single documents.
    pool: PgPool,
    /// For lists and batches.
    list_pool: PgPool,
    query_pool: PgPool,
    table: Arc<TableName>,
    /// As queries know it: with its declared indexes.
    target: Arc<compile::Table>,
    max_value_bytes: usize,
}

impl PostgresStore {
    /// A store on a table that is there.
    pub fn new(pool: PgPool, table: TableName) -> Self {
        let target = Arc::new(compile::Table::new(table.as_str(), Vec::new()));
        let (list_pool, query_pool) = (pool.clone(), pool.clone());
        Self { pool, list_pool, query_pool, table: Arc::new(table), target, max_value_bytes: MAX_VALUE_BYTES }
    }

    /// The same, with a pool for lists and batches, so that slow ones take no connection from single documents, and one for queries for the
    /// same reason. That of queries should have [`crate::QUERY_PARAMETERS`] as session parameters; queries find the same without, by
    /// slower plans.
    #[must_use]
    pub fn with_pools(self, list_pool: PgPool, query_pool: PgPool) -> Self {
        Self { list_pool, query_pool, ..self }
    }

    /// The same, whose queries use the indexes that [`PostgresStore::setup`] was told of. They find the same without.
    #[must_use]
    pub fn with_indexes(self, indexes: &[IndexSpec]) -> Self {
        let indexes = indexes.iter().map(|spec| (spec.member().clone(), spec.kind())).collect();
        Self { target: Arc::new(compile::Table::new(self.table.as_str(), indexes)), ..self }
    }

    /// The same, with another limit for what a patch makes.
    #[must_use]
    pub fn with_max_value_bytes(self, max_value_bytes: usize) -> Self {
        Self { max_value_bytes, ..self }
    }

    /// The table.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// Whether PostgreSQL answers.
    pub async fn ping(&self) -> Result<(), StateError> {
        let operation = self.operation("reach PostgreSQL").await?;
        operation.run(operation.session.execute_batch("SELECT 1")).await
    }

    /// Stores many documents without conditions, in one statement: all or none. Of equal keys the last one counts. For memory's
    /// sake keep a batch to some MiB.
    pub async fn put_many(&self, documents: &[(Key, Value)]) -> Result<(), StateError> {
        let operation = self.operation("put documents").await?;
        operation.query(&statements::upsert_many(&self.table, &last_of_each(documents))).await.map(drop)
    }

    async fn operation(&self, name: &'static str) -> Result<Operation<'_>, StateError> {
        Operation::open(&self.pool, &self.table, name).await
    }

    async fn list_operation(&self, name: &'static str) -> Result<Operation<'_>, StateError> {
        Operation::open(&self.list_pool, &self.table, name).await
    }

    /// Decides a write with the row locked. No row is inserted: conditions that a missing row fulfils are decided elsewhere.
    async fn replace_locked(
        &self,
        operation: &Operation<'_>,
        key: &Key,
        value: &Value,
        conditions: &WriteConditions,
    ) -> Result<Write, StateError> {
        let rows = operation.begin(&statements::lock(&self.table, key, false)).await?;
        let seen = rows.first().map(|row| self.seen(row)).transpose()?.flatten();
        if let Some(refusal) = conditions.refusal(seen.as_ref()) {
            operation.rollback().await?;
            return Ok(refusal);
        }
        let rows = operation.commit(&statements::replace(&self.table, key, value)).await?;
        Ok(Write::Applied(self.version(&rows, "version")?.ok_or_else(|| self.corrupt("version"))?))
    }

    /// What a row of a conditional statement says of the document; `None` if there was none.
    fn seen(&self, row: &Row) -> Result<Option<Seen>, StateError> {
        let version: Option<i64> = self.column(row, "version")?;
        let status = self.column(row, "status")?;
        Ok(version.map(|version| Seen { version: Version(version), status }))
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

    /// What a patch makes of the row that was locked for it, if any, or why it makes nothing.
    fn patched(
        &self,
        row: Option<&Row>,
        patch: &Value,
        conditions: &WriteConditions,
    ) -> Result<Result<Value, Patch>, StateError> {
        let Some(row) = row else { return Ok(Err(Patch::NotFound)) };
        if let Some(refusal) = conditions.refusal(self.seen(row)?.as_ref()) {
            return Ok(Err(Patch::Written(refusal)));
        }
        let old: &str = self.column(row, "value")?;
        let tree = |text: &str| Json::parse(text.as_bytes()).map_err(|error| error.to_string());
        let value = tree(old).and_then(|old| merged(old, tree(patch.as_str())?, self.max_value_bytes));
        Ok(value.map_err(Patch::Invalid))
    }
}

/// What RFC 7396 makes of the two, or why it makes nothing that can be stored. It may be as large as a body that would put it.
pub(crate) fn merged(target: Json, patch: Json, max_bytes: usize) -> Result<Value, String> {
    let merged = merge(target, patch);
    let value = Value::from(&merged);
    // PostgreSQL writes spaces, and numbers without exponents.
    if value.as_str().len() > max_bytes {
        let bytes = merged.to_short_text().len();
        if bytes > max_bytes {
            return Err(format!("the merged value has {bytes} bytes; at most {max_bytes}"));
        }
    }
    // The patch itself is not deeper than it may be, but where it is merged may be deep already.
    Value::parse(value.as_str())
        .map_err(|error| format!("the merged value has over {MAX_LEVELS} levels: {error}"))
}

impl Store for PostgresStore {
    async fn get(&self, key: &Key) -> Result<Option<Document>, StateError> {
        let operation = self.operation("get a document").await?;
        let rows = operation.query(&statements::get(&self.table, key)).await?;
        rows.first().map(|row| read_document(&self.table, row)).transpose()
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Document>, StateError> {
        let operation = self.list_operation("get documents").await?;
        let rows =
            operation.query(&statements::get_many(&self.table, &keys.iter().collect::<Vec<_>>())).await?;
        if_fitting(in_order(&self.table, keys, &rows)?)
    }

    async fn get_members(
        &self,
        keys: &[Key],
        names: &[&str],
        max_bytes: usize,
    ) -> Result<Vec<Members>, StateError> {
        let operation = self.list_operation("get members of documents").await?;
        let rows = operation.query(&statements::get_members(&self.table, keys, names, max_bytes)).await?;
        members_in_order(&self.table, keys, &rows)
    }

    async fn put(&self, key: &Key, value: &Value, conditions: &WriteConditions) -> Result<Write, StateError> {
        let operation = self.operation("put a document").await?;
        let applied = match (conditions.version, &conditions.status) {
            (VersionCondition::Any, None) => {
                let rows = operation.query(&statements::upsert(&self.table, key, value)).await?;
                Some(self.version(&rows, "version")?.ok_or_else(|| self.corrupt("version"))?)
            }
            (VersionCondition::Absent, None) => {
                let rows = operation.query(&statements::insert(&self.table, key, value)).await?;
                let Some(version) = self.version(&rows, "version")? else {
                    return Ok(Write::VersionMismatch);
                };
                Some(version)
            }
            _ => {
                let rows = operation.query(&statements::update(&self.table, key, value, conditions)).await?;
                let applied = self.version(&rows, "applied")?;
                let seen = rows.first().map(|row| self.seen(row)).transpose()?.flatten();
                match conditions.refusal(seen.as_ref()) {
                    Some(refusal) if applied.is_none() => return Ok(refusal),
                    _ => applied,
                }
            }
        };
        match applied {
            Some(version) => Ok(Write::Applied(version)),
            None => self.replace_locked(&operation, key, value, conditions).await,
        }
    }

    async fn patch(
        &self,
        key: &Key,
        patch: &Value,
        conditions: &WriteConditions,
    ) -> Result<Patch, StateError> {
        let operation = self.operation("patch a document").await?;
        let rows = operation.begin(&statements::lock(&self.table, key, true)).await?;
        let value = match self.patched(rows.first(), patch, conditions)? {
            Ok(value) => value,
            Err(refusal) => {
                operation.rollback().await?;
                return Ok(refusal);
            }
        };
        let rows = operation.commit(&statements::replace(&self.table, key, &value)).await?;
        let version = self.version(&rows, "version")?.ok_or_else(|| self.corrupt("version"))?;
        Ok(Patch::Written(Write::Applied(version)))
    }

    async fn delete(&self, key: &Key, condition: VersionCondition) -> Result<Delete, StateError> {
        let operation = self.operation("delete a document").await?;
        let version = match condition {
            VersionCondition::Any | VersionCondition::Exists => None,
            VersionCondition::Is(Some(version)) => Some(version),
            // Fulfilled by no row that could be deleted.
            VersionCondition::Is(None) | VersionCondition::Absent => {
                let rows = operation.query(&statements::get(&self.table, key)).await?;
                return Ok(if rows.is_empty() { Delete::NotFound } else { Delete::VersionMismatch });
            }
        };
        let rows = operation.query(&statements::delete(&self.table, key, version)).await?;
        let (applied, seen) = (self.version(&rows, "applied")?, self.version(&rows, "version")?);
        Ok(match (applied, seen) {
            (Some(_), _) => Delete::Applied,
            (None, None) => Delete::NotFound,
            // It was there when the statement began, and another transaction has deleted it since.
            (None, Some(_)) if version.is_none() => Delete::NotFound,
            // It had this version when the statement began, and another transaction has deleted or replaced it since.
            (None, Some(seen)) if version == Some(seen) => {
                let rows = operation.query(&statements::get(&self.table, key)).await?;
                if rows.is_empty() { Delete::NotFound } else { Delete::VersionMismatch }
            }
            (None, Some(_)) => Delete::VersionMismatch,
        })
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: u32) -> Result<KeyPage, StateError> {
        let operation = self.list_operation("list keys").await?;
        let statement = statements::list(&self.table, prefix, after, limit.saturating_add(1));
        let rows = operation.query(&statement).await?;
        let keys = rows.iter().map(|row| Ok(Key::from_store(self.column(row, "key")?)));
        Ok(KeyPage::of(keys.collect::<Result<_, StateError>>()?, limit))
    }

    async fn query(&self, query: &Query) -> Result<Page, StateError> {
        let operation = Operation::open(&self.query_pool, &self.table, "query documents").await?;
        let mut query = query.clone();
        if let Some((key, _)) = query.row_needed() {
            let rows = operation.query(&statements::get(&self.table, key)).await?;
            let row = rows.first().map(|row| read_document(&self.table, row)).transpose()?;
            query = query.with_row(row.as_ref())?;
        }
        let is_counted = query.count || query.matched;
        let count = is_counted.then(|| statements::count(&self.table, &query, &self.target));
        let page = (!query.count).then(|| statements::page(&self.table, &query, &self.target)).transpose()?;
        let (counted, documents) = operation.query_snapshot(count.as_ref(), page.as_ref()).await?;
        let matched = counted.first().map(|row| self.column::<i64>(row, "count")).transpose()?;
        let matched = matched.map(i64::unsigned_abs);
        if query.count {
            return Ok(Page { rows: Vec::new(), matched, next_cursor: None });
        }
        query.page(documents.into_iter().collect::<Result<_, StateError>>()?, matched)
    }
}
