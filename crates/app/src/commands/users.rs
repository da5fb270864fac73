//! `users`: manages the users in a directory of documents. It needs only the connection string.

mod args;
mod csv;
mod import;
mod lines;
mod records;
mod refusals;

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, anyhow};
use pg::{PgPool, PoolSettings, SessionSettings};
use serde_json::json;
use serde_json::value::RawValue;
use state::{Delete, Key, PostgresStore, Prefix, StateError, Store, TableName, Value, VersionCondition};
use user_directory::USERS_PREFIX;

use args::{AddArgs, ListArgs, Output, UserArgs};
pub use args::{EXAMPLES, UsersCommand};
use records::{EMAIL, PREFERRED_LANGUAGE, USER_ID};

use super::output::{print_json, print_line, printable};
use super::{Failure, Vars, load};
use crate::config::Postgres;

/// The time limit of one statement: a batch of users on a busy server.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The most ids that one statement lists.
const MAX_LISTED_PER_PAGE: u32 = 1_000;

/// Runs the command with these variables, and prints to `out`.
pub async fn run(command: UsersCommand, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    match command {
        UsersCommand::Import(args) => {
            let file = import::open(&args.file)?;
            let users = Users::open(vars)?;
            users.migrate().await?;
            users.import(file, args.output, out).await
        }
        UsersCommand::Add(args) => {
            let document = args
                .document()
                .map_err(|reason| Failure::Usage(format!("error: the user cannot be stored: {reason}")))?;
            let users = Users::open(vars)?;
            users.migrate().await?;
            users.add(document, args.output, out).await
        }
        UsersCommand::Get(args) => Users::open(vars)?.get(&args, out).await,
        UsersCommand::List(args) => Users::open(vars)?.list(&args, out).await,
        UsersCommand::Delete(args) => Users::open(vars)?.delete(&args, out).await,
    }
}

/// The users of one schema.
struct Users {
    config: Postgres,
    store: PostgresStore,
}

/// A document in the format of `get --json`.
#[derive(serde::Serialize)]
struct Shown<'a> {
    user_id: &'a str,
    document: &'a RawValue,
    created_at: String,
    updated_at: String,
}

impl Users {
    fn open(vars: Vars) -> Result<Self, Failure> {
        let config: Postgres = load(vars)?;
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: STATEMENT_TIMEOUT,
            session: SessionSettings {
                application_name: "notification-users",
                parameters: state::PLANNER_PARAMETERS,
            },
        };
        let pool = PgPool::new(&config.dsn, settings);
        let pool = pool.context("PostgreSQL cannot be used as configured")?;
        Ok(Self { config, store: PostgresStore::new(pool, TableName::default()) })
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        let dsn = &self.config.dsn;
        let applied = crate::migrations::migrate(dsn).await;
        applied.map(drop).with_context(|| format!("PostgreSQL at {dsn} could not be migrated"))
    }

    /// Adds to an error the address of the table.
    fn explained<T>(&self, result: Result<T, StateError>) -> anyhow::Result<T> {
        result.with_context(|| format!("the users in the table kv at {} cannot be used", self.config.dsn))
    }

    async fn add(&self, document: (Key, Value), output: Output, out: &mut impl Write) -> Result<(), Failure> {
        self.explained(self.store.put_many(std::slice::from_ref(&document)).await)?;
        let user_id = document.0.as_str().strip_prefix(USERS_PREFIX).unwrap_or_default();
        match output.json {
            true => Ok(print_json(out, &json!({ "user_id": user_id, "stored": true }))?),
            false => Ok(print_line(out, &format!("the user {} is stored", printable(user_id)))?),
        }
    }

    async fn get(&self, args: &UserArgs, out: &mut impl Write) -> Result<(), Failure> {
        let found = match key(&args.user_id) {
            Some(key) => self.explained(self.store.get(&key).await)?,
            None => None,
        };
        let document = found.ok_or_else(|| no_user(&args.user_id))?;
        if !args.output.json {
            return Ok(print_line(out, document.value.as_str())?);
        }
        let shown = Shown {
            user_id: &args.user_id,
            document: serde_json::from_str(document.value.as_str()).context("the document is no JSON")?,
            created_at: document.created_at.to_string(),
            updated_at: document.updated_at.to_string(),
        };
        Ok(print_line(out, &serde_json::to_string(&shown).context("the document is no JSON")?)?)
    }

    async fn list(&self, args: &ListArgs, out: &mut impl Write) -> Result<(), Failure> {
        let none = || anyhow!("there is no user whose id begins with {:?}", args.prefix);
        let prefix = Prefix::new(&format!("{USERS_PREFIX}{}", args.prefix)).map_err(|_| none())?;
        let (mut after, mut listed) = (None, 0);
        loop {
            let left = args.limit.map_or(u64::MAX, |limit| limit - listed);
            let limit = u32::try_from(left).unwrap_or(u32::MAX).min(MAX_LISTED_PER_PAGE);
            let page = self.explained(self.store.list(&prefix, after.as_ref(), limit).await)?;
            for key in &page.keys {
                listed += 1;
                let user_id = key.as_str().strip_prefix(USERS_PREFIX).unwrap_or_default();
                match args.output.json {
                    true => print_json(out, &json!({ "user_id": user_id }))?,
                    false => print_line(out, &printable(user_id))?,
                }
            }
            after = page.next_after;
            if after.is_none() || args.limit == Some(listed) {
                return if listed > 0 { Ok(()) } else { Err(none().into()) };
            }
        }
    }

    async fn delete(&self, args: &UserArgs, out: &mut impl Write) -> Result<(), Failure> {
        let outcome = match key(&args.user_id) {
            Some(key) => self.explained(self.store.delete(&key, VersionCondition::Any).await)?,
            None => Delete::NotFound,
        };
        if outcome != Delete::Applied {
            return Err(no_user(&args.user_id).into());
        }
        match args.output.json {
            true => Ok(print_json(out, &json!({ "user_id": args.user_id, "deleted": true }))?),
            false => Ok(print_line(out, &format!("the user {} is deleted", printable(&args.user_id)))?),
        }
    }
}

impl AddArgs {
    /// The document to store, or the reason why it is invalid.
    fn document(&self) -> Result<(Key, Value), String> {
        if let Some(text) = &self.document {
            return records::of_json(text.as_bytes());
        }
        let members =
            [(USER_ID, &self.user_id), (EMAIL, &self.email), (PREFERRED_LANGUAGE, &self.preferred_language)];
        let members = members.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        records::of_json(json!(members.collect::<HashMap<_, _>>()).to_string().as_bytes())
    }
}

/// The key of the user's document; `None` if the id is not valid in a key.
fn key(user_id: &str) -> Option<Key> {
    Key::new(&format!("{USERS_PREFIX}{user_id}")).ok()
}

fn no_user(user_id: &str) -> anyhow::Error {
    anyhow!("there is no user {}", printable(user_id))
}
