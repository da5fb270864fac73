//! The Redis server that acknowledges appends: an acknowledgement is valid only for the server that gave it
//! (ADR 0048).
//!
//! Another run id or replication id means another server, which may lack entries that the previous one had
//! acknowledged. A value in Redis has one record for each set of event types that relays of an outbox carry:
//! the server that was compared, and the time until which all of these events are there, or since which the
//! comparison is pending. If Redis loses data, it loses the value as well or restores an older one; the older
//! one states until when the restored data was complete. A write replaces the value only if it is still the
//! one that was read, so a value that was deleted meanwhile stays deleted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::StoreError;
use redis::{Script, Value};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::RedisOutboxStreams;
use crate::error::{unavailable, unexpected};
use crate::keyspace::{outbox_marker, outbox_servers};
use crate::script_call::ScriptCall;

/// The maximum age of an observation.
const OBSERVATION_MAX_AGE: Duration = Duration::from_secs(1);
/// The maximum number of markers that one call looks up.
const MAX_MARKERS_PER_CALL: usize = 500;

/// The maximum number of records of one outbox. A further one replaces the record with the earliest time.
const MAX_RECORDS: usize = 32;

/// The progress of the comparison of an outbox. Times are microseconds by the clock of the outbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxProgress {
    /// Events delivered until then are in Redis, or were when this was recorded.
    Settled(i64),
    /// Events delivered since then have not been compared yet.
    Unfinished {
        /// The time.
        since: i64,
        /// The number of the comparison.
        comparison: u64,
    },
}

impl OutboxProgress {
    fn time(self) -> i64 {
        match self {
            Self::Settled(time) | Self::Unfinished { since: time, .. } => time,
        }
    }
}

/// The record of the relays that carry the same event types.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutboxRecord {
    /// The types in their order; `None` for all.
    pub types: Option<Vec<String>>,
    /// The name of the place to which its relay appended, if all its events go to one.
    #[serde(default)]
    pub destination: String,
    /// The time since which its relays have appended to `destination`; `None` if it is unknown.
    #[serde(default)]
    pub marked_since: Option<i64>,
    /// The identity of the server that was compared.
    pub server: String,
    /// The progress of the comparison.
    pub progress: OutboxProgress,
}

/// The part of a record that a relay determines.
#[derive(Clone, Debug)]
pub struct NewOutboxRecord {
    /// The types in their order; `None` for all.
    pub types: Option<Vec<String>>,
    /// [`OutboxRecord::destination`].
    pub destination: String,
    /// The progress of the comparison.
    pub progress: OutboxProgress,
    /// The present time, by the clock of the outbox.
    pub now: i64,
}

/// The server that appends now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxServer {
    /// The number of the server, in the order in which this process encountered them.
    pub number: u64,
    /// The identity of the server.
    pub identity: Arc<str>,
    /// The records of the outbox on this server.
    pub records: Arc<[OutboxRecord]>,
    /// The value that contains the records; empty if there is none.
    pub seen: Arc<[u8]>,
}

/// A script that calls `server_identity()`.
pub(super) fn script(body: &str) -> Script {
    Script::new(&[include_str!("../scripts/server_identity.lua"), body].concat())
}

pub(super) fn other_server(operation: &'static str) -> StoreError {
    unavailable(operation, "the Redis server is not the one that the claim was made for")
}

/// The cached identity of the server, and the scripts that observe and record it.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    observe: Script,
    record: Script,
    find: Script,
    known: Arc<Mutex<KnownServer>>,
}

#[derive(Clone, Debug, Default)]
struct KnownServer {
    number: u64,
    identity: Arc<str>,
    records: Arc<[OutboxRecord]>,
    value: Arc<[u8]>,
    /// The time of the observation; `None` if the next lookup must query Redis.
    at: Option<Instant>,
}

/// The records in a value. A value that cannot be parsed counts as empty.
fn parse(value: &[u8]) -> Vec<OutboxRecord> {
    serde_json::from_slice(value).unwrap_or_default()
}

/// These records with `new`, which replaces the record of the same types.
fn with(records: &[OutboxRecord], new: OutboxRecord) -> Vec<OutboxRecord> {
    let mut records: Vec<OutboxRecord> =
        records.iter().filter(|record| record.types != new.types).cloned().collect();
    records.sort_by_key(|record| record.progress.time());
    records.drain(..records.len().saturating_sub(MAX_RECORDS - 1));
    records.push(new);
    records
}

