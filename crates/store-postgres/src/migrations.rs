//! Applies migrations to a database that can store every text.

use std::time::Duration;

use domain::ports::StoreError;
use pg::{Dsn, Migration, MigrationSettings, PgPool, PoolSettings};

use crate::error::store_error;
use crate::session::SESSION;

const OPERATION: &str = "apply the migrations";
/// "notif" in ASCII; no other client uses it.
const LOCK_KEY: i64 = 0x6e_6f_74_69_66;

/// Applies the migrations that the database lacks and returns their number. See [`pg::migrate()`]. A database
/// that cannot store every text is refused before anything is written to it.
pub async fn migrate(dsn: &Dsn, migrations: &[Migration]) -> Result<usize, StoreError> {
    check_encoding(dsn).await?;
    let settings =
        MigrationSettings { lock_key: LOCK_KEY, session: SESSION, command: "notification migrate" };
    pg::migrate(dsn, migrations, settings).await.map_err(store_error)
}

/// Refuses other encodings than UTF-8: the first intent with a character that they lack would block intake
/// permanently.
async fn check_encoding(dsn: &Dsn) -> Result<(), StoreError> {
    let refused = |source| StoreError::Unavailable { operation: OPERATION, source };
    let settings =
        PoolSettings { max_connections: 1, operation_timeout: Duration::from_secs(10), session: SESSION };
    let pool = PgPool::new(dsn, settings).map_err(|error| refused(error.into()))?;
    let session = pool.session(OPERATION).await.map_err(store_error)?;
    match session.raw("SHOW server_encoding").await.map_err(store_error)?.first().map(String::as_str) {
        Some("UTF8") => Ok(()),
        other => Err(refused(
            format!(
                "the database's encoding is {}, and only UTF8 holds every text: create the database with \
                 CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'",
                other.unwrap_or("unknown"),
            )
            .into(),
        )),
    }
}
