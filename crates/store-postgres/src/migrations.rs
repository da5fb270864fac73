//! The migrations, embedded from `migrations/` at the top of the repository.

use std::time::Duration;

use domain::ports::StoreError;
use pg::{Dsn, PgPool, PoolSettings, refinery};

use crate::error::store_error;

refinery::embed_migrations!("../../migrations");

const OPERATION: &str = "apply the migrations";

/// Applies the migrations that the database lacks and returns how many that were. See [`pg::migrate()`]. A database that
/// cannot hold every text is refused before anything is written to it.
pub async fn migrate(dsn: &Dsn) -> Result<usize, StoreError> {
    check_encoding(dsn).await?;
    pg::migrate(dsn, migrations::runner()).await.map_err(store_error)
}

/// In any other encoding, the first intent with a character that it lacks would hold the intake for ever.
async fn check_encoding(dsn: &Dsn) -> Result<(), StoreError> {
    let refused = |source| StoreError::Unavailable { operation: OPERATION, source };
    let settings = PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(10) };
    let pool = PgPool::new(dsn, settings).map_err(|error| refused(error.into()))?;
    let session = pool.session(OPERATION).await.map_err(store_error)?;
    match session.raw("SHOW server_encoding").await.map_err(store_error)?.first().map(String::as_str) {
        Some("UTF8") => Ok(()),
        other => Err(refused(
            format!(
                "the database's encoding is {}, and only UTF8 holds every text: create it anew with \
                 CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'",
                other.unwrap_or("unknown"),
            )
            .into(),
        )),
    }
}
