//! `leader`: which replica reads the intents stream, and the request that it hand over.
//!
//! Who leads is known to the lock, by which name to the reports of the replicas, which are a second or two late. The request is
//! `replicas.step_down_at`; what a replica makes of it is a rule of [`domain::step_down`].

use std::io::Write;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use domain::ports::{LeaderLookup, Queries, StepDownStore};
use domain::query::{INTAKE, REPLICA_FRESH_FOR, ReplicaStatus, Status};
use domain::step_down::StepDown;
use serde_json::{Value, json};
use store_postgres::PgStore;
use tokio::time::{Instant, sleep};

use super::actor::{actor, request_id};
use super::operators::{Cell, Output, Style, Tables, Tone, print_cells};
use super::output::{print_json, print_line, printable};
use super::{Failure, Vars};
use crate::wiring::leader::LockLookup;

/// How long the command waits for another leader.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it waits for the reports of the new leader and of the former one, which follow a second later.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a change of leader the reports name the new one, and not the former one.
const NAME_DELAY: Duration = Duration::from_secs(3);
/// How often it looks.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What to do about the leader.
#[derive(Args, Debug)]
pub struct LeaderArgs {
    /// Ask the leader to hand over, and wait until another replica leads
    #[arg(long)]
    step_down: bool,
    #[command(flatten)]
    output: Output,
}

/// The examples of `leader`.
pub const EXAMPLES: &str = "\
Examples:
  notification leader
  notification leader --json | jq -r .leader.replica
  notification leader --step-down          before maintenance of the machine that leads

The exit code is 1 if no replica leads. --step-down: within 10 s the leader finishes its batch, hands over, and does not campaign until 15 s
after the request. A replica that runs alone goes on leading, and one that hangs does not answer: both are said, within 30 s.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: LeaderArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let (style, actor) = (Style::of_stdout(&vars), actor(&vars));
    let tables = Tables::load(vars).await?;
    let (lookup, store) = (tables.leader()?, tables.store()?);
    let command = Command { tables, lookup, store, json: args.output.json };
    let status = command.status().await?;
    if args.step_down {
        return command.step_down(&status, actor, out).await;
    }
    command.print(&status, style, out)?;
    match status.leader {
        Some(_) => Ok(()),
        None => Err(anyhow!("no replica leads, so no intent of the stream is accepted").into()),
    }
}

struct Command {
    tables: Tables,
    lookup: LockLookup,
    store: PgStore,
    json: bool,
}

/// How a request to step down ended.
enum Outcome {
    /// Another term began; the leader handed over if it has reported itself since.
    Followed { by: Option<String>, fence: u64, handed_over: bool },
    /// The same term goes on.
    Unchanged { alone: bool },
}

impl Command {
    async fn status(&self) -> anyhow::Result<Status> {
        let Self { tables, lookup, .. } = self;
        let now = tables.explained(tables.queries.now().await)?;
        // The term first: a leader that was followed since then has a report that is as new as the other.
        let term = tables.explained(lookup.leader().await)?;
        let known = tables.explained(tables.queries.status(&tables.config.intents_stream, now).await)?;
        Ok(Status::new(known, term, None))
    }

    fn print(&self, status: &Status, style: Style, out: &mut impl Write) -> anyhow::Result<()> {
        if self.json {
            return print_json(out, &self.document(status));
        }
        match &status.leader {
            None => print_line(out, "no replica leads")?,
            Some(leader) => {
                let name = leader.replica.as_deref().map_or_else(not_yet_named, printable);
                let term = leader.term;
                print_line(out, &format!("{name} leads since {} under fence {}", term.since, term.fence))?;
            }
        }
        if status.store.replicas.is_empty() {
            return Ok(());
        }
        let heading = ["REPLICA", "VERSION", "STARTED", "SEEN", "LEADER OF"];
        let heading = heading.map(|text| Cell::new(text, Tone::Strong)).to_vec();
        let row = |replica: &ReplicaStatus| {
            let age = status.store.at.saturating_since(replica.seen_at);
            let tone = if age > REPLICA_FRESH_FOR { Tone::Warning } else { Tone::Plain };
            vec![
                printable(&replica.report.replica).into(),
                printable(&replica.report.version).into(),
                replica.report.started_at.to_string().into(),
                Cell::new(format!("{} s ago", age.as_secs()), tone),
                printable(&replica.report.leader_of.join(", ")).into(),
            ]
        };
        let rows: Vec<Vec<Cell>> =
            std::iter::once(heading).chain(status.store.replicas.iter().map(row)).collect();
        print_line(out, "")?;
        print_cells(out, style, &rows)
    }

