//! `cancel`: live routes that must not be published; `resend`: published routes that are sent again (ADR
//! 0059).

use std::io::Write;

use ambient::Timestamp;
use clap::{ArgGroup, Args};
use domain::operations::{
    Budgets, Changeable, MAX_REASON_BYTES, MAX_ROUTES_PER_REQUEST, RouteChange, RouteFilter, Selection,
};
use domain::ports::{Operations, Queries};
use domain::record::NotificationId;
use domain::route::Channel;
use workers::LeaseTimes;

use super::dead_letters::channel_parser;
use super::operations::{ChangeArgs, Command, Words, action};
use super::operators::{StoreClock, Tables, TimeRange, open_redis, parse_text};
use super::{Failure, Vars, load};
use crate::config::{OperatorConfig, Outbound, Redis};
use crate::wiring::{keyspace, leased_changes};

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

/// The routes to send again.
#[derive(Args, Debug)]
pub struct ResendArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    /// The reason, which the routes keep
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = parse_optional_reason)]
    reason: String,
    /// Send again at once, however many routes are due
    #[arg(long)]
    no_wait: bool,
}

fn parse_optional_reason(text: &str) -> Result<String, String> {
    let no_budgets = Budgets { push: 0, email: 0 };
    let change = RouteChange::resend(no_budgets, text.to_owned());
    change.map(|_| text.to_owned()).ok_or_else(|| format!("it takes at most {MAX_REASON_BYTES} bytes"))
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
alone. Ctrl-C ends it after the transaction in progress; the command that continues is printed then, and before a change of more than
500 routes, for the case of a crash. It needs the service's own environment: PostgreSQL, Redis, and the same NOTIFICATION_ROUTE_LEASE_TTL
and NOTIFICATION_PUBLISH_DEDUPE_TTL.

--json prints one document: `cancelled`, `published`, `unknown` (ids that name no route), `unchanged` (how many name no live route),
`conflicts`, `locked`, `finished`, and `request_id`, null if nothing was changed; with --dry-run the plan as POST /v1/routes:cancel answers
it. The exit code is 1 if it did not finish, an id names no route, some stayed locked, or none of the ids named a live route.";

/// The examples of `resend`.
pub const RESEND_EXAMPLES: &str = "\
Examples:
  notification resend --channel email --since 2026-04-02T09:00:00Z --until 2026-04-02T11:50:00Z --reason 'the mail service lost them' --dry-run
  notification resend --recipient u-1 --since 1d
  notification resend --notification 1775121700000-0 --yes
  notification resend --id 1775121700000-0/push:user:u-1

Published routes are appended to their outbound stream again, under the same event_id or delivery_id and with the next number of attempt:
consumers that have processed them drop them. --since and --until are times of publication; a route that was published more than a day
after its acceptance is selected by --notification or --id.

It shows the plan and asks, then works in transactions of 500, each with a row in operator_actions. What is published after it began is
left alone. It adds routes only while fewer than 1,000 are due, so that new notifications do not wait behind it, and ends if the publishers
leave as many for 5 minutes; --no-wait sends at once. Ctrl-C ends it after the transaction in progress; the command that continues is
printed then, and before a change of more than 500 routes, for the case of a crash. The routes have a new budget of
NOTIFICATION_PUSH_MAX_ATTEMPTS or NOTIFICATION_EMAIL_MAX_ATTEMPTS attempts, and are held, cancelled or dead letters like any other.

--json prints one document: `resent`, `unknown` (ids that name no route), `unchanged` (how many name no published route), `conflicts`,
`locked`, `finished`, and `request_id`, null if nothing was changed; with --dry-run the plan as POST /v1/routes:resend answers it. The exit
code is 1 if it did not finish, an id names no route, some stayed locked, or none of the ids named a published route.";

const RESEND_WORDS: Words = Words {
    command: "resend",
    verb: "Resend",
    done: "resent",
    nouns: ["published route", "published routes"],
    headings: ["TYPE", "ROUTES"],
};

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
    let (config, (redis, (outbound, times))): (OperatorConfig, (Redis, (Outbound, LeaseTimes))) = load(vars)?;
    let client = open_redis(&redis)?;
    let keyspace = keyspace(&config.intents_stream, &outbound, times.dedupe_ttl);
    let tables = Tables::open(config).await?;
    let operations = leased_changes(&tables.store()?, &client, &keyspace, times);
    let words = CANCEL_WORDS;
    command(tables, operations, &selection, actor, (change, words)).await?.run(false, out).await
}

/// Runs `resend` with these variables, and prints to `out`.
pub async fn resend(args: ResendArgs, vars: Vars, out: &mut (impl Write + Send)) -> Result<(), Failure> {
    let ResendArgs { selection, reason, no_wait } = args;
    let actor = selection.change.actor.actor(&vars);
    let (config, budgets): (OperatorConfig, Budgets) = load(vars)?;
    let tables = Tables::open(config).await?;
    let operations = tables.store()?;
    let change = RouteChange::Resend { budgets, reason };
    let command = command(tables, operations, &selection, actor, (change, RESEND_WORDS)).await?;
    command.run(no_wait, out).await
}

async fn command<O: Operations + Clone>(
    tables: Tables,
    operations: O,
    selection: &SelectionArgs,
    actor: String,
    (change, words): (RouteChange, Words),
) -> Result<Command<'_, O>, Failure> {
    let store = tables.store()?;
    let now = tables.explained(tables.queries.now().await)?;
    let end = match change.changes() {
        // Replicas write the times of acceptance by their own clocks.
        Changeable::Live => tables.explained(tables.queries.end_of_notifications(now).await)?,
        Changeable::Published | Changeable::DeadLetters => now,
    };
    let action = action(actor, selection.selection(now, end)?);
    let (clock, args) = (StoreClock::new(now), &selection.change);
    Ok(Command { tables, operations, store, clock, args, change, action, words })
}
