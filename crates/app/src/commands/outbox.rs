//! `outbox`: manages the outbox of a producer. It needs only the connection string.

mod args;
mod show;

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use domain::document::Age;
use outbox::{
    Administration, ChannelName, OutboxError, PruneRequest, RequeueReport, RequeueRequest, Requeued,
    StoredEvent, TableName, notify_sql, schema_sql,
};
use pg::{PgPool, PoolSettings, SessionSettings};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use args::{DeadCommand, ListArgs, MigrateArgs, Output, PruneArgs, RequeueArgs, ShowArgs};
pub use args::{EXAMPLES, OutboxCommand};
use show::{print_detail, print_events};

use super::operators::{CommandLine, Style, print_rows};
use super::output::{confirm, print_json, print_line};
use super::{Failure, Vars, load};
use crate::config::OutboxTable;
use crate::shutdown;
use crate::wiring::relay::stats_json;

/// The time limit of one statement of a command. It is longer than a relay's, because a statement may count a
/// whole table.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the command with these variables, and prints to `out`.
pub async fn run(command: OutboxCommand, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    if let OutboxCommand::Migrate(MigrateArgs { print: true, with_notify }) = &command {
        return Ok(print_schema(out, &load::<TableName>(vars)?, with_notify.as_ref())?);
    }
    let wide = matches!(&command, OutboxCommand::Dead(DeadCommand::List(args)) if args.output.wide);
    let style = Style::of_stdout(&vars, wide);
    let administration = Commands::new(load(vars)?, style)?;
    match command {
        OutboxCommand::Stats(output) => administration.stats(output, out).await,
        OutboxCommand::Prune(args) => administration.prune(&args, out).await,
        OutboxCommand::Dead(DeadCommand::List(args)) => administration.list(&args, out).await,
        OutboxCommand::Dead(DeadCommand::Show(args)) => administration.show(&args, out).await,
        OutboxCommand::Requeue(args) if args.event_ids.is_empty() => {
            administration.requeue_all(&args, out).await
        }
        OutboxCommand::Requeue(args) => administration.requeue(&args, out).await,
        OutboxCommand::Migrate(args) => administration.migrate(args.with_notify.as_ref(), out).await,
    }
}

fn print_schema(
    out: &mut impl Write,
    table: &TableName,
    channel: Option<&ChannelName>,
) -> anyhow::Result<()> {
    let trigger = channel.map(|channel| notify_sql(table, channel)).unwrap_or_default();
    write!(out, "{}{trigger}", schema_sql(table)).context("could not write to standard output")
}

/// Listens for signals: the first one ends a command after the transaction in progress.
fn listen() -> anyhow::Result<CancellationToken> {
    shutdown::listen().context("signals cannot be listened to")
}

/// The outcome of a command that the same command continues.
fn ended(is_stopped: bool) -> Result<(), Failure> {
    match is_stopped {
        true => Err(anyhow::anyhow!("stopped before the end. To continue, run the command again").into()),
        false => Ok(()),
    }
}

/// The commands on one table.
struct Commands {
    table: OutboxTable,
    administration: Administration,
    style: Style,
}

impl Commands {
    fn new(table: OutboxTable, style: Style) -> anyhow::Result<Self> {
        let settings = PoolSettings {
            max_connections: 1,
            operation_timeout: STATEMENT_TIMEOUT,
            session: SessionSettings {
                application_name: "notification-outbox",
                parameters: outbox::PLANNER_PARAMETERS,
            },
        };
        let pool = PgPool::new(&table.dsn, settings).context("the outbox cannot be used as configured")?;
        Ok(Self { administration: Administration::new(pool, table.table.clone()), table, style })
    }

    /// Replaces a server error by its cause, if a check of the table finds one.
    async fn explained<T>(&self, result: Result<T, OutboxError>) -> anyhow::Result<T> {
        let Err(error) = result else { return Ok(result?) };
        // The usual cause is a table that is missing or incomplete, and the error of the check describes it
        // best.
        let cause = match self.administration.check().await {
            Err(
                cause @ (OutboxError::NoTable(_) | OutboxError::NoColumns { .. } | OutboxError::NoRights(_)),
            ) => cause,
            _ => error,
        };
        Err(anyhow::Error::new(cause).context(format!("the outbox at {} cannot be used", self.table.dsn)))
    }

    async fn stats(&self, output: Output, out: &mut impl Write) -> Result<(), Failure> {
        let stats = self.explained(self.administration.stats().await).await?;
        if output.json {
            return Ok(print_json(out, &stats_json(&stats))?);
        }
        let rows = [
            ("pending", stats.pending.to_string()),
            ("retrying", stats.retrying.to_string()),
            ("scheduled", stats.scheduled.to_string()),
            ("delivering", stats.delivering.to_string()),
            ("dead", stats.dead.to_string()),
            ("oldest_age", Age(stats.oldest_age).to_string()),
        ];
        Ok(print_rows(out, Style::PLAIN, &rows.map(|(name, value)| [name.into(), value.into()]))?)
    }

    async fn prune(&self, args: &PruneArgs, out: &mut impl Write) -> Result<(), Failure> {
        let request = PruneRequest {
            delivered_age: args.delivered_age,
            dead_age: args.dead_age,
            dry_run: args.dry_run,
        };
        let stop = listen()?;
        let pruned = self.explained(self.administration.prune(&request, &stop).await).await?;
        if args.output.json {
            let document =
                json!({ "delivered": pruned.delivered, "dead": pruned.dead, "dry_run": args.dry_run });
            print_json(out, &document)?;
            return ended(pruned.stopped);
        }
        let did = if args.dry_run { "would be deleted" } else { "were deleted" };
        let line =
            format!("{} events that are DELIVERED and {} that are DEAD {did}", pruned.delivered, pruned.dead);
        print_line(out, &line)?;
        ended(pruned.stopped)
    }

