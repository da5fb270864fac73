//! Running statements on a borrowed connection.

use std::sync::atomic::Ordering;

use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use tokio_postgres::Row;

use crate::connections::PooledClient;
use crate::prepared::Prepared;
use crate::statement::{BoundStatement, Statement};
use crate::{PgError, Session};

/// The maximum number of statements of varying texts that a connection keeps prepared, and the longest of
/// them, in bytes. Each takes memory of the server, some sixty times its text.
pub const MAX_PREPARED: usize = 100;
const MAX_PREPARED_BYTES: usize = 8 * 1024;

impl Session {
    /// Prepares a statement (once for each connection and text) and keeps its parameters with it.
    ///
    /// The text must not vary with the data: each text stays prepared for as long as the connection lives.
    /// Behind a pooler nothing is prepared: each run sends the text.
    pub async fn prepare(&self, bound: BoundStatement) -> Result<Prepared, PgError> {
        let statement = self.prepare_text(&bound.statement).await?;
        Ok(Prepared { bound, statement })
    }

    /// Prepares each of the statements, to find out if the schema and the rights suffice. They are prepared
    /// concurrently: one after another they would exceed the deadline on a long round trip.
    pub async fn prepare_all(&self, statements: &[Statement]) -> Result<(), PgError> {
        try_join_all(statements.iter().map(|statement| self.prepare_text(statement))).await.map(drop)
    }

    async fn prepare_text(
        &self,
        statement: &Statement,
    ) -> Result<Option<tokio_postgres::Statement>, PgError> {
        let text = &*statement.text;
        let prepare = async |client: &PooledClient| match &client.behind_pooler {
            None => client.prepare_cached(text).await.map(Some),
            // In one message, so that no other client of the pooler can use the name.
            Some(_) if self.checks => {
                let check = format!("PREPARE pg_client_check AS {text}; DEALLOCATE pg_client_check");
                client.batch_execute(&check).await.map(|()| None)
            }
            Some(_) => Ok(None),
        };
        self.guard(statement.name, prepare).await
    }

    /// Runs a prepared statement. Concurrent runs are sent one after another, in the order of their first
    /// poll.
    pub async fn run(&self, prepared: &Prepared) -> Result<Vec<Row>, PgError> {
        let bound = &prepared.bound;
        self.guard(bound.statement.name, async |client| match &prepared.statement {
            Some(statement) => client.query(statement, &bound.params()).await,
            None => client.query_typed(&bound.statement.text, &bound.typed_params()).await,
        })
        .await
    }

    /// Runs a prepared statement and returns the number of rows that it changed. Concurrent runs are ordered
    /// as in [`Session::run`].
    pub async fn change(&self, prepared: &Prepared) -> Result<u64, PgError> {
        let bound = &prepared.bound;
        self.guard(bound.statement.name, async |client| match &prepared.statement {
            Some(statement) => client.execute(statement, &bound.params()).await,
            None => client.execute_typed(&bound.statement.text, &bound.typed_params()).await,
        })
        .await
    }

    /// Prepares and runs a statement, and returns its rows.
    pub async fn query(&self, statement: BoundStatement) -> Result<Vec<Row>, PgError> {
        self.run(&self.prepare(statement).await?).await
    }

    /// Prepares and runs a statement, and returns the number of rows that it changed.
    pub async fn execute(&self, statement: BoundStatement) -> Result<u64, PgError> {
        self.change(&self.prepare(statement).await?).await
    }

    /// Runs a statement that is not needed again, in one round trip: the server does not keep it. Its text
    /// may vary.
    pub async fn query_once(&self, bound: BoundStatement) -> Result<Vec<Row>, PgError> {
        let run = async |client: &PooledClient| {
            client.query_typed(&bound.statement.text, &bound.typed_params()).await
        };
        self.guard(bound.statement.name, run).await
    }

    /// Prepares and runs a statement whose text may vary, and converts each row with `read`. Stops reading
    /// once `reads_on` returns false. The connection is then closed, because the server would send the
    /// remaining rows.
    ///
    /// If it has prepared more than [`MAX_PREPARED`] statements on a connection, it forgets them all. A long
    /// text is prepared for one run only.
    pub async fn query_while<T>(
        &self,
        bound: BoundStatement,
        mut read: impl FnMut(Row) -> T,
        mut reads_on: impl FnMut(&T) -> bool,
    ) -> Result<Vec<T>, PgError> {
        let sql = &*bound.statement.text;
        self.guard(bound.statement.name, async |client| {
            let rows = if client.behind_pooler.is_some() {
                client.query_typed_raw(sql, bound.typed_params()).await?
            } else {
                let statement = if sql.len() > MAX_PREPARED_BYTES {
                    client.prepare(sql).await?
                } else {
                    client.prepare_cached(sql).await?
                };
                if client.statement_cache.size() > MAX_PREPARED {
                    client.statement_cache.clear();
                }
                client.query_raw(&statement, bound.params()).await?
            };
            let mut rows = std::pin::pin!(rows);
            let mut all = Vec::new();
            while let Some(row) = rows.try_next().await? {
                let element = read(row);
                let is_enough = !reads_on(&element);
                all.push(element);
                if is_enough {
                    self.broken.store(true, Ordering::SeqCst);
                    break;
                }
            }
            Ok(all)
        })
        .await
    }
}
