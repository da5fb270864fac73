//! The command line of `outbox`.

use clap::{ArgGroup, Args, Subcommand};
use outbox::{Age, ChannelName, MAX_LISTED};
use uuid::Uuid;

use crate::commands::operators::{Moment, TableOutput, parse_text};

/// A subcommand of `outbox`.
#[derive(Subcommand, Debug)]
pub enum OutboxCommand {
    /// Count what is in the outbox
    #[command(after_help = STATS_EXAMPLES)]
    Stats(Output),
    /// Delete old events that are DELIVERED or DEAD
    #[command(after_help = PRUNE_EXAMPLES)]
    Prune(PruneArgs),
    /// Look at DEAD events
    #[command(subcommand, after_help = DEAD_EXAMPLES)]
    Dead(DeadCommand),
    /// Make DEAD events, or those that were DELIVERED since a time, PENDING again, with no attempts counted
    #[command(after_help = REQUEUE_EXAMPLES)]
    Requeue(RequeueArgs),
    /// Create the outbox table and its indexes, or print how
    #[command(after_help = MIGRATE_EXAMPLES)]
    Migrate(MigrateArgs),
}

/// A subcommand for DEAD events.
#[derive(Subcommand, Debug)]
pub enum DeadCommand {
    /// List them, the latest first
    #[command(after_help = DEAD_EXAMPLES)]
    List(ListArgs),
    /// Show one, whole
    #[command(after_help = DEAD_EXAMPLES)]
    Show(ShowArgs),
}

/// How to print.
#[derive(Args, Debug, Clone, Copy)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The events to delete.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("age").required(true).multiple(true))]
pub struct PruneArgs {
    /// Delete what was DELIVERED longer ago than this, such as 7d, 24h or 60m
    #[arg(long, value_name = "AGE", group = "age", value_parser = parse_age)]
    pub delivered_age: Option<Age>,
    /// Delete what has been DEAD for longer than this
    #[arg(long, value_name = "AGE", group = "age", value_parser = parse_age)]
    pub dead_age: Option<Age>,
    /// Count and delete nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Output,
}

/// How many events to list.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// The most events
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_LISTED)))]
    pub limit: u32,
    #[command(flatten)]
    pub(crate) output: TableOutput,
}

/// The event to show.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Its event_id
    pub event_id: Uuid,
    #[command(flatten)]
    pub output: Output,
}

/// The events to requeue.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true))]
pub struct RequeueArgs {
    /// The event_id of each
    #[arg(group = "which", num_args = 1..=MAX_LISTED as usize)]
    pub event_ids: Vec<Uuid>,
    /// All that are DEAD
    #[arg(long, group = "which")]
    pub dead: bool,
    /// All that were DELIVERED at this time or later, such as 2h or 2026-04-02T09:00:00Z
    #[arg(long, value_name = "TIME", group = "which")]
    pub(crate) delivered_since: Option<Moment>,
    /// Only those of this event_type
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_text, conflicts_with = "event_ids")]
    pub event_type: Option<String>,
    /// Print how many there are and the first of them, and change nothing
    #[arg(long, conflicts_with = "event_ids")]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, conflicts_with = "event_ids")]
    pub yes: bool,
    #[command(flatten)]
    pub output: Output,
}

/// The objects to create.
#[derive(Args, Debug)]
pub struct MigrateArgs {
    /// Print the statements and run nothing; needs no connection string
    #[arg(long)]
    pub print: bool,
    /// Also make a trigger that announces inserts on this channel
    #[arg(long, value_name = "CHANNEL", value_parser = parse_channel)]
    pub with_notify: Option<ChannelName>,
}

fn parse_age(text: &str) -> Result<Age, String> {
    Age::parse(text).map_err(|error| error.to_string())
}

fn parse_channel(text: &str) -> Result<ChannelName, String> {
    ChannelName::parse(text).map_err(|error| error.to_string())
}

/// The examples of `outbox`.
pub const EXAMPLES: &str = "\
Examples:
  export NOTIFICATION_OUTBOX_DSN='postgres://game:secret@game-db:5432/game'
  notification outbox migrate
  notification outbox stats
  notification outbox dead list
  notification outbox requeue --dead --dry-run