    async fn list(&self, args: &ListArgs, out: &mut impl Write) -> Result<(), Failure> {
        let events = self.explained(self.administration.list_dead(None, args.limit).await).await?;
        Ok(print_events(out, self.style, &events, args.output.json)?)
    }

    async fn show(&self, args: &ShowArgs, out: &mut impl Write) -> Result<(), Failure> {
        let id = args.event_id;
        match self.explained(self.administration.get_event(id).await).await? {
            Some(detail) if detail.event.status == "DEAD" => {
                Ok(print_detail(out, &detail, args.output.json)?)
            }
            Some(detail) => {
                Err(anyhow::anyhow!("the event {id} is not DEAD: it is {}", detail.event.status).into())
            }
            None => Err(anyhow::anyhow!("there is no event {id} in {}", self.table.table).into()),
        }
    }

    async fn requeue(&self, args: &RequeueArgs, out: &mut impl Write) -> Result<(), Failure> {
        let outcomes = self.explained(self.administration.requeue(&args.event_ids).await).await?;
        let mut missed = 0;
        for (id, outcome) in args.event_ids.iter().zip(outcomes) {
            let (result, text) = match outcome {
                Requeued::Done => ("requeued", "is requeued"),
                Requeued::NotDead => ("not_dead", "is not DEAD and stays as it is"),
                Requeued::Unknown => ("unknown", "is unknown"),
            };
            missed += usize::from(result != "requeued");
            match args.output.json {
                true => print_json(out, &json!({ "event_id": id.to_string(), "result": result }))?,
                false => print_line(out, &format!("{id} {text}"))?,
            }
        }
        match missed {
            0 => Ok(()),
            missed => Err(anyhow::anyhow!("{missed} of the events could not be requeued").into()),
        }
    }

    /// Requeues events that are DEAD, or that were DELIVERED since a time.
    async fn requeue_all(&self, args: &RequeueArgs, out: &mut impl Write) -> Result<(), Failure> {
        let until = self.explained(self.administration.now().await).await?;
        let request = RequeueRequest {
            delivered_since: args.delivered_since.map(|moment| moment.before(until)),
            event_type: args.event_type.as_deref(),
            until,
        };
        let status = if request.delivered_since.is_some() { "DELIVERED" } else { "DEAD" };
        if args.dry_run || !args.yes {
            let plan = self.explained(self.administration.plan_requeue(&request).await).await?;
            if args.dry_run && args.output.json {
                let first: Vec<_> = plan.first.iter().map(show::event_json).collect();
                return Ok(print_json(
                    out,
                    &json!({ "count": plan.count, "first": first, "dry_run": true }),
                )?);
            }
            if args.dry_run {
                print_line(out, &format!("{} {status} events would be requeued", plan.count))?;
                return match plan.first.is_empty() {
                    true => Ok(()),
                    false => Ok(print_events(out, self.style, &plan.first, false)?),
                };
            }
            let doubtful = plan.first.iter().any(StoredEvent::was_reaped);
            let note = if doubtful { ", some of which may be on the stream already" } else { "" };
            if !confirm(&format!("Requeue {} {status} events{note}?", plan.count))? {
                return Err(anyhow::anyhow!("nothing was requeued").into());
            }
        }
        let report = self.administration.requeue_all(&request, &listen()?).await;
        let rest = CommandLine::new("notification outbox requeue")
            .flag("--dead", args.dead)
            .option("--delivered-since", request.delivered_since)
            .option("--type", request.event_type)
            .flag("--yes", args.yes)
            .flag("--json", args.output.json);
        self.report_requeue(report, args.output.json, &rest.into_text(), out).await
    }

    /// Prints the requeued events; fails if some were not requeued.
    async fn report_requeue(
        &self,
        report: RequeueReport,
        json: bool,
        rest: &str,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        let RequeueReport { requeued, locked, refused, stopped, error } = report;
        if error.is_none() || requeued > 0 {
            let ids: Vec<String> = refused.iter().map(|(event_id, _)| event_id.to_string()).collect();
            let document =
                json!({ "requeued": requeued, "locked": locked, "refused": ids, "dry_run": false });
            match json {
                true => print_json(out, &document)?,
                false => print_line(out, &format!("{requeued} events are requeued"))?,
            }
        }
        let mut left: Vec<String> = Vec::new();
        if locked > 0 {
            left.push(format!(
                "{locked} events are not requeued: other transactions have locked them. When these are over, run the command again"
            ));
        }
        left.extend(
            refused
                .iter()
                .map(|(event_id, why)| format!("{event_id} is not requeued: its table refuses: {why}")),
        );
        if stopped {
            left.push(format!("stopped before the end. To continue, run\n  {rest}"));
        }
        match error {
            Some(error) => {
                let failed = self.explained::<()>(Err(error)).await;
                left.push(format!("stopped before the end: {requeued} events are requeued"));
                Ok(failed.context(left.join("\n"))?)
            }
            None if left.is_empty() => Ok(()),
            None => Err(anyhow::anyhow!(left.join("\n")).into()),
        }
    }

    async fn migrate(&self, channel: Option<&ChannelName>, out: &mut impl Write) -> Result<(), Failure> {
        let OutboxTable { dsn, table } = &self.table;
        let made = self.administration.migrate(channel).await;
        made.with_context(|| format!("the outbox table {table} at {dsn} could not be created"))?;
        Ok(print_line(out, &format!("the outbox table {table} is ready"))?)
    }
}
