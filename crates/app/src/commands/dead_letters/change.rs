//! `dead-letters replay` and `discard`: the plan, the question, the work, and what was done.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, anyhow};
use domain::operations::{DeadLetterChange, OperatorAction, Plan, PlanCounter, Selection};
use domain::ports::{Operations, error_chain};
use domain::query::Counted;
use serde_json::{Value, json};
use store_postgres::PgStore;
use tokio::time::Instant;
use workers::{BulkChange, BulkEnd, BulkReport};

use super::args::{DiscardArgs, ReplayArgs, SelectionArgs};
use super::with_filter;
use crate::commands::actor::{actor, request_id};
use crate::commands::operators::{CommandLine, Progress, StoreClock, Tables};
use crate::commands::output::{confirm, print_json, print_line, print_table, printable};
use crate::commands::{Failure, Vars, print_warnings};
use crate::config::{Loaded, OperatorConfig, ReplayConfig};
use crate::shutdown;

/// How long dead letters are counted for the plan; what is beyond is there and not counted.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);
/// How many dead letters are counted together.
const PLAN_PAGE: usize = 1_000;

pub(super) async fn replay(
    args: &ReplayArgs,
    vars: Vars,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    let actor = actor(&vars);
    let Loaded { config: ReplayConfig { tables, budgets }, warnings, .. } = ReplayConfig::load(vars)?;
    print_warnings(&warnings);
    let words = Words { command: "replay", done: "replayed" };
    let change = DeadLetterChange::Replay(budgets);
    let command = Command::open(tables, &args.selection, change, actor, words).await?;
    command.run(!args.no_wait, out).await
}

pub(super) async fn discard(
    args: &DiscardArgs,
    vars: Vars,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    let actor = actor(&vars);
    let Loaded { config, warnings, .. } = OperatorConfig::load(vars)?;
    print_warnings(&warnings);
    let words = Words { command: "discard", done: "discarded" };
    let change = DeadLetterChange::Discard { reason: args.reason.clone() };
    Command::open(config, &args.selection, change, actor, words).await?.run(false, out).await
}

