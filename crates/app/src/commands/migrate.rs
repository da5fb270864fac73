//! `migrate`: applies the migrations and exits. It has no time limit, unlike `serve`.

use anyhow::Context;

use super::{Failure, Vars, load};
use crate::config::Postgres;
use crate::migrations;

/// Applies the missing migrations, and prints how many were applied.
pub async fn run(vars: Vars) -> Result<(), Failure> {
    let dsn = &load::<Postgres>(vars)?.dsn;
    let applied = migrations::migrate(dsn)
        .await
        .with_context(|| format!("PostgreSQL at {dsn} could not be migrated"))?;
    match applied {
        0 => println!("the database has every migration already"),
        1 => println!("1 migration was applied"),
        n => println!("{n} migrations were applied"),
    }
    Ok(())
}
