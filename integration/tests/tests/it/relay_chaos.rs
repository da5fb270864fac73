//! producers commit and roll back while relays, the service and the servers are killed. At the end each
//! committed event has exactly one record, and no record is from a transaction that was rolled back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use harness::{Proxy, Service, ServiceBuilder, wait_for};

use crate::outbox::*;
use crate::world::*;

/// The number of faults.
const FAULTS: u32 = 24;
/// The pause between two faults, so that some work happens between them.
const FAULT_INTERVAL: Duration = Duration::from_millis(1_500);
/// The duration of a black hole: longer than the stores' timeouts.
const BLACK_HOLE: Duration = Duration::from_secs(4);
/// The number of concurrent producers.
const PRODUCERS: u32 = 4;

/// A random number generator that gives the same numbers for the same seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The transactions of the producers, with their known outcomes.
#[derive(Default)]
struct Ledger {
    committed: BTreeSet<u32>,
    rolled_back: BTreeSet<u32>,
    /// The connection ended before the outcome was known: the table shows it.
    unknown: BTreeSet<u32>,
}

impl Ledger {
    fn note(&mut self, events: Vec<u32>, begun: bool, ended: bool, commits: bool) {
        match (begun, ended, commits) {
            (true, true, true) => self.committed.extend(events),
            (true, false, true) => self.unknown.extend(events),
            _ => self.rolled_back.extend(events),
        }
    }
}

