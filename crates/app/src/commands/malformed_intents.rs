//! `malformed`: lists and shows intents that were not accepted, with their fields.

mod fields;
mod resubmit;

use std::io::Write;
use std::sync::Arc;

use anyhow::anyhow;
use api::view::{MalformedIntents, MalformedIntentsPage};
use clap::{Args, Subcommand};
use domain::catalog::Catalog;
use domain::conflict::{Conflict, Difference};
use domain::malformed_intent::rule_of;
use domain::ports::Queries;
use domain::query::{MalformedFilter, MalformedPlace, MalformedSummary, StoredMalformedIntent};
use domain::resubmit::ResubmittedOutcome;
use serde_json::Value;

use self::fields::{field_rows, write_raw};
use self::resubmit::ResubmitArgs;
use super::operators::{
    Cell, Column, CommandLine, Listing, Output, Paging, Style, Tables, TimeRange, Tone, parse_text,
    print_members, print_section,
};
use super::output::{print_json, print_line, printable};
use super::{Failure, Vars, load};

/// A subcommand of `malformed`.
#[derive(Subcommand, Debug)]
pub enum MalformedCommand {
    /// List them, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show one, with its fields as they were received
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Append some to the intents stream again, after their cause was fixed
    #[command(after_help = resubmit::EXAMPLES)]
    Resubmit(ResubmitArgs),
}

/// The malformed intents to list.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only those with this failure code
    #[arg(long, value_parser = parse_text)]
    code: Option<String>,
    /// Only those of this producer
    #[arg(long, value_parser = parse_text)]
    producer: Option<String>,
    /// Only those with this idempotency key
    #[arg(long, value_parser = parse_text)]
    key: Option<String>,
    #[command(flatten)]
    times: TimeRange,
    #[command(flatten)]
    paging: Paging,
}

/// The malformed intent to show.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// The id of its stream entry
    #[arg(value_parser = parse_text)]
    entry_id: String,
    /// The stream, if it is not the one that the service reads
    #[arg(long, value_parser = parse_text)]
    stream: Option<String>,
    /// Write the fields and nothing else, byte for byte: name and value in turn, each followed by a line feed
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// With --raw, write the value of this field alone and nothing after it
    #[arg(long, value_name = "NAME", requires = "raw")]
    field: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// The examples of `malformed`.
pub const EXAMPLES: &str = "\
Examples:
  notification malformed list --since 1d
  notification malformed show 1775121700000-0
  notification malformed resubmit --code recipient_not_found --since 1h --dry-run";

const LIST_EXAMPLES: &str = "\
Examples:
  notification malformed list --since 1d
  notification malformed list --producer game_master --code payload_schema_violation
  notification malformed list --json | jq -r '.malformed_intents[].failure_message'

The newest first. If there are more, standard error has the command of the next page. One page examines a bounded number of
rows: it may be short or empty and still have a next one. --json prints one document, as GET /v1/malformed-intents answers.";

const SHOW_EXAMPLES: &str = "\
Examples:
  notification malformed show 1775121700000-0
  notification malformed show 1775121700000-0 --raw | xxd
  notification malformed show 1775121700000-0 --raw --field payload_json | jq .

Text that a terminal would act upon is escaped; --raw writes the bytes as they were received. Of a field that was too long to be kept,
--raw writes the part that was kept, says so on standard error, and the exit code is 1. If the stream was recreated, an id may have
several malformed intents: all are shown, and --raw writes the newest. The exit code is 1 if there is none. --json prints what
GET /v1/malformed-intents/<id> answers.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(
    command: MalformedCommand,
    vars: Vars,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    if let MalformedCommand::Resubmit(args) = command {
        return resubmit::run(args, vars, out).await;
    }
    let wide = matches!(&command, MalformedCommand::List(args) if args.paging.output.wide);
    let style = Style::of_stdout(&vars, wide);
    let (config, catalog): (_, Arc<Catalog>) = load(vars)?;
    let tables = Tables::open(config).await?;
    match command {
        MalformedCommand::List(args) => list(&args, &tables, style, out).await,
        MalformedCommand::Resubmit(_) => Ok(()),
        MalformedCommand::Show(args) => show(&args, &tables, &catalog, style, out).await,
    }
}

async fn list(args: &ListArgs, tables: &Tables, style: Style, out: &mut impl Write) -> Result<(), Failure> {
    let now = tables.explained(tables.queries.now().await)?;
    let (recorded_after, recorded_before) = args.times.at(now)?;
    let filter = MalformedFilter {
        code: args.code.clone(),
        producer: args.producer.clone(),
        idempotency_key: args.key.clone(),
        recorded_after,
        recorded_before,
    };
    let after: Option<MalformedPlace> = args.paging.after(&filter)?;
    let page = tables.lists.list_malformed_intents(&filter, after.as_ref(), args.paging.limit()).await;
    let page = tables.explained(page)?;
    let listing = Listing {
        what: "malformed intent",
        columns: [
            Column::new("ENTRY", 0),
            Column::new("RECORDED", 2),
            Column::new("CODE", 1),
            Column::new("TYPE", 5).at_least(12),
            Column::new("PRODUCER", 4),
            Column::new("KEY", 3).at_least(12),
        ],
        row,
        paging: &args.paging,
    };
    let document = |malformed_intents, next_cursor| MalformedIntentsPage { malformed_intents, next_cursor };
    let page = page.into_parts(&filter);
    let command = CommandLine::new("notification malformed list")
        .option("--code", filter.code)
        .option("--producer", filter.producer)
        .option("--key", filter.idempotency_key)
        .option("--since", filter.recorded_after)
        .option("--until", filter.recorded_before);
    Ok(listing.print(out, style, page, document, command)?)
}

