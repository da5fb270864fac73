//! The variables of the section: each is read by itself, then checked against the others and the catalogue.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use domain::catalog::Catalog;
use outbox::{ChannelName, EventTypes, RelayId, RetryPolicy, TableName};
use pg::Dsn;

use super::{OutboxTable, RelayConfig, RelayMode};
use crate::config::knob::Knob;
use crate::config::knobs::{
    NOTIFICATION_OUTBOX_BATCH_SIZE, NOTIFICATION_OUTBOX_DSN, NOTIFICATION_OUTBOX_LEASE_TIMEOUT,
    NOTIFICATION_OUTBOX_LISTEN_CHANNEL, NOTIFICATION_OUTBOX_MODE, NOTIFICATION_OUTBOX_POLL_INTERVAL,
    NOTIFICATION_OUTBOX_PRODUCER, NOTIFICATION_OUTBOX_RELAY_ID, NOTIFICATION_OUTBOX_RETRY_BASE_DELAY,
    NOTIFICATION_OUTBOX_RETRY_JITTER, NOTIFICATION_OUTBOX_RETRY_MAX_ATTEMPTS,
    NOTIFICATION_OUTBOX_RETRY_MAX_DELAY, NOTIFICATION_OUTBOX_STREAMS, NOTIFICATION_OUTBOX_TABLE,
    NOTIFICATION_OUTBOX_TYPES,
};
use crate::config::postgres::parse_dsn;
use crate::config::reader::Reader;
use crate::config::split_list;
use crate::config::streams::parse_stream;

/// Values that other sections read; `None` if a value is invalid.
pub(in crate::config) struct Beside {
    pub(in crate::config) catalog: Option<Arc<Catalog>>,
    pub(in crate::config) intents_stream: Option<String>,
    pub(in crate::config) dedupe_ttl: Option<Duration>,
    pub(in crate::config) republish_window: Option<Duration>,
    pub(in crate::config) operation_timeout: Option<Duration>,
}

/// The variables of the section, not yet checked against each other; `None` if a value is invalid.
pub(super) struct Settings {
    dsn: Option<Option<Dsn>>,
    table: Option<TableName>,
    mode: Option<Option<&'static str>>,
    producer: Option<Option<String>>,
    types: Option<Vec<String>>,
    streams: Option<Vec<String>>,
    relay_id: Option<Option<RelayId>>,
    batch_size: Option<u32>,
    poll_interval: Option<Duration>,
    lease_timeout: Option<Duration>,
    retry: Option<RetryPolicy>,
    listen_channel: Option<Option<ChannelName>>,
}

impl Settings {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let name = |text: &str| Ok::<_, Infallible>((!text.is_empty()).then(|| text.to_owned()));
        let shown = |name: &Option<String>| name.clone().unwrap_or_default();
        Self {
            dsn: read_dsn(reader),
            table: read_table(reader),
            mode: reader.word(&NOTIFICATION_OUTBOX_MODE),
            producer: reader.read(&NOTIFICATION_OUTBOX_PRODUCER, name, shown),
            types: reader.read(&NOTIFICATION_OUTBOX_TYPES, parse_types, |types| types.join(",")),
            streams: reader.read(&NOTIFICATION_OUTBOX_STREAMS, parse_streams, |streams| streams.join(",")),
            relay_id: read_relay_id(reader),
            batch_size: reader.number(&NOTIFICATION_OUTBOX_BATCH_SIZE),
            poll_interval: reader.duration(&NOTIFICATION_OUTBOX_POLL_INTERVAL),
            lease_timeout: reader.duration(&NOTIFICATION_OUTBOX_LEASE_TIMEOUT),
            retry: read_retry(reader),
            listen_channel: reader.read(&NOTIFICATION_OUTBOX_LISTEN_CHANNEL, parse_channel, |channel| {
                channel.as_ref().map(|channel| channel.as_str().to_owned()).unwrap_or_default()
            }),
        }
    }

    /// Returns true if there is no connection string.
    pub(super) fn is_off(&self) -> bool {
        matches!(self.dsn, Some(None))
    }

    /// Checks the variables against each other.
    pub(super) fn check(self, reader: &mut Reader, beside: Beside) -> Option<RelayConfig> {
        let dsn = required(reader, &NOTIFICATION_OUTBOX_DSN, self.dsn);
        let mode = match self.mode {
            Some(Some("streams")) => check_streams(reader, self.streams, self.types),
            Some(_) => {
                check_intents(reader, self.producer, self.types, beside.catalog, beside.intents_stream)
            }
            None => None,
        };
        Some(RelayConfig {
            outbox: OutboxTable { dsn: dsn?, table: self.table? },
            operation_timeout: beside.operation_timeout?,
            mode: mode?,
            relay_id: self.relay_id?,
            batch_size: self.batch_size?,
            poll_interval: self.poll_interval?,
            lease_timeout: self.lease_timeout?,
            retry: self.retry?,
            listen_channel: self.listen_channel?,
            dedupe_ttl: beside.dedupe_ttl?,
            republish_window: beside.republish_window?,
        })
    }
}

