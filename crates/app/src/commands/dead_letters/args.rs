//! The command line of `dead-letters`.

use ambient::Timestamp;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand};
use domain::operations::{MAX_REASON_BYTES, MAX_ROUTES_PER_REQUEST, RouteChange, Selection};
use domain::query::DeadLetterFilter;
use domain::route::{Channel, RouteKey};

use crate::commands::Failure;
use crate::commands::operations::ChangeArgs;
use crate::commands::operators::{Output, Paging, TimeRange, parse_text};

/// A subcommand of `dead-letters`.
#[derive(Subcommand, Debug)]
pub enum DeadLettersCommand {
    /// List them, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show one, whole
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Make their routes pending again, with a new budget
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Mark them as dealt with: they stay dead letters and leave the list
    #[command(after_help = DISCARD_EXAMPLES)]
    Discard(DiscardArgs),
}

/// The conditions that dead letters must meet.
#[derive(Args, Debug, Clone, Default)]
pub(super) struct FilterArgs {
    /// Only this channel
    #[arg(long, value_parser = channel_parser())]
    pub(super) channel: Option<Channel>,
    /// Only those whose last attempt failed for this reason
    #[arg(long, value_parser = parse_text)]
    pub(super) classification: Option<String>,
    /// Of notifications of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_text)]
    pub(super) notification_type: Option<String>,
    #[command(flatten)]
    pub(super) times: TimeRange,
}

impl FilterArgs {
    /// Builds the filter, with relative times resolved at `now`.
    pub(super) fn filter(&self, now: Timestamp) -> Result<DeadLetterFilter, Failure> {
        let (created_after, created_before) = self.times.at(now)?;
        Ok(DeadLetterFilter {
            channel: self.channel,
            classification: self.classification.clone(),
            notification_type: self.notification_type.clone(),
            created_after,
            created_before,
            discarded: false,
        })
    }
}

/// The dead letters to list.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// Those that were discarded, in place of the others
    #[arg(long)]
    pub(super) discarded: bool,
    #[command(flatten)]
    pub(super) paging: Paging,
}

/// The dead letter to show.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// `<notification_id>/<route_id>`, as the list has it
    pub(super) id: RouteKey,
    #[command(flatten)]
    pub(super) output: Output,
}

/// The dead letters to change.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "all", "channel", "classification", "notification_type", "since", "until"]))]
pub(super) struct SelectionArgs {
    /// This one, `<notification_id>/<route_id>`; may be given up to 10,000 times
    #[arg(long = "id", value_name = "ID", value_parser = parse_text, conflicts_with_all = ["all", "channel", "classification", "notification_type", "since", "until"])]
    pub(super) ids: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with_all = ["channel", "classification", "notification_type", "since", "until"])]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

impl SelectionArgs {
    /// Builds the selection for a command that begins at `now`. It contains only dead letters from before
    /// `end`; later ones are excluded. `Err` if there are too many ids.
    pub(super) fn selection(&self, now: Timestamp, end: Timestamp) -> Result<Selection, Failure> {
        if self.ids.len() > MAX_ROUTES_PER_REQUEST {
            let problem = format!("error: --id may be given {MAX_ROUTES_PER_REQUEST} times");
            return Err(Failure::Usage(problem));
        }
        if !self.ids.is_empty() {
            return Ok(Selection::Ids(self.ids.clone()));
        }
        let filter = self.filter.filter(now)?;
        let created_before = Some(filter.created_before.map_or(end, |until| until.min(end)));
        Ok(Selection::DeadLetters(DeadLetterFilter { created_before, ..filter }))
    }
}

/// The dead letters to replay.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub(super) selection: SelectionArgs,
    /// Replay at once, however many routes are due
    #[arg(long)]
    pub(super) no_wait: bool,
}

/// The dead letters to discard.
#[derive(Args, Debug)]
pub struct DiscardArgs {
    #[command(flatten)]
    pub(super) selection: SelectionArgs,
    /// The reason that the list of discarded dead letters shows
    #[arg(long = "reason", value_name = "REASON", value_parser = parse_reason)]
    pub(super) change: RouteChange,
}

pub(in crate::commands) fn channel_parser() -> impl TypedValueParser<Value = Channel> {
    PossibleValuesParser::new(Channel::ALL.map(Channel::as_str)).try_map(|name| name.parse::<Channel>())
}

fn parse_reason(text: &str) -> Result<RouteChange, String> {
    RouteChange::discard(text.to_owned()).ok_or_else(|| format!("it takes 1 to {MAX_REASON_BYTES} bytes"))
}

/// The examples of `dead-letters`.
pub const EXAMPLES: &str = "\
Examples:
  notification dead-letters list --channel push --since 2h
  notification dead-letters show 1775121700000-0/push:user:u-1
  notification dead-letters replay --channel push --since 2h --dry-run
  notification dead-letters discard --type game.finished --until 7d --reason 'the games are over'

