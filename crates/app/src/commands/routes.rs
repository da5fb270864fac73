//! `cancel`: live routes that must not be published (ADR 0059).

use std::io::Write;

use ambient::Timestamp;
use clap::{ArgGroup, Args};
use domain::operations::{MAX_REASON_BYTES, MAX_ROUTES_PER_REQUEST, RouteChange, RouteFilter, Selection};
use domain::ports::Queries;
use domain::record::NotificationId;
use domain::route::Channel;
use workers::LeaseTimes;

use super::changes::{ChangeArgs, Command, Words, action};
use super::dead_letters::channel_parser;
use super::operators::{StoreClock, Tables, TimeRange, open_redis, parse_text};
use super::{Failure, Vars, load};
use crate::config::{OperatorConfig, Redis};
use crate::wiring::leased_changes;

/// The routes to change.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["ids", "notification", "channel", "notification_type", "producer", "recipient", "since", "until"]))]
struct SelectionArgs {
    /// This one, `<notification_id>/<route_id>`; may be given up to 10,000 times
    #[arg(long = "id", value_name = "ID", value_parser = parse_text, conflicts_with_all = ["notification", "channel", "notification_type", "producer", "recipient", "since", "until"])]
    ids: Vec<String>,
    /// Those of this notification
    #[arg(long, value_name = "ID", value_parser = parse_text)]
    notification: Option<String>,
    /// Only this channel
    #[arg(long, value_parser = channel_parser())]
    channel: Option<Channel>,
    /// Of notifications of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_text)]
    notification_type: Option<String>,
    /// Of notifications of this producer
    #[arg(long, value_name = "NAME", value_parser = parse_text)]
    producer: Option<String>,
    /// Of one recipient, by user id or administrator's address
    #[arg(long, value_parser = parse_text)]
    recipient: Option<String>,
    #[command(flatten)]
    times: TimeRange,
    #[command(flatten)]
    change: ChangeArgs,
}

impl SelectionArgs {
    /// Builds the selection for a command that begins at `now`, without routes from `end` on.
    fn selection(&self, now: Timestamp, end: Timestamp) -> Result<Selection, Failure> {
        if self.ids.len() > MAX_ROUTES_PER_REQUEST {
            let problem = format!("error: --id may be given {MAX_ROUTES_PER_REQUEST} times");
            return Err(Failure::Usage(problem));
        }
        if !self.ids.is_empty() {
            return Ok(Selection::Ids(self.ids.clone()));
        }
        let (since, until) = self.times.at(now)?;
        Ok(Selection::Routes(RouteFilter {
            notification_id: self.notification.clone().map(NotificationId::from),
            channel: self.channel,
            notification_type: self.notification_type.clone(),
            producer: self.producer.clone(),
            recipient: self.recipient.clone(),
            since,
            until: Some(until.map_or(end, |until| until.min(end))),
        }))
    }
}

/// The routes to cancel.
#[derive(Args, Debug)]
pub struct CancelArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    /// The reason, which the routes keep
    #[arg(long = "reason", value_name = "TEXT", value_parser = parse_reason)]
    change: RouteChange,
}

fn parse_reason(text: &str) -> Result<RouteChange, String> {
    RouteChange::cancel(text.to_owned()).ok_or_else(|| format!("it takes 1 to {MAX_REASON_BYTES} bytes"))
}

/// The examples of `cancel`.
pub const CANCEL_EXAMPLES: &str = "\
Examples:
  notification cancel --type game.turn.ready --since 2h --reason 'wrong template' --dry-run
  notification cancel --producer game_master --channel email --reason 'sends every turn twice'
  notification cancel --notification 1775121700000-0 --reason 'sent by mistake' --yes
  notification cancel --id 1775121700000-0/push:user:u-1 --reason 'the user has left'

Pending and failed routes, held or not, are skipped for good; --since and --until are times of acceptance. Hold first what must not go out
meanwhile (`notification hold`): a route that a publisher has taken is waited for, and then counted as published or cancelled, never both.
What is in the outbound streams belongs to their consumers.

It shows the plan and asks, then works in transactions of 500, each with a row in operator_actions. What is accepted after it began is left
alone. Ctrl-C ends it after the transaction in progress, and it says how to continue; after a crash, run it again. It needs the service's
own environment: PostgreSQL, Redis, and the same NOTIFICATION_ROUTE_LEASE_TTL and NOTIFICATION_PUBLISH_DEDUPE_TTL.

--json prints one document: `cancelled`, `published`, `unknown` (ids that name no route), `unchanged` (how many name no live route),
`conflicts`, `locked`, `finished`, and `request_id`, null if nothing was changed; with --dry-run the plan as POST /v1/routes:cancel answers
it. The exit code is 1 if it did not finish, an id names no route, some stayed locked, or none of the ids named a live route.";

const CANCEL_WORDS: Words = Words {
    command: "cancel",
    verb: "Cancel",
    done: "cancelled",
    nouns: ["live route", "live routes"],
    headings: ["TYPE", "ROUTES"],
};

/// Runs `cancel` with these variables, and prints to `out`.
pub async fn cancel(args: CancelArgs, vars: Vars, out: &mut (impl Write + Send)) -> Result<(), Failure> {
    let CancelArgs { selection, change } = args;
    let actor = selection.change.actor.actor(&vars);
    let (config, (redis, times)): (OperatorConfig, (Redis, LeaseTimes)) = load(vars)?;
    let client = open_redis(&redis)?;
    let stream = config.intents_stream.clone();
    let tables = Tables::open(config).await?;
    let store = tables.store()?;
    let operations = leased_changes(&store, &client, &stream, times);
    let now = tables.explained(tables.queries.now().await)?;
    let end = tables.explained(tables.queries.end_of_notifications(now).await)?;
    let action = action(actor, selection.selection(now, end)?);
    let (clock, args) = (StoreClock::new(now), &selection.change);
    let command = Command { tables, operations, store, clock, args, change, action, words: CANCEL_WORDS };
    command.run(false, out).await
}
