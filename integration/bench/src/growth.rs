//! What a database costs when it is no longer new: when the tables are full, and when nothing in it can be vacuumed.
//!
//! Every run is the service with its defaults, from its being ready, which includes being elected and the first read.
//! Processor time of PostgreSQL, with its background workers, of Redis and of the service counts. The empty tables are
//! measured before, between and after the others, so that a machine that grows slower is not taken for a database that
//! does; the median of these rounds is what the others are held against.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use harness::Service;
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::figure::Figure;
use crate::measure::{Cpu, median};
use crate::throughput::wait_for_entries;
use crate::world::{INTENTS, World};
use crate::{Scale, load};

/// What processor time per intent may grow to in full tables, and beside a transaction that stays open.
const FULL_TABLES: f64 = 1.25;
const OPEN_TRANSACTION: f64 = 1.5;
/// The open transaction has this many times the intents to do harm in.
const LONG: u32 = 3;

/// How long a run may take.
pub(crate) const BOUND: Duration = Duration::from_secs(300);
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// Records that are loaded in one transaction.
const CHUNK: u32 = 25_000;
/// Routes of a record, both loaded and of `load`.
pub(crate) const ROUTES: u32 = 4;

/// How much of everything.
struct Size {
    intents: u32,
    /// Records in the full tables.
    records: u32,
}

impl Size {
    fn of(scale: Scale) -> Self {
        if is_smoke(scale) {
            Self { intents: 1_000, records: 10_000 }
        } else {
            Self { intents: 20_000, records: 1_000_000 }
        }
    }
}

/// Whether the run only has to prove that it works.
pub(crate) fn is_smoke(scale: Scale) -> bool {
    scale.intents < 10_000
}

/// Rows that are there before the service starts: records of four routes each, a millisecond apart.
pub(crate) struct Rows {
    pub(crate) records: u32,
    /// How long ago the last of them was accepted, as PostgreSQL writes an interval.
    pub(crate) age: &'static str,
    /// Pending and overdue instead of published.
    pub(crate) due: bool,
}

/// One run over intents that all wait in the stream.
pub(crate) struct Drain {
    intents: u32,
    /// Until the last entry was appended, and until the last route was completed.
    appended: Duration,
    completed: Duration,
    cpu: Cpu,
}

impl Drain {
    fn cpu_per_intent(&self) -> f64 {
        (self.cpu.postgres + self.cpu.redis + self.cpu.own) as f64 / f64::from(self.intents)
    }

    pub(crate) fn routes_per_second(&self) -> f64 {
        f64::from(self.intents * ROUTES) / self.appended.as_secs_f64()
    }

    pub(crate) fn intents_per_second(&self) -> f64 {
        f64::from(self.intents) / self.completed.as_secs_f64()
    }
}

/// All of it.
pub(crate) async fn run(world: &mut World, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    let size = Size::of(scale);
    let mut empty = vec![empty_tables(world, size.intents).await?];
    let full = full_tables(world, &size).await?;
    empty.push(empty_tables(world, size.intents).await?);
    empty.push(empty_tables(world, size.intents).await?);
    let plain = empty_tables(world, size.intents * LONG).await?;
    let held = open_transaction(world, size.intents * LONG).await?;

    let cpu = median(empty.iter().map(Drain::cpu_per_intent));
    let rows = format!("{} records and {} published routes", size.records, size.records * ROUTES);
    Ok(vec![
        Figure::shown("CPU per intent, empty tables", cpu, "µs"),
        Figure::shown(format!("CPU per intent, {rows} (VACUUM ANALYZE done)"), full.cpu_per_intent(), "µs"),
        Figure::at_most(
            "CPU per intent, full tables to empty",
            full.cpu_per_intent() / cpu,
            "x",
            FULL_TABLES,
        ),
        Figure::shown(
            format!("CPU per intent, {} intents, empty tables", plain.intents),
            plain.cpu_per_intent(),
            "µs",
        ),
        Figure::shown("CPU per intent, the same beside an open transaction", held.cpu_per_intent(), "µs"),
        Figure::at_most(
            "CPU per intent, nothing can be vacuumed, to plain",
            held.cpu_per_intent() / plain.cpu_per_intent(),
            "x",
            OPEN_TRANSACTION,
        ),
    ])
}

pub(crate) async fn empty_tables(world: &mut World, intents: u32) -> anyhow::Result<Drain> {
    println!("growth: {intents} intents into empty tables");
    let dsn = world.fresh().await?;
    let drain = drain(world, &dsn, intents).await?;
    drop_database(world, &dsn).await?;
    Ok(drain)
}

