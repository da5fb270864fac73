//! `malformed resubmit`: appends malformed intents to the intents stream again (ADR 0065).

use std::io::{self, Write};

use ambient::Timestamp;
use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args};
use domain::ports::{Resubmitter, error_chain};
use domain::query::MalformedFilter;
use domain::resubmit::{ResubmitActor, ResubmitPlan, ResubmitReport, ResubmitSelection};
use serde_json::json;

use crate::commands::actor::{ActorArgs, request_id};
use crate::commands::holds::parse_reason;
use crate::commands::operators::{CommandLine, Output, Progress, Tables, TimeRange, parse_text};
use crate::commands::output::{confirm, print_json, print_line, printable};
use crate::commands::{Failure, Vars};
use crate::{shutdown, wiring};

/// The malformed intents to resubmit.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["id", "code", "producer", "since", "until"]))]
pub struct ResubmitArgs {
    /// Those of this stream entry; may be given several times
    #[arg(long, value_parser = parse_text, conflicts_with_all = ["code", "producer", "since", "until"])]
    id: Vec<String>,
    /// Those with this failure code
    #[arg(long, value_parser = parse_text)]
    code: Option<String>,
    /// Those of this producer
    #[arg(long, value_parser = parse_text)]
    producer: Option<String>,
    #[command(flatten)]
    times: TimeRange,
    /// The reason, for those who read the list of actions
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: Option<String>,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    output: Output,
}

/// The examples of `malformed resubmit`.
pub(super) const EXAMPLES: &str = "\
Examples:
  notification malformed resubmit --code recipient_not_found --since 1h --dry-run
  notification malformed resubmit --code recipient_not_found --producer game_master --since 1h --reason 'users imported'
  notification malformed resubmit --id 1775121700000-0 --yes

The fields are appended to the intents stream again, unchanged, as a new entry; what becomes of it is what becomes of any entry. An intent
that is in conflict, whose fields were not kept whole, that is of another stream or that was resubmitted before is refused. A filter selects
at most 10,000 that were not resubmitted yet; the command then prints how to continue. Ctrl-C ends the command after the chunk in progress.";

impl ResubmitArgs {
    fn selection(&self, now: Timestamp) -> Result<ResubmitSelection, Failure> {
        if !self.id.is_empty() {
            return Ok(ResubmitSelection::Ids(self.id.clone()));
        }
        let (recorded_after, recorded_before) = self.times.at(now)?;
        Ok(ResubmitSelection::Filter(MalformedFilter {
            code: self.code.clone(),
            producer: self.producer.clone(),
            idempotency_key: None,
            recorded_after,
            // What is malformed again is not selected by the command that continues.
            recorded_before: Some(recorded_before.unwrap_or(now)),
        }))
    }
}

