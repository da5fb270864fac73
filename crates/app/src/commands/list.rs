//! `list`: notifications, newest first.

use std::io::Write;

use api::view::Notifications;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use domain::ports::Queries;
use domain::query::{NotificationFilter, NotificationSummary};
use domain::receipt::ReceiptStatus;
use domain::record::RecordCursor;
use domain::route::RouteStatus;

use super::operators::{Cell, Column, CommandLine, Listing, Paging, Style, Tables, TimeRange, parse_text};
use super::output::printable;
use super::{Failure, Vars};

/// The notifications to list.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only those of this producer
    #[arg(long, value_parser = parse_text)]
    producer: Option<String>,
    /// Only those of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_text)]
    notification_type: Option<String>,
    /// Only those with a route in this status
    #[arg(long, value_parser = status_parser())]
    status: Option<RouteStatus>,
    /// Only those with a route whose consumer reported this
    #[arg(long, value_parser = receipt_parser())]
    receipt: Option<ReceiptStatus>,
    /// Only those to this user id or administrator's address
    #[arg(long, value_parser = parse_text)]
    recipient: Option<String>,
    /// Only those with this idempotency key
    #[arg(long, value_parser = parse_text)]
    key: Option<String>,
    #[command(flatten)]
    times: TimeRange,
    #[command(flatten)]
    paging: Paging,
}

fn status_parser() -> impl TypedValueParser<Value = RouteStatus> {
    PossibleValuesParser::new(RouteStatus::ALL.map(RouteStatus::as_str))
        .try_map(|name| name.parse::<RouteStatus>())
}

fn receipt_parser() -> impl TypedValueParser<Value = ReceiptStatus> {
    PossibleValuesParser::new(ReceiptStatus::ALL.map(ReceiptStatus::as_str))
        .try_map(|name| name.parse::<ReceiptStatus>())
}

/// The examples of `list`.
pub const EXAMPLES: &str = "\
Examples:
  notification list --since 2h
  notification list --recipient u-1 --status dead_letter
  notification list --receipt bounced --since 1d
  notification list --producer game_master --type game.turn.ready --since 2026-04-02T09:00:00Z --until 2026-04-02T10:00:00Z
  notification list --recipient u-1 --wide
  notification list --since 1d --json | jq -r '.notifications[].notification_id'

The newest first. If there are more, standard error has the command of the next page. One page examines a bounded number of
rows: it may be short or empty and still have a next one. --json prints one document, as GET /v1/notifications answers.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: ListArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, args.paging.output.wide);
    let tables = Tables::load(vars).await?;
    let now = tables.explained(tables.queries.now().await)?;
    let (accepted_after, accepted_before) = args.times.at(now)?;
    let filter = NotificationFilter {
        producer: args.producer.clone(),
        notification_type: args.notification_type.clone(),
        status: args.status,
        receipt: args.receipt,
        recipient: args.recipient.clone(),
        users_only: false,
        idempotency_key: args.key.clone(),
        accepted_after,
        accepted_before,
    };
    let after: Option<RecordCursor> = args.paging.after(&filter)?;
    let page = tables.lists.list_notifications(&filter, after.as_ref(), args.paging.limit()).await;
    let page = tables.explained(page)?;
    let listing = Listing {
        what: "notification",
        columns: [
            Column::new("NOTIFICATION", 0),
            Column::new("TYPE", 4).at_least(12),
            Column::new("PRODUCER", 5),
            Column::new("KEY", 3).at_least(16),
            Column::new("RECIPIENTS", 6).at_least(12),
            Column::new("ACCEPTED", 2),
            Column::new("ROUTES", 1).at_least(20),
        ],
        row,
        paging: &args.paging,
    };
    let document = |notifications, next_cursor| Notifications { notifications, next_cursor };
    let page = page.into_parts(&filter);
    let command = CommandLine::new("notification list")
        .option("--producer", filter.producer)
        .option("--type", filter.notification_type)
        .option("--status", filter.status.map(RouteStatus::as_str))
        .option("--receipt", filter.receipt.map(ReceiptStatus::as_str))
        .option("--recipient", filter.recipient)
        .option("--key", filter.idempotency_key)
        .option("--since", filter.accepted_after)
        .option("--until", filter.accepted_before);
    Ok(listing.print(out, style, page, document, command)?)
}

fn row(item: &NotificationSummary) -> [Cell; 7] {
    let counts: Vec<String> =
        item.routes.iter().map(|(status, routes)| format!("{routes} {}", status.as_str())).collect();
    let worst = item.routes.iter().map(|(status, _)| status.tone()).max().unwrap_or_default();
    [
        printable(item.notification_id.as_str()).into(),
        printable(&item.notification_type).into(),
        printable(&item.producer).into(),
        printable(&item.idempotency_key).into(),
        printable(&item.recipients_text()).into(),
        Cell::time(item.accepted_at),
        Cell::new(counts.join(", "), worst),
    ]
}