async fn full_tables(world: &mut World, size: &Size) -> anyhow::Result<Drain> {
    println!("growth: {} intents into tables with {} records", size.intents, size.records);
    let dsn = world.fresh().await?;
    insert(world, &dsn, &Rows { records: size.records, age: "1 day", due: false }).await?;
    settle(world, &dsn).await?;
    let drain = drain(world, &dsn, size.intents).await?;
    drop_database(world, &dsn).await?;
    Ok(drain)
}

/// A snapshot that is older than every row of the run keeps each dead version of a route where it is.
async fn open_transaction(world: &mut World, intents: u32) -> anyhow::Result<Drain> {
    println!("growth: {intents} intents beside a transaction that stays open");
    let dsn = world.fresh().await?;
    let holder = world.postgres(&dsn).await?;
    holder
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM routes")
        .await
        .context("could not open the transaction")?;
    let drain = drain(world, &dsn, intents).await?;
    holder.batch_execute("COMMIT").await.context("the transaction did not stay open")?;
    drop_database(world, &dsn).await?;
    Ok(drain)
}

/// Brings `intents` intents through, all of which are in the stream when the service starts.
async fn drain(world: &mut World, dsn: &str, intents: u32) -> anyhow::Result<Drain> {
    let mut redis = world.redis().await?;
    load::preload(&mut redis, intents).await?;
    let (first, _) = ends(&mut redis).await?;
    let client = observer(world, dsn).await?;
    let before = published(&client).await?;
    let service = world.service(dsn).start().await;
    let (postgres, redis_pid, own) = (world.postgres.pid(), world.redis.pid(), service.pid());
    let cpu = || Cpu::now(postgres, redis_pid, own);
    let (started, used) = (Instant::now(), cpu());
    wait_for_entries(&mut redis, u64::from(intents * ROUTES)).await?;
    let appended = started.elapsed();
    while has_live(&client, &first).await? {
        ensure!(started.elapsed() < BOUND, "routes are not completed after {BOUND:?}");
        tokio::time::sleep(POLL).await;
    }
    let drain = Drain { intents, appended, completed: started.elapsed(), cpu: cpu().since(used) };
    stop(world, service).await;
    let done = published(&client).await? - before;
    ensure!(done == i64::from(intents * ROUTES), "{done} routes were published, not {}", intents * ROUTES);
    Ok(drain)
}

/// Inserts the rows in chunks, with every index and foreign key in place.
pub(crate) async fn insert(world: &World, dsn: &str, rows: &Rows) -> anyhow::Result<()> {
    let client = world.postgres(dsn).await?;
    let newest: i64 = client
        .query_one("SELECT (extract(epoch FROM now() - $1::text::interval) * 1000)::bigint", &[&rows.age])
        .await
        .context("could not reckon the age of the rows")?
        .get(0);
    let payload = payload();
    let records = client.prepare(INSERT_RECORDS).await?;
    let routes = client.prepare(if rows.due { INSERT_DUE } else { INSERT_PUBLISHED }).await?;
    let base = newest - i64::from(rows.records);
    for first in (0..rows.records).step_by(CHUNK as usize) {
        let last = i64::from((first + CHUNK).min(rows.records) - 1);
        let first = i64::from(first);
        client.batch_execute("BEGIN").await?;
        client
            .execute(&records, &[&base, &first, &last, &payload])
            .await
            .context("could not load records")?;
        client.execute(&routes, &[&base, &first, &last]).await.context("could not load routes")?;
        client.batch_execute("COMMIT").await?;
    }
    Ok(())
}

/// The id of a record is that of a stream entry of its time, so that new ones come behind it in every index.
const INSERT_RECORDS: &str = "INSERT INTO records (notification_id, notification_type, producer, audience_kind,
    recipient_user_ids, payload_json, idempotency_key, request_fingerprint, request_id, occurred_at, accepted_at, updated_at,
    idempotency_expires_at)
    SELECT $1::bigint + n || '-0', 'game.turn.ready', 'game_master', 'user',
    jsonb_build_array('user-' || n % 500, 'user-' || (n + 1) % 500), $4::text, 'loaded:' || n,
    'v1:' || lpad(to_hex(n), 64, '0'), 'request-' || n, at, at, at, at + interval '168 hours'
    FROM generate_series($2::bigint, $3::bigint) n, to_timestamp(($1::bigint + n) / 1000.0) at";
