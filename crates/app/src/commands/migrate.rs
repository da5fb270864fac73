//! `migrate`.

use super::{Failure, Vars};

/// Runs the command.
pub async fn run(_vars: Vars) -> Result<(), Failure> {
    Err(anyhow::anyhow!("migrate is not wired").into())
}
