//! `audit`: compares the streams and the tables with each other. The comparison is in `workers`; this module
//! has its inputs and its output.

mod report;

use std::io::Write;

use anyhow::Context;
use clap::Args;
use domain::route::Channel;
use store_redis::{Keyspace, RedisCheckpoints, RedisClient, RedisOutbound, RedisStreamReader, StreamTarget};
use workers::{Audit, AuditSettings, AuditStores};

use super::operators::{Output, StoreClock, Style, Tables, TimeRange, open_redis};
use super::{Failure, Vars, load};
use crate::config::{AuditConfig, OutboundStream};
use crate::wiring;
use report::Report;

/// The entries to compare.
#[derive(Args, Debug)]
pub struct AuditArgs {
    #[command(flatten)]
    times: TimeRange,
    #[command(flatten)]
    output: Output,
}

/// The examples of `audit`.
pub const EXAMPLES: &str = "\
Examples:
  notification audit                                   everything that the tables and the streams have
  notification audit --since 2h                        what was accepted or appended in the last two hours
  notification audit --since 2026-04-02T09:00:00Z --until 2026-04-02T10:00:00Z
  notification audit --json | jq -r 'select(.discrepancy) | .discrepancy' | sort | uniq -c

It only reads, beside the traffic, and says nothing twice: what is found is looked for again before it is reported. It needs the
variables of PostgreSQL, of Redis and of the streams, and those of retention and of the catalogue where the service has them.
Rows without a parent are looked for only without --since and --until. The first discrepancy of a kind is followed by the usual
cause and the remedy; docs/operations.md#audit has the statements. --json has both in each line.
The exit code is 0 if there is no discrepancy, and 1 if there is one or the audit could not be completed.";

/// Runs the command with these variables, and prints to `out`.
pub async fn run(args: &AuditArgs, vars: Vars, out: &mut impl Write) -> Result<(), Failure> {
    let style = Style::of_stdout(&vars, false);
    let config: AuditConfig = load(vars)?;
    let redis = open_redis(&config.redis)?;
    let tables = Tables::open(config.tables.clone()).await?;
    let addr = &config.redis.topology;
    redis.ping().await.with_context(|| format!("Redis at {addr} cannot be used"))?;
    // Ages are measured by the database's clock, as retention does: the clock of an operator's machine may be
    // wrong.
    let clock = StoreClock::new(tables.explained(tables.queries.now().await)?);
    let settings = settings(args, &config, &clock)?;
    let stores = stores(&config, &tables, &redis)?;
    let report = Report::new(args.output.json, style, out);
    let audit = Audit::new(stores, settings, clock, report);
    let range = audit.range();
    let done = audit.run().await.context("the audit could not be completed");
    let (figures, report) = done?;
    report.finish(&figures, range)?;
    if figures.discrepancies > 0 { Err(Failure::Reported) } else { Ok(()) }
}

fn settings(args: &AuditArgs, config: &AuditConfig, clock: &StoreClock) -> Result<AuditSettings, Failure> {
    let (since, until) = args.times.at(clock.begun())?;
    let outbound = &config.outbound;
    Ok(AuditSettings {
        intents_stream: config.tables.intents_stream.clone(),
        outbound_streams: [
            (Channel::Push, outbound.gateway.key.clone()),
            (Channel::Email, outbound.mail.key.clone()),
        ],
        catalog: config.catalog.clone(),
        record_retention: config.retention.record,
        malformed_retention: config.retention.malformed_intent,
        since,
        until,
    })
}

type Stores = AuditStores<
    store_postgres::PgQueries,
    RedisStreamReader,
    RedisOutbound,
    RedisCheckpoints,
    wiring::leader::LockLookup,
>;

fn stores(config: &AuditConfig, tables: &Tables, redis: &RedisClient) -> anyhow::Result<Stores> {
    let target = |stream: &OutboundStream| StreamTarget { key: stream.key.clone(), max_len: stream.max_len };
    let outbound = &config.outbound;
    let keyspace = Keyspace::new(&config.tables.intents_stream, &outbound.gateway.key, &outbound.mail.key);
    Ok(AuditStores {
        tables: tables.lists.clone(),
        current: tables.queries.clone(),
        streams: RedisStreamReader::new(redis),
        outbound: RedisOutbound::new(redis, &keyspace, target(&outbound.gateway), target(&outbound.mail)),
        cache: RedisCheckpoints::new(redis),
        leader: tables.leader()?,
    })
}
