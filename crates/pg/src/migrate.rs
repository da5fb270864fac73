//! Applying migrations, safely from several processes at once.

use std::borrow::Cow;
use std::time::Duration;

use refinery::Runner;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::connect::{Opened, connect};
use crate::session_settings::session_config;
use crate::{Dsn, PgError, SessionSettings};

/// The longest time that one process waits for another that is migrating.
pub const MIGRATION_LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// A step of the schema. The crate that owns a table ships its SQL; the caller of [`migrate()`] numbers the
/// steps.
#[derive(Clone, Debug)]
pub struct Migration {
    /// Its number: unique, and the order in which the migrations are applied.
    pub version: u32,
    /// Its purpose, as lower-case words joined by `_`.
    pub name: &'static str,
    /// The statements that create tables and indexes. Every database that it was applied to has its checksum,
    /// so it never changes.
    pub sql: Cow<'static, str>,
}

/// The caller's settings for applying migrations.
#[derive(Clone, Copy, Debug)]
pub struct MigrationSettings {
    /// The key of the advisory lock that keeps two processes from migrating at once; the lock is per
    /// database.
    pub lock_key: i64,
    /// The session that applies them.
    pub session: SessionSettings,
    /// The command that applies them, for a role that may not.
    pub command: &'static str,
}

/// The reason why the role may not migrate.
#[derive(Debug, thiserror::Error)]
pub enum MayNotMigrate {
    /// The database lacks migrations, and the role is not the owner of the schema.
    #[error(
        "the database lacks migrations ({missing}, up to V{last}), and the role {role} may not apply them in the schema {schema}: \
         run `{command}` with the role that owns the schema and its tables"
    )]
    NotOwner {
        /// The command that applies them.
        command: &'static str,
        /// The number of missing migrations.
        missing: usize,
        /// The highest version of them.
        last: u32,
        /// The role of the session.
        role: String,
        /// The schema.
        schema: String,
    },
    /// No schema of `search_path` can be used.
    #[error(
        "search_path ({search_path}) names no schema that exists and that the role {role} may use: create it, or GRANT USAGE ON SCHEMA"
    )]
    NoSchema {
        /// The role of the session.
        role: String,
        /// The names of the schemas.
        search_path: String,
    },
}

/// Applies the migrations that the database lacks, and returns their number.
///
/// Runs on a connection of its own, in the first schema of `search_path`; never creates a schema. If every
/// migration is applied, it only reads their history: the role needs `USAGE` of the schema and `SELECT` on
/// `refinery_schema_history`. Otherwise the role must own the schema and its tables: see [`MayNotMigrate`]. A
/// database that is newer than `migrations` is not changed. Each migration is one transaction: a crash leaves
/// only whole migrations, and the lock ends with the connection.
pub async fn migrate(
    dsn: &Dsn,
    migrations: &[Migration],
    settings: MigrationSettings,
) -> Result<usize, PgError> {
    let runner = runner(migrations).map_err(|error| PgError::unavailable(OPERATION, error))?;
    let Opened { mut client, pooled, .. } =
        connect(dsn, &session_config(dsn, settings.session, None), OPERATION).await?;
    let missing = missing(&mut client, &runner).await?;
    if missing.is_empty() {
        return Ok(0);
    }
    check_owner(&client, &missing, settings.command).await?;
    lock(&client, settings.lock_key).await?;
    let applied = async {
        client.batch_execute("RESET lock_timeout").await.map_err(failed)?;
        if let Some(session) = pooled {
            session
                .still_serves(&client)
                .await
                .map_err(|cause| PgError::unavailable(OPERATION, cause.to_string()))?;
        }
        // Prepared statements are safe here: the session belongs to this client alone and had no statement of
        // the same name.
        runner.run_async(&mut client).await.map_err(|error| PgError::unavailable(OPERATION, error))
    }
    .await;
    // A pooler keeps the session after the connection has ended.
    let unlocked = client.batch_execute(&format!("SELECT pg_advisory_unlock({})", settings.lock_key)).await;
    let applied = applied?.applied_migrations().len();
    unlocked.map_err(failed)?;
    Ok(applied)
}

const OPERATION: &str = "apply the migrations";
/// The table with the history of migrations.
const HISTORY: &str = "refinery_schema_history";

fn failed(error: tokio_postgres::Error) -> PgError {
    PgError::unavailable(OPERATION, error)
}

