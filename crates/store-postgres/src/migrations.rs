//! The migrations, embedded from `migrations/` at the top of the repository.

use domain::ports::StoreError;
use pg::{Dsn, refinery};

use crate::error::store_error;

refinery::embed_migrations!("../../migrations");

/// Applies the migrations that the database lacks and returns how many that were. See [`pg::migrate()`].
pub async fn migrate(dsn: &Dsn) -> Result<usize, StoreError> {
    pg::migrate(dsn, migrations::runner()).await.map_err(store_error)
}
