//! `hold`, `release` and `holds list`: what operators keep from being published (ADR 0058).

use std::io::{self, Write};

use ambient::Timestamp;
use anyhow::anyhow;
use clap::{ArgGroup, Args, Subcommand};
use domain::document::{Age, Counted};
use domain::hold::{Hold, HoldActor, HoldChange, HoldKey, HoldPlan, HoldScope, checked_reason};
use domain::ports::{HoldChanges, HoldStore};
use serde_json::json;

use super::actor::request_id;
use super::operations::ChangeArgs;
use super::operators::{
    Cell, Column, CommandLine, Style, TableOutput, Tables, Tone, parse_text, print_rows, table,
};
use super::output::{confirm, print_json, print_line, printable};
use super::{Failure, Vars};

/// The channel, type or producer to hold or release.
#[derive(Args, Debug, Clone)]
#[command(group = ArgGroup::new("what").required(true).args(["channel", "notification_type", "producer"]))]
struct KeyArgs {
    /// All routes of this channel, push or email
    #[arg(long, value_name = "CHANNEL", value_parser = parse_text)]
    channel: Option<String>,
    /// All routes of notifications of this type
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_text)]
    notification_type: Option<String>,
    /// All routes of notifications of this producer
    #[arg(long, value_name = "NAME", value_parser = parse_text)]
    producer: Option<String>,
}

impl KeyArgs {
    fn key(&self) -> Result<HoldKey, Failure> {
        let all = [
            (HoldScope::Channel, &self.channel),
            (HoldScope::Type, &self.notification_type),
            (HoldScope::Producer, &self.producer),
        ];
        let given = all.into_iter().find_map(|(scope, name)| Some((scope, name.clone()?)));
        // clap requires one of them.
        let (scope, name) = given.ok_or_else(|| Failure::Usage("error: nothing is named".to_owned()))?;
        HoldKey::new(scope, name).map_err(|error| Failure::Usage(format!("error: {error}")))
    }
}

/// The hold to make.
#[derive(Args, Debug)]
pub struct HoldArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// The reason, for those who find the hold
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
    #[command(flatten)]
    change: ChangeArgs,
}

/// The hold to release.
#[derive(Args, Debug)]
pub struct ReleaseArgs {
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

/// How to list holds.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    output: TableOutput,
}

/// A subcommand of `holds`.
#[derive(Subcommand, Debug)]
pub enum HoldsCommand {
    /// List them, the oldest first, with the number of routes that each keeps
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
}

pub(super) fn parse_reason(text: &str) -> Result<String, String> {
    checked_reason(text.to_owned()).map_err(|error| error.to_string())
}

/// The examples of `hold`.
pub const HOLD_EXAMPLES: &str = "\
Examples:
  notification hold --producer game_master --reason 'sends every turn twice'
  notification hold --type game.turn.ready --reason 'wrong template' --dry-run
  notification hold --channel email --reason 'the mail service is being moved' --yes

Intents are accepted as ever. Live routes that are selected are not published and count no attempt, on every replica within 2 s, until
`notification release`. Entries that are in the outbound streams already are not called back.";

/// The examples of `release`.
pub const RELEASE_EXAMPLES: &str = "\
Examples:
  notification release --producer game_master
  notification release --channel email --yes

The routes that were due first go first, beside the other traffic. The command does not wait for them: `notification holds list` shows how
many are left.";

/// The examples of `holds`.
pub const EXAMPLES: &str = "\
Examples:
  notification holds list
  notification hold --channel email --reason 'the mail service is being moved'
  notification release --channel email";

const LIST_EXAMPLES: &str = "\
Examples:
  notification holds list
  notification holds list --json | jq -r '.holds[] | .scope, .name'

A route counts once a publisher has found it due.";

/// Runs `hold` with these variables, and prints to `out`.
pub async fn hold(args: HoldArgs, vars: Vars, out: &mut (impl Write + Send)) -> Result<(), Failure> {
    change(&args.key, HoldChange::Hold { reason: args.reason }, args.change, vars, out).await
}

/// Runs `release` with these variables, and prints to `out`.
pub async fn release(args: ReleaseArgs, vars: Vars, out: &mut (impl Write + Send)) -> Result<(), Failure> {
    change(&args.key, HoldChange::Release, args.change, vars, out).await
}

/// Runs a subcommand of `holds` with these variables, and prints to `out`.
pub async fn run(command: HoldsCommand, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let HoldsCommand::List(ListArgs { output }) = command;
    let style = Style::of_stdout(&vars, output.wide);
    let tables = Tables::load(vars).await?;
    let list = tables.explained(tables.store()?.list_holds().await)?;
    if output.json {
        return Ok(print_json(out, &json!({ "holds": list }))?);
    }
    if list.is_empty() {
        return Ok(print_line(out, "nothing is held")?);
    }
    let now = tables.explained(tables.queries.now().await)?;
    Ok(print_rows(out, style, &holds(style, &list, now))?)
}

