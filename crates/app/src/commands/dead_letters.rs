//! `dead-letters`: lists, shows, replays and discards routes whose retry budget is spent. It needs only the
//! connection string.

mod args;

use std::io::Write;

use anyhow::anyhow;
use api::view;
use domain::operations::RouteChange;
use domain::ports::Queries;
use domain::query::{DeadLetter, DeadLetterFilter, DeadLetterPlace};
use store_postgres::PgStore;

pub(in crate::commands) use args::channel_parser;
pub use args::{DeadLettersCommand, EXAMPLES};
use args::{ListArgs, SelectionArgs, ShowArgs};

use super::operations::{Command, Words, action, with_filter};
use super::operators::{Cell, Column, CommandLine, Listing, StoreClock, Style, Tables, Tone, print_members};
use super::output::{print_json, printable};
use super::{Failure, Vars, load};
use crate::config::OperatorConfig;

/// Runs the command with these variables, and prints to `out`.
pub async fn run(
    command: DeadLettersCommand,
    vars: Vars,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    match command {
        DeadLettersCommand::List(args) => list(&args, vars, out).await,
        DeadLettersCommand::Show(args) => show(&args, vars, out).await,
        DeadLettersCommand::Replay(args) => {
            let (tables, budgets) = load(vars.clone())?;
            let change = RouteChange::Replay(budgets);
            let command = change_command((tables, &vars), &args.selection, change, REPLAY_WORDS).await?;
            command.run(args.no_wait, out).await
        }
        DeadLettersCommand::Discard(args) => {
            let tables = load(vars.clone())?;
            let command = change_command((tables, &vars), &args.selection, args.change, DISCARD_WORDS);
            command.await?.run(false, out).await
        }
    }
}

pub(super) const REPLAY_WORDS: Words = Words {
    command: "dead-letters replay",
    verb: "Replay",
    done: "replayed",
    nouns: ["dead letter", "dead letters"],
    headings: ["CAUSE", "DEAD LETTERS"],
};
const DISCARD_WORDS: Words =
    Words { command: "dead-letters discard", verb: "Discard", done: "discarded", ..REPLAY_WORDS };

async fn change_command<'a>(
    (config, vars): (OperatorConfig, &Vars),
    selected: &'a SelectionArgs,
    change: RouteChange,
    words: Words,
) -> Result<Command<'a, PgStore>, Failure> {
    let args = &selected.change;
    let tables = Tables::open(config).await?;
    let store = tables.store()?;
    let now = tables.explained(tables.queries.now().await)?;
    let end = tables.explained(tables.queries.end_of_dead_letters(now).await)?;
    let action = action(args.actor.actor(vars), selected.selection(now, end)?);
    let (operations, clock) = (store.clone(), StoreClock::new(now));
    Ok(Command { tables, operations, store, clock, args, change, action, words })
}

async fn list(args: &ListArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, args.paging.output.wide);
    let tables = Tables::load(vars).await?;
    let now = tables.explained(tables.queries.now().await)?;
    let filter = DeadLetterFilter { discarded: args.discarded, ..args.filter.filter(now)? };
    let after: Option<DeadLetterPlace> = args.paging.after(&filter)?;
    let page = tables.lists.list_dead_letters(&filter, after.as_ref(), args.paging.limit()).await;
    let page = tables.explained(page)?;
    let listing = Listing {
        what: "dead letter",
        columns: [
            Column::new("ID", 0),
            Column::new("TYPE", 5).at_least(12),
            Column::new("SINCE", 2),
            Column::new("ATTEMPTS", 4),
            Column::new("CAUSE", 3).at_least(12),
            Column::new("ERROR", 1).at_least(24),
        ],
        row,
        paging: &args.paging,
    };
    let document = |dead_letters, next_cursor| view::DeadLetters { dead_letters, next_cursor };
    let command = with_filter(CommandLine::new("notification dead-letters list"), &filter)
        .flag("--discarded", args.discarded);
    Ok(listing.print(out, style, page.into_parts(&filter), document, command)?)
}

fn row(letter: &DeadLetter) -> [Cell; 6] {
    [
        printable(&letter.key.to_string()).into(),
        printable(&letter.notification_type).into(),
        Cell::time(letter.created_at),
        format!("{} of {}", letter.final_attempt_count, letter.max_attempts).into(),
        Cell::new(printable(&letter.failure_classification), Tone::Bad),
        printable(&letter.failure_message).into(),
    ]
}

async fn show(args: &ShowArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, false);
    let tables = Tables::load(vars).await?;
    let found = tables.explained(tables.queries.get_notification(&args.id.notification_id).await)?;
    let id = printable(&args.id.to_string());
    let Some(letter) = found.as_ref().and_then(|found| found.dead_letter(&args.id)) else {
        return Err(match found.as_ref().and_then(|found| found.route(&args.id)) {
            Some(route) => anyhow!("the route {id} is no dead letter: it is {}", route.status.as_str()),
            None => anyhow!("there is no route {id}"),
        }
        .into());
    };
    if args.output.json {
        return Ok(print_json(out, &letter)?);
    }
    let mut members = vec![
        ("id", args.id.to_string()),
        ("notification_type", letter.notification_type),
        ("channel", letter.channel.as_str().to_owned()),
        ("recipient_ref", letter.recipient_ref),
        ("attempts", format!("{} of {}", letter.final_attempt_count, letter.max_attempts)),
        ("dead letter since", letter.created_at.to_string()),
        ("failure_classification", letter.failure_classification),
        ("failure_message", letter.failure_message),
        ("recovery_hint", letter.recovery_hint),
    ];
    if let Some(discarded) = letter.discarded {
        members.push(("discarded", format!("{} by {}", discarded.at, discarded.by)));
        members.push(("discard_reason", discarded.reason));
    }
    let members = members.into_iter().map(|(name, value)| (name, printable(&value).into()));
    Ok(print_members(out, style, members)?)
}
