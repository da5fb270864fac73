//! The Redis server that acknowledges appends: an acknowledgement belongs to the server that gave it (ADR 0048).
//!
//! Another run id or replication id is another server, which may lack what the one before had acknowledged. A record in Redis holds
//! the server that was compared with an outbox, and up to when all of its events are there, or since when they are still to be
//! compared. A loss takes the record along, or leaves an older one of another server, which says up to when that state had everything.
//! A record is written only in place of the one that was read: what was emptied meanwhile stays without a record.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::StoreError;
use redis::{Script, Value};
use tokio::time::Instant;

use super::RedisOutboxStreams;
use crate::connect::{ScriptCall, unavailable, unexpected};
use crate::keyspace::outbox_server;

/// How old an observation may be.
const OBSERVATION_MAX_AGE: Duration = Duration::from_secs(1);
/// The most receipts that are looked for with one call.
const MAX_RECEIPTS_PER_CALL: usize = 500;

/// Where the events of a relay go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxTarget {
    /// The stream; of several, the first by name.
    pub stream: String,
    /// The producer; empty where events carry none.
    pub producer: String,
}

/// How far an outbox was compared. Times are microseconds by the clock of the outbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutboxProgress {
    /// What was delivered until then is in Redis, or was when this was recorded.
    Settled(i64),
    /// What was delivered since then is still to be compared.
    Unfinished {
        /// The time.
        since: i64,
        /// Which comparison it is.
        comparison: u64,
    },
}

/// The server that appends now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxServer {
    /// Numbers the servers in the order in which this process has met them.
    pub number: u64,
    /// Whether the record was made with this server.
    pub is_own: bool,
    /// What the record says; `None` if there is none.
    pub progress: Option<OutboxProgress>,
    /// The value of the record; empty if there is none.
    pub seen: Arc<[u8]>,
}

/// A script that calls `server_identity()`.
pub(super) fn script(body: &str) -> Script {
    Script::new(&[include_str!("../scripts/server_identity.lua"), body].concat())
}

pub(super) fn other_server(operation: &'static str) -> StoreError {
    unavailable(operation, "another Redis server answers than the one that the claim was made for")
}

/// What is known of the server.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    target: OutboxTarget,
    observe: Script,
    record: Script,
    find: Script,
    known: Arc<Mutex<Known>>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    number: u64,
    identity: Arc<str>,
    record: Arc<[u8]>,
    /// `None` if the next look must ask Redis.
    at: Option<Instant>,
}

/// Reads a record: the server that it was made with, and what it says. One that cannot be read counts as none.
fn parse(record: &[u8]) -> Option<(&str, OutboxProgress)> {
    let words: Vec<&str> = str::from_utf8(record).ok()?.split(' ').collect();
    match words[..] {
        [identity, "settled", until] => Some((identity, OutboxProgress::Settled(until.parse().ok()?))),
        [identity, "unfinished", since, comparison] => {
            let (since, comparison) = (since.parse().ok()?, comparison.parse().ok()?);
            Some((identity, OutboxProgress::Unfinished { since, comparison }))
        }
        _ => None,
    }
}

fn to_text(identity: &str, progress: OutboxProgress) -> String {
    match progress {
        OutboxProgress::Settled(until) => format!("{identity} settled {until}"),
        OutboxProgress::Unfinished { since, comparison } => {
            format!("{identity} unfinished {since} {comparison}")
        }
    }
}

impl Known {
    fn server(&self) -> OutboxServer {
        let read = parse(&self.record);
        OutboxServer {
            number: self.number,
            is_own: read.is_some_and(|(identity, _)| *identity == *self.identity),
            progress: read.map(|(_, progress)| progress),
            seen: Arc::clone(&self.record),
        }
    }
}

impl Watch {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identity of the server of that number, unless another one has been met since.
    pub(super) fn identity(&self, number: u64) -> Option<Arc<str>> {
        let known = self.known();
        (known.number == number).then(|| Arc::clone(&known.identity))
    }

    /// The next look asks Redis.
    pub(super) fn forget(&self) {
        self.known().at = None;
    }
}

