//! `dev`.

use super::{Failure, Vars};

/// Runs the command.
pub async fn run(_vars: Vars) -> Result<(), Failure> {
    Err(anyhow::anyhow!("dev is not wired").into())
}