    /// Leader and replicas as `GET /v1/status` has them.
    fn document(&self, status: &Status) -> Value {
        let stream = &self.tables.config.intents_stream;
        let whole = api::view::ServiceStatus::new(status, stream, env!("CARGO_PKG_VERSION"));
        // Cannot fail: it holds texts and numbers.
        let mut whole = serde_json::to_value(whole).expect("texts and numbers");
        json!({ "leader": whole["leader"].take(), "replicas": whole["replicas"].take() })
    }

    async fn step_down(&self, status: &Status, actor: String, out: &mut impl Write) -> Result<(), Failure> {
        let none = || anyhow!("no replica leads, so none can hand over");
        let led_for =
            status.leader.as_ref().map(|leader| status.store.at.saturating_since(leader.term.since));
        sleep(NAME_DELAY.saturating_sub(led_for.ok_or_else(none)?)).await;
        let leader = self.status().await?.leader.ok_or_else(none)?;
        let Some(replica) = leader.replica else {
            return Err(
                anyhow!("a replica leads that has not reported itself: try again in some seconds").into()
            );
        };
        let request = StepDown { replica: replica.clone(), actor, request_id: request_id() };
        let asked = self.tables.explained(self.store.request_step_down(&request).await)?;
        if !asked {
            return Err(
                anyhow!("the replica {} has gone: see `notification leader`", printable(&replica)).into()
            );
        }
        let outcome = self.wait_for_another(&replica, leader.term.fence).await?;
        self.print_outcome(&replica, &request.request_id, &outcome, out)?;
        match outcome {
            Outcome::Followed { .. } => Ok(()),
            Outcome::Unchanged { alone: true } => Err(anyhow!(
                "no other replica has been seen for 30 s, so {} goes on leading",
                printable(&replica)
            )
            .into()),
            Outcome::Unchanged { alone: false } => Err(anyhow!(
                "{} has not handed over within 30 s and still leads: look at its log",
                printable(&replica)
            )
            .into()),
        }
    }

    async fn wait_for_another(&self, replica: &str, fence: u64) -> anyhow::Result<Outcome> {
        let begun = Instant::now();
        while begun.elapsed() < STEP_DOWN_TIMEOUT {
            let term = self.tables.explained(self.lookup.leader().await)?;
            if let Some(term) = term.filter(|term| term.fence > fence) {
                return self.followed(replica, term.fence).await;
            }
            let state = self.tables.explained(self.store.get_step_down(replica).await)?;
            if !state.other_replica {
                return Ok(Outcome::Unchanged { alone: true });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(Outcome::Unchanged { alone: false })
    }

    /// A leader that hands over reports a second later that it leads no longer; one that hangs does not.
    async fn followed(&self, former: &str, fence: u64) -> anyhow::Result<Outcome> {
        let begun = Instant::now();
        loop {
            let status = self.status().await?;
            let leads =
                |report: &ReplicaStatus| report.report.leader_of.iter().any(|worker| worker == INTAKE);
            let handed_over = status
                .store
                .replicas
                .iter()
                .any(|replica| replica.report.replica == former && !leads(replica));
            let by = status.leader.and_then(|leader| leader.replica).filter(|name| name != former);
            if (handed_over && by.is_some()) || begun.elapsed() > REPORT_TIMEOUT {
                return Ok(Outcome::Followed { by, fence, handed_over });
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    fn print_outcome(
        &self,
        former: &str,
        request_id: &str,
        outcome: &Outcome,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let (by, fence, handed_over) = match outcome {
            Outcome::Followed { by, fence, handed_over } => (by.as_deref(), Some(*fence), *handed_over),
            Outcome::Unchanged { .. } => (Some(former), None, false),
        };
        if self.json {
            let document = json!({
                "request_id": request_id,
                "asked": former,
                "handed_over": handed_over,
                "leader": by,
                "fence": fence,
            });
            return print_json(out, &document);
        }
        let Some(fence) = fence else { return Ok(()) };
        let (former, by) = (printable(former), by.map_or_else(not_yet_named, printable));
        if !handed_over {
            print_line(
                out,
                &format!("{former} did not answer: it hangs or has crashed, and its term has expired"),
            )?;
        }
        print_line(out, &format!("{by} leads under fence {fence} (request {request_id} in operator_actions)"))
    }
}

fn not_yet_named() -> String {
    "(a replica that has not reported itself yet)".to_owned()
}
