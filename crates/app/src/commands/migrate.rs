//! `migrate`: applies the migrations and exits. It has no time limit, unlike `serve`.

use std::io::Write;

use anyhow::Context;
use clap::{Args, ValueEnum};
use pg::{Dsn, PgPool};

use super::{Failure, Vars, load};
use crate::config::Postgres;
use crate::{grants, migrations};

/// The role that runs the service, unless another is named.
const DEFAULT_ROLE: &str = "notificationservice";
/// The schema of the service, unless another is named.
const SERVICE_SCHEMA: &str = "notification";
/// The schema of other tables, unless another is named.
const DEFAULT_SCHEMA: &str = "public";

/// The options of `migrate`.
#[derive(Args, Debug)]
pub struct MigrateArgs {
    /// After migrating, grant this role what `serve` and every command need
    #[arg(long, value_name = "ROLE", conflicts_with = "print_grants")]
    grant_to: Option<String>,
    /// Print the statements that grant a role what it needs, and run nothing
    #[arg(long)]
    print_grants: bool,
    /// The role in the printed statements
    #[arg(long, value_name = "NAME", requires = "print_grants", default_value = DEFAULT_ROLE)]
    role: String,
    /// The mode that the role runs; for a relay and a state store on the table that their variables name
    #[arg(long = "for", value_name = "MODE", requires = "print_grants", default_value = "service")]
    mode: Mode,
    /// The schema in the printed statements [default: notification; public for relay and state]
    #[arg(long, value_name = "NAME", requires = "print_grants")]
    schema: Option<String>,
}

/// The mode of the binary that a role runs.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum Mode {
    /// `serve` and every command on its schema
    Service,
    /// `relay` and `outbox` on the outbox table of a producer
    Relay,
    /// `state`
    State,
}

/// Applies the missing migrations, and prints how many were applied; or prints grants.
pub async fn run(args: MigrateArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    if args.print_grants {
        let statements = printed(&args, vars)?;
        return Ok(out.write_all(statements.as_bytes()).context("could not write to standard output")?);
    }
    let dsn = &load::<Postgres>(vars)?.dsn;
    let applied = migrations::migrate(dsn)
        .await
        .with_context(|| format!("PostgreSQL at {dsn} could not be migrated"))?;
    let said = match applied {
        0 => "the database has every migration already".to_owned(),
        1 => "1 migration was applied".to_owned(),
        n => format!("{n} migrations were applied"),
    };
    super::output::print_line(out, &said)?;
    if let Some(role) = &args.grant_to {
        let granting = grant(dsn, role).await;
        granting.with_context(|| format!("the rights of {role} could not be granted at {dsn}"))?;
        super::output::print_line(out, &format!("the role {role} has every right that it needs"))?;
    }
    Ok(())
}

fn printed(args: &MigrateArgs, vars: Vars) -> Result<String, Failure> {
    let schema = |default: &'static str| args.schema.clone().unwrap_or_else(|| default.to_owned());
    Ok(match args.mode {
        Mode::Service => grants::service_sql(&schema(SERVICE_SCHEMA), &args.role),
        Mode::Relay => {
            grants::relay_sql(&load::<outbox::TableName>(vars)?, &schema(DEFAULT_SCHEMA), &args.role)
        }
        Mode::State => {
            grants::state_sql(&load::<state::TableName>(vars)?, &schema(DEFAULT_SCHEMA), &args.role)
        }
    })
}

/// Grants the role its rights in the first schema of `search_path`, all or none.
async fn grant(dsn: &Dsn, role: &str) -> anyhow::Result<()> {
    let pool = PgPool::without_deadlines(dsn, store_postgres::SESSION)?;
    let session = pool.session("grant the rights of a role").await?;
    let schema = session.raw("SELECT current_schema()").await?;
    let schema = schema.first().context("search_path names no schema")?;
    Ok(session.execute_batch(&grants::service_sql(schema, role)).await?)
}
