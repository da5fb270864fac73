//! Conditional writes and patches of documents.

use std::sync::Arc;

use super::PostgresStore;
use super::operation::StoreOperation;
use super::rows::{self, read_bytes};
use crate::heavy::work_on;
use crate::json::{MAX_LEVELS, merge_texts};
use crate::{Key, Patch, StateError, Value, VersionCondition, Write, WriteConditions, statements};

impl PostgresStore {
    /// Writes a value. If another writer was faster, the write is decided again with the row locked.
    pub(super) async fn put_by(
        &self,
        operation: &StoreOperation<'_>,
        key: &Key,
        value: &Value,
        conditions: &WriteConditions,
    ) -> Result<Write, StateError> {
        let applied = match (conditions.version, &conditions.status) {
            (VersionCondition::Any, None) => {
                let rows = operation.query(statements::upsert(&self.table, key, value)).await?;
                Some(self.version(&rows, "version")?.ok_or_else(|| self.corrupt("version"))?)
            }
            (VersionCondition::Absent, None) => {
                let rows = operation.query(statements::insert(&self.table, key, value)).await?;
                let Some(version) = self.version(&rows, "version")? else {
                    return Ok(Write::VersionMismatch);
                };
                Some(version)
            }
            _ => {
                let rows = operation.query(statements::update(&self.table, key, value, conditions)).await?;
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
            None => self.replace_locked(operation, key, value, conditions).await,
        }
    }

    /// Patches the document with its row locked. If the document has more than `most` bytes, returns their
    /// number and changes nothing.
    pub(super) async fn patch_within(
        &self,
        operation: &StoreOperation<'_>,
        key: &Key,
        patch: &Value,
        conditions: &WriteConditions,
        most: usize,
    ) -> Result<Result<Patch, usize>, StateError> {
        let mut rows = operation.begin(statements::lock_value(&self.table, key, most)).await?;
        let refusal = match rows.first() {
            None => Some(Patch::NotFound),
            Some(row) => conditions.refusal(self.seen(row)?.as_ref()).map(Patch::Written),
        };
        if let Some(refusal) = refusal {
            operation.rollback().await?;
            return Ok(Ok(refusal));
        }
        let row = rows.remove(0);
        let bytes = read_bytes(&self.table, &row)?;
        if bytes > most {
            operation.rollback().await?;
            return Ok(Err(bytes));
        }
        let (patch, table, limit) = (patch.clone(), Arc::clone(&self.table), self.max_stored_bytes);
        let merging = work_on(bytes + patch.as_str().len(), move || {
            let target = rows::column(&table, &row, "value")?;
            Ok::<_, StateError>(merged(target, patch.as_str(), limit))
        });
        let value = match operation.in_time(merging).await?? {
            Ok(value) => value,
            Err(reason) => {
                operation.rollback().await?;
                return Ok(Ok(Patch::Invalid(reason)));
            }
        };
        let rows = operation.commit(statements::replace(&self.table, key, &value)).await?;
        operation.retire_after(bytes.max(value.as_str().len()));
        let version = self.version(&rows, "version")?.ok_or_else(|| self.corrupt("version"))?;
        Ok(Ok(Patch::Written(Write::Applied(version))))
    }

    /// Decides a write with the row locked. Inserts no row: conditions that a missing row fulfils are decided
    /// elsewhere.
    async fn replace_locked(
        &self,
        operation: &StoreOperation<'_>,
        key: &Key,
        value: &Value,
        conditions: &WriteConditions,
    ) -> Result<Write, StateError> {
        let rows = operation.begin(statements::lock(&self.table, key)).await?;
        let seen = rows.first().map(|row| self.seen(row)).transpose()?.flatten();
        if let Some(refusal) = conditions.refusal(seen.as_ref()) {
            operation.rollback().await?;
            return Ok(refusal);
        }
        let rows = operation.commit(statements::replace(&self.table, key, value)).await?;
        Ok(Write::Applied(self.version(&rows, "version")?.ok_or_else(|| self.corrupt("version"))?))
    }
}

/// Merges `patch` into `target` by RFC 7396; the error contains the reason why the result cannot be stored.
pub(crate) fn merged(target: &str, patch: &str, max_stored_bytes: usize) -> Result<Value, String> {
    // The patch itself is within the limit, but it may be merged into a deep part.
    let value = Value::parse(merge_texts(target, patch))
        .map_err(|error| format!("the merged value has over {MAX_LEVELS} levels: {error}"))?;
    value.check_stored(max_stored_bytes).map_err(|error| format!("merged, {error}"))?;
    Ok(value)
}