const INSERT_PUBLISHED: &str = "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts,
    resolved_email, resolved_locale, created_at, updated_at, published_at, published_entry_id)
    SELECT $1::bigint + n || '-0', channel || ':user:' || name, channel, 'user:' || name, 'published', 3,
    CASE channel WHEN 'email' THEN name || '@example.com' ELSE '' END, 'en', at, at, at, $1::bigint + n || '-1'
    FROM generate_series($2::bigint, $3::bigint) n, to_timestamp(($1::bigint + n) / 1000.0) at,
    (VALUES ('push', 0), ('push', 1), ('email', 0), ('email', 1)) route (channel, place),
    concat('user-', (n + place) % 500) name";
const INSERT_DUE: &str =
    "INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts,
    resolved_email, resolved_locale, created_at, updated_at, next_attempt_at)
    SELECT $1::bigint + n || '-0', channel || ':user:' || name, channel, 'user:' || name, 'pending', 3,
    CASE channel WHEN 'email' THEN name || '@example.com' ELSE '' END, 'en', at, at, at + interval '5 s'
    FROM generate_series($2::bigint, $3::bigint) n, to_timestamp(($1::bigint + n) / 1000.0) at,
    (VALUES ('push', 0), ('push', 1), ('email', 0), ('email', 1)) route (channel, place),
    concat('user-', (n + place) % 500) name";

/// As long as that of an intent of the run.
fn payload() -> String {
    let fields = load::fields(0).into_iter();
    fields.filter(|(name, _)| *name == "payload_json").map(|(_, value)| value).collect()
}

/// Leaves the tables as autovacuum would have by the time that they hold so much.
pub(crate) async fn settle(world: &World, dsn: &str) -> anyhow::Result<()> {
    let client = world.postgres(dsn).await?;
    for table in ["records", "routes"] {
        client.batch_execute(&format!("VACUUM ANALYZE {table}")).await.context("could not vacuum")?;
    }
    checkpoint(world, dsn).await
}

/// What the load has left to be written is not written at the expense of the run.
pub(crate) async fn checkpoint(world: &World, dsn: &str) -> anyhow::Result<()> {
    world.postgres.execute("postgres", "CHECKPOINT").await.with_context(|| format!("no checkpoint for {dsn}"))
}

/// Removes the database of a scenario that is over, so that nobody vacuums it during the next one.
pub(crate) async fn drop_database(world: &World, dsn: &str) -> anyhow::Result<()> {
    let name = World::database_of(dsn);
    let sql = format!("DROP DATABASE \"{name}\" WITH (FORCE)");
    world.postgres.execute("postgres", &sql).await.context("could not drop a database")
}

/// Ends the service in good order: a killed one would be heard of until its connections are found dead.
pub(crate) async fn stop(world: &mut World, mut service: Service) {
    world.saw_memory(service.pid());
    service.signal("TERM");
    service.wait_exit(BOUND).await;
}

/// A client whose looks at routes walk the primary key, whatever the statistics are: it must not burden the run.
pub(crate) async fn observer(world: &World, dsn: &str) -> anyhow::Result<Client> {
    let client = world.postgres(dsn).await?;
    let settings = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";
    client.batch_execute(settings).await?;
    Ok(client)
}

/// Whether a route of notification `first` or a later one is live. Latest first, because there it is found at once.
pub(crate) async fn has_live(client: &Client, first: &str) -> anyhow::Result<bool> {
    // By status and not by next_attempt_at, so that the index of due routes, with the whole backlog, is no choice.
    let latest = "SELECT FROM routes WHERE notification_id >= $1 AND status IN ('pending', 'failed')
        ORDER BY notification_id DESC, route_id DESC LIMIT 1";
    Ok(client.query_opt(latest, &[&first]).await.context("could not look for live routes")?.is_some())
}

pub(crate) async fn published(client: &Client) -> anyhow::Result<i64> {
    let count = "SELECT count(*) FROM routes WHERE status = 'published'";
    Ok(client.query_one(count, &[]).await.context("could not count")?.get(0))
}

/// The ids of the first and the last intent in the stream.
pub(crate) async fn ends(redis: &mut MultiplexedConnection) -> anyhow::Result<(String, String)> {
    type Found = Vec<(String, Vec<String>)>;
    let mut pipeline = redis::pipe();
    pipeline.cmd("XRANGE").arg(INTENTS).arg("-").arg("+").arg("COUNT").arg(1);
    pipeline.cmd("XREVRANGE").arg(INTENTS).arg("+").arg("-").arg("COUNT").arg(1);
    let (first, last): (Found, Found) = pipeline.query_async(redis).await?;
    let id = |found: Found| found.into_iter().next().map(|(id, _)| id).context("the stream is empty");
    Ok((id(first)?, id(last)?))
}
