//! The producers and consumers of a soak, and what they know of each intent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::world::{INTENTS, MAIL, PUSH, intent_draft};
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamReadReply};
use redis::{AsyncConnectionConfig, RedisResult};
use store_redis::append_command;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::within;

/// The interval at which producers append.
const TICK: Duration = Duration::from_millis(10);
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(100);
/// The time limit of a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time for which consumers wait for entries.
const BLOCK: Duration = Duration::from_secs(1);
/// The most entries that consumers read at a time.
const READ_ENTRIES: usize = 2_000;
/// The time for which entries stay on the outbound streams, and the interval at which they are trimmed.
const KEPT: Duration = Duration::from_secs(30);
const TRIM_INTERVAL: Duration = Duration::from_secs(5);
/// The bits of the entries of one intent: two users on two channels.
const ALL_ENTRIES: u8 = 0b1111;

/// The producers, the consumers, and what they know.
#[derive(Debug)]
pub(crate) struct Traffic {
    tally: Arc<Tally>,
    producer: Mutex<Option<JoinHandle<()>>>,
    consumer: JoinHandle<()>,
}

#[derive(Debug)]
struct Tally {
    started: Instant,
    rate: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A bit for each entry of each intent that was received.
    entries: Vec<u8>,
    /// The number of intents that Redis acknowledged.
    sent: u64,
    received: u64,
    /// The number of entries that came again.
    repeated: u64,
    /// Each of them, and each entry that is not understood, in words.
    broken: Vec<String>,
    /// Latencies in milliseconds, each with its number of entries, since they were last taken.
    latencies: BTreeMap<u64, u64>,
}

/// The time from the moment at which an intent is due to that at which a consumer receives an entry of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(BTreeMap<u64, u64>);

impl Latencies {
    pub(crate) fn add(&mut self, others: Self) {
        for (millis, count) in others.0 {
            *self.0.entry(millis).or_default() += count;
        }
    }

    /// The latency that `permille` of all entries do not exceed, in milliseconds.
    pub(crate) fn at(&self, permille: u64) -> u64 {
        let rank = (self.0.values().sum::<u64>() * permille).div_ceil(1_000);
        let mut seen = 0;
        let at_rank = self.0.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        at_rank.map_or(0, |(millis, _)| *millis)
    }
}

impl Traffic {
    /// Starts producers that append `rate` intents in each second of `time`, and consumers.
    pub(crate) fn start(redis_port: u16, rate: u32, time: Duration) -> Self {
        let tally = Arc::new(Tally { started: Instant::now(), rate, state: Mutex::default() });
        let producer = tokio::spawn(produce(redis_port, Arc::clone(&tally), time));
        let consumer = tokio::spawn(consume(redis_port, Arc::clone(&tally)));
        Self { tally, producer: Mutex::new(Some(producer)), consumer }
    }

    /// Waits until every intent is sent, then until every entry has arrived, each for at most this time.
    pub(crate) async fn finish(&self, bound: Duration) {
        let producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(producer) = producer {
            let ended = timeout(bound, producer).await.expect("producers end with their last intent");
            ended.expect("no producer panics");
        }
        within(bound, async || self.lost() == 0).await;
        self.consumer.abort();
    }

    /// The promises that are broken.
    pub(crate) fn broken(&self) -> Vec<String> {
        let lost = self.lost();
        let mut broken = self.tally.state().broken.clone();
        broken.extend((lost > 0).then(|| format!("{lost} entries are lost")));
        broken
    }

    pub(crate) fn sent(&self) -> u64 {
        self.tally.state().sent
    }

    pub(crate) fn received(&self) -> u64 {
        self.tally.state().received
    }

    /// The entries of acknowledged intents that have not arrived.
    pub(crate) fn lost(&self) -> u64 {
        let state = self.tally.state();
        let arrived: u64 = state.entries.iter().map(|bits| u64::from(bits.count_ones())).sum();
        (state.sent * u64::from(ALL_ENTRIES.count_ones())).saturating_sub(arrived)
    }

    /// The entries that came more than once.
    pub(crate) fn repeated(&self) -> u64 {
        self.tally.state().repeated
    }

    /// Takes the latencies since the last call.
    pub(crate) fn take_latencies(&self) -> Latencies {
        Latencies(std::mem::take(&mut self.tally.state().latencies))
    }
}

impl Tally {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an entry by its fields: the number of the intent is its request id, and its route names channel
    /// and user.
    fn receive(&self, entry: &StreamId) -> Option<()> {
        let id: String = entry.get("event_id").or_else(|| entry.get("delivery_id"))?;
        let n: usize = entry.get::<String>("request_id")?.parse().ok()?;
        let (channel, user) = id.rsplit_once('/')?.1.split_once(":user:u-")?;
        // The second user of an intent has a number from 100 on.
        let bit = 1 << (u8::from(channel == "email") * 2 + u8::from(user.len() > 2));
        let due = Duration::from_secs(n as u64) / self.rate;
        let latency = self.started.elapsed().saturating_sub(due).as_millis();
        let mut state = self.state();
        let needed = state.entries.len().max(n + 1);
        state.entries.resize(needed, 0);
        if state.entries[n] & bit != 0 {
            state.repeated += 1;
            state.broken.push(format!("{id} of intent {n} came again as {}", entry.id));
        }
        state.entries[n] |= bit;
        state.received += 1;
        *state.latencies.entry(u64::try_from(latency).unwrap_or(u64::MAX)).or_default() += 1;
        Some(())
    }
}

