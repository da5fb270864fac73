//! The names of the streams, and the settings for reading the intents stream.

use std::time::Duration;

use store_redis::OWN_KEYS;

use super::knob::Knob;
use super::knobs::{
    NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM, NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM_MAXLEN,
    NOTIFICATION_IDEMPOTENCY_TTL, NOTIFICATION_INTENTS_BATCH_SIZE, NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT,
    NOTIFICATION_INTENTS_STREAM, NOTIFICATION_INTENTS_STREAM_RETENTION,
    NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM, NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM_MAXLEN,
};
use super::reader::Reader;

/// The maximum length of a stream name, in bytes.
const MAX_STREAM_NAME_BYTES: usize = 255;

/// The intents stream, which the service reads.
#[derive(Debug, Clone)]
pub struct Intents {
    /// The key of the stream.
    pub stream: String,
    /// The time for which a read waits for the first entry.
    pub read_block_timeout: Duration,
    /// The maximum number of entries in one acceptance transaction.
    pub batch_size: usize,
    /// The time for which processed entries stay on the stream; `None` leaves their removal to the producers.
    pub stream_retention: Option<Duration>,
    /// The time for which a producer's key is guaranteed to be remembered.
    pub idempotency_ttl: Duration,
}

/// The outbound streams, which the service writes.
#[derive(Debug, Clone)]
pub struct Outbound {
    /// The stream for push routes.
    pub gateway: OutboundStream,
    /// The stream for e-mail routes.
    pub mail: OutboundStream,
}

/// One outbound stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboundStream {
    /// The key of the stream.
    pub key: String,
    /// The approximate number of entries to keep; `None` keeps all.
    pub max_len: Option<u64>,
}

impl Intents {
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let stream = read_intents_stream(reader);
        let read_block_timeout = reader.duration(&NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT);
        let batch_size = reader.number(&NOTIFICATION_INTENTS_BATCH_SIZE);
        let stream_retention = reader.duration(&NOTIFICATION_INTENTS_STREAM_RETENTION);
        let idempotency_ttl = reader.duration(&NOTIFICATION_IDEMPOTENCY_TTL);
        Some(Self {
            stream: stream?,
            read_block_timeout: read_block_timeout?,
            batch_size: batch_size?,
            stream_retention: stream_retention.map(|age| (!age.is_zero()).then_some(age))?,
            idempotency_ttl: idempotency_ttl?,
        })
    }
}

impl Outbound {
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let gateway = read_stream(reader, &NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM);
        let gateway_max_len = read_max_len(reader, &NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM_MAXLEN);
        let mail = read_stream(reader, &NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM);
        let mail_max_len = read_max_len(reader, &NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM_MAXLEN);
        Some(Self {
            gateway: OutboundStream { key: gateway?, max_len: gateway_max_len? },
            mail: OutboundStream { key: mail?, max_len: mail_max_len? },
        })
    }
}

/// Reads only the key of the intents stream, for a command that only appends to it.
pub(super) fn read_intents_stream(reader: &mut Reader) -> Option<String> {
    read_stream(reader, &NOTIFICATION_INTENTS_STREAM)
}

/// Notes a problem for each pair of streams with the same key.
pub(super) fn check_distinct(reader: &mut Reader, intents: Option<&Intents>, outbound: Option<&Outbound>) {
    let intents = intents.map(|intents| (&NOTIFICATION_INTENTS_STREAM, &intents.stream));
    let gateway =
        outbound.map(|outbound| (&NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM, &outbound.gateway.key));
    let mail = outbound.map(|outbound| (&NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM, &outbound.mail.key));
    for (one, other) in [(gateway, intents), (mail, intents), (mail, gateway)] {
        if let (Some((knob, key)), Some((other, taken))) = (one, other)
            && key == taken
        {
            reader.problem(
                knob.name,
                format!("is {key:?}, as is {}: each stream needs a key of its own", other.name),
            );
        }
    }
}

fn read_stream(reader: &mut Reader, knob: &'static Knob) -> Option<String> {
    reader.read(knob, parse_stream, String::clone)
}

pub(super) fn parse_stream(text: &str) -> Result<String, String> {
    if text.len() > MAX_STREAM_NAME_BYTES {
        return Err("it is too long".to_owned());
    }
    if text.contains(char::is_whitespace) {
        return Err("it holds white space".to_owned());
    }
    match OWN_KEYS.iter().find(|prefix| text.starts_with(*prefix)) {
        Some(prefix) => Err(format!("the service's own keys begin with {prefix}")),
        None => Ok(text.to_owned()),
    }
}

fn read_max_len(reader: &mut Reader, knob: &'static Knob) -> Option<Option<u64>> {
    reader.number(knob).map(|max_len: u64| (max_len > 0).then_some(max_len))
}
