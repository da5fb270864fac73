//! `status`: shows the state of the service as a whole, and its stuck parts.

mod show;

use std::io::Write;
use std::time::Duration;

use ambient::Timestamp;
use clap::Args;
use domain::ports::{LeaderLookup, Queries, StoreError, StreamQueries};
use domain::query::{LeaderTerm, NO_LEADER_LIMIT, ServiceState, Status, StreamBacklog};
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
  notification status --json | jq -r '.findings[].sentence'
  notification status >/dev/null || echo 'it is failing or stuck'

The state is well (exit code 0), stuck (1) or failing (3). Stuck: a worker has been blocked for 30 s, no replica has led for 15 s, or a
route has been due for more than 60 s. Failing: fewer than one attempt in ten of a channel succeeded in the last minute; within the last 5
minutes routes became dead letters, or a producer sent only malformed intents; or a completion has been deferred for more than 10 s. The
exit code is 1 also if the stream cannot be read, because then nothing is known of it: the rest is shown all the same.
After a crash the lock has the time at which the last term ended. After an orderly stop it has none: then the command asks for up to
15 s whether a replica leads. --json prints what GET /v1/status answers.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: StatusArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, args.output.wide);
    let (tables, redis) = Tables::load_with_redis(vars).await?;
    let lookup = tables.leader()?;
    let (term, leaderless_since) = tables.explained(find_leader(&lookup, &tables).await)?;
    let stream = &tables.config.intents_stream;
    let now = tables.explained(tables.queries.now().await)?;
    let store = tables.explained(tables.lists.status(stream, now).await)?;
    let backlog = RedisIntentStream::new(&redis, stream.clone()).backlog(store.processed_up_to()).await;
    let status = Status::new(store, term, leaderless_since, backlog.as_ref().ok().copied());
    match args.output.json {
        true => print_json(out, &status)?,
        false => print_status(out, style, &status)?,
    }
    outcome(status.state, backlog)
}

/// The exit status: an error unless the service is well and the stream could be read.
fn outcome(state: ServiceState, backlog: Result<StreamBacklog, StoreError>) -> Result<(), Failure> {
    if let Err(error) = backlog {
        let error = printable(&domain::ports::error_chain(&error));
        eprintln!("error: the entries of the stream are not known: {error}");
        return Err(Failure::Reported);
    }
    match state {
        ServiceState::Well => Ok(()),
        ServiceState::Failing => Err(Failure::Failing),
        ServiceState::Stuck => Err(Failure::Reported),
    }
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
