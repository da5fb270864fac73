//! `leader`: shows the replica that reads the intents stream, and requests a handover.
//!
//! The leader is read from the lock. Its name comes from the reports of the replicas, which are a second or
//! two late. The request is stored in `replicas.step_down_at`; how a replica reacts is a rule of
//! [`domain::step_down`].

mod outcome;

use std::io::Write;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use domain::ports::{LeaderLookup, Queries, StepDownStore};
use domain::query::{ReplicaStatus, Status};
use domain::step_down::StepDown;
use serde_json::{Value, json};
use store_postgres::PgStore;
use tokio::time::{Instant, sleep};

use self::outcome::Outcome;
use super::actor::{ActorArgs, request_id};
use super::operators::{Cell, Column, Style, TableOutput, Tables, print_rows, table};
use super::output::{print_json, print_line, printable};
use super::status::seen;
use super::{Failure, Vars};
use crate::wiring::leader::LockLookup;

/// The time limit for another replica to become leader.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// The time after a change of leader at which the reports name the new leader and no longer the former one.
const NAME_DELAY: Duration = Duration::from_secs(3);
/// The time limit for finding the leader of a new term, which may end in the meantime.
const NEW_TERM_TIMEOUT: Duration = Duration::from_secs(15);
/// The interval between two reads.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A subcommand of `leader`.
#[derive(Args, Debug)]
pub struct LeaderArgs {
    /// Ask the leader to hand over, and wait until another replica leads
    #[arg(long)]
    step_down: bool,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    output: TableOutput,
}

/// The examples of `leader`.
pub const EXAMPLES: &str = "\
Examples:
  notification leader
  notification leader --json | jq -r .leader.replica
  notification leader --step-down          before maintenance of the machine that leads

The exit code is 1 if no replica leads. --step-down: within 10 s the leader finishes its batch, hands over, and does not campaign for 15 s
after that. The exit code is 1 if no other replica follows; a replica that runs alone is not asked. One that hangs does not answer, and
another follows when its term has expired. The command ends within 50 s.

--json prints `leader` and `replicas` as GET /v1/status answers; with --step-down `request_id`, `asked`, `handed_over`, `leader` and
`fence`, null where there is none.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: LeaderArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let (style, actor) = (Style::of_stdout(&vars, args.output.wide), args.actor.actor(&vars));
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

impl Command {
    async fn status(&self) -> anyhow::Result<Status> {
        let Self { tables, lookup, .. } = self;
        let now = tables.explained(tables.queries.now().await)?;
        // The term is read before the reports. If another replica takes over in between, the former leader's
        // report is as new as that of its successor.
        let term = tables.explained(lookup.leader().await)?;
        let known = tables.explained(tables.queries.status(&tables.config.intents_stream, now).await)?;
        Ok(Status::new(known, term, None, None))
    }

    fn print(&self, status: &Status, style: Style, out: &mut impl Write) -> anyhow::Result<()> {
        if self.json {
            return print_json(out, &document(status));
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
        let row = |replica: &ReplicaStatus| {
            [
                printable(&replica.replica).into(),
                printable(&replica.version).into(),
                Cell::time(replica.started_at),
                seen(replica, status),
                printable(&replica.leader_of.join(", ")).into(),
            ]
        };
        let columns = [
            Column::new("REPLICA", 0),
            Column::new("VERSION", 3),
            Column::new("STARTED", 4),
            Column::new("SEEN", 1),
            Column::new("LEADER OF", 2),
        ];
        print_line(out, "")?;
        print_rows(out, style, &table(style, columns, status.store.replicas.iter().map(row)))
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
        // This is checked before the request. A replica that is alone would otherwise keep a request that
        // takes effect when another replica starts.
        if !self.tables.explained(self.store.get_step_down(&replica).await)?.other_replica {
            return Outcome::Unchanged { alone: true }.print(&replica, None, self.json, out);
        }
        let request = StepDown { replica: replica.clone(), actor, request_id: request_id() };
        let asked = self.tables.explained(self.store.request_step_down(&request).await)?;
        if !asked {
            return Err(
                anyhow!("the replica {} has gone: see `notification leader`", printable(&replica)).into()
            );
        }
        let outcome = self.wait_for_another(&replica, leader.term.fence).await?;
        outcome.print(&replica, Some(&request.request_id), self.json, out)
    }

    async fn wait_for_another(&self, replica: &str, fence: u64) -> anyhow::Result<Outcome> {
        let begun = Instant::now();
        while begun.elapsed() < STEP_DOWN_TIMEOUT {
            let term = self.tables.explained(self.lookup.leader().await)?;
            if let Some(term) = term.filter(|term| term.fence > fence) {
                return self.new_term(replica, term.fence).await;
            }
            let state = self.tables.explained(self.store.get_step_down(replica).await)?;
            if !state.other_replica {
                return Ok(Outcome::Unchanged { alone: true });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(Outcome::Unchanged { alone: false })
    }

    /// Returns the outcome once the leader of a term with `fence` or a later one is found.
    async fn new_term(&self, former: &str, fence: u64) -> anyhow::Result<Outcome> {
        let begun = Instant::now();
        while begun.elapsed() < NEW_TERM_TIMEOUT {
            let status = self.status().await?;
            if let Some(outcome) = Outcome::of_new_term(&status, former, begun.elapsed()) {
                return Ok(outcome);
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(Outcome::Followed { by: None, fence, handed_over: false })
    }
}

/// The leader and the replicas, as in `GET /v1/status`.
fn document(status: &Status) -> Value {
    json!({ "leader": status.leader, "replicas": status.store.replicas })
}

fn not_yet_named() -> String {
    "(a replica that has not reported itself yet)".to_owned()
}
