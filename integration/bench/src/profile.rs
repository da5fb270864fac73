//! The breakdown of the time of one intent by statement, by command and by step of the service.
//!
//! One round of the service with the counters of PostgreSQL and of Redis switched on. The time of a statement
//! is wall time, waiting included; without a free core that is more than its processor time. The steps of the
//! service that are pure functions are measured again alone, in batches of the same size, on an idle machine.
//! The rest of the service's processor time belongs to the drivers, the runtime and the kernel.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ambient::Timestamp;
use anyhow::Context;
use domain::accept::{self, Decoded};
use domain::catalog::Catalog;
use domain::entry::{EntryId, RawEntry};
use domain::outbound;
use domain::policy::Policy;
use domain::ports::{Known, Lookup, User};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::figure::{Figure, ReportSection};
use crate::testbed::{INTENTS, Testbed};
use crate::throughput::drive;
use crate::{Scale, load};

/// Entries in one transaction, as in the service's defaults.
const BATCH: u32 = 512;

/// Statements by their beginning, with their name in the report.
const STATEMENTS: [(&str, &str); 5] = [
    ("INSERT INTO \"records\"", "insert the records"),
    ("INSERT INTO \"routes\"", "insert the routes"),
    ("SELECT 1 FROM ONLY", "of which: check the foreign key"),
    ("UPDATE \"routes\"", "complete the routes"),
    ("UPDATE \"intake\"", "move the checkpoint"),
];
const OTHER: &str = "every other statement";

/// Commands, with their name in the report. The time of a script includes the commands that it calls.
const COMMANDS: [(&str, &str); 8] = [
    ("xread", "read the intents"),
    ("evalsha", "scripts: leases, appends, cached checkpoint"),
    ("xadd", "of which: append"),
    ("hset", "of which: markers of routes under a permit"),
    ("hmget", "of which: look for such markers"),
    ("exists", "of which: look for permits and leases"),
    ("set", "of which: leases, and markers in their place"),
    ("get", "of which: read leases"),
];

/// Measures one round and breaks it down.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    println!("profile: {} intents", scale.intents);
    let dsn = testbed.fresh().await?;
    let superuser = testbed.superuser(&dsn).await?;
    let count = format!(
        "CREATE EXTENSION pg_stat_statements SCHEMA public; ALTER DATABASE \"{}\" SET pg_stat_statements.track = 'all'",
        Testbed::database_of(&dsn)
    );
    superuser.batch_execute(&count).await.context("PostgreSQL does not count statements")?;
    let mut redis = testbed.redis().await?;
    load::preload(&mut redis, 0, scale.intents, load::ROUTES).await?;
    redis::cmd("CONFIG").arg("RESETSTAT").query_async::<()>(&mut redis).await?;
    let (_, used) = drive(testbed, &dsn, scale.intents, load::ROUTES).await?;

    let each = |micros: f64| micros / f64::from(scale.intents);
    let mut figures = Vec::new();
    let mut show = |name: String, micros: f64| {
        if micros > 0.0 {
            figures.push(Figure::shown(name, each(micros), "µs/intent"));
        }
    };
    show("PostgreSQL: total processor time".to_owned(), used.postgres as f64);
    for (name, micros) in statements(&superuser).await? {
        show(format!("PostgreSQL, by the clock: {name}"), micros);
    }
    show("Redis: total processor time".to_owned(), used.redis as f64);
    for (name, micros) in commands(&mut redis).await? {
        show(format!("Redis: {name}"), micros);
    }
    show("service: total processor time".to_owned(), used.own as f64);
    let mut remaining = used.own as f64;
    for (name, time) in steps(scale.intents) {
        let micros = time.as_secs_f64() * 1e6;
        remaining -= micros;
        show(format!("service: {name}"), micros);
    }
    show("service: drivers, runtime, kernel (the rest)".to_owned(), remaining);
    let title =
        format!("Profile: where the time of one intent of four routes goes, {} intents", scale.intents);
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

/// Microseconds by kind of statement, in the order of `STATEMENTS`.
async fn statements(superuser: &Client) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let sql = "SELECT query, toplevel, total_exec_time * 1000 FROM pg_stat_statements
        WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let mut times: BTreeMap<usize, f64> = BTreeMap::new();
    for row in superuser.query(sql, &[]).await.context("PostgreSQL has not counted")? {
        let (query, toplevel, micros): (String, bool, f64) = (row.get(0), row.get(1), row.get(2));
        // pg_stat_statements replaces the number in the check of a foreign key with a parameter.
        let query = query.replacen("SELECT $2 FROM ONLY", "SELECT 1 FROM ONLY", 1);
        let kind = STATEMENTS.iter().position(|(beginning, _)| query.starts_with(beginning));
        if toplevel || kind.is_some() {
            *times.entry(kind.unwrap_or(STATEMENTS.len())).or_default() += micros;
        }
    }
    let name = |kind: usize| STATEMENTS.get(kind).map_or(OTHER, |(_, name)| name);
    Ok(times.into_iter().map(|(kind, micros)| (name(kind), micros)).collect())
}

/// Microseconds by command.
async fn commands(redis: &mut MultiplexedConnection) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let text: String = redis::cmd("INFO").arg("commandstats").query_async(redis).await?;
    let micros = |command: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")))?;
        line.split(',').find_map(|part| part.strip_prefix("usec="))?.parse::<f64>().ok()
    };
    Ok(COMMANDS.iter().map(|(command, name)| (*name, micros(command).unwrap_or(0.0))).collect())
}

/// Runs the pure steps over `intents` intents. Returns the time of each.
fn steps(intents: u32) -> [(&'static str, Duration); 3] {
    let policy = policy();
    let now = Timestamp::from_millis(1_775_121_700_500).unwrap_or(Timestamp::UNIX_EPOCH);
    let names: Vec<String> = (0..500).map(|n| format!("user-{n}")).collect();
    let found =
        |name: &str| User { email: format!("{name}@example.com"), preferred_language: "en".to_owned() };
    let users: HashMap<String, Lookup> =
        names.iter().map(|name| (name.clone(), Lookup::Found(found(name)))).collect();
    let mut times = [Duration::ZERO; 3];
    for first in (0..intents).step_by(BATCH as usize) {
        let entries: Vec<RawEntry> = (first..(first + BATCH).min(intents))
            .map(|n| RawEntry { id: EntryId::new(u64::from(n) + 1, 0), fields: load::draft(n).into_entry() })
            .collect();
        let started = Instant::now();
        let batch: Vec<Decoded> =
            entries.into_iter().map(|entry| accept::decode(INTENTS, entry, &policy, now)).collect();
        times[0] += started.elapsed();

        let started = Instant::now();
        let decision =
            accept::decide(INTENTS, &batch, &Known::default(), &users, &policy, policy.schedule(now, true));
        times[1] += started.elapsed();

        let started = Instant::now();
        for acceptance in decision.decided.iter().filter_map(|decided| decided.outcome.acceptance()) {
            for route in acceptance.live_routes() {
                drop(black_box(outbound::encode(&route)));
            }
        }
        times[2] += started.elapsed();
    }
    [
        ("decode, validate and fingerprint", times[0]),
        ("decide", times[1]),
        ("encode the outbound entries", times[2]),
    ]
}

/// The policy of the default configuration.
fn policy() -> Policy {
    Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::new(),
        locales: vec!["en".to_owned()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(168 * 3_600),
        head_start: Duration::from_secs(5),
    }
}
