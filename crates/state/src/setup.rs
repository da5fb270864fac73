//! Setup of a table: creates it, or takes over an existing one, and builds its indexes.
//!
//! The catalogue is read first, and if nothing is missing, nothing is locked: `IF NOT EXISTS` takes its lock
//! before it looks, and every writer queues up after a lock that waits for one open transaction. A change
//! that must lock the table tries for a short time, repeatedly. Indexes are built concurrently with writers,
//! without a timeout. Of several processes one works and the others wait.

pub(crate) mod catalogue;
mod index;
mod plan;

use std::time::Duration;

use pg::rights::{self, Grant};
use pg::{Dsn, PgError, PgPool, Session, SessionSettings, parameter, row};
use tokio::time::{Instant, sleep};
use tokio_postgres::error::SqlState;

use self::catalogue::{Relation, TRY_LOCK};
use self::index::MissingIndex;
use crate::query::expressions::{HELPER_BODY, helper_functions_sql, helper_name};
use crate::schema::{next_version, schema_sql, sequence_name};
use crate::{IndexSpec, PostgresStore, StateError, TableName, schema, statements};

/// The time for which a change of the table waits for its lock in each try; writers that arrive meanwhile
/// wait for it.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// The pause between two tries, in which writers proceed.
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(900);
/// The number of tries for the lock.
const MAX_LOCK_TRIES: u32 = 60;
/// The interval at which a waiting process checks whether another one is done with the table.
const SETUP_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time that another process may take; it may be building indexes.
const SETUP_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// The distance above the highest version to which a sequence is moved that was below it.
const VERSION_GAP: i64 = 1_000_000;
/// The number of inspections of the table: after each step, and after another process changed it meanwhile.
const MAX_LOOKS: u32 = 8;
/// The seed of the hash that is the advisory lock's key: "statetbl" in ASCII.
const SETUP_LOCK: i64 = 0x73_74_61_74_65_74_62_6c;

impl PostgresStore {
    /// Creates the table if it is missing, in the first schema of `search_path`, or adds what an existing
    /// table lacks, without rewriting it; builds the declared indexes; and checks that the role may use it.
    /// Several processes may call this at once. If nothing is missing, nothing is locked.
    ///
    /// It uses a connection of its own, whose statements have no timeout. A cancelled call leaves at worst a
    /// half-built index, which the next call rebuilds.
    pub async fn setup(
        dsn: &Dsn,
        session: SessionSettings,
        table: &TableName,
        indexes: &[IndexSpec],
    ) -> Result<(), StateError> {
        const OPERATION: &str = "set up the table of documents";
        let pool = PgPool::without_deadlines(dsn, session)
            .map_err(|error| StateError::Postgres(PgError::unavailable(OPERATION, error)))?;
        let session = pool.session(OPERATION).await?;
        let setup = Setup { session: &session, table };
        setup.run(indexes).await
    }
}

/// The rights on the table, its sequence and its function that the role lacks. [`StateError::NotATable`] if
/// the table does not exist.
pub async fn missing_rights(session: &Session, table: &TableName) -> Result<Vec<Grant>, StateError> {
    let error = |error| StateError::of_setup(table, error);
    let relation = catalogue::relation(session, table).await.map_err(error)?;
    let not_a_table =
        |problem: &str| StateError::NotATable { table: table.to_string(), problem: problem.to_owned() };
    let relation = relation.ok_or_else(|| not_a_table("it is not there"))?;
    if !relation.sequence {
        return Err(not_a_table("it has no sequence for its versions; the state store adds what it lacks"));
    }
    missing_in(session, table, &relation.schema).await.map_err(error)
}

async fn missing_in(session: &Session, table: &TableName, schema: &str) -> Result<Vec<Grant>, PgError> {
    let required = schema::required_grants(table).into_iter().map(|grant| grant.in_schema(schema));
    rights::missing(session, &required.collect::<Vec<_>>()).await
}

struct Setup<'a> {
    session: &'a Session,
    table: &'a TableName,
}

/// The next step of the setup, according to the catalogue.
enum Looked {
    /// No step is left. Contains the schema of the table.
    Ready(String),
    /// The table does not exist.
    Absent,
    /// The table lacks columns or its sequence.
    LacksColumns(Relation),
    /// The function that its queries and indexes call is missing or differs.
    LacksHelpers,
    /// Indexes are missing or half-built. Contains the schema of the table.
    LacksIndexes(String, Vec<MissingIndex>),
}

