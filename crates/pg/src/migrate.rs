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
            let waited =
                format!("another process has been migrating for over {LOCK_WAIT:?}; who: {}", holder_query());
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

/// Which session of this database holds the lock, for a person with `psql`.
fn holder_query() -> String {
    let (high, low) = (LOCK_KEY >> 32, LOCK_KEY & 0xffff_ffff);
    format!(
        "SELECT pid, client_addr, backend_start FROM pg_locks JOIN pg_stat_activity USING (pid) \
         WHERE locktype = 'advisory' AND classid = {high} AND objid = {low} AND granted AND datname = current_database()"
    )
}

#[cfg(test)]
mod tests {
    use local_servers::{Postgres, PostgresOptions};

    use super::*;

    #[tokio::test]
    async fn the_session_that_migrates_is_found_by_the_query_that_the_message_gives() {
        let server = Postgres::start(PostgresOptions { durable: false, settings: Vec::new() }).await;
        let server = server.expect("PostgreSQL starts");
        let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
        let (holder, _connection) = connect(&dsn, "test").await.expect("connects");
        let (looker, _connection) = connect(&dsn, "test").await.expect("connects");
        let found = async || -> Vec<i32> {
            let rows = looker.query(&holder_query(), &[]).await.expect("it runs");
            rows.iter().map(|row| row.get("pid")).collect()
        };
        assert_eq!(found().await, Vec::<i32>::new());
        holder.execute("SELECT pg_advisory_lock($1)", &[&LOCK_KEY]).await.expect("it is free");
        let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.expect("it runs").get(0);
        assert_eq!(found().await, [pid]);
    }

    #[tokio::test]
    async fn a_migration_has_no_statement_time_out_and_every_other_guard_of_the_server() {
        let server = Postgres::start(PostgresOptions { durable: false, settings: Vec::new() }).await;
        let server = server.expect("PostgreSQL starts");
        let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
        let (client, _connection) = connect(&dsn, "test").await.expect("connects");
        let mut shown = Vec::new();
        for name in [
            "statement_timeout",
            "idle_in_transaction_session_timeout",
            "tcp_user_timeout",
            "tcp_keepalives_idle",
            "tcp_keepalives_interval",
            "tcp_keepalives_count",
        ] {
            let row = client.query_one(&format!("SHOW {name}"), &[]).await.expect("it runs");
            shown.push(row.get::<_, String>(0));
        }
        assert_eq!(shown, ["0", "10s", "10000", "5", "5", "2"]);
    }
}
