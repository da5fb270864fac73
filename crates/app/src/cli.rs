//! The command line.

use std::process::ExitCode;

use ambient::{RandomTokens, data_age};
use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use crate::allocator;
use crate::commands::actions::{self, ActionsArgs};
use crate::commands::audit::{self, AuditArgs};
use crate::commands::capacity::{self, CapacityArgs};
use crate::commands::catalogue::{self, CatalogueArgs};
use crate::commands::dead_letters::{self, DeadLettersCommand};
use crate::commands::erase::{self, EraseArgs};
use crate::commands::explain::{self, ExplainArgs};
use crate::commands::generated::{self, CompletionsArgs, ManArgs};
use crate::commands::healthcheck::{self, HealthcheckArgs};
use crate::commands::holds::{self, HoldArgs, HoldsCommand, ReleaseArgs};
use crate::commands::leader::{self, LeaderArgs};
use crate::commands::list::{self, ListArgs};
use crate::commands::malformed_intents::{self, MalformedCommand};
use crate::commands::migrate::{self, MigrateArgs};
use crate::commands::outbox::{self, OutboxCommand};
use crate::commands::output::StandardOutput;
use crate::commands::routes::{self, CancelArgs, ResendArgs};
use crate::commands::send::SendArgs;
use crate::commands::show::{self, ShowArgs};
use crate::commands::status::{self, StatusArgs};
use crate::commands::token::{self, TokenCommand};
use crate::commands::users::{self, UsersCommand};
use crate::commands::{Failure, Vars, check_config, dev, relay, send, serve, state};

/// Turns intents of other services into push events and e-mail commands
#[derive(Parser, Debug)]
#[command(name = "notification", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  notification dev                 try everything on this machine, with nothing to set up
  notification check-config        see what is configured, and what is wrong with it
  notification serve               run the service
  notification status              see how it is, and what is stuck
  notification explain NAME        see what became of an intent
  notification dead-letters list   see what could not be published, and replay it
  notification hold --help         stop what must not go out, and release it later
  notification resend --help       send again what a consumer lost
  notification leader              see which replica leads, or have it hand over
  notification audit               see whether streams and tables contradict each other

Configuration comes from environment variables; docs/config.md lists them all.
Exit codes: 0 fine, 1 failed while running, 2 bad configuration or usage.";

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the service
    #[command(after_help = SERVE_EXAMPLES)]
    Serve,
    /// Apply the migrations to PostgreSQL and exit, or print the grants for a role that owns nothing
    #[command(after_help = MIGRATE_EXAMPLES)]
    Migrate(MigrateArgs),
    /// Check the configuration and print the effective values, secrets masked
    #[command(after_help = CHECK_CONFIG_EXAMPLES)]
    CheckConfig,
    /// Print the built-in catalogue of notification types, or check a file
    #[command(after_help = catalogue::EXAMPLES)]
    Catalogue(CatalogueArgs),
    /// Append one intent to the stream, after checking it by the rules of the service
    #[command(after_help = SEND_EXAMPLES)]
    Send(Box<SendArgs>),
    /// Show who leads, how far intake is, what is due and failing, and what is stuck
    #[command(after_help = status::EXAMPLES)]
    Status(StatusArgs),
    /// List notifications, newest first
    #[command(after_help = list::EXAMPLES)]
    List(Box<ListArgs>),
    /// Show one notification, whole, with a sentence for each route
    #[command(after_help = show::EXAMPLES)]
    Show(ShowArgs),
    /// Say what became of an intent, by any name that you have of it
    #[command(after_help = explain::EXAMPLES)]
    Explain(ExplainArgs),
    /// Look at intents that were not accepted
    #[command(subcommand, after_help = malformed_intents::EXAMPLES)]
    Malformed(MalformedCommand),
    /// Ask whether the process of this environment is ready: the health check of a container
    #[command(after_help = healthcheck::EXAMPLES)]
    Healthcheck(HealthcheckArgs),
    /// Move events from a producer's outbox to the intents stream
    #[command(after_help = RELAY_EXAMPLES)]
    Relay,
    /// Look after the outbox of a producer
    #[command(subcommand, after_help = outbox::EXAMPLES)]
    Outbox(OutboxCommand),
    /// Serve JSON documents of a PostgreSQL table over HTTP: get, put, conditions, queries
    #[command(after_help = STATE_EXAMPLES)]
    State,
    /// Compute what a load needs: disk, WAL, memory, processors, connections
    #[command(after_help = capacity::EXAMPLES)]
    Capacity(Box<CapacityArgs>),
    /// Make tokens for clients of the HTTP API and of the state store
    #[command(subcommand, after_help = token::EXAMPLES)]
    Token(TokenCommand),
    /// Look after the users of a user directory in the service's schema
    #[command(subcommand, after_help = users::EXAMPLES)]
    Users(UsersCommand),
    /// Look after dead letters: list, show, replay, discard
    #[command(subcommand, after_help = dead_letters::EXAMPLES)]
    DeadLetters(DeadLettersCommand),
    /// List what operators changed, newest first
    #[command(after_help = actions::EXAMPLES)]
    Actions(Box<ActionsArgs>),
    /// Skip routes that are not published yet, for good
    #[command(after_help = routes::CANCEL_EXAMPLES)]
    Cancel(Box<CancelArgs>),
    /// Publish what is published already once more, under the same ids
    #[command(after_help = routes::RESEND_EXAMPLES)]
    Resend(Box<ResendArgs>),
    /// Keep the routes of a channel, a type or a producer from being published
    #[command(after_help = holds::HOLD_EXAMPLES)]
    Hold(HoldArgs),
    /// Publish what was held, the oldest first
    #[command(after_help = holds::RELEASE_EXAMPLES)]
    Release(ReleaseArgs),
    /// Show what is held
    #[command(subcommand, after_help = holds::EXAMPLES)]
    Holds(HoldsCommand),
    /// Erase a person from directory, tables and streams
    #[command(after_help = erase::EXAMPLES)]
    Erase(EraseArgs),
    /// Show which replica reads the intents stream, or ask it to hand over
    #[command(after_help = leader::EXAMPLES)]
    Leader(LeaderArgs),
    /// Compare the streams and the tables with each other, and print what contradicts
    #[command(after_help = audit::EXAMPLES)]
    Audit(AuditArgs),
    /// Run everything on this machine: PostgreSQL, Redis and the service
    #[command(after_help = DEV_EXAMPLES)]
    Dev,
    /// Print what a shell needs to complete these commands
    #[command(after_help = generated::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands
    #[command(after_help = generated::MAN_EXAMPLES)]
    Man(ManArgs),
}

