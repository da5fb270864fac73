//! The Redis server that acknowledges appends: an acknowledgement belongs to the server that gave it (ADR 0048).
//!
//! Another run id or replication id is another server, which may lack what the one before had acknowledged. A record in Redis holds
//! which server was compared with an outbox, or since when its events are still to be compared. A loss takes the record along, or
//! leaves that of an older server: either way the server that is there is not the recorded one.

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

/// The server that appends now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutboxServer {
    /// Numbers the servers in the order in which this process has met them.
    pub number: u64,
    /// Whether it holds all that was acknowledged before, as far as a comparison has shown.
    pub is_compared: bool,
    /// The beginning of a comparison that was not finished, as it was recorded.
    pub unfinished_since: Option<i64>,
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
    list: Script,
    known: Arc<Mutex<Known>>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    number: u64,
    identity: Arc<str>,
    record: Record,
    /// `None` if the next look must ask Redis.
    at: Option<Instant>,
}

/// The value of the record: `<identity> <microseconds, or - for none>`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Record {
    identity: String,
    unfinished_since: Option<i64>,
}

impl Record {
    /// One that cannot be read counts as none.
    fn parse(text: &str) -> Self {
        match text.split_once(' ') {
            Some((identity, "-")) => Self { identity: identity.to_owned(), unfinished_since: None },
            Some((identity, since)) => match since.parse() {
                Ok(since) => Self { identity: identity.to_owned(), unfinished_since: Some(since) },
                Err(_) => Self::default(),
            },
            None => Self::default(),
        }
    }

    fn to_text(&self) -> String {
        let since = self.unfinished_since.map_or_else(|| "-".to_owned(), |since| since.to_string());
        format!("{} {since}", self.identity)
    }
}

impl Known {
    fn server(&self) -> OutboxServer {
        let Record { identity, unfinished_since } = &self.record;
        let is_compared = *identity == *self.identity && unfinished_since.is_none();
        OutboxServer { number: self.number, is_compared, unfinished_since: *unfinished_since }
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
            list: Script::new(include_str!("../scripts/list_outbox_entries.lua")),
            known: Arc::default(),
        };
        Self { watch: Some(watch), ..self }
    }

    /// The server that is there, as of not long ago, and whether it was compared with `outbox`; `None` if it is not watched.
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
        let (identity, record) = (String::from_utf8_lossy(identity), String::from_utf8_lossy(record));
        let mut known = watch.known();
        if *known.identity != *identity {
            known.number += 1;
            known.identity = identity.into();
        }
        (known.record, known.at) = (Record::parse(&record), Some(Instant::now()));
        Ok(Some(known.server()))
    }

    /// The number of the server that was met last; 0 before the first, or if none is watched.
    pub fn known_server(&self) -> u64 {
        self.watch.as_ref().map_or(0, |watch| watch.known().number)
    }

    /// Records that the server of that number was compared with `outbox`, or since when its events are still to be compared. Fails if it
    /// is not there any more.
    pub async fn record_server(
        &self,
        outbox: &str,
        number: u64,
        unfinished_since: Option<i64>,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "record which Redis server was compared with the outbox";
        let Some(watch) = &self.watch else { return Ok(()) };
        let identity = watch.identity(number).ok_or_else(|| other_server(OPERATION))?;
        let record = Record { identity: (*identity).to_owned(), unfinished_since };
        let key = outbox_server(&watch.target.stream, &watch.target.producer, outbox);
        let mut call = ScriptCall::new(&watch.record, [key].iter());
        call.arg(&*identity).arg(record.to_text());
        let answer = self.client.script(OPERATION, &call).await?;
        if answer != Value::Int(1) {
            watch.forget();
            return Err(other_server(OPERATION));
        }
        let mut known = watch.known();
        if known.number == number {
            known.record = record;
        }
        Ok(())
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

    /// The values of a field in at most `limit` entries of a stream, from the highest id at or below `from` down, and the id of the
    /// last entry that was read. Values are clipped to 64 bytes.
    pub async fn list_values_down(
        &self,
        stream: &str,
        from: &str,
        limit: u32,
        field: &str,
    ) -> Result<(Option<String>, Vec<Vec<u8>>), StoreError> {
        const OPERATION: &str = "look for the entries of events";
        let Some(watch) = &self.watch else { return Ok((None, Vec::new())) };
        let mut call = ScriptCall::new(&watch.list, [stream].into_iter());
        call.arg(from).arg(limit).arg(field);
        let values = match self.client.script(OPERATION, &call).await? {
            Value::Array(values) => values,
            other => return Err(unexpected(OPERATION, &other)),
        };
        let mut values = values.into_iter().filter_map(|value| match value {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        });
        let last = values.next().map(|id| String::from_utf8_lossy(&id).into_owned());
        Ok((last.filter(|id| !id.is_empty()), values.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_anything_else_is_none() {
        for unfinished_since in [None, Some(0), Some(i64::MIN), Some(1_775_121_700_000_000)] {
            let record = Record { identity: "run/replication".to_owned(), unfinished_since };
            assert_eq!(Record::parse(&record.to_text()), record);
        }
        for text in ["", "run/replication", "run/replication ", "run/replication later", "1 2 3"] {
            assert_eq!(Record::parse(text), Record::default(), "{text}");
        }
    }
}
