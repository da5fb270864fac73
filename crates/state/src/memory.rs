//! Documents in memory, for tests of a store's users and for small uses: nothing survives the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambient::{Clock, SystemClock};

use crate::condition::CurrentRow;
use crate::postgres::{MAX_VALUE_BYTES, max_stored_bytes, merged};
use crate::query::Query;
use crate::store::if_fitting;
use crate::{
    Delete, Document, Key, KeyPage, Page, Patch, Prefix, StateError, Store, Value, Version, VersionCondition,
    Write, WriteConditions,
};

/// Documents in memory; clones share them. It keeps the promises of [`crate::PostgresStore`].
#[derive(Clone)]
pub struct MemoryStore {
    table: Arc<Mutex<DocumentRows>>,
    clock: Arc<dyn Clock>,
    max_stored_bytes: usize,
}

#[derive(Default)]
struct DocumentRows {
    rows: BTreeMap<Key, Document>,
    last_version: i64,
}

impl DocumentRows {
    fn next_version(&mut self) -> Version {
        self.last_version += 1;
        Version(self.last_version)
    }

    fn seen(&self, key: &Key) -> Option<CurrentRow> {
        let document = self.rows.get(key)?;
        let status =
            document.value.to_json().ok().and_then(|json| json.get("status")?.as_str().map(str::to_owned));
        Some(CurrentRow { version: document.version, status })
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("documents", &self.table().rows.len()).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { table: Arc::default(), clock, max_stored_bytes: max_stored_bytes(MAX_VALUE_BYTES) }
    }

    /// The same store, with another limit for values.
    #[must_use]
    pub fn with_max_value_bytes(self, max_value_bytes: usize) -> Self {
        Self { max_stored_bytes: max_stored_bytes(max_value_bytes), ..self }
    }

    /// Stores many documents without conditions: all or none. Of equal keys the last one is stored.
    pub fn put_many(&self, documents: &[(Key, Value)]) -> Result<(), StateError> {
        let values = documents.iter().map(|(_, value)| Ok(Value::from(&value.to_json()?)));
        let values = values.collect::<Result<Vec<Value>, StateError>>()?;
        let mut table = self.table();
        for ((key, _), value) in documents.iter().zip(values) {
            self.store(&mut table, key, value);
        }
        Ok(())
    }

    fn table(&self) -> MutexGuard<'_, DocumentRows> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self, table: &mut DocumentRows, key: &Key, value: Value) -> Version {
        let (version, now) = (table.next_version(), self.clock.now());
        let old = table.rows.get(key);
        let document = Document {
            key: key.clone(),
            value,
            version,
            created_at: old.map_or(now, |old| old.created_at),
            updated_at: old.map_or(now, |old| now.max(old.updated_at + Duration::from_micros(1))),
        };
        table.rows.insert(key.clone(), document);
        version
    }
}

impl Store for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Document>, StateError> {
        Ok(self.table().rows.get(key).cloned())
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Document>, StateError> {
        let table = self.table();
        let mut asked = std::collections::HashSet::new();
        let first = keys.iter().filter(|key| asked.insert(*key));
        if_fitting(first.filter_map(|key| table.rows.get(key).cloned()).collect())
    }

    async fn put(&self, key: &Key, value: &Value, conditions: &WriteConditions) -> Result<Write, StateError> {
        value.check_stored(self.max_stored_bytes)?;
        let value = Value::from(&value.to_json()?);
        let mut table = self.table();
        Ok(match conditions.refusal(table.seen(key).as_ref()) {
            Some(refusal) => refusal,
            None => Write::Applied(self.store(&mut table, key, value)),
        })
    }

    async fn patch(
        &self,
        key: &Key,
        patch: &Value,
        conditions: &WriteConditions,
    ) -> Result<Patch, StateError> {
        let mut table = self.table();
        let Some(seen) = table.seen(key) else { return Ok(Patch::NotFound) };
        if let Some(refusal) = conditions.refusal(Some(&seen)) {
            return Ok(Patch::Written(refusal));
        }
        let old = table.rows.get(key).map_or("null", |document| document.value.as_str());
        Ok(match merged(old, patch.as_str(), self.max_stored_bytes) {
            Ok(value) => {
                let value = Value::from(&value.to_json()?);
                Patch::Written(Write::Applied(self.store(&mut table, key, value)))
            }
            Err(reason) => Patch::Invalid(reason),
        })
    }

    async fn delete(&self, key: &Key, condition: VersionCondition) -> Result<Delete, StateError> {
        let mut table = self.table();
        let Some(seen) = table.rows.get(key).map(|document| document.version) else {
            return Ok(Delete::NotFound);
        };
        if !condition.holds(Some(seen)) {
            return Ok(Delete::VersionMismatch);
        }
        table.rows.remove(key);
        Ok(Delete::Applied)
    }

    async fn list(&self, prefix: &Prefix, after: Option<&Key>, limit: u32) -> Result<KeyPage, StateError> {
        let first = Key::from_store(prefix.as_str());
        let from = match after {
            Some(after) if *after >= first => Bound::Excluded(after.clone()),
            _ => Bound::Included(first),
        };
        let table = self.table();
        let keys = table.rows.range((from, Bound::Unbounded)).map(|(key, _)| key);
        let keys = keys.take_while(|key| prefix.is_of(key));
        Ok(KeyPage::of(keys.take(limit as usize + 1).cloned().collect(), limit))
    }

    async fn query(&self, query: &Query) -> Result<Page, StateError> {
        query.run(self.table().rows.values())
    }
}
