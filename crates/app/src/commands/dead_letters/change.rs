//! `dead-letters replay` and `discard`: the plan, the confirmation, the change, and its report.

use std::io::{self, Write};

use anyhow::{Context, anyhow};
use domain::operations::{DeadLetterChange, OperatorAction, Selection};
use domain::ports::{Queries, error_chain};
use domain::query::Counted;
use serde_json::{Value, json};
use store_postgres::PgStore;
use workers::{BulkChange, BulkEnd, BulkReport};

use super::args::{DiscardArgs, ReplayArgs, SelectionArgs};
use super::plan::{Planned, Words, letters_are};
use super::with_filter;
use crate::commands::actor::request_id;
use crate::commands::operators::{CommandLine, Progress, StoreClock, Tables};
use crate::commands::output::{confirm, print_json, print_line};
use crate::commands::{Failure, Vars, load};
use crate::config::OperatorConfig;
use crate::shutdown;

pub(super) async fn replay(
    args: &ReplayArgs,
    vars: Vars,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    let actor = args.selection.actor.actor(&vars);
    let (tables, budgets) = load(vars)?;
    let words = Words { command: "replay", done: "replayed" };
    let change = DeadLetterChange::Replay(budgets);
    Command::open(tables, &args.selection, change, actor, words).await?.run(args.no_wait, out).await
}

pub(super) async fn discard(
    args: &DiscardArgs,
    vars: Vars,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    let actor = args.selection.actor.actor(&vars);
    let words = Words { command: "discard", done: "discarded" };
    Command::open(load(vars)?, &args.selection, args.change.clone(), actor, words)
        .await?
        .run(false, out)
        .await
}

struct Command<'a> {
    tables: Tables,
    store: PgStore,
    clock: StoreClock,
    args: &'a SelectionArgs,
    change: DeadLetterChange,
    action: OperatorAction,
    words: Words,
}

impl<'a> Command<'a> {
    async fn open(
        config: OperatorConfig,
        args: &'a SelectionArgs,
        change: DeadLetterChange,
        actor: String,
        words: Words,
    ) -> Result<Self, Failure> {
        let tables = Tables::open(config).await?;
        let store = tables.store()?;
        let now = tables.explained(tables.queries.now().await)?;
        let end = tables.explained(tables.queries.end_of_dead_letters(now).await)?;
        let (clock, selection) = (StoreClock::new(now), args.selection(now, end)?);
        let request_id = request_id();
        let action = OperatorAction { actor, request_id, idempotency_key: None, selection };
        Ok(Self { tables, store, clock, args, change, action, words })
    }

    async fn run(self, no_wait: bool, out: &mut (impl Write + Send)) -> Result<(), Failure> {
        let json = self.args.output.json;
        let planned = Planned::count(&self.store, &self.change, &self.action.selection).await;
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
            return Err(anyhow!("no dead letter was {}", self.words.done).into());
        }
        let stop = shutdown::listen().context("signals cannot be listened to")?;
        let progress = Progress::new("dead letters", planned.counted());
        let bulk = BulkChange {
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
        let letters_are = letters_are(Counted { count: changed, capped: false });
        print_line(out, &format!("{letters_are} {done}{}", request.unwrap_or_default()))?;
        if report.unchanged > 0 {
            let unchanged = report.unchanged;
            print_line(
                out,
                &format!("{unchanged} of the ids name a route that is no such dead letter (any more)"),
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
        result
    }

    fn outcome(&self, report: &BulkReport, end: BulkEnd, no_wait: bool) -> Result<(), Failure> {
        let (done, rest) = (self.words.done, self.rest(no_wait));
        let why = match end {
            BulkEnd::Finished if report.locked > 0 => format!(
                "{} not {done}: other transactions have locked them. When these are over, run\n  {rest}",
                letters_are(Counted { count: report.locked, capped: false })
            ),
            BulkEnd::Finished if !report.unknown.is_empty() => {
                format!("{} of the ids name no route", report.unknown.len())
            }
            BulkEnd::Finished
                if report.changed == 0 && matches!(self.action.selection, Selection::Ids(_)) =>
            {
                format!("none of the ids names such a dead letter, so none was {done}")
            }
            BulkEnd::Finished => return Ok(()),
            BulkEnd::Stopped => format!("stopped before the end. To continue, run\n  {rest}"),
            BulkEnd::Backlog => format!(
                "stopped before the end: many routes have been due for 5 minutes, so nothing publishes, or not fast enough. See \
                 `notification status`; to continue, run\n  {rest}\nwith --no-wait to replay however many are due"
            ),
            BulkEnd::Failed(error) => {
                return Err(anyhow!("{}. To continue, run\n  {rest}", error_chain(&error))
                    .context("stopped before the end: the tables cannot be used")
                    .into());
            }
        };
        Err(anyhow!(why).into())
    }

    /// The command that continues the change. Its filter still ends where this command began, so later dead
    /// letters are excluded.
    fn rest(&self, no_wait: bool) -> String {
        let line = CommandLine::new(&format!("notification dead-letters {}", self.words.command));
        let line = match &self.action.selection {
            Selection::Ids(ids) => line.options("--id", ids),
            Selection::Filter(filter) => with_filter(line, filter),
        };
        let reason = match &self.change {
            DeadLetterChange::Discard { reason } => Some(reason),
            DeadLetterChange::Replay(_) => None,
        };
        line.option("--reason", reason)
            .option("--as", self.args.actor.name())
            .flag("--no-wait", no_wait)
            .flag("--yes", self.args.yes)
            .flag("--json", self.args.output.json)
            .into_text()
    }
}
