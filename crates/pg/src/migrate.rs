//! Applying migrations, safely from several processes at once.

use std::time::Duration;

use refinery::Runner;
use tokio_postgres::error::SqlState;

use crate::pool::connect;
use crate::{Dsn, PgError};

/// How long one process waits for another that is migrating.
pub const LOCK_WAIT: Duration = Duration::from_secs(20);

/// Any number that nobody else uses: "notif" in ASCII. The lock is per database.
const LOCK_KEY: i64 = 0x6e_6f_74_69_66;

/// Applies what `runner` holds and the database does not, and returns how many that were.
///
/// Runs on a connection of its own, as the schema's owner, in the schema that `search_path` names first; it never
/// creates a schema. A database that is newer than `runner` is left alone. A crash leaves whole migrations only, each
/// of which is one transaction, and the lock goes with the connection.
pub async fn migrate(dsn: &Dsn, runner: Runner) -> Result<usize, PgError> {
    const OPERATION: &str = "apply the migrations";
    let (mut client, _connection) = connect(dsn, OPERATION).await?;
    let failed = |error: tokio_postgres::Error| PgError::unavailable(OPERATION, error);
    client.batch_execute(&format!("SET lock_timeout = {}", LOCK_WAIT.as_millis())).await.map_err(failed)?;
    client.execute("SELECT pg_advisory_lock($1)", &[&LOCK_KEY]).await.map_err(|error| {
        if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
            let waited = format!("another process has been migrating for over {LOCK_WAIT:?}");
            return PgError::unavailable(OPERATION, waited);
        }
        failed(error)
    })?;
    client.batch_execute("RESET lock_timeout").await.map_err(failed)?;
    let runner = runner.set_abort_missing(false).set_abort_divergent(true);
    let report =
        runner.run_async(&mut client).await.map_err(|error| PgError::unavailable(OPERATION, error))?;
    Ok(report.applied_migrations().len())
}
