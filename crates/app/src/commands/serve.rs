//! `serve`.

use super::{Failure, Vars};

/// Runs the command.
pub async fn run(_vars: Vars) -> Result<(), Failure> {
    Err(anyhow::anyhow!("serve is not wired").into())
}
