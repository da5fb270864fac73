//! `completions` and `man`: shell completions and manual pages, generated from the definitions of the
//! commands.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command, ValueEnum};
use clap_complete::{Shell, generate};

use super::Failure;
use super::output::print_line;

/// A shell.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownShell {
    /// GNU Bash
    Bash,
    /// The Z shell
    Zsh,
    /// The friendly interactive shell
    Fish,
}

/// The shell of the completions.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: KnownShell,
}

/// The folder of the pages.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write a page for each command into this folder, which must exist, instead of that of the program to
    /// standard output
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

/// The examples of `completions`.
pub const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  notification completions bash > /etc/bash_completion.d/notification
  notification completions zsh > \"${fpath[1]}/_notification\"
  notification completions fish > ~/.config/fish/completions/notification.fish
  source <(notification completions bash)      for this shell alone";

/// The examples of `man`.
pub const MAN_EXAMPLES: &str = "\
Examples:
  notification man | man -l -
  notification man --dir /usr/local/share/man/man1     notification.1, notification-status.1 and so on";

/// Prints completions of `command` to `out`.
pub fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let shell = match args.shell {
        KnownShell::Bash => Shell::Bash,
        KnownShell::Zsh => Shell::Zsh,
        KnownShell::Fish => Shell::Fish,
    };
    let name = command.get_name().to_owned();
    // The generator panics if the output cannot be written, so it writes to memory first.
    let mut script = Vec::new();
    generate(shell, &mut command, name, &mut script);
    Ok(out.write_all(&script).context("could not write to standard output")?)
}

/// Prints the page of `command` to `out`, or writes the pages of all its commands to a folder.
pub fn man(args: &ManArgs, command: Command, out: &mut impl Write) -> Result<(), Failure> {
    let Some(folder) = &args.dir else {
        let page = clap_mangen::Man::new(command);
        return Ok(page.render(out).context("could not write to standard output")?);
    };
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("the pages could not be written to {}", folder.display()))?;
    Ok(print_line(out, &format!("the pages are in {}", folder.display()))?)
}
