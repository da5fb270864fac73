//! `catalogue`: prints the built-in catalogue, and checks a file.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgGroup, Args};
use domain::catalog::{BUILT_IN, Catalog};

use super::Failure;
use super::output::print_line;
use crate::config::read_bounded;

/// The action on a catalogue.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("action").required(true))]
pub struct CatalogueArgs {
    /// Print the built-in catalogue
    #[arg(long, group = "action")]
    print: bool,
    /// Check a file by the rules of the service
    #[arg(long, value_name = "FILE", group = "action")]
    check: Option<PathBuf>,
}

/// The examples of `catalogue`.
pub const EXAMPLES: &str = "\
Examples:
  notification catalogue --print > catalog.toml      a start for a catalogue of your own
  notification catalogue --check catalog.toml        before NOTIFICATION_CATALOG_PATH names it

It contacts nothing. --check prints how many types the file has. The exit code is 2 if the file is no catalogue; standard error has the line.";

/// Runs the command, and prints to `out`.
pub fn run(args: &CatalogueArgs, out: &mut impl Write) -> Result<(), Failure> {
    let Some(path) = &args.check else {
        return Ok(write!(out, "{BUILT_IN}").context("could not write to standard output")?);
    };
    let shown = path.display();
    let text = File::open(path).and_then(read_bounded);
    let text = text.map_err(|error| Failure::Usage(format!("error: {shown} cannot be read: {error}")))?;
    let catalog = Catalog::parse(&text);
    let catalog =
        catalog.map_err(|error| Failure::Usage(format!("error: {shown} is no catalogue: {error}")))?;
    let types = catalog.types().count();
    Ok(print_line(out, &format!("{shown} is a catalogue of {types} types"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(args: &CatalogueArgs) -> Result<String, Failure> {
        let mut out = Vec::new();
        run(args, &mut out)?;
        Ok(String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn what_is_printed_is_a_catalogue_and_a_wrong_line_of_it_is_named() {
        let printed = output(&CatalogueArgs { print: true, check: None }).expect("is printed");
        let file = tempfile::NamedTempFile::new().expect("there is a place for it");
        let check = CatalogueArgs { print: false, check: Some(file.path().to_owned()) };
        std::fs::write(file.path(), &printed).expect("is written");
        let types = Catalog::built_in().types().count();
        let checked = output(&check).expect("is a catalogue");
        assert!(checked.ends_with(&format!(" is a catalogue of {types} types\n")), "{checked}");
        std::fs::write(file.path(), format!("{printed}\ncolour\n")).expect("is written");
        let wrong = output(&check).expect_err("is no catalogue");
        let line = format!("is no catalogue: line {}: ", printed.lines().count() + 2);
        assert!(wrong.exit_code() == 2 && wrong.to_string().contains(&line), "{wrong}");
        let absent = CatalogueArgs { print: false, check: Some("absent.toml".into()) };
        assert_eq!(output(&absent).expect_err("is not there").exit_code(), 2);
    }
}
