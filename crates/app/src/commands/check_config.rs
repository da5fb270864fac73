//! `check-config`: prints the effective configuration, or its errors.

use std::io::Write;

use anyhow::Context;

use super::{Failure, Vars, print_warnings};
use crate::config::{self, Config, StateConfig};

/// The mark of a value that differs from its default.
fn default_mark(name: &str) -> String {
    match config::default_of(name) {
        Some(default) => format!("  # default: {default}"),
        None => "  # no default".to_owned(),
    }
}

/// Prints one `NAME=value` a line to `out`, with secrets masked, and the default beside a value that differs
/// from it. Checks the variables of the state store if one of them is set.
pub fn run(vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let state = StateConfig::is_meant(&vars).then(|| config::load::<StateConfig>(vars.clone())).transpose();
    let (service, state) = match (config::load::<Config>(vars), state) {
        (Ok(service), Ok(state)) => (service, state),
        (Err(errors), Ok(_)) | (Ok(_), Err(errors)) => return Err(errors.into()),
        (Err(errors), Err(further)) => return Err(errors.and(further).into()),
    };
    print_warnings(&service.warnings);
    // Warnings and values that both configurations contain are shown once.
    let state = state.map(|state| (state.effective, state.warnings, state.changed));
    let (of_state, warnings, mut changed) = state.unwrap_or_default();
    changed.extend(service.changed);
    let warnings = warnings.into_iter().filter(|line| !service.warnings.contains(line)).collect::<Vec<_>>();
    print_warnings(&warnings);
    let of_state = of_state.into_iter().filter(|line| !service.effective.contains(line)).collect::<Vec<_>>();
    for (name, value) in service.effective.iter().chain(&of_state) {
        let mark = if changed.contains(name) { default_mark(name) } else { String::new() };
        writeln!(out, "{name}={value}{mark}").context("could not write to standard output")?;
    }
    Ok(())
}