const SERVE_EXAMPLES: &str = "\
Example:
  NOTIFICATION_REDIS_MASTER_ADDR=redis:6379 \\
  NOTIFICATION_POSTGRES_PRIMARY_DSN='postgres://notification:secret@db:5432/galaxy?search_path=notification' \\
  NOTIFICATION_USER_SERVICE_BASE_URL=http://user-service:8080 \\
  notification serve

It applies the migrations first. SIGTERM or SIGINT stops it in order; a second signal stops it at once.
Probes: curl http://localhost:8092/readyz";

const MIGRATE_EXAMPLES: &str = "\
Examples:
  With the role that owns the schema, which then lets another one serve:
    NOTIFICATION_POSTGRES_PRIMARY_DSN='postgres://notificationowner:secret@db:5432/galaxy?search_path=notification' \\
    notification migrate --grant-to notificationservice

  For an administrator to look at and run:
    notification migrate --print-grants
    notification migrate --print-grants --for relay --role relay --schema game
    notification migrate --print-grants --for state --role state

The schema and the roles must exist. It may run on several machines at once, and again at any time. A release that brings
migrations may bring tables: grant again after each.";

const CHECK_CONFIG_EXAMPLES: &str = "\
Examples:
  notification check-config                          all variables, defaults filled in
  notification check-config | grep '# '              those that differ from their default
  notification check-config | grep TIMEOUT           some of them
  docker run --env-file prod.env IMAGE check-config  before a roll-out

It contacts nothing. A value that differs from its default has the default after it, as a comment. Everything that is wrong
goes to standard error at once, with exit code 2.";

const SEND_EXAMPLES: &str = r#"Examples:
  notification send --type game.turn.ready --producer game_master --user u-1 --user u-2 \
    --key game-123:turn-54 --payload '{"game_id":"game-123","game_name":"Nova","turn_number":54}'

  notification send --type lobby.runtime_paused_after_start --producer game_lobby --admin \
    --key game-123:paused --payload '{"game_id":"game-123","game_name":"Nova"}'

  notification send --file intent.json      where intent.json is
    {"type": "game.turn.ready", "producer": "game_master", "users": ["u-1"], "key": "game-123:turn-54",
     "payload": {"game_id": "game-123", "game_name": "Nova", "turn_number": 54}}
    ("admin": true instead of users; occurred_at_ms, request_id and trace_id may be added)

It needs NOTIFICATION_REDIS_MASTER_ADDR or what else names Redis, prints the id of the entry, and sends nothing that is malformed: then the
exit code is 2 and the failure code is on standard error."#;

const RELAY_EXAMPLES: &str = "\
Example:
  NOTIFICATION_OUTBOX_DSN='postgres://game:secret@game-db:5432/game' \\
  NOTIFICATION_REDIS_MASTER_ADDR=redis:6379 \\
  NOTIFICATION_OUTBOX_PRODUCER=game_master \\
  notification relay

`notification outbox migrate` creates the table first. As many relays as you like may run on one table. SIGTERM or SIGINT
stops it in order; a second signal stops it at once.
Probes: curl http://localhost:8092/readyz, and /stats for what is in the outbox";

