//! `explain`: shows the outcome of an intent, given any of its ids.

use std::io::Write;

use clap::Args;
use domain::find::{FindQuery, Matches};
use domain::ports::Finder;

use super::malformed_intents::print_conflict;
use super::operators::{Output, Style, Tables, open_redis, parse_text};
use super::output::{print_json, print_line, printable};
use super::show::print_failed_attempts;
use super::{Failure, Vars, load};
use crate::config::FindConfig;
use crate::wiring;

/// The intent to explain.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Any id: of a stream entry, a notification, a route (event_id, delivery_id), a request (of an intent or
    /// of an operator's change) or a trace, or an idempotency key
    #[arg(value_parser = parse_text)]
    name: String,
    /// The id is an idempotency key of this producer
    #[arg(long, value_parser = parse_text)]
    producer: Option<String>,
    /// The id is that of an entry of this stream, for example an outbound one
    #[arg(long, value_parser = parse_text, conflicts_with = "producer")]
    stream: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// The examples of `explain`.
pub const EXAMPLES: &str = "\
Examples:
  notification explain 1775121700000-0                                 what XADD returned, or the id of an outbound entry
  notification explain 1775121700447-0 --stream gateway:client-events  an entry of this stream only
  notification explain game-123:turn-54 --producer game_master         an idempotency key
  notification explain 0197a2c4-7f00-7000-8000-0123456789ab            what POST /v1/intents returned, or an event of an outbox
  notification explain 1775121700000-0/push:user:u-1                   an event_id or a delivery_id
  notification explain 4bf92f3577b34da6a3ce929d0e0e4736                a request id or a trace id
  notification explain game-123:turn-54 --json | jq -r '.found[].outcome'

The outcome of an intent is accepted, duplicate, conflict, malformed or unread. An entry of an outbound stream is published, and the request of
an operator is change. Where nothing shows an outcome, it is forgotten, trimmed, deleted, stream_unavailable or unknown, with the places that were
searched. Without --producer and --stream an id is looked for as all that it may be, and everything found is listed. Request ids and trace ids are
looked for last, among the newest 100,000 notifications and the newest actions of operators. The exit code is 1 if nothing was found. --json prints
what GET /v1/find returns. Entries are read by the catalogue of this environment (NOTIFICATION_CATALOG_PATH).";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: ExplainArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, false);
    let config: FindConfig = load(vars)?;
    let redis = open_redis(&config.redis)?;
    let tables = Tables::open(config.tables).await?;
    let now = tables.explained(tables.queries.now().await)?;
    let (queries, leader) = (tables.queries.clone(), tables.leader()?);
    let stream = &tables.config.intents_stream;
    let search = wiring::search(queries, &redis, stream, &config.outbound, leader, config.catalog);
    let query = FindQuery { name: args.name, producer: args.producer, stream: args.stream };
    let matches = tables.explained(search.find(&query, now).await)?;
    if let Some(error) = &matches.stream_error {
        eprintln!("warning: Redis could not be asked: {}", printable(error));
    }
    match args.output.json {
        true => print_json(out, &matches)?,
        false => print_matches(out, style, &matches)?,
    }
    if matches.is_found() { Ok(()) } else { Err(Failure::Reported) }
}

fn print_matches(out: &mut impl Write, style: Style, matches: &Matches) -> anyhow::Result<()> {
    for one in &matches.found {
        let name = style.paint(one.tone, one.outcome);
        print_line(out, &format!("{name}: {}.", printable(&one.sentence)))?;
        if let Some(conflict) = &one.conflict {
            print_conflict(out, style, conflict)?;
        }
    }
    for notification in &matches.notifications {
        let id = printable(notification.notification_id.as_str());
        print_line(out, &format!("\n{}", style.strong(&format!("notification {id}"))))?;
        let meant = matches.routes_of(&notification.notification_id);
        let is_meant = |id: &str| meant.is_empty() || meant.contains(&id);
        let routes = notification.routes.iter().filter(|route| is_meant(&route.route_id));
        for route in routes.clone() {
            let sentence = printable(&route.explanation);
            print_line(out, &format!("  {}: {sentence}.", printable(&route.route_id)))?;
        }
        for route in routes {
            print_failed_attempts(out, style, route)?;
        }
    }
    print_line(out, &format!("\n{}", style.strong("searched")))?;
    matches.searched.iter().try_for_each(|place| print_line(out, &format!("  {}", printable(place))))
}
