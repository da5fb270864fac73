//! `erase`: erases a person from directory, tables and streams (ADR 0064).

use std::io::{self, Write};

use ambient::{Clock, SystemClock};
use anyhow::{Context, anyhow};
use clap::Args;
use domain::erase::{ErasurePlan, ErasureReport, Mentions, checked_user_id};
use domain::hold::HoldActor;
use domain::ports::Erasures;

use super::actor::{ActorArgs, request_id};
use super::operators::{CommandLine, Output, Tables, open_redis};
use super::output::{confirm, print_json, print_line, printable};
use super::{Failure, Vars, load};
use crate::config::EraseConfig;
use crate::wiring::erase::{ErasureConfig, eraser};

/// The person to erase.
#[derive(Args, Debug)]
pub struct EraseArgs {
    /// The id of the user, as in recipient_user_ids
    #[arg(long, value_name = "ID", value_parser = parse_user_id)]
    user: String,
    /// Print what would be erased, and erase nothing
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

fn parse_user_id(text: &str) -> Result<String, String> {
    checked_user_id(text.to_owned()).map_err(|error| error.to_string())
}

/// The examples of `erase`.
pub const EXAMPLES: &str = "\
Examples:
  notification erase --user u-1 --dry-run
  notification erase --user u-1
  notification erase --user u-1 --yes --json > receipt.json

It deletes the routes, receipts and dead letters of the user, stored answers, raw fields of malformed intents and entries of streams that name
the user, and the document of the user directory. Notifications to others lose the recipient, and former actions of operators the id. What only
mentions the user, such as a payload, is counted and listed. The receipt has a keyed hash in place of the id. Redis must permit XDEL on the streams.
The exit code is 1 if something is left: run it again, and it continues.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: EraseArgs, vars: Vars, out: &mut (impl Write + Send)) -> Result<(), Failure> {
    let actor = args.actor.actor(&vars);
    let config: EraseConfig = load(vars)?;
    let redis = open_redis(&config.redis)?;
    let tables = Tables::open(config.tables.clone()).await?;
    let addr = &config.redis.topology;
    redis.ping().await.with_context(|| format!("Redis at {addr} cannot be used"))?;
    let settings = ErasureConfig {
        intents_stream: &config.tables.intents_stream,
        outbound: &config.outbound,
        user_directory: &config.user_directory,
        dedupe_ttl: config.publish.dedupe_ttl,
        time_limit: None,
    };
    let store = tables.store()?.with_endpoint(api::INTENTS_ENDPOINT);
    let eraser = eraser(&settings, store, tables.queries.clone(), &redis);
    let never_started =
        || anyhow!("the service has never started on these tables: there is nothing to erase");
    let plan = eraser.plan_erasure(&args.user).await.context("the plan could not be made")?;
    let plan = plan.ok_or_else(never_started)?;
    let (user, json) = (printable(&args.user), args.output.json);
    match (json, args.dry_run) {
        (true, true) => print_json(out, &plan)?,
        // With --json, standard output contains one document, the receipt.
        (true, false) => print_plan(&mut io::stderr(), &user, &plan)?,
        (false, _) => print_plan(out, &user, &plan)?,
    }
    if args.dry_run {
        return Ok(());
    }
    if !args.yes && !confirm(&format!("Erase {user}? This cannot be undone."))? {
        return Err(anyhow!("nothing was erased").into());
    }
    let request_id = request_id();
    let by = HoldActor { name: &actor, request_id: &request_id, idempotency_key: None };
    let again = CommandLine::new("notification erase").option("--user", Some(&args.user)).into_text();
    let erased = eraser.erase_user(&args.user, by, SystemClock.now()).await;
    if erased.is_err() {
        eprintln!("To continue, run\n  {again}");
    }
    let report = erased.context("the erasure ended early")?;
    let report = report.ok_or_else(never_started)?;
    match json {
        true => print_json(out, &report)?,
        false => print_report(out, &report)?,
    }
    if report.complete {
        return Ok(());
    }
    Err(anyhow!(
        "something is left: a publisher or another transaction had it, an intent came meanwhile, or an entry is not processed yet; to continue, run\n  {again}"
    )
    .into())
}

fn print_plan(out: &mut impl Write, user: &str, plan: &ErasurePlan) -> anyhow::Result<()> {
    print_line(out, &format!("{} notifications name {user}", plan.notifications))?;
    for id in &plan.first {
        print_line(out, &format!("  {}", printable(id.as_str())))?;
    }
    print_line(out, &format!("{} malformed intents name {user}", plan.malformed_intents))?;
    if plan.directory_document {
        print_line(out, &format!("the user directory has a document of {user}"))?;
    }
    print_line(out, &format!("{} entries of streams name {user}", plan.stream_entries))?;
    print_mentions(out, &plan.mentions)
}

fn print_mentions(out: &mut impl Write, mentions: &Mentions) -> anyhow::Result<()> {
    let count = mentions.count;
    print_line(
        out,
        &format!("{count} notifications and malformed intents mention the user elsewhere, and stay"),
    )?;
    for id in &mentions.notifications {
        print_line(out, &format!("  notification {}", printable(id.as_str())))?;
    }
    for entry_id in &mentions.malformed_intents {
        print_line(out, &format!("  malformed intent {}", printable(entry_id)))?;
    }
    Ok(())
}

fn print_report(out: &mut impl Write, report: &ErasureReport) -> anyhow::Result<()> {
    let rows = &report.rows;
    for (what, count) in [
        ("notifications deleted", rows.records_deleted),
        ("notifications that lost the recipient", rows.records_changed),
        ("routes deleted", rows.routes),
        ("dead letters deleted", rows.dead_letters),
        ("receipts deleted", rows.receipts),
        ("stored answers deleted", rows.responses),
        ("malformed intents without their fields", rows.malformed_intents),
        ("former actions without the id", rows.actions),
        ("documents of the user directory deleted", rows.directory_documents),
        ("entries of streams deleted", report.stream_entries),
        ("entries of streams not processed yet, or not readable", report.unread_entries),
    ] {
        print_line(out, &format!("{count:>8} {what}"))?;
    }
    print_mentions(out, &report.mentions)?;
    let ErasureReport { user_hash, request_id, started_at, ended_at, .. } = report;
    let request = match rows.total() + report.stream_entries {
        0 => "nothing was there to erase".to_owned(),
        _ => format!("request {request_id} in operator_actions"),
    };
    print_line(out, &format!("from {started_at} to {ended_at}, {request}, hash {user_hash}"))
}
