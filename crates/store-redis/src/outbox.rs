//! Appends the events of an outbox for a relay: under a marker for each event, and never for an expired
//! claim.
//!
//! If an event is claimed again, the marker leads to the entry that it already has. The script compares the
//! deadline with Redis's own clock, so that a relay that was paused on the way appends nothing (ADR 0032).
//! The deadline is a time by the clock of one server: no other server appends for that claim ([`server`]).

mod entries;
mod server;

pub use entries::NewestEntries;
pub use server::{NewOutboxRecord, OutboxProgress, OutboxRecord, OutboxServer};

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::ports::StoreError;
use redis::{Script, Value};
use tokio::time::Instant;

use self::server::{Watch, other_server};
use crate::connect::RedisClient;
use crate::error::{unavailable, unexpected};
use crate::keyspace::{OldKey, outbox_marker};
use crate::script_call::{ScriptCall, millis};

/// The maximum age of a reading of Redis's clock. It also bounds how long an unavailable Redis goes unnoticed
/// before a claim.
const CLOCK_READING_MAX_AGE: Duration = Duration::from_secs(1);

/// A field of an entry: its name and its value.
pub type OutboxField<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// An event to append.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboxEntry<'a> {
    /// The key of the stream.
    pub stream: &'a str,
    /// The producer of the entry, which is empty for entries without one. Together with stream and event it
    /// identifies the marker.
    pub producer: &'a str,
    /// The id of the event.
    pub event_id: String,
    /// After an event is rejected, later ones with the same partition key are withheld; empty for none.
    pub partition_key: &'a str,
    /// The names and values.
    pub fields: Vec<OutboxField<'a>>,
}

/// The result of appending one event.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutboxAppend {
    /// Present in the stream under this id, appended now or by an earlier call.
    Done(String),
    /// Not appended: the claim has expired, or an earlier event with its partition key was rejected.
    Withheld,
    /// Rejected: the stream itself returned this error.
    Refused(String),
}

/// Appends events to streams.
#[derive(Clone, Debug)]
pub struct RedisOutboxStreams {
    client: RedisClient,
    /// The stream whose slot the keys of the relay itself have.
    stream: Arc<str>,
    marker_ttl: Duration,
    /// The time until which a marker of an older version may exist.
    old_names_until: Instant,
    script: Script,
    time: Script,
    clock: Arc<Mutex<Option<ClockReading>>>,
    /// `None` if any server may append.
    watch: Option<Watch>,
}

/// A reading of Redis's clock, and the time at which the reply arrived.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    unix_ms: u64,
    received: Instant,
}

impl RedisOutboxStreams {
    /// Creates the streams, of which `stream` is the first one by name: in a Cluster, the others have the
    /// same hash tag. Markers live for `marker_ttl` after their event was appended or found.
    pub fn new(client: &RedisClient, stream: &str, marker_ttl: Duration) -> Self {
        Self {
            client: client.for_key(stream),
            stream: stream.into(),
            marker_ttl,
            old_names_until: Instant::now() + marker_ttl,
            script: server::script(include_str!("scripts/append_outbox_events.lua")),
            time: Script::new("return redis.call('TIME')"),
            clock: Arc::default(),
            watch: None,
        }
    }

    /// The names of these markers: the markers, then, if they are used, their old names.
    fn marker_names(&self, markers: impl Iterator<Item = OldKey>) -> Vec<String> {
        let (mut names, old): (Vec<String>, Vec<String>) = markers.map(|key| (key.key, key.old)).unzip();
        if Instant::now() < self.old_names_until && !self.client.is_cluster() {
            names.extend(old);
        }
        names
    }

    /// A time by Redis's clock in Unix milliseconds, at most `after` from now: the travel time of the reply
    /// is subtracted.
    pub async fn deadline(&self, after: Duration) -> Result<u64, StoreError> {
        const OPERATION: &str = "read the clock of Redis";
        let known = self.reading().filter(|reading| reading.received.elapsed() < CLOCK_READING_MAX_AGE);
        let reading = match known {
            Some(reading) => reading,
            None => {
                let answer = match self.client.is_cluster() {
                    // With a key, so that only the node that has its slot responds.
                    true => {
                        let call = ScriptCall::new(&self.time, [&*self.stream].into_iter());
                        self.client.script(OPERATION, &call).await?
                    }
                    false => self.client.command(OPERATION, &redis::cmd("TIME")).await?,
                };
                self.read_clock(unix_ms(&answer).ok_or_else(|| unexpected(OPERATION, &answer))?)
            }
        };
        Ok(reading.unix_ms.saturating_add(millis(reading.received.elapsed() + after)))
    }

