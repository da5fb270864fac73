//! The indexes of a table: finds missing ones, and builds them concurrently with its writers.

use std::time::Duration;

use pg::PgError;

use super::catalogue::{self, Index, Relation};
use super::{LOCK_TIMEOUT, Setup, plan};
use crate::query::expressions::index_sql;
use crate::schema::{gin_index_name, key_index_name};
use crate::{IndexSpec, StateError};

/// The name of an empty table on which the declared indexes are tried and inspected, in a transaction that is
/// rolled back.
const PROBE: &str = "notification_state_probe";
/// Returns true if an index serves a purpose.
type Serves = fn(&Index) -> bool;

/// An index to be built.
pub(super) struct MissingIndex {
    name: String,
    /// The name that operators see.
    item: String,
    /// The SQL after `ON table`.
    definition: String,
    /// True if a build of the index was interrupted.
    half_built: bool,
}

impl Setup<'_> {
    /// The indexes that are missing or half-built. The error names a relation that has the name of one and
    /// differs from it.
    pub(super) async fn missing_indexes(
        &self,
        relation: &Relation,
        declared: &[IndexSpec],
    ) -> Result<Vec<MissingIndex>, StateError> {
        let mut missing = Vec::new();
        let own: [(String, &str, Serves); 2] = [
            (key_index_name(self.table), "btree (key COLLATE \"C\")", plan::orders_keys_by_bytes),
            (gin_index_name(self.table), "gin (value jsonb_path_ops)", plan::finds_values),
        ];
        for (name, definition, serves) in own {
            if !relation.indexes.iter().any(|index| index.valid && serves(index)) {
                missing
                    .extend(self.missing(relation, name.clone(), name, definition.to_owned(), serves).await?);
            }
        }
        let expected = self.probe(declared).await?;
        for (spec, expected) in declared.iter().zip(expected) {
            let definition =
                format!("btree (({}))", index_sql(self.table.as_str(), spec.member(), spec.kind()));
            let is_it = |index: &Index| {
                Index { name: index.name.clone(), valid: index.valid, ..expected.clone() } == *index
            };
            let name = spec.index_name(self.table);
            missing.extend(self.missing(relation, name, spec.to_string(), definition, is_it).await?);
        }
        Ok(missing)
    }

    /// Returns the index if it is missing or half-built.
    async fn missing(
        &self,
        relation: &Relation,
        name: String,
        item: String,
        definition: String,
        is_it: impl Fn(&Index) -> bool,
    ) -> Result<Option<MissingIndex>, StateError> {
        let half_built = match relation.indexes.iter().find(|index| index.name == name) {
            Some(index) if is_it(index) && index.valid => return Ok(None),
            Some(index) if is_it(index) => true,
            Some(_) => {
                return Err(
                    self.no_table(format!("its index {name} is not the one that {item} declares: drop it"))
                );
            }
            None => {
                let taken = catalogue::kind_of(self.session, &relation.schema, &name).await;
                if taken.map_err(|error| self.error(error))?.is_some() {
                    return Err(self.no_table(format!(
                        "the name {name}, of the index for {item}, belongs to something else"
                    )));
                }
                false
            }
        };
        Ok(Some(MissingIndex { name, item, definition, half_built }))
    }

    /// Reads the catalogue entries of the declared indexes on an empty table. An index that PostgreSQL
    /// rejects is an error before anything is created.
    async fn probe(&self, declared: &[IndexSpec]) -> Result<Vec<Index>, StateError> {
        if declared.is_empty() {
            return Ok(Vec::new());
        }
        let error = |error| self.error(error);
        self.session.begin().await.map_err(error)?;
        let sql = format!("CREATE TEMPORARY TABLE {PROBE} (key text COLLATE \"C\", value jsonb)");
        self.session.execute_batch(&sql).await.map_err(|error| match self.error(error) {
            StateError::NoRights(_) => self.no_table(
                "the role may not create the temporary table on which declared indexes are tried: \
                 GRANT TEMPORARY ON DATABASE"
                    .to_owned(),
            ),
            other => other,
        })?;
        // The names in the probe's own schema, in the order of the list.
        for (position, spec) in declared.iter().enumerate() {
            let expression = index_sql(self.table.as_str(), spec.member(), spec.kind());
            let sql = format!("CREATE INDEX probe_{position:03} ON {PROBE} USING btree (({expression}))");
            self.session.execute_batch(&sql).await.map_err(|source| refused(spec, source))?;
        }
        let indexes = catalogue::indexes(self.session, PROBE).await.map_err(error)?;
        self.session.rollback().await.map_err(error)?;
        Ok(indexes)
    }

    /// Builds indexes, one after the other. The remains of a failed build are dropped.
    pub(super) async fn build(&self, schema: &str, missing: &[MissingIndex]) -> Result<(), StateError> {
        // Builds wait for every transaction that began before them, without a time limit.
        self.set_lock_timeout(Duration::ZERO).await?;
        for index in missing {
            let schema = schema.replace('"', "\"\"");
            let drop_it = format!("DROP INDEX CONCURRENTLY IF EXISTS \"{schema}\".\"{}\"", index.name);
            if index.half_built {
                self.session.execute_batch(&drop_it).await.map_err(|error| self.error(error))?;
            }
            let MissingIndex { name, definition, item, .. } = index;
            let sql =
                format!("CREATE INDEX CONCURRENTLY \"{name}\" ON {} USING {definition}", self.table.quoted());
            if let Err(source) = self.session.execute_batch(&sql).await {
                // If a transaction blocks this, or the connection is lost, the next start drops it.
                drop(self.set_lock_timeout(LOCK_TIMEOUT).await);
                drop(self.session.execute_batch(&drop_it).await);
                return Err(StateError::Index { item: item.clone(), source });
            }
        }
        self.set_lock_timeout(LOCK_TIMEOUT).await
    }

    /// Creates statistics if an index on an expression has none: without them the planner cannot estimate the
    /// index's value. The process that built the index may have ended before it could do that.
    pub(super) async fn make_statistics(&self) -> Result<(), StateError> {
        let lacks = catalogue::lacks_statistics(self.session, self.table).await;
        if !lacks.map_err(|error| self.error(error))? {
            return Ok(());
        }
        match self.session.execute_batch(&format!("ANALYZE {}", self.table.quoted())).await {
            Ok(()) => Ok(()),
            Err(PgError::Locked { .. }) => {
                tracing::warn!(
                    state_table = %self.table,
                    "an index has no statistics, and another session is at work on the table; ANALYZE it if queries are slow"
                );
                Ok(())
            }
            Err(error) => Err(self.error(error)),
        }
    }
}

fn refused(spec: &IndexSpec, source: PgError) -> StateError {
    StateError::Index { item: spec.to_string(), source }
}