/// The rows of holds at `now`.
pub(super) fn holds(style: Style, holds: &[Hold], now: Timestamp) -> Vec<Vec<Cell>> {
    let row = |hold: &Hold| {
        let state = match hold.released_at {
            None => Cell::new(format!("held for {}", Age::between(hold.since, now)), Tone::Warning),
            Some(at) => Cell::new(format!("released {} ago", Age::between(at, now)), Tone::Busy),
        };
        [
            hold.key.scope.as_str().into(),
            printable(&hold.key.name).into(),
            hold.routes.to_string().into(),
            state,
            printable(&hold.actor).into(),
            printable(&hold.reason).into(),
        ]
    };
    let columns = [
        Column::new("SCOPE", 0),
        Column::new("NAME", 1),
        Column::new("ROUTES", 2),
        Column::new("STATE", 3),
        Column::new("BY", 5),
        Column::new("REASON", 4).at_least(16),
    ];
    table(style, columns, holds.iter().map(row))
}

async fn change(
    key: &KeyArgs,
    change: HoldChange,
    args: ChangeArgs,
    vars: Vars,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    let (key, actor) = (key.key()?, args.actor.actor(&vars));
    let tables = Tables::load(vars).await?;
    let store = tables.store()?;
    let plan = tables.explained(store.plan_hold(&key, &change).await)?;
    let json = args.output.json;
    if args.dry_run {
        if json {
            print_json(out, &plan)?;
        } else {
            print_plan(out, &key, &change, &plan)?;
        }
        return Ok(());
    }
    // With --json, standard output contains one document, the result. The plan goes to standard error.
    if json {
        print_plan(&mut io::stderr(), &key, &change, &plan)?;
    } else {
        print_plan(out, &key, &change, &plan)?;
    }
    let is_held = plan.hold.is_some_and(|hold| hold.released_at.is_none());
    if is_held == matches!(change, HoldChange::Release) {
        let question = match change {
            HoldChange::Hold { .. } => format!("Hold the {}?", printable(&key.to_string())),
            HoldChange::Release => format!("Release the {}?", printable(&key.to_string())),
        };
        if !args.yes && !confirm(&question)? {
            return Err(anyhow!("nothing was changed").into());
        }
    }
    let request_id = request_id();
    let by = HoldActor { name: &actor, request_id: &request_id, idempotency_key: None };
    let changed = tables.explained(store.change_hold(&key, &change, by).await)?;
    let request_id = changed.then_some(&request_id);
    if json {
        return Ok(print_json(out, &json!({ "changed": changed, "request_id": request_id }))?);
    }
    let name = printable(&key.to_string());
    let line = match (&change, request_id) {
        (HoldChange::Hold { .. }, Some(id)) => {
            let release = CommandLine::new("notification release").option(option(key.scope), Some(&key.name));
            format!(
                "the {name} is held (request {id} in operator_actions); to release it, run\n  {}",
                release.into_text()
            )
        }
        (HoldChange::Release, Some(id)) => {
            format!("the {name} is released (request {id} in operator_actions)")
        }
        (HoldChange::Hold { .. }, None) => format!("the {name} is held already"),
        (HoldChange::Release, None) => format!("the {name} is not held"),
    };
    Ok(print_line(out, &line)?)
}

fn option(scope: HoldScope) -> &'static str {
    match scope {
        HoldScope::Channel => "--channel",
        HoldScope::Type => "--type",
        HoldScope::Producer => "--producer",
    }
}

fn counted(count: Counted, noun: &str) -> String {
    let end = if count.count == 1 && !count.capped { "" } else { "s" };
    format!("{count} {noun}{end}")
}

fn print_plan(
    out: &mut impl Write,
    key: &HoldKey,
    change: &HoldChange,
    plan: &HoldPlan,
) -> anyhow::Result<()> {
    let (name, routes) = (printable(&key.to_string()), plan.routes);
    let line = match (change, &plan.hold) {
        (_, Some(hold)) if hold.released_at.is_none() => format!(
            "the {name} has been held since {} by {} ({}) and keeps {}",
            hold.since,
            printable(&hold.actor),
            printable(&hold.reason),
            counted(routes, "route")
        ),
        (HoldChange::Hold { .. }, _) if routes.is_zero() => {
            format!("no live route is of the {name} at present: check that the name is right")
        }
        (HoldChange::Hold { .. }, _) => {
            format!("the {name} has {} at present", counted(routes, "live route"))
        }
        (HoldChange::Release, Some(_)) => {
            format!("the {name} is released already; {} left", counted(routes, "route"))
        }
        (HoldChange::Release, None) => format!("the {name} is not held"),
    };
    print_line(out, &line)?;
    for key in &plan.first {
        print_line(out, &format!("  {}", printable(&key.to_string())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_shown_with_its_age_and_what_it_keeps() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000).expect("in range");
        let hold = Hold {
            key: HoldKey::new(HoldScope::Producer, "game_master".to_owned()).expect("a key"),
            since: at(0),
            actor: "ada@ops-1".to_owned(),
            reason: "sends\u{1b}[2J twice".to_owned(),
            released_at: None,
            routes: Counted { count: 12, capped: false },
        };
        let released = Hold { released_at: Some(at(90)), ..hold.clone() };
        let mut out = Vec::new();
        print_rows(&mut out, Style::PLAIN, &holds(Style::PLAIN, &[hold, released], at(100)))
            .expect("memory takes it");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "producer  game_master  12      held for 1 min 40 s  ada@ops-1  sends\\u{1b}[2J twice"
        );
        assert_eq!(
            lines[2],
            "producer  game_master  12      released 10 s ago    ada@ops-1  sends\\u{1b}[2J twice"
        );
    }
}
