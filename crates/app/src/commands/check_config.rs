//! `check-config`: prints the effective configuration, or what is wrong with it.

use std::io::Write;

use anyhow::Context;

use super::{Failure, Vars, print_warnings};
use crate::config::Config;

/// Prints one `NAME=value` a line to `out`, secrets masked.
pub fn run(vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let loaded = Config::load(vars)?;
    print_warnings(&loaded.warnings);
    for (name, value) in &loaded.effective {
        writeln!(out, "{name}={value}").context("could not write to standard output")?;
    }
    Ok(())
}