    /// Appends the events in their order, unless `deadline` has passed when they arrive at Redis, or they
    /// arrive at a server whose number is not `server` ([`RedisOutboxStreams::server`]). Returns one result
    /// for each event. After an error, each of them may or may not be in its stream.
    pub async fn append(
        &self,
        entries: &[OutboxEntry<'_>],
        deadline: u64,
        server: u64,
    ) -> Result<Vec<OutboxAppend>, StoreError> {
        const OPERATION: &str = "append events of the outbox";
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let identity = match &self.watch {
            Some(watch) => watch.identity(server).ok_or_else(|| other_server(OPERATION))?,
            None => Arc::default(),
        };
        let answer = self.client.script(OPERATION, &self.call(entries, &identity, deadline)).await;
        if let Err(StoreError::Refused { .. }) = answer {
            // A server that rejects a value for its size closes the connection after its reply. The ping
            // makes the next call open another.
            drop(self.client.ping().await);
        }
        let mut answers = match answer? {
            Value::Array(answers) if answers.len() == entries.len() + 1 => answers.into_iter(),
            Value::Array(answers) if answers == [Value::Int(-1)] => {
                if let Some(watch) = &self.watch {
                    watch.forget();
                }
                return Err(other_server(OPERATION));
            }
            other => return Err(unexpected(OPERATION, &other)),
        };
        if let Some(Value::Int(unix_ms)) = answers.next() {
            self.read_clock(u64::try_from(unix_ms).unwrap_or_default());
        }
        answers.map(|answer| self.appended(OPERATION, answer)).collect()
    }

    fn call(&self, entries: &[OutboxEntry<'_>], identity: &str, deadline: u64) -> ScriptCall<'_> {
        let mut streams = Numbered::default();
        let mut groups = Numbered::default();
        let numbers: Vec<(usize, usize)> = entries
            .iter()
            .map(|entry| {
                let group =
                    if entry.partition_key.is_empty() { 0 } else { groups.number(entry.partition_key) };
                (streams.number(entry.stream), group)
            })
            .collect();
        let marker = |entry: &OutboxEntry<'_>| outbox_marker(entry.stream, entry.producer, &entry.event_id);
        let markers = self.marker_names(entries.iter().map(marker));
        let keys: Vec<&str> =
            streams.names.iter().copied().chain(markers.iter().map(String::as_str)).collect();
        let mut call = ScriptCall::new(&self.script, keys.into_iter());
        call.arg(identity).arg(deadline).arg(millis(self.marker_ttl));
        call.arg(streams.names.len()).arg(entries.len());
        for (entry, (stream, group)) in entries.iter().zip(numbers) {
            call.arg(stream).arg(group).arg(entry.fields.len() * 2);
            for (name, value) in &entry.fields {
                call.arg(&**name).arg(&**value);
            }
        }
        call
    }

    fn appended(&self, operation: &'static str, answer: Value) -> Result<OutboxAppend, StoreError> {
        match answer {
            Value::BulkString(id) => Ok(OutboxAppend::Done(String::from_utf8_lossy(&id).into_owned())),
            Value::Int(_) => Ok(OutboxAppend::Withheld),
            Value::Array(refusal) => match refusal.first() {
                Some(Value::BulkString(error)) => {
                    let error = String::from_utf8_lossy(error).into_owned();
                    if self.client.is_outage(&error) {
                        return Err(unavailable(operation, error));
                    }
                    Ok(OutboxAppend::Refused(error))
                }
                _ => Err(unavailable(operation, "Redis returned a reply without an error")),
            },
            other => Err(unexpected(operation, &other)),
        }
    }

    fn reading(&self) -> Option<ClockReading> {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_clock(&self, unix_ms: u64) -> ClockReading {
        let reading = ClockReading { unix_ms, received: Instant::now() };
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        reading
    }
}

/// Names in the order of their first use, numbered from 1.
#[derive(Default)]
struct Numbered<'a> {
    names: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Numbered<'a> {
    fn number(&mut self, name: &'a str) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len()
        })
    }
}

/// Parses the reply to `TIME`: seconds and microseconds.
fn unix_ms(answer: &Value) -> Option<u64> {
    let Value::Array(parts) = answer else { return None };
    let number = |value: &Value| match value {
        Value::BulkString(digits) => str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    match parts.as_slice() {
        [seconds, micros] => Some(number(seconds)?.checked_mul(1_000)?.checked_add(number(micros)? / 1_000)?),
        _ => None,
    }
}