/// Runs the command with these variables, and prints to `out`.
pub(super) async fn run(
    args: ResubmitArgs,
    vars: Vars,
    out: &mut (impl Write + Send),
) -> Result<(), Failure> {
    let actor = args.actor.actor(&vars);
    let (tables, redis) = Tables::load_with_redis(vars).await?;
    let now = tables.explained(tables.queries.now().await)?;
    let resubmission = wiring::resubmission(tables.store()?, &redis, &tables.config.intents_stream);
    let selection = args.selection(now)?;
    let targets = tables.explained(resubmission.select(&selection).await)?;
    let (plan, json) = (targets.plan(), args.output.json);
    if args.dry_run {
        return Ok(if json { print_json(out, &plan) } else { print_plan(out, &plan) }?);
    }
    // With --json, standard output contains one document, the result. The plan goes to standard error.
    if json {
        print_plan(&mut io::stderr(), &plan)?;
    } else {
        print_plan(out, &plan)?;
    }
    if plan.count.count > 0 && !args.yes && !confirm(&format!("Resubmit {}?", intents(plan.count.count)))? {
        return Err(anyhow!("nothing was resubmitted").into());
    }
    let stop = shutdown::listen().context("signals cannot be listened to")?;
    let (request_id, progress) = (request_id(), Progress::new("malformed intents", plan.count.count));
    let by = ResubmitActor {
        name: &actor,
        request_id: &request_id,
        idempotency_key: None,
        reason: args.reason.as_deref(),
    };
    let go_on = |report: &ResubmitReport| {
        progress.show(report.resubmitted);
        !stop.is_cancelled()
    };
    let done = resubmission.resubmit(&targets, &selection, by, go_on).await;
    progress.finish();
    let report = done.map_err(|error| {
        let rest = rest(&args, &selection, None);
        anyhow!("{}. To continue, run\n  {rest}", error_chain(&error)).context("stopped before the end")
    })?;
    print_report(out, &report, &request_id, json)?;
    match report {
        ResubmitReport { has_more: true, continue_before, .. } => {
            let rest = rest(&args, &selection, continue_before);
            Err(anyhow!("some are left. To continue, run\n  {rest}").into())
        }
        ResubmitReport { resubmitted: 0, .. } if !args.id.is_empty() => {
            Err(anyhow!("none of the ids names a malformed intent that can be resubmitted").into())
        }
        _ => Ok(()),
    }
}

fn intents(count: u64) -> String {
    if count == 1 { "1 intent".to_owned() } else { format!("{count} intents") }
}

fn print_plan(out: &mut impl Write, plan: &ResubmitPlan) -> anyhow::Result<()> {
    let intents = if plan.count.count == 1 { "malformed intent" } else { "malformed intents" };
    print_line(out, &format!("{} {intents} can be resubmitted", plan.count))?;
    for group in &plan.by {
        let (code, producer) = (printable(&group.code), printable(&group.producer));
        print_line(out, &format!("  {} {code} of {producer}", group.count))?;
    }
    plan.first.iter().try_for_each(|id| print_line(out, &format!("  {}", printable(id))))?;
    if plan.refused > 0 {
        print_line(out, &format!("{} cannot", plan.refused))?;
    }
    for refused in &plan.first_refused {
        print_line(
            out,
            &format!("  {}: {}", printable(&refused.stream_entry_id), refused.reason.sentence()),
        )?;
    }
    for id in &plan.unknown {
        print_line(out, &format!("there is no malformed intent {}", printable(id)))?;
    }
    Ok(())
}

fn print_report(
    out: &mut impl Write,
    report: &ResubmitReport,
    request_id: &str,
    json: bool,
) -> anyhow::Result<()> {
    let request_id = (report.resubmitted > 0).then_some(request_id);
    if json {
        let mut document = serde_json::to_value(report)?;
        document["request_id"] = json!(request_id);
        return print_json(out, &document);
    }
    let request = request_id.map(|id| format!(" (request {id} in operator_actions)")).unwrap_or_default();
    print_line(out, &format!("{} resubmitted{request}", intents(report.resubmitted)))?;
    if report.refused > 0 {
        print_line(out, &format!("{} not", report.refused))?;
    }
    for one in &report.first {
        print_line(out, &format!("  {} as {}", printable(&one.stream_entry_id), one.resubmitted_entry_id))?;
    }
    Ok(())
}

/// The command that continues. Its filter ends where this command began, or at `before`.
fn rest(args: &ResubmitArgs, selection: &ResubmitSelection, before: Option<Timestamp>) -> String {
    let line = CommandLine::new("notification malformed resubmit");
    let line = match selection {
        ResubmitSelection::Ids(ids) => line.options("--id", ids),
        ResubmitSelection::Filter(filter) => line
            .option("--code", filter.code.as_deref())
            .option("--producer", filter.producer.as_deref())
            .option("--since", filter.recorded_after)
            .option("--until", before.or(filter.recorded_before)),
    };
    line.option("--reason", args.reason.as_deref())
        .option("--as", args.actor.name())
        .flag("--yes", args.yes)
        .flag("--json", args.output.json)
        .into_text()
}
