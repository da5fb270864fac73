//! The subcommands, one file each.

use crate::config::{self, ConfigErrors, Loaded, Section};

pub mod actions;
mod actor;
pub mod audit;
pub mod capacity;
pub mod catalogue;
pub mod check_config;
pub mod dead_letters;
pub mod dev;
pub mod erase;
pub mod explain;
pub mod generated;
pub mod healthcheck;
pub mod holds;
pub mod leader;
pub mod list;
pub mod malformed_intents;
pub mod migrate;
mod operations;
mod operators;
pub mod outbox;
pub(crate) mod output;
pub mod relay;
pub mod routes;
pub mod send;
pub mod serve;
pub mod show;
pub mod state;
pub mod status;
pub mod token;
pub mod users;

/// The environment variables of a command.
pub type Vars = Vec<(String, String)>;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The arguments are wrong.
    #[error("{0}")]
    Usage(String),
    /// The command failed while running. Displays the chain of causes, each once.
    #[error("error: {}", domain::ports::error_chain(.0.as_ref()))]
    Run(#[from] anyhow::Error),
    /// The command found what it exists to report, and has printed it.
    #[error("error: see above")]
    Reported,
    /// The service is failing, which the command has printed.
    #[error("error: see above")]
    Failing,
    /// The command failed, and its log contains the cause.
    #[error("error: see the log")]
    Logged {
        /// The exit code of the process.
        exit_code: u8,
    },
}

impl Failure {
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage(_) => 2,
            Self::Run(_) | Self::Reported => 1,
            Self::Failing => 3,
            Self::Logged { exit_code } => *exit_code,
        }
    }
}

/// Prints the warnings of a configuration to standard error.
/// Reads the configuration of a command, and prints the warnings about it.
fn load<C: Section>(vars: Vars) -> Result<C, ConfigErrors> {
    let Loaded { config, warnings, .. } = config::load(vars)?;
    print_warnings(&warnings);
    Ok(config)
}

fn print_warnings(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
}