impl Setup<'_> {
    async fn run(&self, declared: &[IndexSpec]) -> Result<(), StateError> {
        self.check_encoding().await?;
        self.set_lock_timeout(LOCK_TIMEOUT).await?;
        match self.look(declared).await {
            Ok(Looked::Ready(schema)) => return self.finish(&schema).await,
            Ok(_) => {}
            // Another process may have changed the table between two statements of the inspection. A real
            // problem appears again when the table is inspected under the lock.
            Err(StateError::NotATable { .. }) => {
                self.session.rollback().await.map_err(|error| self.error(error))?;
            }
            Err(error) => return Err(error),
        }
        self.lock().await?;
        for _ in 0..MAX_LOOKS {
            match self.look(declared).await? {
                Looked::Ready(schema) => return self.finish(&schema).await,
                Looked::Absent => self.change(&schema_sql(self.table)).await?,
                Looked::LacksColumns(relation) => self.take_over(&relation).await?,
                Looked::LacksHelpers => self.change(&helper_functions_sql(self.table.as_str())).await?,
                Looked::LacksIndexes(schema, missing) => self.build(&schema, &missing).await?,
            }
        }
        Err(self.no_table("other processes keep changing it".to_owned()))
    }

    /// Rejects a server encoding other than `UTF8` or `SQL_ASCII`: a client's text may be impossible to store
    /// there, or be stored as a different one.
    async fn check_encoding(&self) -> Result<(), StateError> {
        let encoding = self.session.raw("SHOW server_encoding").await.map_err(|error| self.error(error))?;
        match encoding.first().map(String::as_str) {
            Some("UTF8" | "SQL_ASCII") => Ok(()),
            other => {
                let encoding = other.unwrap_or("unknown");
                Err(self.no_table(format!("the encoding of its database is {encoding}; it must be UTF8")))
            }
        }
    }

    async fn look(&self, declared: &[IndexSpec]) -> Result<Looked, StateError> {
        let relation =
            catalogue::relation(self.session, self.table).await.map_err(|error| self.error(error))?;
        let Some(relation) = relation else { return Ok(Looked::Absent) };
        plan::check(&relation).map_err(|problem| self.no_table(problem))?;
        self.work_in(&relation.schema).await?;
        if !relation.sequence || !plan::missing_columns(&relation).is_empty() {
            return Ok(Looked::LacksColumns(relation));
        }
        let helper = catalogue::body_of(self.session, &helper_name(self.table.as_str())).await;
        if helper.map_err(|error| self.error(error))?.as_deref() != Some(HELPER_BODY) {
            return Ok(Looked::LacksHelpers);
        }
        let missing = self.missing_indexes(&relation, declared).await?;
        if missing.is_empty() {
            Ok(Looked::Ready(relation.schema))
        } else {
            Ok(Looked::LacksIndexes(relation.schema, missing))
        }
    }

    /// Waits until no other process is setting up the table. The wait must not delay the other's index
    /// builds, which wait for every statement that began before them.
    async fn lock(&self) -> Result<(), StateError> {
        let statement = TRY_LOCK.bind([parameter::text(self.table.as_str()), parameter::bigint(SETUP_LOCK)]);
        let begin = Instant::now();
        while begin.elapsed() < SETUP_TIMEOUT {
            let rows = self.session.query(statement.clone()).await.map_err(|error| self.error(error))?;
            let locked = rows.first().map(|found| row::get::<Option<bool>>(found, "locked")).transpose();
            match locked.map_err(|error| PgError::unavailable(self.session.operation(), error))?.flatten() {
                Some(true) => return Ok(()),
                Some(false) => sleep(SETUP_POLL_INTERVAL).await,
                None => {
                    return Err(self.no_table("there is no schema for it: search_path names none".to_owned()));
                }
            }
        }
        let problem = format!("another process has been setting it up for over {SETUP_TIMEOUT:?}");
        Err(self.no_table(problem))
    }

    /// Adds what a table of the original lacks. Constant defaults are stored once, so that no row is
    /// rewritten; the default that draws versions is set afterwards, for inserts by hand.
    async fn take_over(&self, relation: &Relation) -> Result<(), StateError> {
        let (name, sequence) = (self.table.quoted(), sequence_name(self.table));
        if !relation.sequence {
            if plan::has_column(relation, "version") {
                let problem = format!("it has a column version, but no sequence {sequence}");
                return Err(self.no_table(problem));
            }
            let taken = catalogue::kind_of(self.session, &relation.schema, &sequence).await;
            if taken.map_err(|error| self.error(error))?.is_some() {
                return Err(self.no_table(format!("the name {sequence} belongs to something else")));
            }
        }
        let mut sql = String::new();
        for column in plan::missing_columns(relation) {
            sql.push_str(&format!("ALTER TABLE {name} ADD COLUMN {column};\n"));
        }
        if !relation.sequence {
            sql.push_str(&format!(
                "CREATE SEQUENCE \"{sequence}\";\n\
                 ALTER SEQUENCE \"{sequence}\" OWNED BY {name}.version;\n"
            ));
        }
        sql.push_str(&format!(
            "ALTER TABLE {name} ALTER COLUMN version SET DEFAULT {};\n",
            next_version(self.table)
        ));
        sql.push_str(&schema::comments_sql(self.table));
        self.change(&sql).await
    }

    /// Runs SQL in one transaction, with a short lock timeout for each try. If another process was faster,
    /// the next inspection finds its result.
    async fn change(&self, sql: &str) -> Result<(), StateError> {
        let error = |error| self.error(error);
        for _ in 1..MAX_LOCK_TRIES {
            match self.try_change(sql).await {
                Err(PgError::Locked { .. }) => sleep(LOCK_RETRY_PAUSE).await,
                Err(other) if is_taken(&other) => return Ok(()),
                done => return done.map_err(error),
            }
        }
        self.try_change(sql).await.map_err(error)
    }

    async fn try_change(&self, sql: &str) -> Result<(), PgError> {
        self.session.begin().await?;
        match self.session.execute_batch(sql).await {
            Ok(()) => self.session.commit().await,
            Err(error) => {
                self.session.rollback().await?;
                Err(error)
            }
        }
    }

    async fn work_in(&self, schema: &str) -> Result<(), StateError> {
        let sql = format!("SET search_path TO \"{}\"", schema.replace('"', "\"\""));
        self.session.execute_batch(&sql).await.map_err(|error| self.error(error))
    }

    async fn set_lock_timeout(&self, timeout: Duration) -> Result<(), StateError> {
        let sql = format!("SET statement_timeout = 0; SET lock_timeout = {}", timeout.as_millis());
        self.session.execute_batch(&sql).await.map_err(|error| self.error(error))
    }

    async fn finish(&self, schema: &str) -> Result<(), StateError> {
        self.check_rights(schema).await?;
        let statements = statements::registry(self.table)?;
        self.session.prepare_all(&statements).await.map_err(|error| self.error(error))?;
        self.raise_sequence().await?;
        self.make_statistics().await
    }

    /// Moves the sequence of versions above the highest version in the table if it is below it, for example
    /// after only the rows were copied: a version must not be used again. Deleted documents may have had
    /// higher versions, so the sequence moves further than the table requires.
    async fn raise_sequence(&self) -> Result<(), StateError> {
        let Some(highest) = catalogue::version_beyond_sequence(self.session, self.table)
            .await
            .map_err(|error| self.error(error))?
        else {
            return Ok(());
        };
        let to = highest.saturating_add(VERSION_GAP);
        let set = format!("SELECT setval('\"{}\"', {to})", sequence_name(self.table));
        match self.session.execute_batch(&set).await.map_err(|error| self.error(error)) {
            Ok(()) => {
                tracing::warn!(
                    state_table = %self.table,
                    version = to,
                    "the sequence of versions was behind the documents, as after a copy without it; it was moved on"
                );
                Ok(())
            }
            Err(StateError::NoRights(_)) => {
                let problem =
                    format!("the sequence of versions is behind its documents; as the owner, run: {set}");
                Err(self.no_table(problem))
            }
            Err(error) => Err(error),
        }
    }

    async fn check_rights(&self, schema: &str) -> Result<(), StateError> {
        let missing = missing_in(self.session, self.table, schema).await;
        let missing = missing.map_err(|error| self.error(error))?;
        if missing.is_empty() { Ok(()) } else { Err(StateError::NoRights(rights::list(&missing))) }
    }

    fn no_table(&self, problem: String) -> StateError {
        StateError::NotATable { table: self.table.to_string(), problem }
    }

    fn error(&self, error: PgError) -> StateError {
        StateError::of_setup(self.table, error)
    }
}

/// Returns true if another process has created the name in between.
fn is_taken(error: &PgError) -> bool {
    let states = [
        SqlState::DUPLICATE_TABLE,
        SqlState::DUPLICATE_OBJECT,
        SqlState::DUPLICATE_COLUMN,
        SqlState::DUPLICATE_FUNCTION,
        SqlState::UNIQUE_VIOLATION,
    ];
    error.sql_state().is_some_and(|state| states.contains(state))
}