NOTIFICATION_OUTBOX_DSN suffices; NOTIFICATION_OUTBOX_TABLE names another table than openoutbox_events.
The role needs SELECT, UPDATE and DELETE on it, for migrate also CREATE on its schema.";

const STATS_EXAMPLES: &str = "\
Examples:
  notification outbox stats
  notification outbox stats --json | jq .oldest_age_sec

pending: due and never tried; retrying: has failed and will be tried again; scheduled: not yet due and never tried;
delivering: claimed by a relay. oldest_age_sec is that of what is due.";

const PRUNE_EXAMPLES: &str = "\
Examples:
  notification outbox prune --delivered-age 7d --dead-age 30d
  notification outbox prune --delivered-age 24h --dry-run

An age is a number and d, h or m. Events that are PENDING or DELIVERING are never deleted.";

const DEAD_EXAMPLES: &str = "\
Examples:
  notification outbox dead list --limit 10
  notification outbox dead list --wide
  notification outbox dead list --json | jq -r .last_error | sort | uniq -c
  notification outbox dead show 0b1d0f8e-5c7e-4b58-9a9b-8e4f8a3c2d10

An event that is DEAD by `lease expired` may be on the stream all the same: its relay died while it was published.";

const REQUEUE_EXAMPLES: &str = "\
Examples:
  notification outbox requeue 0b1d0f8e-5c7e-4b58-9a9b-8e4f8a3c2d10
  notification outbox requeue --dead --type game.turn.ready --dry-run
  notification outbox requeue --dead --yes
  notification outbox requeue --delivered-since 2026-04-02T09:00:00Z --dry-run

--delivered-since is for what Redis has lost after it acknowledged it, beyond what the relay finds by itself.
An event whose marker still exists is on the stream already: it becomes DELIVERED without a second entry.
What cannot be requeued is reported: an id that is unknown or not DEAD, an event that another transaction has locked for
seconds, an event that its table refuses to change. The others are requeued, and the exit code is 1.";

const MIGRATE_EXAMPLES: &str = "\
Examples:
  notification outbox migrate
  notification outbox migrate --with-notify outbox
  notification outbox migrate --print > migrations/0042_outbox.sql

It creates what is missing and never drops or changes anything, so it may be run again at any time.";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(subcommand)]
        command: OutboxCommand,
    }

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(["outbox"].into_iter().chain(line.split_whitespace()))
    }

    const ID: &str = "0b1d0f8e-5c7e-4b58-9a9b-8e4f8a3c2d10";

    #[test]
    fn what_the_contract_has_is_understood() {
        for line in [
            "stats",
            "stats --json",
            "prune --delivered-age 7d",
            "prune --dead-age 30d --dry-run",
            "prune --delivered-age 60m --dead-age 24h --json",
            "dead list",
            "dead list --limit 1000 --json",
            &format!("dead show {ID}"),
            &format!("requeue {ID} {ID}"),
            "requeue --dead",
            "requeue --dead --type a.b --dry-run",
            "requeue --dead --yes",
            "migrate",
            "migrate --print --with-notify Channel",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn wrong_usage_is_exit_code_2() {
        let long = "x".repeat(64);
        for line in [
            "",
            "prune",
            "prune --dry-run",
            "prune --delivered-age 0",
            "prune --delivered-age 7D",
            "prune --delivered-age 1w",
            "prune --delivered-age 1.5h",
            "prune --dead-age -1d",
            "dead",
            "dead list --limit 0",
            "dead list --limit 1001",
            "dead show",
            "dead show 17",
            "requeue",
            "requeue 17",
            &format!("requeue {ID} --dead"),
            &format!("requeue {ID} --yes"),
            &format!("requeue {ID} --type a"),
            "requeue --yes",
            "requeue --dead --type=",
            &format!("migrate --with-notify {long}"),
        ] {
            assert_eq!(parse(line).err().map(|error| error.exit_code()), Some(2), "{line}");
        }
    }
}