/// Writes events of a transaction each, until `stop`; one transaction in four is rolled back, and one in
/// eight is slow.
async fn produce(
    dsn: String,
    mut draw: Draw,
    numbers: Arc<AtomicU32>,
    ledger: Arc<Mutex<Ledger>>,
    stop: Arc<AtomicBool>,
) {
    while !stop.load(Ordering::SeqCst) {
        let Ok((client, connection)) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // The task ends with the client.
        tokio::spawn(async { drop(connection.await) });
        while !stop.load(Ordering::SeqCst) {
            let first = numbers.fetch_add(3, Ordering::SeqCst);
            let events: Vec<u32> = (first..=first + u32::try_from(draw.below(3)).expect("small")).collect();
            let rows: Vec<String> = events.iter().map(|n| keyed_row(*n)).collect();
            let insert = format!(
                "BEGIN; INSERT INTO notification.openoutbox_events (event_id, event_type, payload, partition_key) VALUES {}",
                rows.join(",")
            );
            let begun = client.batch_execute(&insert).await;
            if draw.below(8) == 0 {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            let commits = draw.below(4) != 0;
            let ended = client.batch_execute(if commits { "COMMIT" } else { "ROLLBACK" }).await;
            ledger.lock().unwrap_or_else(PoisonError::into_inner).note(
                events,
                begun.is_ok(),
                ended.is_ok(),
                commits,
            );
            if client.is_closed() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn keyed_row(n: u32) -> String {
    let key = if n.is_multiple_of(3) { String::new() } else { format!("key-{}", n % 20) };
    format!("('{}', 'game.turn.ready', convert_to('{}', 'UTF8'), '{key}')", event_id(n), payload(n))
}

/// A process that is restarted whenever it has ended.
struct Kept {
    builder: ServiceBuilder,
    running: Option<Service>,
}

impl Kept {
    fn new(builder: ServiceBuilder) -> Self {
        Self { running: Some(builder.clone().spawn()), builder }
    }

    /// Kills the process and starts the next one, which may fail as long as a store is unavailable.
    async fn replace(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill().await;
        }
        self.running = Some(self.builder.clone().spawn());
    }

    /// Restarts the process if it has ended, as an orchestrator would.
    async fn revive(&mut self) {
        let ended = match &mut self.running {
            Some(running) => running.has_ended(),
            None => true,
        };
        if ended {
            self.replace().await;
        }
    }
}

//
#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_each_committed_event_is_one_record_and_none_that_was_rolled_back_is() {
    let mut outbox = Outbox::with_own_postgres().await;
    let seed = u64::from(std::process::id());
    println!("the seed of the faults is {seed}");
    let mut draw = Draw(seed);
    let redis = Proxy::start(outbox.world.redis.port()).await;
    let postgres = Proxy::start(outbox.database.port()).await;
    let mut relays = [
        Kept::new(outbox.relay()),
        Kept::new(outbox.relay_via(redis.port(), postgres.port())),
        Kept::new(outbox.relay()),
    ];
    let mut service = Kept::new(outbox.world.service_via(redis.port(), postgres.port()));
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let (numbers, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let dsn = format!("postgres://postgres@127.0.0.1:{}/{}", outbox.database.port(), outbox.database.name());
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|n| {
            let draw = Draw(seed + 1 + u64::from(n));
            let (ledger, stop) = (Arc::clone(&ledger), Arc::clone(&stop));
            tokio::spawn(produce(dsn.clone(), draw, Arc::clone(&numbers), ledger, stop))
        })
        .collect();

    for _ in 0..FAULTS {
        pause(FAULT_INTERVAL).await;
        match draw.below(9) {
            relay @ 0..3 => relays[usize::try_from(relay).expect("small")].replace().await,
            3 => service.replace().await,
            4 => {
                outbox.world.redis.kill().await;
                outbox.world.redis.start_again().await.expect("it starts again");
            }
            5 => {
                let server = outbox.world.postgres.as_mut().expect("its own");
                server.kill().await;
                server.start_again().await.expect("it starts again");
            }
            6 => black_hole(&redis).await,
            7 => black_hole(&postgres).await,
            _ => {
                redis.drop_connections();
                postgres.drop_connections();
            }
        }
        for kept in relays.iter_mut().chain([&mut service]) {
            kept.revive().await;
        }
    }
    stop.store(true, Ordering::SeqCst);
    for producer in producers {
        producer.await.expect("no producer panics");
    }
    check(&outbox, &mut relays, &mut service, &ledger).await;
}

async fn pause(time: Duration) {
    let since = Instant::now();
    wait_for("time passes", BOUND, async || (since.elapsed() >= time).then_some(())).await;
}

async fn black_hole(proxy: &Proxy) {
    proxy.black_hole();
    pause(BLACK_HOLE).await;
    proxy.heal();
}

async fn check(outbox: &Outbox, relays: &mut [Kept], service: &mut Kept, ledger: &Mutex<Ledger>) {
    let client = outbox.database.client().await;
    wait_for("all is done", BOUND, async || {
        for kept in relays.iter_mut().chain([&mut *service]) {
            kept.revive().await;
        }
        let open = "SELECT count(*) FROM openoutbox_events WHERE status <> 'DELIVERED'";
        (client.query_one(open, &[]).await.ok()?.get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    let ledger = std::mem::take(&mut *ledger.lock().unwrap_or_else(PoisonError::into_inner));
    let rows = client.query("SELECT event_id::text FROM openoutbox_events", &[]).await.expect("it is there");
    let table: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let ids =
        |numbers: &BTreeSet<u32>| -> BTreeSet<String> { numbers.iter().copied().map(event_id).collect() };
    assert!(table.is_superset(&ids(&ledger.committed)), "what was committed is in the table");
    assert!(table.is_disjoint(&ids(&ledger.rolled_back)), "what was rolled back is not");
    let known: BTreeSet<u32> = ledger.committed.union(&ledger.unknown).copied().collect();
    assert!(ids(&known).is_superset(&table), "nothing is in the table that no producer wrote");
    assert!(ledger.committed.len() > 200 && !ledger.rolled_back.is_empty(), "the producers were at work");
    let events = i64::try_from(table.len()).expect("few");

    outbox.world.settled(events).await;
    let accepted = outbox.world.column("SELECT idempotency_key FROM records").await;
    let distinct: BTreeSet<String> = accepted.iter().cloned().collect();
    assert_eq!(accepted.len(), distinct.len(), "no event is two records");
    assert_eq!(distinct, table, "each committed event is a record, and nothing else is");
    assert_eq!(outbox.world.number("SELECT count(*) FROM malformed_intents").await, 0);
    outbox.world.check_tables().await;
}