async fn connect(port: u16) -> RedisResult<MultiplexedConnection> {
    let timeouts = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    client.get_multiplexed_async_connection_with_config(&timeouts).await
}

/// Appends the intents of each tick when it is due, whether or not the ticks before are acknowledged.
async fn produce(port: u16, tally: Arc<Tally>, time: Duration) {
    let of_tick = (tally.rate / u32::try_from(1_000 / TICK.as_millis()).unwrap_or(u32::MAX)).max(1);
    let interval = Duration::from_secs(1) * of_tick / tally.rate;
    let shared = Arc::new(tokio::sync::Mutex::new(None));
    let mut appending = JoinSet::new();
    for tick in 0.. {
        let due = interval * tick;
        if due >= time {
            break;
        }
        sleep_until(tally.started + due).await;
        let (shared, tally) = (Arc::clone(&shared), Arc::clone(&tally));
        appending.spawn(async move {
            let numbers = tick * of_tick..(tick + 1) * of_tick;
            while append(port, &shared, numbers.clone()).await.is_err() {
                *shared.lock().await = None;
                sleep(PAUSE).await;
            }
            tally.state().sent += u64::from(of_tick);
        });
        while appending.try_join_next().is_some() {}
    }
    while appending.join_next().await.is_some() {}
}

async fn append(
    port: u16,
    shared: &tokio::sync::Mutex<Option<MultiplexedConnection>>,
    numbers: std::ops::Range<u32>,
) -> RedisResult<()> {
    let mut connection = {
        let mut shared = shared.lock().await;
        match &*shared {
            Some(connection) => connection.clone(),
            None => shared.insert(connect(port).await?).clone(),
        }
    };
    let mut pipeline = redis::pipe();
    for n in numbers {
        let mut draft = intent_draft(n);
        draft.request_id = Some(n.to_string());
        pipeline.add_command(append_command(INTENTS, &draft.into_entry())).ignore();
    }
    pipeline.query_async(&mut connection).await
}

/// Reads both outbound streams, and trims what was read some time ago.
async fn consume(port: u16, tally: Arc<Tally>) {
    let mut after = [(PUSH, "0".to_owned()), (MAIL, "0".to_owned())];
    let mut trimmed_at = Instant::now();
    loop {
        let Ok(mut connection) = connect(port).await else {
            sleep(PAUSE).await;
            continue;
        };
        while let Ok(read) = read(&mut connection, &after).await {
            for stream in read.keys {
                for entry in &stream.ids {
                    if tally.receive(entry).is_none() {
                        tally.state().broken.push(format!("the entry {} is not understood", entry.id));
                    }
                }
                let last = stream.ids.last().map(|entry| entry.id.clone());
                let place = after.iter_mut().find(|(name, _)| *name == stream.key);
                if let (Some((_, after)), Some(last)) = (place, last) {
                    *after = last;
                }
            }
            if trimmed_at.elapsed() >= TRIM_INTERVAL {
                trimmed_at = Instant::now();
                // A stream that was not trimmed now is trimmed at the next interval.
                drop(trim(&mut connection, &after).await);
            }
        }
        sleep(PAUSE).await;
    }
}

async fn read(
    connection: &mut MultiplexedConnection,
    after: &[(&str, String)],
) -> RedisResult<StreamReadReply> {
    let mut command = redis::cmd("XREAD");
    command.arg("COUNT").arg(READ_ENTRIES).arg("BLOCK").arg(BLOCK.as_millis() as u64).arg("STREAMS");
    command.arg(after.iter().map(|(stream, _)| *stream).collect::<Vec<_>>());
    command.arg(after.iter().map(|(_, id)| id.as_str()).collect::<Vec<_>>());
    command.query_async::<Option<StreamReadReply>>(connection).await.map(Option::unwrap_or_default)
}

async fn trim(connection: &mut MultiplexedConnection, after: &[(&str, String)]) -> RedisResult<()> {
    for (stream, id) in after {
        let millis: u128 = id.split('-').next().and_then(|millis| millis.parse().ok()).unwrap_or(0);
        let until = millis.saturating_sub(KEPT.as_millis()).to_string();
        let mut trim = redis::cmd("XTRIM");
        trim.arg(stream).arg("MINID").arg("~").arg(until);
        // One command removes some thousand entries.
        while trim.query_async::<u64>(connection).await? > 0 {}
    }
    Ok(())
}
