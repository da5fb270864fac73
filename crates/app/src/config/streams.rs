//! The names of the streams, and the settings for reading the intents stream.

use std::time::Duration;

use super::knobs::*;
use super::reader::{Reader, Section};
use super::section::section;

section! {
    /// The intents stream, which the service reads.
    #[derive(Debug, Clone)]
    pub struct Intents {
        /// The key of the stream.
        pub stream: String = NOTIFICATION_INTENTS_STREAM,
        /// The time for which a read waits for the first entry.
        pub read_block_timeout: Duration = NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT,
        /// The maximum number of entries in one acceptance transaction.
        pub batch_size: usize = NOTIFICATION_INTENTS_BATCH_SIZE,
        /// The time for which processed entries stay on the stream; `None` leaves their removal to the
        /// producers.
        pub stream_retention: Option<Duration> = NOTIFICATION_INTENTS_STREAM_RETENTION =>
            |age: Duration| (!age.is_zero()).then_some(age),
        /// The time for which a producer's key is guaranteed to be remembered.
        pub idempotency_ttl: Duration = NOTIFICATION_IDEMPOTENCY_TTL,
    }
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

impl Section for Outbound {
    fn read(reader: &mut Reader) -> Option<Self> {
        let mut stream = |key, max_len| {
            let (key, max_len) = (reader.get(key), reader.get(max_len));
            Some(OutboundStream {
                key: key?,
                max_len: max_len.map(|max_len: u64| (max_len > 0).then_some(max_len))?,
            })
        };
        let gateway = stream(
            &NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM,
            &NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM_MAXLEN,
        );
        let mail = stream(
            &NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM,
            &NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM_MAXLEN,
        );
        Some(Self { gateway: gateway?, mail: mail? })
    }
}

/// Notes a problem for each pair of streams with the same key.
pub(super) fn check_distinct(reader: &mut Reader) {
    let pairs = [
        (&NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM, &NOTIFICATION_INTENTS_STREAM),
        (&NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM, &NOTIFICATION_INTENTS_STREAM),
        (&NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM, &NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM),
    ];
    for (knob, other) in pairs {
        let (key, taken) = (reader.get::<String>(knob), reader.get::<String>(other));
        if let Some(key) = key.filter(|key| taken.as_ref() == Some(key)) {
            let text = format!("is {key:?}, as is {}: each stream needs a key of its own", other.name);
            reader.problem(knob.name, text);
        }
    }
}
