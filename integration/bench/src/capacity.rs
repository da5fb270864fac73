//! The cost of an intent and of a route: the figures that `notification capacity` uses.
//!
//! The same number of intents with two and with four routes is processed in separate tables; the common part
//! belongs to the intent, the difference to the routes. Sizes are measured right after the load, with every
//! index, before autovacuum has reclaimed anything. WAL includes the full pages of one checkpoint. Rows of
//! tables that this load does not fill are inserted as the service writes them.
//!
//! The rate is measured in the same rounds, so that it and the processor times are consistent in the
//! calculator: at this rate, the costs cannot exceed the cores of the machine.

use anyhow::{Context, ensure};
use app::capacity::{BYTES, Costs, MEASURED, RUN};
use redis::aio::MultiplexedConnection;
use tokio_postgres::Client;

use crate::Scale;
use crate::figure::{Figure, ReportSection};
use crate::growth::drain;
use crate::load;
use crate::measure::median;
use crate::testbed::{INTENTS, MAIL, PUSH, Testbed};

/// The accepted factor between the calculator's figures and those measured here, either way.
const TOLERANCE: f64 = 1.5;
/// The routes of the two loads.
const FEW: u32 = 2;
const MANY: u32 = 4;

/// The cost of one load, for each of its intents.
#[derive(Clone, Copy)]
struct LoadCost {
    records: f64,
    routes: f64,
    wal: f64,
    wal_of_deletion: f64,
    intents_stream: f64,
    outbound_streams: f64,
    /// Redis memory other than the streams.
    other_keys: f64,
    postgres: f64,
    redis: f64,
    own: f64,
    /// Intents per second, to the last completion.
    rate: f64,
}

/// Measures alternating rounds of both loads.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let (intents, rounds) = if scale.smoke { (500, 1) } else { (30_000, scale.latency_rounds) };
    let (mut few, mut many) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        println!("capacity: round {round} of {rounds}");
        few.push(load(testbed, intents, FEW).await?);
        many.push(load(testbed, intents, MANY).await?);
    }
    println!("capacity: other tables");
    let rows = other_rows(testbed, intents).await?;
    let figures = figures(&few, &many, &rows, scale.smoke);
    let payload = load::draft(0).payload_json.len();
    let title = format!(
        "Capacity: {intents} intents of {FEW} and of {MANY} routes with a payload of {payload} bytes, {rounds} alternating round(s), medians, \
         beside the figures of the calculator"
    );
    Ok(ReportSection { title, figures, charts: Vec::new() })
}

async fn load(testbed: &mut Testbed, intents: u32, routes: u32) -> anyhow::Result<LoadCost> {
    let dsn = testbed.fresh().await?;
    let client = testbed.superuser(&dsn).await?;
    let mut redis = testbed.redis().await?;
    let (wal, memory) = (wal(&client).await?, used_memory(&mut redis).await?);
    let drained = drain(testbed, &dsn, 0, intents, routes).await?;
    let each = |bytes: i64| bytes as f64 / f64::from(intents);
    let written = self::wal(&client).await? - wal;
    let streams = [INTENTS, PUSH, MAIL].map(|stream| (stream, redis.clone()));
    let mut sizes = Vec::new();
    for (stream, mut redis) in streams {
        let size: Option<i64> = redis::cmd("MEMORY")
            .arg("USAGE")
            .arg(stream)
            .arg("SAMPLES")
            .arg(0)
            .query_async(&mut redis)
            .await?;
        sizes.push(size.unwrap_or(0));
    }
    let others = used_memory(&mut redis).await? - memory - sizes.iter().sum::<i64>();
    let (records, of_routes) = (size(&client, "records").await?, size(&client, "routes").await?);
    let before = self::wal(&client).await?;
    // Retention finally deletes these rows; here without its locks and checks.
    client.batch_execute("DELETE FROM records").await.context("could not delete the records")?;
    let deleted = self::wal(&client).await? - before;
    let cpu = drained.cpu();
    Ok(LoadCost {
        records: each(records),
        routes: each(of_routes),
        wal: each(written),
        wal_of_deletion: each(deleted),
        intents_stream: each(sizes[0]),
        outbound_streams: each(sizes[1] + sizes[2]),
        other_keys: each(others.max(0)),
        postgres: cpu.postgres as f64 / f64::from(intents),
        redis: cpu.redis as f64 / f64::from(intents),
        own: cpu.own as f64 / f64::from(intents),
        rate: drained.intents_per_second(),
    })
}

async fn wal(client: &Client) -> anyhow::Result<i64> {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    Ok(client.query_one(sql, &[]).await.context("could not read the position of the WAL")?.get(0))
}

async fn size(client: &Client, table: &str) -> anyhow::Result<i64> {
    let sql = format!("SELECT pg_total_relation_size('{table}')");
    Ok(client
        .query_one(&sql, &[])
        .await
        .with_context(|| format!("could not read the size of {table}"))?
        .get(0))
}

async fn used_memory(redis: &mut MultiplexedConnection) -> anyhow::Result<i64> {
    let info: String = redis::cmd("INFO").arg("memory").query_async(redis).await?;
    let line =
        info.lines().find_map(|line| line.strip_prefix("used_memory:")).context("INFO has no used_memory")?;
    Ok(line.trim().parse()?)
}

