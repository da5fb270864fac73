//! `status`: shows the state of the service as a whole, and its stuck parts.

mod show;

use std::io::Write;
use std::time::Duration;

use ambient::Timestamp;
use clap::Args;
use domain::ports::{LeaderLookup, Queries, StoreError, StreamQueries};
use domain::query::{LeaderTerm, NO_LEADER_LIMIT, Status, StreamBacklog, Stuck};
use serde::Serialize;
use store_redis::RedisIntentStream;

use self::show::print_status;
pub(super) use self::show::seen;
use super::operators::{Style, TableOutput, Tables};
use super::output::{print_json, printable};
use super::{Failure, Vars};

/// The interval between lookups of the leader, while the start of a leaderless time is unknown.
const TERM_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How to print.
#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    output: TableOutput,
}

/// The examples of `status`.
pub const EXAMPLES: &str = "\
Examples:
  notification status
  notification status --json | jq -r '.stuck[].sentence'
  notification status >/dev/null || echo 'intake or a channel is stuck'

The exit code is 1 if intake or a channel is stuck: its worker has been blocked for 30 s, no replica has led for 15 s, or a route has
been due for more than 60 s; also if Redis cannot be asked, because then nothing is known of the stream: the rest is shown all the same.
After a crash the lock has the time at which the last term ended. After an orderly stop it has none: then the command asks for up to
15 s whether a replica leads. --json prints what GET /v1/status answers, with one more member, `stuck`.";

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    status: &'a Status,
    stuck: &'a [Stuck],
}

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: StatusArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, args.output.wide);
    let (tables, redis) = Tables::load_with_redis(vars).await?;
    let lookup = tables.leader()?;
    let (term, leaderless_since) = tables.explained(find_leader(&lookup, &tables).await)?;
    let stream = &tables.config.intents_stream;
    let now = tables.explained(tables.queries.now().await)?;
    let store = tables.explained(tables.queries.status(stream, now).await)?;
    let backlog = RedisIntentStream::new(&redis, stream.clone()).backlog(store.processed_up_to()).await;
    let status = Status::new(store, term, leaderless_since, backlog.as_ref().ok().copied());
    match args.output.json {
        true => print_json(out, &Document { status: &status, stuck: &status.stuck })?,
        false => print_status(out, style, &status)?,
    }
    outcome(&status.stuck, backlog)
}

/// The exit status: an error if traffic is stuck or the stream could not be read.
fn outcome(stuck: &[Stuck], backlog: Result<StreamBacklog, StoreError>) -> Result<(), Failure> {
    if let Err(error) = backlog {
        let error = printable(&domain::ports::error_chain(&error));
        eprintln!("error: Redis could not be asked, so the entries of the stream are not known: {error}");
        return Err(Failure::Reported);
    }
    if stuck.iter().any(|stuck| stuck.stops_traffic) { Err(Failure::Reported) } else { Ok(()) }
}

/// Returns the leader's term, or a time since when at least no replica has led. If neither is known, repeats
/// the lookup until a replica leads or none has led for [`NO_LEADER_LIMIT`].
async fn find_leader(
    lookup: &impl LeaderLookup,
    tables: &Tables,
) -> Result<(Option<LeaderTerm>, Option<Timestamp>), StoreError> {
    let began = tables.queries.now().await?;
    let mut is_announced = false;
    loop {
        if let Some(term) = lookup.leader().await? {
            return Ok((Some(term), None));
        }
        if let Some(ended) = lookup.last_term_end().await? {
            return Ok((None, Some(ended)));
        }
        if tables.queries.now().await?.saturating_since(began) >= NO_LEADER_LIMIT {
            return Ok((None, Some(began)));
        }
        if !std::mem::replace(&mut is_announced, true) {
            let seconds = NO_LEADER_LIMIT.as_secs();
            eprintln!("no replica leads at present; looking for one for up to {seconds} s");
        }
        tokio::time::sleep(TERM_POLL_INTERVAL).await;
    }
}
