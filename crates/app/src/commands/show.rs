//! `show`: shows one notification with its routes.

use std::io::Write;

use ambient::Timestamp;
use anyhow::anyhow;
use clap::Args;
use domain::ports::Queries;
use domain::query::{Notification, Route};
use domain::receipt::PastReport;
use domain::record::NotificationId;
use domain::route::FailedAttempt;
use serde_json::Value;

use super::operators::{
    Cell, Column, Style, TableOutput, Tables, parse_text, print_members, print_rows, print_section, table,
};
use super::output::{print_json, print_line, printable};
use super::{Failure, Vars};

/// The most recipients printed by id.
const SHOWN_RECIPIENTS: usize = 20;

/// The notification to show.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Its id
    #[arg(value_parser = parse_text)]
    notification_id: String,
    #[command(flatten)]
    output: TableOutput,
}

/// The examples of `show`.
pub const EXAMPLES: &str = "\
Examples:
  notification show 1775121700000-0
  notification show 1775121700000-0 --json | jq -r '.routes[].explanation'

Its routes have a sentence each: why it is as it is, and what moves it next. The exit code is 1 if there is no such notification:
`notification explain` finds it by other names. --json prints what GET /v1/notifications/<id> answers.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: ShowArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, args.output.wide);
    let tables = Tables::load(vars).await?;
    let now = tables.explained(tables.queries.now().await)?;
    let id = NotificationId::from(args.notification_id);
    let found = tables.explained(tables.queries.get_notification(&id).await)?;
    let found = found.ok_or_else(|| {
        let id = printable(id.as_str());
        anyhow!("there is no notification {id}; `notification explain` finds an intent by other names")
    })?;
    match args.output.json {
        true => Ok(print_json(out, &found.explained(now))?),
        false => Ok(print_notification(out, style, &found.explained(now))?),
    }
}

/// Prints an explained notification as text.
pub(super) fn print_notification(
    out: &mut impl Write,
    style: Style,
    found: &Notification,
) -> anyhow::Result<()> {
    let members = record_members(found).into_iter().map(|(name, value)| (name, printable(&value).into()));
    print_members(out, style, members)?;
    print_line(out, &style.strong("payload"))?;
    let payload: Option<Value> = serde_json::from_str(&found.payload_json).ok();
    let payload = payload.and_then(|payload| serde_json::to_string_pretty(&payload).ok());
    let payload = payload.unwrap_or_else(|| found.payload_json.to_string());
    for line in payload.lines() {
        print_line(out, &format!("  {}", printable(line)))?;
    }
    print_line(out, "")?;
    print_rows(out, style, &route_rows(style, &found.routes))?;
    print_line(out, "")?;
    for route in &found.routes {
        let sentence = printable(&route.explanation);
        print_line(out, &format!("{}: {sentence}.", printable(&route.route_id)))?;
    }
    for route in &found.routes {
        print_failed_attempts(out, style, route)?;
        print_receipt(out, style, route)?;
    }
    Ok(())
}

fn record_members(found: &Notification) -> [(&'static str, String); 13] {
    let users = &found.recipient_user_ids;
    let mut recipients = users.iter().take(SHOWN_RECIPIENTS).cloned().collect::<Vec<_>>().join(", ");
    if users.len() > SHOWN_RECIPIENTS {
        recipients += &format!(" and {} more", users.len() - SHOWN_RECIPIENTS);
    }
    [
        ("notification_id", found.notification_id.to_string()),
        ("notification_type", found.notification_type.clone()),
        ("producer", found.producer.clone()),
        ("idempotency_key", found.idempotency_key.clone()),
        ("audience_kind", found.audience_kind.to_owned()),
        ("recipients", recipients),
        ("request_id", found.request_id.clone()),
        ("trace_id", found.trace_id.clone()),
        ("occurred_at", found.occurred_at.to_string()),
        ("accepted_at", found.accepted_at.to_string()),
        ("updated_at", found.updated_at.to_string()),
        ("idempotency_expires_at", found.idempotency_expires_at.to_string()),
        ("request_fingerprint", found.request_fingerprint.to_string()),
    ]
}

fn route_rows(style: Style, routes: &[Route]) -> Vec<Vec<Cell>> {
    let columns = [
        Column::new("ROUTE", 0),
        Column::new("STATUS", 1),
        Column::new("FAILED ATTEMPTS", 4),
        Column::new("NEXT ATTEMPT", 2),
        Column::new("CHANGED", 6),
        Column::new("OUTBOUND ENTRY", 3),
        Column::new("RECEIPT", 5),
    ];
    let row = |route: &Route| {
        let next = match route.next_attempt_at {
            Some(Timestamp::MAX) => "parked".into(),
            Some(at) => Cell::time(at),
            None => "-".into(),
        };
        let receipt = route.receipt.as_ref().map_or("-", |receipt| receipt.highest.status.as_str());
        let entry = if route.published_entry_id.is_empty() { "-" } else { &route.published_entry_id };
        [
            printable(&route.route_id).into(),
            Cell::new(route.status.as_str(), route.status.tone()),
            route.failures().into(),
            next,
            Cell::time(route.updated_at),
            printable(entry).into(),
            receipt.into(),
        ]
    };
    table(style, columns, routes.iter().map(row))
}

/// Prints the failed attempts of a route that has some, the oldest first.
pub(super) fn print_failed_attempts(out: &mut impl Write, style: Style, route: &Route) -> anyhow::Result<()> {
    if route.failed_attempts.is_empty() {
        return Ok(());
    }
    let columns = [
        Column::new("FAILED", 1),
        Column::new("ATTEMPT", 2),
        Column::new("CAUSE", 3),
        Column::new("MESSAGE", 0),
    ];
    let row = |failed: &FailedAttempt| {
        [
            Cell::time(failed.at),
            failed.attempt.to_string().into(),
            printable(&failed.classification).into(),
            printable(&failed.message).into(),
        ]
    };
    let title = format!("failed attempts of {}", printable(&route.route_id));
    let rows = table(style.in_section(), columns, route.failed_attempts.iter().map(row));
    print_section(out, style, &title, &rows)
}

/// Prints the reports of the route's consumer, newest first.
fn print_receipt(out: &mut impl Write, style: Style, route: &Route) -> anyhow::Result<()> {
    let Some(receipt) = &route.receipt else { return Ok(()) };
    let row = |PastReport { report, outcome }: &PastReport| {
        [
            Cell::from(report.at.to_string()),
            report.status.as_str().into(),
            outcome.as_str().into(),
            printable(&report.detail).into(),
        ]
    };
    let title = format!("reports about {}", printable(&route.route_id));
    print_section(out, style, &title, &receipt.history.iter().map(row).collect::<Vec<_>>())
}