/// Notes a problem if `knob` is not set.
pub(super) fn required<T>(reader: &mut Reader, knob: &'static Knob, value: Option<Option<T>>) -> Option<T> {
    if let Some(None) = value {
        reader.missing(knob);
    }
    value.flatten()
}

pub(super) fn read_dsn(reader: &mut Reader) -> Option<Option<Dsn>> {
    let parse = |text: &str| if text.is_empty() { Ok(None) } else { parse_dsn(text).map(Some) };
    reader.read(&NOTIFICATION_OUTBOX_DSN, parse, |dsn| dsn.as_ref().map(Dsn::to_string).unwrap_or_default())
}

pub(super) fn read_table(reader: &mut Reader) -> Option<TableName> {
    let parse = |text: &str| TableName::parse(text).map_err(|_| "not a valid table name");
    reader.read(&NOTIFICATION_OUTBOX_TABLE, parse, TableName::to_string)
}

fn read_relay_id(reader: &mut Reader) -> Option<Option<RelayId>> {
    let parse = |text: &str| match text {
        "" => Ok(None),
        text => RelayId::parse(text).map(Some).map_err(|_| "it is too long or holds another character"),
    };
    reader.read(&NOTIFICATION_OUTBOX_RELAY_ID, parse, |id| {
        id.as_ref().map(RelayId::to_string).unwrap_or_default()
    })
}

fn read_retry(reader: &mut Reader) -> Option<RetryPolicy> {
    let max_attempts = reader.number(&NOTIFICATION_OUTBOX_RETRY_MAX_ATTEMPTS);
    let base_delay = reader.duration(&NOTIFICATION_OUTBOX_RETRY_BASE_DELAY);
    let max_delay = reader.duration(&NOTIFICATION_OUTBOX_RETRY_MAX_DELAY);
    let jitter = reader.read(&NOTIFICATION_OUTBOX_RETRY_JITTER, parse_jitter, f64::to_string);
    Some(RetryPolicy {
        max_attempts: max_attempts?,
        base_delay: base_delay?,
        max_delay: max_delay?,
        jitter: jitter?,
    })
}

fn parse_jitter(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(jitter) if (0.0..=1.0).contains(&jitter) => Ok(jitter),
        Ok(_) => Err("it is out of range"),
        Err(_) => Err("not a number"),
    }
}

fn parse_types(text: &str) -> Result<Vec<String>, Infallible> {
    let mut types: Vec<String> = Vec::new();
    for name in split_list(text) {
        if types.iter().all(|known| known != name) {
            types.push(name.to_owned());
        }
    }
    Ok(types)
}

fn parse_streams(text: &str) -> Result<Vec<String>, String> {
    split_list(text)
        .map(|name| parse_stream(name).map_err(|reason| format!("{name:?} cannot be one: {reason}")))
        .collect()
}

fn parse_channel(text: &str) -> Result<Option<ChannelName>, &'static str> {
    match text {
        "" => Ok(None),
        text => ChannelName::parse(text).map(Some).map_err(|_| "it is too long"),
    }
}

fn check_streams(
    reader: &mut Reader,
    streams: Option<Vec<String>>,
    types: Option<Vec<String>>,
) -> Option<RelayMode> {
    let (streams, types) = (streams?, types?);
    let mut valid = true;
    if !types.is_empty() {
        let text = "is set, and NOTIFICATION_OUTBOX_MODE is streams: an event's type is its stream there, so set NOTIFICATION_OUTBOX_STREAMS alone";
        reader.problem(NOTIFICATION_OUTBOX_TYPES.name, text);
        valid = false;
    }
    if streams.is_empty() {
        reader.missing(&NOTIFICATION_OUTBOX_STREAMS);
        valid = false;
    }
    valid.then_some(RelayMode::Streams(streams))
}

fn check_intents(
    reader: &mut Reader,
    producer: Option<Option<String>>,
    types: Option<Vec<String>>,
    catalog: Option<Arc<Catalog>>,
    stream: Option<String>,
) -> Option<RelayMode> {
    let producer = required(reader, &NOTIFICATION_OUTBOX_PRODUCER, producer);
    let (producer, types, catalog, stream) = (producer?, types?, catalog?, stream?);
    if !catalog.types().any(|known| known.allows_producer(&producer)) {
        let text = format!("is {producer:?}: no type of the catalogue allows this producer");
        reader.problem(NOTIFICATION_OUTBOX_PRODUCER.name, text);
        return None;
    }
    let wrong = types.iter().filter_map(|name| match catalog.get(name) {
        None => Some(format!("{name:?} is not a type of the catalogue")),
        Some(known) if !known.allows_producer(&producer) => {
            Some(format!("{name:?} does not allow the producer {producer:?}"))
        }
        Some(_) => None,
    });
    let wrong: Vec<String> = wrong.collect();
    if !wrong.is_empty() {
        reader.problem(NOTIFICATION_OUTBOX_TYPES.name, format!("cannot be used: {}", wrong.join("; ")));
        return None;
    }
    let types = if types.is_empty() { EventTypes::All } else { EventTypes::Only(types) };
    Some(RelayMode::Intents { producer, stream, catalog, types })
}