impl KnownServer {
    fn server(&self) -> OutboxServer {
        OutboxServer {
            number: self.number,
            identity: Arc::clone(&self.identity),
            records: Arc::clone(&self.records),
            seen: Arc::clone(&self.value),
        }
    }
}

impl Watch {
    fn known(&self) -> MutexGuard<'_, KnownServer> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identity of the server with this number, unless another one has been encountered since.
    pub(super) fn identity(&self, number: u64) -> Option<Arc<str>> {
        let known = self.known();
        (known.number == number).then(|| Arc::clone(&known.identity))
    }

    /// Makes the next lookup query Redis.
    pub(super) fn forget(&self) {
        self.known().at = None;
    }
}

impl RedisOutboxStreams {
    /// Makes these streams append for a claim only on the server that the claim was made for, and report that
    /// server.
    #[must_use]
    pub fn watching(self) -> Self {
        let watch = Watch {
            observe: script(include_str!("../scripts/observe_outbox_server.lua")),
            record: script(include_str!("../scripts/record_outbox_server.lua")),
            find: Script::new(include_str!("../scripts/find_outbox_markers.lua")),
            known: Arc::default(),
        };
        Self { watch: Some(watch), ..self }
    }

    /// The current server, observed at most a second ago, and its records of `outbox`; `None`
    /// if the server is not watched.
    pub async fn server(&self, outbox: &str) -> Result<Option<OutboxServer>, StoreError> {
        const OPERATION: &str = "ask which Redis server this is";
        let Some(watch) = &self.watch else { return Ok(None) };
        {
            let known = watch.known();
            if known.at.is_some_and(|at| at.elapsed() < OBSERVATION_MAX_AGE) {
                return Ok(Some(known.server()));
            }
        }
        let call = ScriptCall::new(&watch.observe, [self.record_key(outbox)].iter());
        let answer = self.client.script(OPERATION, &call).await?;
        let Value::Array(parts) = &answer else { return Err(unexpected(OPERATION, &answer)) };
        let [Value::BulkString(identity), Value::BulkString(value), Value::Int(unix_ms)] = &parts[..] else {
            return Err(unavailable(OPERATION, "Redis gave no information about itself"));
        };
        self.read_clock(u64::try_from(*unix_ms).unwrap_or_default());
        let identity = String::from_utf8_lossy(identity);
        let mut known = watch.known();
        if *known.identity != *identity {
            known.number += 1;
            known.identity = identity.into();
        }
        if *known.value != **value {
            (known.records, known.value) = (parse(value).into(), value.as_slice().into());
        }
        known.at = Some(Instant::now());
        Ok(Some(known.server()))
    }

    /// The number of the last server that was encountered; 0 before the first, or if servers are not watched.
    pub fn known_server(&self) -> u64 {
        self.watch.as_ref().map_or(0, |watch| watch.known().number)
    }

    /// Records how far the server with this number was compared with the events of the record's types in
    /// `outbox`, in the value that was `seen`. Returns false if the server or the value has changed: the next
    /// lookup then queries Redis.
    pub async fn record_server(
        &self,
        outbox: &str,
        number: u64,
        seen: &[u8],
        new: NewOutboxRecord,
    ) -> Result<bool, StoreError> {
        const OPERATION: &str = "record which Redis server was compared with the outbox";
        let Some(watch) = &self.watch else { return Ok(true) };
        let Some(identity) = watch.identity(number) else { return Ok(false) };
        let former = parse(seen);
        let marked_since = Some(marked_since(&former, &new));
        let NewOutboxRecord { types, destination, progress, .. } = new;
        let server = identity.to_string();
        let records = with(&former, OutboxRecord { types, destination, marked_since, server, progress });
        let value = serde_json::to_vec(&records).map_err(|error| unavailable(OPERATION, error))?;
        let mut call = ScriptCall::new(&watch.record, [self.record_key(outbox)].iter());
        call.arg(&*identity).arg(seen).arg(&*value);
        let written =
            self.client.script(OPERATION, &call).await.inspect_err(|_| watch.forget())? == Value::Int(1);
        let mut known = watch.known();
        match written && known.number == number {
            true => (known.records, known.value) = (records.into(), value.into()),
            false => known.at = None,
        }
        Ok(written)
    }

