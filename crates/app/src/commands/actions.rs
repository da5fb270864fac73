//! `actions`: what operators changed.

use std::io::Write;

use api::view::Actions;
use clap::Args;
use domain::ports::Queries;
use domain::query::{ActionFilter, ActionPlace, RecordedAction};

use super::operators::{Cell, Column, CommandLine, Listing, Paging, Style, Tables, TimeRange, parse_text};
use super::output::printable;
use super::{Failure, Vars};

/// The actions to list.
#[derive(Args, Debug)]
pub struct ActionsArgs {
    /// Only those of this operator: the name of a token, or user@host
    #[arg(long, value_parser = parse_text)]
    actor: Option<String>,
    /// Only those with this name, such as hold or replay_dead_letters
    #[arg(long, value_parser = parse_text)]
    action: Option<String>,
    /// Only those of this request
    #[arg(long, value_name = "ID", value_parser = parse_text)]
    request: Option<String>,
    #[command(flatten)]
    times: TimeRange,
    #[command(flatten)]
    paging: Paging,
}

/// The examples of `actions`.
pub const EXAMPLES: &str = "\
Examples:
  notification actions --since 1d
  notification actions --actor ada@ops-1 --action discard_dead_letters
  notification actions --json | jq -r '.actions[] | .at, .actor, .action'

The newest first. A request that changes much has an action for each of its transactions, under one request id. If there are more, standard
error has the command of the next page. --json prints one document, as GET /v1/actions answers.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: ActionsArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, args.paging.output.wide);
    let tables = Tables::load(vars).await?;
    let now = tables.explained(tables.queries.now().await)?;
    let (after, before) = args.times.at(now)?;
    let filter =
        ActionFilter { actor: args.actor, action: args.action, request_id: args.request, after, before };
    let place: Option<ActionPlace> = args.paging.after(&filter)?;
    let page = tables.lists.list_actions(&filter, place.as_ref(), args.paging.limit()).await;
    let page = tables.explained(page)?;
    let listing = Listing {
        what: "action",
        columns: [
            Column::new("TIME", 0),
            Column::new("ACTOR", 1),
            Column::new("ACTION", 2),
            Column::new("AFFECTED", 3),
            Column::new("REQUEST", 5),
            Column::new("ARGUMENTS", 4).at_least(16),
        ],
        row,
        paging: &args.paging,
    };
    let document = |actions, next_cursor| Actions { actions, next_cursor };
    let page = page.into_parts(&filter);
    let command = CommandLine::new("notification actions")
        .option("--actor", filter.actor)
        .option("--action", filter.action)
        .option("--request", filter.request_id)
        .option("--since", filter.after)
        .option("--until", filter.before);
    Ok(listing.print(out, style, page, document, command)?)
}

fn row(action: &RecordedAction) -> [Cell; 6] {
    [
        Cell::time(action.at),
        printable(&action.actor).into(),
        printable(&action.action).into(),
        action.affected.to_string().into(),
        printable(&action.request_id).into(),
        printable(&action.arguments.to_string()).into(),
    ]
}
