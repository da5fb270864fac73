//! The binary. All code is in the library `app`.

use std::process::ExitCode;

use app::{cli, config};
use clap::Parser;

fn main() -> ExitCode {
    app::install_crypto();
    let command = cli::Cli::parse();
    cli::report(command.run(config::environment()))
}