impl RedisOutboxStreams {
    /// The same, which appends for a claim only on the server that the claim was made for, and says which server that is.
    #[must_use]
    pub fn watching(self, target: OutboxTarget) -> Self {
        let watch = Watch {
            target,
            observe: script(include_str!("../scripts/observe_outbox_server.lua")),
            record: script(include_str!("../scripts/record_outbox_server.lua")),
            find: Script::new(include_str!("../scripts/find_outbox_receipts.lua")),
            known: Arc::default(),
        };
        Self { watch: Some(watch), ..self }
    }

    /// The server that is there, as of not long ago, and its record of `outbox`; `None` if it is not watched.
    pub async fn server(&self, outbox: &str) -> Result<Option<OutboxServer>, StoreError> {
        const OPERATION: &str = "ask which Redis server this is";
        let Some(watch) = &self.watch else { return Ok(None) };
        {
            let known = watch.known();
            if known.at.is_some_and(|at| at.elapsed() < OBSERVATION_MAX_AGE) {
                return Ok(Some(known.server()));
            }
        }
        let key = outbox_server(&watch.target.stream, &watch.target.producer, outbox);
        let call = ScriptCall::new(&watch.observe, [key].iter());
        let answer = self.client.script(OPERATION, &call).await?;
        let Value::Array(parts) = &answer else { return Err(unexpected(OPERATION, &answer)) };
        let [Value::BulkString(identity), Value::BulkString(record), Value::Int(unix_ms)] = &parts[..] else {
            return Err(unavailable(OPERATION, "Redis gave no information about itself"));
        };
        self.read_clock(u64::try_from(*unix_ms).unwrap_or_default());
        let identity = String::from_utf8_lossy(identity);
        let mut known = watch.known();
        if *known.identity != *identity {
            known.number += 1;
            known.identity = identity.into();
        }
        (known.record, known.at) = (record.as_slice().into(), Some(Instant::now()));
        Ok(Some(known.server()))
    }

    /// The number of the server that was met last; 0 before the first, or if none is watched.
    pub fn known_server(&self) -> u64 {
        self.watch.as_ref().map_or(0, |watch| watch.known().number)
    }

    /// Records how far the server of that number was compared with `outbox`, in place of the record that was `seen`. False if the server or
    /// the record is another: then the next look asks Redis.
    pub async fn record_server(
        &self,
        outbox: &str,
        number: u64,
        seen: &[u8],
        progress: OutboxProgress,
    ) -> Result<bool, StoreError> {
        const OPERATION: &str = "record which Redis server was compared with the outbox";
        let Some(watch) = &self.watch else { return Ok(true) };
        let Some(identity) = watch.identity(number) else { return Ok(false) };
        let record = to_text(&identity, progress);
        let key = outbox_server(&watch.target.stream, &watch.target.producer, outbox);
        let mut call = ScriptCall::new(&watch.record, [key].iter());
        call.arg(&*identity).arg(seen).arg(&record);
        let written =
            self.client.script(OPERATION, &call).await.inspect_err(|_| watch.forget())? == Value::Int(1);
        let mut known = watch.known();
        match written && known.number == number {
            true => known.record = record.into_bytes().into(),
            false => known.at = None,
        }
        Ok(written)
    }

    /// Which of the receipts exist.
    pub async fn find_receipts(&self, receipts: &[String]) -> Result<Vec<bool>, StoreError> {
        const OPERATION: &str = "look for the receipts of events";
        let Some(watch) = &self.watch else { return Ok(vec![true; receipts.len()]) };
        let mut found = Vec::with_capacity(receipts.len());
        for chunk in receipts.chunks(MAX_RECEIPTS_PER_CALL) {
            let call = ScriptCall::new(&watch.find, chunk.iter());
            match self.client.script(OPERATION, &call).await? {
                Value::Array(values) if values.len() == chunk.len() => {
                    found.extend(values.iter().map(|value| *value == Value::Int(1)));
                }
                other => return Err(unexpected(OPERATION, &other)),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_anything_else_is_none() {
        let unfinished = OutboxProgress::Unfinished { since: i64::MIN, comparison: u64::MAX };
        for progress in
            [OutboxProgress::Settled(0), OutboxProgress::Settled(1_775_121_700_000_000), unfinished]
        {
            let text = to_text("run/replication", progress);
            assert_eq!(parse(text.as_bytes()), Some(("run/replication", progress)));
        }
        for text in [
            "",
            "run/replication",
            "run -",
            "run 7",
            "run settled",
            "run settled x",
            "run unfinished 7",
            "1 2 3 4",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(b"\xff settled 1"), None);
    }
}