/// The versions that the history lacks. A migration that the history has in another form counts as missing,
/// and the runner reports it.
async fn missing(client: &mut Client, runner: &Runner) -> Result<Vec<u32>, PgError> {
    let text = format!("SELECT to_regclass(quote_ident(current_schema()) || '.{HISTORY}') IS NOT NULL");
    let applied =
        if client.query_one(&text, &[]).await.map_err(failed)?.get::<_, Option<bool>>(0) == Some(true) {
            let applied = runner.get_applied_migrations_async(client).await;
            applied.map_err(|error| PgError::unavailable(OPERATION, error))?
        } else {
            Vec::new()
        };
    let missing = runner.get_migrations().iter().filter(|migration| !applied.contains(migration));
    missing
        .map(|migration| u32::try_from(migration.version()))
        .collect::<Result<_, _>>()
        .map_err(|error| PgError::unavailable(OPERATION, error))
}

/// Fails if the role may not apply these migrations.
async fn check_owner(client: &Client, missing: &[u32], command: &'static str) -> Result<(), PgError> {
    let text = format!(
        "SELECT current_user::text AS role, current_schema()::text AS schema, current_setting('search_path') AS search_path,
                coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
                    AND coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM pg_class
                                  WHERE oid = to_regclass(quote_ident(current_schema()) || '.{HISTORY}')), true) AS owns"
    );
    let found = client.query_one(&text, &[]).await.map_err(failed)?;
    let role = found.get("role");
    let Some(schema) = found.get("schema") else {
        let error = MayNotMigrate::NoSchema { role, search_path: found.get("search_path") };
        return Err(PgError::unavailable(OPERATION, error));
    };
    if found.get("owns") {
        return Ok(());
    }
    let last = missing.iter().copied().max().unwrap_or_default();
    let error = MayNotMigrate::NotOwner { command, missing: missing.len(), last, role, schema };
    Err(PgError::unavailable(OPERATION, error))
}

/// Takes the lock that keeps two processes from migrating at once.
async fn lock(client: &Client, lock_key: i64) -> Result<(), PgError> {
    let limit = MIGRATION_LOCK_TIMEOUT.as_millis();
    client.batch_execute(&format!("SET lock_timeout = {limit}")).await.map_err(failed)?;
    client.batch_execute(&format!("SELECT pg_advisory_lock({lock_key})")).await.map_err(|error| {
        if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
            let waited = format!(
                "another process has been migrating for over {MIGRATION_LOCK_TIMEOUT:?}; to find it: {}",
                holder_query(lock_key)
            );
            return PgError::unavailable(OPERATION, waited);
        }
        failed(error)
    })
}

fn runner(migrations: &[Migration]) -> Result<Runner, refinery::Error> {
    let unapplied = |migration: &Migration| {
        let name = format!("V{}__{}", migration.version, migration.name);
        refinery::Migration::unapplied(&name, &migration.sql)
    };
    let migrations = migrations.iter().map(unapplied).collect::<Result<Vec<_>, _>>()?;
    Ok(Runner::new(&migrations).set_abort_missing(false).set_abort_divergent(true))
}

/// The query that returns the session of this database that holds the lock, for a person with `psql`.
fn holder_query(lock_key: i64) -> String {
    let (high, low) = ((lock_key >> 32) & 0xffff_ffff, lock_key & 0xffff_ffff);
    format!(
        "SELECT pid, client_addr, backend_start FROM pg_locks JOIN pg_stat_activity USING (pid) \
         WHERE locktype = 'advisory' AND classid = {high} AND objid = {low} AND granted AND datname = current_database()"
    )
}

#[cfg(test)]
mod tests {
    use local_servers::{Postgres, PostgresOptions};

    use super::*;

    const LOCK_KEY: i64 = 0x7a_6e_6f_74_69_66_00;

    #[tokio::test]
    async fn the_session_that_migrates_is_found_by_the_query_that_the_message_gives() {
        let server = Postgres::start(PostgresOptions::default()).await;
        let server = server.expect("PostgreSQL starts");
        let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
        let Opened { client: holder, .. } =
            connect(&dsn, &session_config(&dsn, SessionSettings::default(), None), "test")
                .await
                .expect("connects");
        let Opened { client: looker, .. } =
            connect(&dsn, &session_config(&dsn, SessionSettings::default(), None), "test")
                .await
                .expect("connects");
        let found = async || -> Vec<i32> {
            let rows = looker.query(&holder_query(LOCK_KEY), &[]).await.expect("it runs");
            rows.iter().map(|row| row.get("pid")).collect()
        };
        assert_eq!(found().await, Vec::<i32>::new());
        holder.execute("SELECT pg_advisory_lock($1)", &[&LOCK_KEY]).await.expect("it is free");
        let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.expect("it runs").get(0);
        assert_eq!(found().await, [pid]);
    }

    #[tokio::test]
    async fn a_migration_has_no_statement_time_out_and_every_other_guard_of_the_server() {
        let server = Postgres::start(PostgresOptions::default()).await;
        let server = server.expect("PostgreSQL starts");
        let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
        let Opened { client, .. } =
            connect(&dsn, &session_config(&dsn, SessionSettings::default(), None), "test")
                .await
                .expect("connects");
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