const STATE_EXAMPLES: &str = "\
Examples:
  On a Unix socket, for the processes of this machine:
    STATE_PROXY_PG_URL='postgres://state:secret@db:5432/galaxy' CONNECTOR_SOCKET=/run/state/state.sock \\
    notification state
    curl --unix-socket /run/state/state.sock http://state/keys/?prefix=tasks/

  On TCP, with tokens (`notification token new` makes them) and indexes for queries:
    STATE_PROXY_PG_URL='postgres://state:secret@db:5432/galaxy' STATE_PROXY_HTTP_ADDR=:8090 \\
    STATE_PROXY_TOKENS_FILE=/etc/state/tokens.toml STATE_PROXY_PG_INDEXES='status,(deadline_at)::timestamptz' \\
    notification state

It creates the table if it is not there. SIGTERM or SIGINT lets requests in progress finish, for at most 10 s; a second
signal stops it at once. docs/state.md has every request.
Probes: curl --unix-socket /run/state/state.sock http://state/readyz";

const DEV_EXAMPLES: &str = "\
Example:
  notification dev

It uses the PostgreSQL and Redis binaries of this machine, in a folder that it removes when it ends (Ctrl-C).";

impl Cli {
    /// Runs the subcommand with these variables.
    pub fn run(self, vars: Vars) -> Result<(), Failure> {
        match self.command {
            Command::CheckConfig => check_config::run(vars, &mut StandardOutput),
            Command::Catalogue(args) => catalogue::run(&args, &mut StandardOutput),
            Command::Capacity(args) => capacity::run(&args, &mut StandardOutput),
            Command::Token(command) => token::run(&command, &RandomTokens, &mut StandardOutput),
            Command::Send(args) => block_on(send::run(*args, vars, &mut StandardOutput)),
            Command::Serve => {
                allocator::return_large_blocks();
                block_on(serve::run(vars))
            }
            Command::Migrate(args) => block_on(migrate::run(args, vars, &mut StandardOutput)),
            Command::Status(args) => block_on(status::run(args, vars, &mut StandardOutput)),
            Command::List(args) => block_on(list::run(*args, vars, &mut StandardOutput)),
            Command::Show(args) => block_on(show::run(args, vars, &mut StandardOutput)),
            Command::Explain(args) => block_on(explain::run(args, vars, &mut StandardOutput)),
            Command::Malformed(command) => {
                block_on(malformed_intents::run(command, vars, &mut StandardOutput))
            }
            Command::Completions(args) => generated::completions(&args, Self::command(), &mut StandardOutput),
            Command::Man(args) => generated::man(&args, Self::command(), &mut StandardOutput),
            Command::Healthcheck(args) => block_on(healthcheck::run(args, vars, &mut StandardOutput)),
            Command::Relay => block_on(relay::run(vars)),
            Command::State => {
                allocator::return_large_blocks();
                block_on(state::run(vars))
            }
            Command::Outbox(command) => block_on(outbox::run(command, vars, &mut StandardOutput)),
            Command::Users(command) => block_on(users::run(command, vars, &mut StandardOutput)),
            Command::DeadLetters(command) => block_on(dead_letters::run(command, vars, &mut StandardOutput)),
            Command::Actions(args) => block_on(actions::run(*args, vars, &mut StandardOutput)),
            Command::Cancel(args) => block_on(routes::cancel(*args, vars, &mut StandardOutput)),
            Command::Resend(args) => block_on(routes::resend(*args, vars, &mut StandardOutput)),
            Command::Hold(args) => block_on(holds::hold(args, vars, &mut StandardOutput)),
            Command::Release(args) => block_on(holds::release(args, vars, &mut StandardOutput)),
            Command::Holds(command) => block_on(holds::run(command, vars, &mut StandardOutput)),
            Command::Erase(args) => block_on(erase::run(args, vars, &mut StandardOutput)),
            Command::Leader(args) => block_on(leader::run(args, vars, &mut StandardOutput)),
            Command::Audit(args) => block_on(audit::run(&args, vars, &mut StandardOutput)),
            Command::Dev => block_on(dev::run(vars)),
        }
    }
}

/// Runs `work` on its own runtime, and does not wait for tasks that are still running.
fn block_on(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("could not start the runtime")?;
    let (outcome, age) = runtime.block_on(data_age::measured(work));
    runtime.shutdown_background();
    if let Some(age) = age {
        eprintln!("read from a replica: changes of the last {:.1} s may be missing", age.as_secs_f64());
    }
    outcome
}

/// Returns the exit code of an outcome. Prints the error to standard error unless it was logged.
pub fn report(outcome: Result<(), Failure>) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    if !matches!(failure, Failure::Logged { .. } | Failure::Reported | Failure::Failing) {
        eprintln!("{failure}");
    }
    failure.exit_code().into()
}

#[cfg(test)]
mod tests;