    fn record_key(&self, outbox: &str) -> String {
        outbox_servers(self.client.is_cluster().then_some(&*self.stream), outbox)
    }

    /// Returns for each of the events, given as its stream and its id, whether its marker for `producer`
    /// exists.
    pub async fn find_markers(
        &self,
        producer: &str,
        events: &[(&str, String)],
    ) -> Result<Vec<bool>, StoreError> {
        const OPERATION: &str = "look for the markers of events";
        let Some(watch) = &self.watch else { return Ok(vec![true; events.len()]) };
        let mut found = Vec::with_capacity(events.len());
        for chunk in events.chunks(MAX_MARKERS_PER_CALL) {
            let marker = |(stream, id): &(&str, String)| outbox_marker(stream, producer, id);
            let names = self.marker_names(chunk.iter().map(marker));
            let mut call = ScriptCall::new(&watch.find, names.iter());
            call.arg(chunk.len());
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

/// Returns the time since which relays of the new record's types have appended to its destination: the
/// recorded one, or the time of the new record, because a relay publishes only after its first record.
fn marked_since(former: &[OutboxRecord], new: &NewOutboxRecord) -> i64 {
    let is_same =
        |record: &&OutboxRecord| (&record.types, &record.destination) == (&new.types, &new.destination);
    former.iter().find(is_same).and_then(|record| record.marked_since).unwrap_or(new.now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(types: Option<&[&str]>, progress: OutboxProgress) -> OutboxRecord {
        let types = types.map(|types| types.iter().copied().map(str::to_owned).collect());
        let server = "run/replication".to_owned();
        OutboxRecord { types, destination: String::new(), marked_since: None, server, progress }
    }

    #[test]
    fn markers_are_expected_since_the_first_record_of_the_types_and_their_destination() {
        let new = |types: Option<&[&str]>, destination: &str| {
            let OutboxRecord { types, progress, .. } = record(types, OutboxProgress::Settled(9));
            NewOutboxRecord { types, destination: destination.to_owned(), progress, now: 9 }
        };
        let unknown =
            OutboxRecord { destination: "x".to_owned(), ..record(None, OutboxProgress::Settled(7)) };
        let marked = OutboxRecord { marked_since: Some(5), ..unknown.clone() };
        assert_eq!(marked_since(&[], &new(None, "x")), 9);
        assert_eq!(marked_since(&[unknown], &new(None, "x")), 9, "an older version wrote it");
        let former = [marked];
        assert_eq!(marked_since(&former, &new(None, "x")), 5);
        assert_eq!(marked_since(&former, &new(None, "y")), 9, "the destination has changed");
        assert_eq!(marked_since(&former, &new(Some(&[]), "x")), 9, "other types");
    }

    #[test]
    fn records_are_read_back_and_anything_else_is_none() {
        let unfinished = OutboxProgress::Unfinished { since: i64::MIN, comparison: u64::MAX };
        let records = [
            record(None, OutboxProgress::Settled(1_775_121_700_000_000)),
            record(Some(&["a, \"b\"\n", ""]), unfinished),
        ];
        assert_eq!(parse(&serde_json::to_vec(&records).expect("JSON")), records);
        for text in ["", "run/replication", "{}", "[7]", r#"[{"types":null,"server":"run"}]"#] {
            assert_eq!(parse(text.as_bytes()), [], "{text}");
        }
        assert_eq!(parse(b"[\xff]"), []);
    }

    #[test]
    fn a_record_takes_the_place_of_that_of_its_types_and_then_of_the_earliest() {
        let mut records = Vec::new();
        for number in 0..MAX_RECORDS {
            let settled = OutboxProgress::Settled(i64::try_from(number).expect("small"));
            records = with(&records, record(Some(&[&number.to_string()]), settled));
        }
        let again = with(&records, record(Some(&["0"]), OutboxProgress::Settled(99)));
        assert_eq!(again.len(), MAX_RECORDS);
        assert!(again[..MAX_RECORDS - 1].iter().eq(&records[1..]));
        let other = with(&records, record(None, OutboxProgress::Settled(99)));
        assert_eq!(other.len(), MAX_RECORDS);
        assert!(other[..MAX_RECORDS - 1].iter().eq(&records[1..]), "the earliest is gone");
    }
}