fn row(item: &MalformedSummary) -> [Cell; 6] {
    [
        printable(&item.key.entry_id).into(),
        Cell::time(item.recorded_at),
        Cell::new(printable(&item.failure_code), Tone::Bad),
        printable(&item.notification_type).into(),
        printable(&item.producer).into(),
        printable(&item.idempotency_key).into(),
    ]
}

async fn show(
    args: &ShowArgs,
    tables: &Tables,
    catalog: &Catalog,
    style: Style,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let stream = args.stream.as_ref().unwrap_or(&tables.config.intents_stream);
    let found = tables.queries.get_malformed_details(stream, &args.entry_id, catalog).await;
    let found = tables.explained(found)?;
    let Some(newest) = found.first() else {
        let (id, stream) = (printable(&args.entry_id), printable(stream));
        let hint = "`notification explain` says what became of an entry";
        return Err(anyhow!("there is no malformed intent {id} of the stream {stream}; {hint}").into());
    };
    if args.raw {
        if found.len() > 1 {
            eprintln!("warning: {} malformed intents have this id; this is the newest", found.len());
        }
        return write_raw(out, newest.raw_fields.as_deref(), args.field.as_deref());
    }
    if args.output.json {
        return Ok(print_json(out, &MalformedIntents { malformed_intents: found })?);
    }
    for (number, row) in found.iter().enumerate() {
        if number > 0 {
            print_line(out, "")?;
        }
        print_malformed(out, style, row)?;
    }
    Ok(())
}

/// Prints a malformed intent and its fields as text.
pub(super) fn print_malformed(
    out: &mut impl Write,
    style: Style,
    StoredMalformedIntent { summary, raw_fields, resubmitted_from, resubmitted_outcome, conflict }: &StoredMalformedIntent,
) -> anyhow::Result<()> {
    let rule = rule_of(&summary.failure_code).unwrap_or_default();
    let members = [
        ("stream", summary.key.stream.as_str()),
        ("stream_entry_id", &summary.key.entry_id),
        ("recorded_at", &summary.recorded_at.to_string()),
        ("failure_code", &summary.failure_code),
        ("rule", rule),
        ("failure_message", &summary.failure_message),
        ("fields_fingerprint", &summary.key.fields_fingerprint),
    ];
    let member = |(name, value): (&'static str, &str)| {
        let tone = if name == "failure_code" { Tone::Bad } else { Tone::Neutral };
        (name, Cell::new(printable(value), tone))
    };
    print_members(out, style, members.map(member))?;
    let links = [
        ("resubmitted_at", summary.resubmitted_at.map(|at| at.to_string())),
        ("resubmitted_entry_id", summary.resubmitted_entry_id.clone()),
        ("resubmitted_outcome", resubmitted_outcome.as_ref().map(ResubmittedOutcome::text)),
        ("resubmitted_from", resubmitted_from.clone()),
    ];
    let links = links.into_iter().filter_map(|(name, value)| Some((name, printable(&value?).into())));
    print_members(out, style, links)?;
    if let Some(conflict) = conflict {
        print_conflict(out, style, conflict)?;
    }
    print_section(out, style, "fields, in the order received", &field_rows(raw_fields.as_deref()))
}

/// Prints the notification that has the key, and both values of each member that differs.
pub(super) fn print_conflict(out: &mut impl Write, style: Style, conflict: &Conflict) -> anyhow::Result<()> {
    let id = conflict.notification_id.as_ref().map_or("a deleted notification", |id| id.as_str());
    let title = format!("differs from {}", printable(id));
    let rows: Vec<Vec<Cell>> = match conflict.differs.as_deref() {
        None => vec![vec!["(the two cannot be compared)".into()]],
        Some([]) => vec![vec!["(nothing)".into()]],
        Some(differs) => {
            let row = |difference: &Difference| {
                let value = |value: &Value| Cell::from(printable(&value.to_string()));
                let Difference { member, refused, accepted } = difference;
                vec![Cell::strong((*member).to_owned()), value(refused), value(accepted)]
            };
            let head = ["MEMBER", "REFUSED", "ACCEPTED"].map(Cell::from).into();
            [head].into_iter().chain(differs.iter().map(row)).collect()
        }
    };
    print_section(out, style, &title, &rows)
}