NOTIFICATION_POSTGRES_PRIMARY_DSN suffices; `replay` gives routes NOTIFICATION_PUSH_MAX_ATTEMPTS and NOTIFICATION_EMAIL_MAX_ATTEMPTS.";

const LIST_EXAMPLES: &str = "\
Examples:
  notification dead-letters list
  notification dead-letters list --channel email --classification mail_stream_publish_failed --limit 200
  notification dead-letters list --since 1d --json | jq -r '.dead_letters[].failure_message' | sort | uniq -c
  notification dead-letters list --discarded

The newest first. If there are more, standard error has the command of the next page. One page examines a bounded number of
rows: it may be short or empty and still have a next one. --json prints one document, as GET /v1/dead-letters answers.";

const SHOW_EXAMPLES: &str = "\
Examples:
  notification dead-letters show 1775121700000-0/push:user:u-1
  notification dead-letters show 1775121700000-0/email:user:u-1 --json

--json prints a dead letter as the items of GET /v1/dead-letters. The exit code is 1 if there is none.";

const REPLAY_EXAMPLES: &str = "\
Examples:
  notification dead-letters replay --id 1775121700000-0/push:user:u-1
  notification dead-letters replay --channel push --since 2026-04-02T09:00:00Z --dry-run
  notification dead-letters replay --classification gateway_stream_publish_failed --yes
  notification dead-letters replay --all

Fix the cause first. It shows the plan and asks, then works in transactions of 500, each with a row in operator_actions. What becomes a
dead letter after it began is left alone. Ctrl-C ends it after the transaction in progress; the command that continues is printed then, and
before a change of more than 500 routes, for the case of a crash.

A million may be replayed beside traffic: it adds routes only while fewer than 1,000 are due, so that new notifications do not wait
behind it, and ends if the publishers leave as many for 5 minutes. --no-wait replays at once. A discarded dead letter is replayed by its id.

--json prints one document: `replayed`, `unknown` (ids that name no route), `unchanged` (how many name no such dead letter), `conflicts`,
`locked`, `finished`, and `request_id`, null if nothing was changed; with --dry-run the plan as POST /v1/dead-letters:replay answers it.
The exit code is 1 if it did not finish, an id names no route, some stayed locked, or none of the ids named a dead letter.";

const DISCARD_EXAMPLES: &str = "\
Examples:
  notification dead-letters discard --id 1775121700000-0/push:user:u-1 --reason 'the user has left'
  notification dead-letters discard --type game.finished --until 7d --reason 'the games are over' --dry-run

Discarded dead letters are listed with `notification dead-letters list --discarded`, and can be replayed by their ids. --json and the exit
code are those of `replay`, with `discarded` in place of `replayed`.";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(subcommand)]
        command: DeadLettersCommand,
    }

    fn parse(line: &str) -> Result<DeadLettersCommand, clap::Error> {
        Cli::try_parse_from(["dead-letters"].into_iter().chain(line.split_whitespace()))
            .map(|cli| cli.command)
    }

    #[test]
    fn what_the_contract_has_is_understood() {
        for line in [
            "list",
            "list --channel push --classification c --type t --since 2h --until 2026-04-02T09:00:00Z --json",
            "list --discarded --limit 200 --cursor abc",
            "show 1-0/push:user:u --json",
            "replay --id 1-0/push:user:u --id 2-0/push:user:u",
            "replay --channel push --classification c --type t --since 2h --until 1h --dry-run",
            "replay --all --yes --no-wait --json",
            "discard --all --reason why",
            "discard --until 7d --reason why --yes",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn wrong_usage_is_exit_code_2() {
        for line in [
            "",
            "list --channel pigeon",
            "list --classification=",
            "list --since yesterday",
            "show",
            "show 1-0",
            "replay",
            "replay --yes",
            "replay --all --channel push",
            "replay --id=",
            "list --cursor=",
            "replay --id 1-0/x --since 2h",
            "replay --id 1-0/x --all",
            "replay --all --reason why",
            "discard --all",
            "discard --all --reason=",
            "discard --all --reason why --no-wait",
            "discard --reason why",
        ] {
            assert_eq!(parse(line).err().map(|error| error.exit_code()), Some(2), "{line}");
        }
    }

    #[test]
    fn a_selection_has_what_exists_when_the_command_begins() {
        let now: Timestamp = "2026-04-02T12:00:00Z".parse().expect("a time");
        for (line, expected) in [
            ("replay --all", "2026-04-02T12:05:00Z"),
            ("replay --until 1h", "2026-04-02T11:00:00Z"),
            ("replay --until 2026-04-03T00:00:00Z", "2026-04-02T12:05:00Z"),
        ] {
            let end = now + Duration::from_secs(300);
            let Ok(DeadLettersCommand::Replay(args)) = parse(line) else { panic!("{line}") };
            let Ok(Selection::DeadLetters(filter)) = args.selection.selection(now, end) else {
                panic!("{line}")
            };
            assert_eq!(filter.created_before, Some(expected.parse().expect("a time")), "{line}");
        }
    }
}