/// Rows of other tables: the table, and the statement for `$1` rows as the service writes them.
const OTHER_ROWS: [(&str, &str); 3] = [
    (
        "idempotency_keys",
        "INSERT INTO idempotency_keys (scope, key, state, token, fingerprint, response_status, response_headers, response_body, expires_at,
            created_at)
         SELECT 'POST /v1/intents game_master', 'game-master:game-' || n % 1000 || ':turn-' || n, 'completed', lpad(to_hex(n), 32, '0'),
            'v1:' || lpad(to_hex(n), 64, '0'), 201, convert_to('content-type: application/json', 'UTF8'),
            convert_to('{\"notification_id\":\"' || 1775121700000 + n || '-0\",\"outcome\":\"accepted\"}', 'UTF8'), now(), now()
         FROM generate_series(1, $1::int) n",
    ),
    (
        "receipts",
        "INSERT INTO receipts (key, value, version, created_at, updated_at)
         SELECT 'receipts/' || 1775121700000 + n || '-0/push:user:user-' || n % 500,
            jsonb_build_object('status', 'delivered', 'at', '2026-01-01T00:00:00.000Z'), n, now(), now()
         FROM generate_series(1, $1::int) n",
    ),
    (
        "operator_actions",
        "INSERT INTO operator_actions (at, actor, action, arguments, affected, request_id)
         SELECT now(), 'on-call', 'replay_dead_letters', jsonb_build_object('filter', jsonb_build_object('channel', 'push',
            'classification', 'gateway_stream_publish_failed'), 'max_attempts', 3), 500, lpad(to_hex(n), 32, '0')
         FROM generate_series(1, $1::int) n",
    ),
];

async fn other_rows(testbed: &mut Testbed, rows: u32) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let dsn = testbed.fresh().await?;
    let client = testbed.superuser(&dsn).await?;
    let mut found = Vec::new();
    for (table, insert) in OTHER_ROWS {
        let count = i32::try_from(rows).context("too many rows")?;
        let before = size(&client, table).await?;
        let inserted =
            client.execute(insert, &[&count]).await.with_context(|| format!("could not fill {table}"))?;
        ensure!(inserted == u64::from(rows), "{inserted} rows in {table}");
        found.push((table, (size(&client, table).await? - before) as f64 / f64::from(rows)));
    }
    Ok(found)
}

fn figures(few: &[LoadCost], many: &[LoadCost], rows: &[(&'static str, f64)], smoke: bool) -> Vec<Figure> {
    let of = |costs: &[LoadCost], part: fn(&LoadCost) -> f64| median(costs.iter().map(part));
    // A line through both loads: the slope belongs to a route, the rest to the intent.
    let route = |part: fn(&LoadCost) -> f64| (of(many, part) - of(few, part)) / f64::from(MANY - FEW);
    let intent = |part: fn(&LoadCost) -> f64| of(few, part) - route(part) * f64::from(FEW);
    let wal = |cost: &LoadCost| cost.wal + cost.wal_of_deletion;
    let [keys, receipts, actions] = OTHER_ROWS
        .map(|(table, _)| rows.iter().find(|(found, _)| *found == table).map_or(0.0, |(_, bytes)| *bytes));
    let measured = Costs {
        record: intent(|cost| cost.records),
        route: route(|cost| cost.routes),
        intent_wal: intent(wal),
        route_wal: route(wal),
        intent_entry: of(many, |cost| cost.intents_stream),
        outbound_entry: route(|cost| cost.outbound_streams),
        route_keys: route(|cost| cost.other_keys),
        idempotency_key: keys,
        receipt: receipts,
        operator_action: actions,
        intent_postgres: intent(|cost| cost.postgres),
        route_postgres: route(|cost| cost.postgres),
        intent_redis: intent(|cost| cost.redis),
        route_redis: route(|cost| cost.redis),
        intent_service: intent(|cost| cost.own),
        route_service: route(|cost| cost.own),
    };
    let known = MEASURED.list();
    let mut figures: Vec<Figure> = known
        .iter()
        .zip(measured.list())
        .map(|(known, measured)| compared(known, measured.value, smoke))
        .collect();
    figures.extend(rates(few, many));
    figures
}

/// The rates of the same rounds, and the number of busy cores at the rate of the larger load.
fn rates(few: &[LoadCost], many: &[LoadCost]) -> [Figure; 3] {
    let rate = |name: String, costs: &[LoadCost]| {
        let each = || costs.iter().map(|cost| cost.rate);
        Figure::shown(name, median(each()), "intents/s").of_rounds(each())
    };
    let busy = median(many.iter().map(|cost| cost.rate * (cost.postgres + cost.redis + cost.own) / 1e6));
    let known = RUN.intents_per_second;
    [
        rate(format!("{FEW} routes"), few),
        rate(format!("{MANY} routes (calculator: {known} on {} cores, {})", RUN.cores, RUN.machine), many),
        Figure::shown(format!("busy with {MANY} routes"), busy, "cores"),
    ]
}

/// The measured value. Sizes have a goal: the calculator's figure must be near. Processor time has none,
/// because it differs between machines.
fn compared(known: &app::capacity::Cost, value: f64, smoke: bool) -> Figure {
    let figure = Figure::shown(format!("{} (calculator: {})", known.name, known.value), value, known.unit);
    if smoke || known.unit != BYTES {
        figure
    } else {
        figure.between(known.value / TOLERANCE, known.value * TOLERANCE)
    }
}
