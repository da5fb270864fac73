//! `explain`: shows the outcome of an intent, given any of its ids.

mod trail;

use std::io::Write;

use ambient::Timestamp;
use clap::Args;
use domain::explanation::intent::{Fate, Reading, readings};
use domain::ports::Queries;
use domain::query::{MalformedSummary, Notification};
use domain::route::RouteKey;
use serde::Serialize;

use self::trail::Trail;
use super::operators::{Output, Style, Tables, Tone, parse_text};
use super::output::{print_json, print_line, printable};
use super::show::print_failed_attempts;
use super::{Failure, Vars};

/// The most notifications whose routes are explained as well.
const SHOWN_NOTIFICATIONS: usize = 3;

/// The intent to explain.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// The id of a stream entry or of a notification, an idempotency key, an event_id or a delivery_id
    #[arg(value_parser = parse_text)]
    name: String,
    /// The name is an idempotency key of this producer
    #[arg(long, value_parser = parse_text)]
    producer: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// The examples of `explain`.
pub const EXAMPLES: &str = "\
Examples:
  notification explain 1775121700000-0                                 what XADD answered
  notification explain game-123:turn-54 --producer game_master         an idempotency key
  notification explain 0197a2c4-7f00-7000-8000-0123456789ab            what POST /v1/intents answered, or an event of an outbox
  notification explain 1775121700000-0/push:user:u-1                   an event_id or a delivery_id
  notification explain game-123:turn-54 --json | jq -r '.found[].outcome'

The outcome of an intent is accepted, duplicate, conflict, malformed or unread; where nothing tells it, forgotten, trimmed, deleted,
stream_unavailable or unknown, with what was searched. Without --producer a name is looked for as all that it may be. The exit code
is 1 if the intent was not found. --json prints `name`, `found` (`outcome`, `sentence`, `notification_id`, `malformed_intent`), `searched` and
`notifications`, as GET /v1/notifications/<id> answers each. Entries are read by the catalogue of this environment (NOTIFICATION_CATALOG_PATH).";

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    found: Vec<Found<'a>>,
    searched: &'a [String],
    notifications: &'a [Notification],
}

/// The outcome of one intent.
#[derive(Serialize)]
struct Found<'a> {
    outcome: &'static str,
    sentence: String,
    notification_id: Option<&'a str>,
    malformed_intent: Option<&'a MalformedSummary>,
}

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: ExplainArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, false);
    let (tables, redis, catalog) = Tables::load_with_catalog(vars).await?;
    let now = tables.explained(tables.queries.now().await)?;
    let mut trail = Trail::begin(&tables, &redis, catalog, now).await?;
    let (mut fates, mut route) = (Vec::new(), None);
    for reading in readings(&args.name, args.producer.is_some()) {
        let found = trail.follow(&reading, args.producer.as_deref()).await?;
        let is_found = found.iter().any(Fate::is_found);
        fates.extend(found);
        if is_found {
            route = if let Reading::Route(key) = reading { Some(key) } else { None };
            break;
        }
    }
    let is_found = fates.iter().any(Fate::is_found);
    fates.retain(|fate| fate.is_found() || !is_found);
    if fates.is_empty() {
        fates.push(Fate::Unknown { name: args.name.clone() });
    }
    let details = details(&tables, &fates, now).await?;
    if let Some(error) = trail.stream_error() {
        eprintln!("warning: Redis could not be asked: {}", printable(error));
    }
    match args.output.json {
        true => print_json(out, &document(&args.name, &fates, &trail, &details, now))?,
        false => print_fates(out, style, &fates, &trail, &details, route.as_ref(), now)?,
    }
    if is_found { Ok(()) } else { Err(Failure::Reported) }
}

/// The notifications that the fates refer to.
async fn details(tables: &Tables, fates: &[Fate], now: Timestamp) -> Result<Vec<Notification>, Failure> {
    let mut details: Vec<Notification> = Vec::new();
    for id in fates.iter().filter_map(Fate::notification) {
        let is_known = details.iter().any(|found| found.notification_id == *id);
        if !is_known && details.len() < SHOWN_NOTIFICATIONS {
            let found = tables.explained(tables.queries.get_notification(id).await)?;
            details.extend(found.map(|found| found.explained(now)));
        }
    }
    Ok(details)
}

fn document<'a>(
    name: &'a str,
    fates: &'a [Fate],
    trail: &'a Trail<'_>,
    details: &'a [Notification],
    now: Timestamp,
) -> Document<'a> {
    let found = |fate: &'a Fate| Found {
        outcome: fate.name(),
        sentence: fate.sentence(now),
        notification_id: fate.notification().map(|id| id.as_str()),
        malformed_intent: fate.malformed(),
    };
    Document {
        name,
        found: fates.iter().map(found).collect(),
        searched: trail.searched(),
        notifications: details,
    }
}

fn print_fates(
    out: &mut impl Write,
    style: Style,
    fates: &[Fate],
    trail: &Trail<'_>,
    details: &[Notification],
    route: Option<&RouteKey>,
    now: Timestamp,
) -> anyhow::Result<()> {
    for fate in fates {
        let name = style.paint(tone(fate), fate.name());
        print_line(out, &format!("{name}: {}.", printable(&fate.sentence(now))))?;
    }
    for detail in details {
        let id = printable(detail.notification_id.as_str());
        print_line(out, &format!("\n{}", style.strong(&format!("notification {id}"))))?;
        let routes = detail.routes.iter().filter(|one| route.is_none_or(|key| detail.key_of(one) == *key));
        for route in routes.clone() {
            let sentence = printable(&route.explanation);
            print_line(out, &format!("  {}: {sentence}.", printable(&route.route_id)))?;
        }
        for route in routes {
            print_failed_attempts(out, style, route)?;
        }
    }
    print_line(out, &format!("\n{}", style.strong("searched")))?;
    trail.searched().iter().try_for_each(|place| print_line(out, &format!("  {}", printable(place))))
}

fn tone(fate: &Fate) -> Tone {
    match fate {
        Fate::Accepted { .. } | Fate::Duplicate { .. } => Tone::Good,
        Fate::Unread { .. } | Fate::Forgotten { .. } => Tone::Warning,
        Fate::Conflict { .. }
        | Fate::Malformed(_)
        | Fate::Absent { .. }
        | Fate::NoRoute(_)
        | Fate::Unknown { .. } => Tone::Bad,
    }
}
