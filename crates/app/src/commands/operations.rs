//! Changes of routes by commands: the plan, the confirmation, the change in chunks, and its report.

mod plan;

use std::io::{self, Write};

use anyhow::{Context, anyhow};
use clap::Args;
use domain::operations::{CHUNK_ROUTES, OperatorAction, RouteChange, RouteFilter, Selection};
use domain::ports::{Operations, error_chain};
use domain::query::{Counted, DeadLetterFilter};
use domain::route::Channel;
use serde_json::{Value, json};
use store_postgres::PgStore;
use workers::{BulkChange, BulkEnd, BulkReport};

use self::plan::Planned;
use super::Failure;
use super::actor::{ActorArgs, request_id};
use super::operators::{CommandLine, Output, Progress, StoreClock, Tables};
use super::output::{confirm, print_json, print_line};
use crate::shutdown;

/// How to carry out a change.
#[derive(Args, Debug, Clone)]
pub(super) struct ChangeArgs {
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,
    #[command(flatten)]
    pub(super) actor: ActorArgs,
    #[command(flatten)]
    pub(super) output: Output,
}

/// The words for a change in messages.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// The words of the command after `notification`.
    pub(super) command: &'static str,
    /// The verb, capitalised.
    pub(super) verb: &'static str,
    /// The participle for routes after the change, which is the name of their number in documents.
    pub(super) done: &'static str,
    /// One route in the state that the change needs, and several.
    pub(super) nouns: [&'static str; 2],
    /// The headings of the property by which the plan counts, and of the count.
    pub(super) headings: [&'static str; 2],
}

impl Words {
    /// A count of routes with its noun.
    fn counted(&self, count: Counted) -> String {
        format!("{count} {}", self.nouns[usize::from(!is_one(count))])
    }

    /// A count of routes as the subject of a sentence, with its verb.
    fn counted_are(&self, count: Counted) -> String {
        format!("{} {}", self.counted(count), if is_one(count) { "is" } else { "are" })
    }
}

fn is_one(count: Counted) -> bool {
    count == Counted { count: 1, capped: false }
}

/// Adds the command-line options that are equivalent to `filter`.
pub(super) fn with_filter(line: CommandLine, filter: &DeadLetterFilter) -> CommandLine {
    line.option("--channel", filter.channel.map(Channel::as_str))
        .option("--classification", filter.classification.as_ref())
        .option("--type", filter.notification_type.as_ref())
        .option("--since", filter.created_after)
        .option("--until", filter.created_before)
}

fn with_route_filter(line: CommandLine, filter: &RouteFilter) -> CommandLine {
    line.option("--notification", filter.notification_id.as_ref().map(|id| id.as_str()))
        .option("--channel", filter.channel.map(Channel::as_str))
        .option("--type", filter.notification_type.as_ref())
        .option("--producer", filter.producer.as_ref())
        .option("--recipient", filter.recipient.as_ref())
        .option("--since", filter.since)
        .option("--until", filter.until)
}

/// A change of routes by a command.
pub(super) struct Command<'a, O> {
    pub(super) tables: Tables,
    /// Selects and changes the routes.
    pub(super) operations: O,
    pub(super) store: PgStore,
    pub(super) clock: StoreClock,
    pub(super) args: &'a ChangeArgs,
    pub(super) change: RouteChange,
    pub(super) action: OperatorAction,
    pub(super) words: Words,
}

/// The operator and the selection of a command, for `operator_actions`.
pub(super) fn action(actor: String, selection: Selection) -> OperatorAction {
    OperatorAction { actor, request_id: request_id(), idempotency_key: None, selection }
}

