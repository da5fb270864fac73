//! The truth: records, routes and their fate in PostgreSQL.
//!
//! Each module implements one port of [`domain::ports`] on [`PgStore`]. Building a statement is apart from running it,
//! columns are spelled in `schema.rs` alone, and every change of a route is guarded by the version it was decided
//! on. There is no rule here about what should happen to a route: that is in `domain`.

mod acceptance;
mod codec;
mod error;
mod malformed_intents;
mod migrations;
mod retention;
mod routes;
mod schema;

pub use migrations::migrate;

use pg::{PgPool, Session};

use crate::error::store_error;
use domain::ports::StoreError;

/// All that the workers keep in PostgreSQL.
#[derive(Clone, Debug)]
pub struct PgStore {
    pool: PgPool,
}

impl PgStore {
    /// A store on `pool`, whose `search_path` picks the schema.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Prepares every statement that the service will run, so that a schema that is too old, or lacks a right, is
    /// known at start and not at the first intent. A schema that is newer passes if it still has what is needed.
    pub async fn check_needs(&self) -> Result<(), StoreError> {
        let session = self.session("check the schema").await?;
        acceptance::prepare_all(&session).await.map_err(store_error)?;
        routes::prepare_all(&session).await.map_err(store_error)?;
        retention::prepare_all(&session).await.map_err(store_error)?;
        // Preparing asks for no right on a table; running does.
        let without: Vec<String> = session
            .query(&schema::tables_without_rights())
            .await
            .map_err(store_error)?
            .iter()
            .map(|row| codec::column(row, 0, "a table's name", ""))
            .collect::<Result<_, _>>()?;
        if without.is_empty() {
            return Ok(());
        }
        let source = format!(
            "permission denied: the role may not read, write and delete in: {}; GRANT it or make the role the owner",
            without.join(", ")
        );
        Err(StoreError::Unavailable { operation: "check the schema", source: source.into() })
    }

    async fn session(&self, operation: &'static str) -> Result<Session, StoreError> {
        self.pool.session(operation).await.map_err(store_error)
    }
}