/// What a change is called.
#[derive(Clone, Copy)]
struct Words {
    command: &'static str,
    done: &'static str,
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
        let clock = StoreClock::new(tables.explained(tables.queries.now().await)?);
        let selection = args.selection(clock.begun())?;
        let request_id = request_id();
        let action = OperatorAction { actor, request_id, idempotency_key: None, selection };
        Ok(Self { tables, store, clock, args, change, action, words })
    }

    async fn run(self, wait_for_publishers: bool, out: &mut (impl Write + Send)) -> Result<(), Failure> {
        let json = self.args.output.json;
        let plan = self.tables.explained(self.plan().await)?;
        if self.args.dry_run {
            match json {
                true => print_json(out, &planned(&plan)?)?,
                false => self.print_plan(out, &plan)?,
            }
            return Ok(());
        }
        // With --json, standard output has one document: the result.
        match json {
            true => self.print_plan(&mut io::stderr(), &plan)?,
            false => self.print_plan(out, &plan)?,
        }
        if plan.count.count > 0 && !self.args.yes {
            let question =
                format!("{} {} dead letters?", capitalised(self.words.command), counted(plan.count));
            if !confirm(&question)? {
                return Err(anyhow!("no dead letter was {}", self.words.done).into());
            }
        }
        let stop = shutdown::listen().context("signals cannot be listened to")?;
        let progress = Progress::new("dead letters", plan.count.count);
        let bulk = BulkChange {
            store: self.store.clone(),
            clock: self.clock,
            change: self.change.clone(),
            action: self.action.clone(),
            wait_for_publishers,
        };
        let (report, end) = bulk.run(&stop, |report| progress.show(report.changed)).await;
        progress.finish();
        self.print_report(out, &report, &end)?;
        self.outcome(&report, end)
    }

    /// What would be changed. All of it is counted, if the time suffices.
    async fn plan(&self) -> Result<Plan, domain::ports::StoreError> {
        let filter = match &self.action.selection {
            selection @ Selection::Ids(_) => {
                return Ok(self.store.select_dead_letters(&self.change, selection).await?.plan());
            }
            Selection::Filter(filter) => filter,
        };
        let (begun, mut counter, mut after) = (Instant::now(), PlanCounter::default(), None);
        loop {
            let page = self.store.list_targets(filter, after.as_ref(), PLAN_PAGE).await?;
            counter.add(&page.items);
            after = page.next;
            if after.is_none() || begun.elapsed() > PLAN_TIMEOUT {
                let remaining = Counted { count: 0, capped: after.is_some() };
                return Ok(counter.plan(Vec::new(), remaining));
            }
        }
    }

    fn print_plan(&self, out: &mut impl Write, plan: &Plan) -> anyhow::Result<()> {
        for id in &plan.unknown {
            print_line(out, &format!("there is no route {}", printable(id)))?;
        }
        if plan.count.count == 0 {
            return print_line(out, "there is no such dead letter");
        }
        let heading = ["CHANNEL", "CAUSE", "DEAD LETTERS"].map(str::to_owned).to_vec();
        let row = |group: &domain::operations::PlanGroup| {
            vec![group.channel.as_str().to_owned(), printable(&group.classification), group.count.to_string()]
        };
        let rows: Vec<Vec<String>> = std::iter::once(heading).chain(plan.by.iter().map(row)).collect();
        print_table(out, &rows)?;
        print_line(out, "\nThe first of them:")?;
        for key in &plan.first {
            print_line(out, &format!("  {}", printable(&key.to_string())))?;
        }
        let would = if self.args.dry_run { "would be" } else { "are to be" };
        let line = format!("\n{} dead letters {would} {}", counted(plan.count), self.words.done);
        print_line(out, &line)
    }

    fn print_report(&self, out: &mut impl Write, report: &BulkReport, end: &BulkEnd) -> anyhow::Result<()> {
        if self.args.output.json {
            return print_json(out, &self.result(report, end));
        }
        let (changed, done) = (report.changed, self.words.done);
        let request_id = &self.action.request_id;
        print_line(
            out,
            &format!("{changed} dead letters are {done} (request {request_id} in operator_actions)"),
        )?;
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

    fn result(&self, report: &BulkReport, end: &BulkEnd) -> Value {
        let mut result = json!({
            "request_id": self.action.request_id,
            "unknown": report.unknown,
            "unchanged": report.unchanged,
            "conflicts": report.conflicts,
            "locked": report.locked,
            "finished": matches!(end, BulkEnd::Finished),
        });
        result[self.words.done] = json!(report.changed);
        result
    }

    fn outcome(&self, report: &BulkReport, end: BulkEnd) -> Result<(), Failure> {
        let (done, rest) = (self.words.done, self.rest());
        let why = match end {
            BulkEnd::Finished if report.locked > 0 => format!(
                "{} dead letters are not {done}: other transactions have locked them. When these are over, run\n  {rest}",
                report.locked
            ),
            BulkEnd::Finished if !report.unknown.is_empty() => {
                format!("{} of the ids name no route", report.unknown.len())
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

    /// The command that continues: what became a dead letter since the beginning is not in it.
    fn rest(&self) -> String {
        let line = CommandLine::new(&format!("notification dead-letters {}", self.words.command));
        let line = match &self.action.selection {
            Selection::Ids(ids) => line.options("--id", ids),
            Selection::Filter(filter) => with_filter(line, filter),
        };
        let reason = match &self.change {
            DeadLetterChange::Discard { reason } => Some(reason),
            DeadLetterChange::Replay(_) => None,
        };
        line.option("--reason", reason).into_text()
    }
}

fn counted(Counted { count, capped }: Counted) -> String {
    if capped { format!("at least {count}") } else { count.to_string() }
}

fn capitalised(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    format!("{}{rest}", first.to_ascii_uppercase())
}

fn planned(plan: &Plan) -> anyhow::Result<Value> {
    let mut planned =
        serde_json::to_value(api::view::Planned::new(plan.clone())).context("the plan is no JSON")?;
    planned["dry_run"] = json!(true);
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_is_not_complete_says_so() {
        assert_eq!(counted(Counted { count: 7, capped: false }), "7");
        assert_eq!(counted(Counted { count: 20_000, capped: true }), "at least 20000");
    }
}