impl<O: Operations + Clone> Command<'_, O> {
    /// Runs the change. With `no_wait`, it does not wait while many routes are due.
    pub(super) async fn run(self, no_wait: bool, out: &mut (impl Write + Send)) -> Result<(), Failure> {
        let json = self.args.output.json;
        let planned = Planned::count(&self.operations, &self.change, &self.action.selection).await;
        let planned = self.tables.explained(planned)?;
        if self.args.dry_run {
            match json {
                true => print_json(out, &planned.document()?)?,
                false => planned.print(out, self.words, true)?,
            }
            return Ok(());
        }
        // With --json, standard output contains one document, the result. The plan goes to standard error.
        match json {
            true => planned.print(&mut io::stderr(), self.words, false)?,
            false => planned.print(out, self.words, false)?,
        }
        let Some(question) = planned.question(self.words) else {
            return self.change_nothing(&planned, no_wait, out);
        };
        if !self.args.yes && !confirm(&question)? {
            return Err(anyhow!("no {} was {}", self.words.nouns[0], self.words.done).into());
        }
        let stop = shutdown::listen().context("signals cannot be listened to")?;
        if planned.counted() > CHUNK_ROUTES as u64 {
            // A process that is killed cannot say it.
            eprintln!("if this is interrupted, continue with\n  {}", self.rest(no_wait));
        }
        let progress = Progress::new(self.words.nouns[1], planned.counted());
        let bulk = BulkChange {
            operations: self.operations.clone(),
            store: self.store.clone(),
            clock: self.clock,
            change: self.change.clone(),
            action: self.action.clone(),
            wait_for_publishers: !no_wait,
        };
        let show = |report: &BulkReport| {
            let note = if report.waiting { ", waiting for publishers" } else { "" };
            progress.show_with(report.changed, note);
        };
        let (report, end) = bulk.run(&stop, show).await;
        progress.finish();
        self.print_report(out, &report, &end)?;
        self.outcome(&report, end, no_wait)
    }

    /// Reports an empty result without confirmation: there is nothing to change, so nothing is written.
    fn change_nothing(&self, planned: &Planned, no_wait: bool, out: &mut impl Write) -> Result<(), Failure> {
        let (unknown, unchanged) = planned.missed();
        let report = BulkReport { unknown: unknown.to_vec(), unchanged, ..BulkReport::default() };
        if self.args.output.json {
            print_json(out, &self.result(&report, &BulkEnd::Finished))?;
        }
        self.outcome(&report, BulkEnd::Finished, no_wait)
    }

    fn print_report(&self, out: &mut impl Write, report: &BulkReport, end: &BulkEnd) -> anyhow::Result<()> {
        if self.args.output.json {
            return print_json(out, &self.result(report, end));
        }
        let (changed, done) = (report.changed, self.words.done);
        let request = self.request_id(report).map(|id| format!(" (request {id} in operator_actions)"));
        let routes_are = self.words.counted_are(Counted { count: changed, capped: false });
        print_line(out, &format!("{routes_are} {done}{}", request.unwrap_or_default()))?;
        if report.published > 0 {
            let published = report.published;
            print_line(
                out,
                &format!("{published} are published: their entries were in the outbound streams"),
            )?;
        }
        if report.unchanged > 0 {
            let (unchanged, noun) = (report.unchanged, self.words.nouns[0]);
            print_line(
                out,
                &format!("{unchanged} of the ids name a route that is no such {noun} (any more)"),
            )?;
        }
        if report.conflicts > 0 {
            let conflicts = report.conflicts;
            print_line(out, &format!("{conflicts} were changed or deleted by someone else meanwhile"))?;
        }
        Ok(())
    }

    /// The request id, if a row of `operator_actions` has it.
    fn request_id(&self, report: &BulkReport) -> Option<&str> {
        (report.changed > 0).then_some(&*self.action.request_id)
    }

    fn result(&self, report: &BulkReport, end: &BulkEnd) -> Value {
        let mut result = json!({
            "request_id": self.request_id(report),
            "unknown": report.unknown,
            "unchanged": report.unchanged,
            "conflicts": report.conflicts,
            "locked": report.locked,
            "finished": matches!(end, BulkEnd::Finished),
        });
        result[self.words.done] = json!(report.changed);
        if matches!(self.change, RouteChange::Cancel { .. }) {
            result["published"] = json!(report.published);
        }
        result
    }

    fn outcome(&self, report: &BulkReport, end: BulkEnd, no_wait: bool) -> Result<(), Failure> {
        let (done, rest) = (self.words.done, self.rest(no_wait));
        let why = match end {
            BulkEnd::Finished if report.locked > 0 => format!(
                "{} not {done}: other transactions have locked them{}. When these are over, run\n  {rest}",
                self.words.counted_are(Counted { count: report.locked, capped: false }),
                match self.change {
                    RouteChange::Cancel { .. } => ", or publishers have leased them",
                    RouteChange::Replay(_) | RouteChange::Discard { .. } | RouteChange::Resend { .. } => "",
                }
            ),
            BulkEnd::Finished if !report.unknown.is_empty() => {
                format!("{} of the ids name no route", report.unknown.len())
            }
            BulkEnd::Finished
                if report.changed == 0
                    && report.published == 0
                    && matches!(self.action.selection, Selection::Ids(_)) =>
            {
                format!("none of the ids names such a {}, so none was {done}", self.words.nouns[0])
            }
            BulkEnd::Finished => return Ok(()),
            BulkEnd::Stopped => format!("stopped before the end. To continue, run\n  {rest}"),
            BulkEnd::Backlog => format!(
                "stopped before the end: many routes have been due for 5 minutes, so nothing publishes, or not fast enough. See \
                 `notification status`; to continue, run\n  {rest}\nwith --no-wait to go on however many are due"
            ),
            BulkEnd::Failed(error) => {
                return Err(anyhow!("{}. To continue, run\n  {rest}", error_chain(&error))
                    .context("stopped before the end: the tables or Redis cannot be used")
                    .into());
            }
        };
        Err(anyhow!(why).into())
    }

    /// The command that continues the change. Its filter still ends where this command began, so later dead
    /// letters are excluded.
    fn rest(&self, no_wait: bool) -> String {
        let line = CommandLine::new(&format!("notification {}", self.words.command));
        let line = match &self.action.selection {
            Selection::Ids(ids) => line.options("--id", ids),
            Selection::DeadLetters(filter) => with_filter(line, filter),
            Selection::Routes(filter) => with_route_filter(line, filter),
        };
        line.option("--reason", self.change.reason())
            .option("--as", self.args.actor.name())
            .flag("--no-wait", no_wait)
            .flag("--yes", self.args.yes)
            .flag("--json", self.args.output.json)
            .into_text()
    }
}
