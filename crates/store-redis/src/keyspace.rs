//! Every key of the service in Redis.
//!
//! - `notification:intents` (configurable): stream, written by producers; trimmed by them or, if configured,
//!   by the intake.
//! - `gateway:client-events`, `mail:delivery_commands` (configurable): streams, written by publishers,
//!   trimmed as configured or by their consumers.
//! - `notification:route_leases:[<stream>:]<notification_id>:<route_id>`: string, written by publishers;
//!   lives for the lease TTL as a token, then for the dedupe TTL as `published:<entry id>`.
//! - `notification:server_changes:<outbound stream>`: string, permanent, written by publishers; the servers
//!   that the stream was on, and the ids that each of them never had.
//! - `notification:stream_offsets:<stream>`: string, permanent, written by the intake.
//! - `notification:scan_locks:[<stream>:]<channel>`: string, written by publishers; lives for at most a
//!   second, during a due scan.
//! - `notification:leader_changes:<leadership>`: list, written by a leader that steps down; lives for five
//!   seconds. The key of an intake's leadership ends in the stream.
//! - `notification:installations:<stream>`: string, permanent, written by the first start on a schema.
//! - `notification:outbox_receipts:<stream>:<producer>:<event_id>`: string, written by relays; lives as an
//!   entry id for the dedupe TTL, and the republish window if there is one. It has no producer where events
//!   go to streams unchanged.
//! - `notification:outbox_servers:<outbox>`: string, permanent, written by relays every 10 s while events are
//!   delivered; JSON with, for each set of event types, the Redis server that was compared with the outbox,
//!   and until when, or since when the comparison is pending.
//!
//! Dynamic parts are base64url without padding, so that no id can collide with another key. `[<stream>:]` is
//! the intents stream, and absent for the default one: ids of entries are unique only within a stream, and
//! several installations may share a Redis (ADR 0019).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::route::{Channel, RouteKey};

const ROUTE_LEASES: &str = "notification:route_leases:";
const SERVER_CHANGES: &str = "notification:server_changes:";
const STREAM_OFFSETS: &str = "notification:stream_offsets:";
const SCAN_LOCKS: &str = "notification:scan_locks:";
const LEADER_CHANGES: &str = "notification:leader_changes:";
const INSTALLATIONS: &str = "notification:installations:";
const OUTBOX_MARKERS: &str = "notification:outbox_receipts:";
const OUTBOX_SERVERS: &str = "notification:outbox_servers:";

/// The default intents stream, whose name is omitted from keys.
const DEFAULT_STREAM: &str = "notification:intents";

/// The prefixes of the keys of the service, which no stream may have.
pub const OWN_KEYS: [&str; 8] = [
    ROUTE_LEASES,
    SERVER_CHANGES,
    STREAM_OFFSETS,
    SCAN_LOCKS,
    LEADER_CHANGES,
    INSTALLATIONS,
    OUTBOX_MARKERS,
    OUTBOX_SERVERS,
];

/// The keys of one installation. Installations on the same Redis are distinguished by the intents stream that
/// each serves.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    /// The stream in base64url with a colon after it; empty for the default stream.
    stream: Arc<str>,
}

impl Keyspace {
    /// The keys of the installation that serves `intents_stream`.
    pub fn of(intents_stream: &str) -> Self {
        match intents_stream {
            DEFAULT_STREAM => Self::default(),
            other => Self { stream: format!("{}:", URL_SAFE_NO_PAD.encode(other)).into() },
        }
    }

    /// The key of a route's lease, and of its published marker.
    pub fn route_lease(&self, route: &RouteKey) -> String {
        let notification_id = URL_SAFE_NO_PAD.encode(route.notification_id.as_str());
        let route_id = URL_SAFE_NO_PAD.encode(&route.route_id);
        format!("{ROUTE_LEASES}{}{notification_id}:{route_id}", self.stream)
    }

    /// The key of the scan lock on the due routes of `channel`.
    pub(crate) fn scan_lock(&self, channel: Channel) -> String {
        format!("{SCAN_LOCKS}{}{}", self.stream, channel.as_str())
    }
}

/// The key of the server changes of an outbound stream.
pub fn server_changes(outbound_stream: &str) -> String {
    format!("{SERVER_CHANGES}{}", URL_SAFE_NO_PAD.encode(outbound_stream))
}

/// The key that holds the id of the installation that serves `stream`.
pub fn installation(stream: &str) -> String {
    format!("{INSTALLATIONS}{}", URL_SAFE_NO_PAD.encode(stream))
}

/// The key of the cached checkpoint of `stream`.
pub fn checkpoint_key(stream: &str) -> String {
    format!("{STREAM_OFFSETS}{}", URL_SAFE_NO_PAD.encode(stream))
}

/// The key of the marker of an event that a relay appended to `stream` for `producer`, which is empty for
/// events without one.
pub fn outbox_marker(stream: &str, producer: &str, event_id: &str) -> String {
    format!("{OUTBOX_MARKERS}{}", parts([stream, producer, event_id]))
}

/// The key of the records of the Redis servers that were compared with the delivered events of `outbox`.
pub(crate) fn outbox_servers(outbox: &str) -> String {
    format!("{OUTBOX_SERVERS}{}", URL_SAFE_NO_PAD.encode(outbox))
}

fn parts(parts: [&str; 3]) -> String {
    parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(":")
}

/// The key of the leader-change notices of `leadership`.
pub(crate) fn leader_change(leadership: &str) -> String {
    format!("{LEADER_CHANGES}{}", URL_SAFE_NO_PAD.encode(leadership))
}

#[cfg(test)]
mod tests {
    use domain::record::NotificationId;

    use super::*;

    #[test]
    fn the_scan_lock_of_another_stream_is_another_key() {
        assert_eq!(Keyspace::default().scan_lock(Channel::Push), "notification:scan_locks:push");
        assert_eq!(
            Keyspace::of("other:intents").scan_lock(Channel::Push),
            "notification:scan_locks:b3RoZXI6aW50ZW50cw:push"
        );
    }

    #[test]
    fn dynamic_parts_are_base64url_without_padding() {
        let notification_id = NotificationId::from("1775121700000-0".to_owned());
        let key = RouteKey { notification_id, route_id: "push:user:ü>?".into() };
        let keyspace = Keyspace::of("notification:intents");
        let lease = "MTc3NTEyMTcwMDAwMC0w:cHVzaDp1c2VyOsO8Pj8";
        assert_eq!(keyspace.route_lease(&key), format!("notification:route_leases:{lease}"));
        let other = Keyspace::of("other:intents");
        assert_eq!(other.route_lease(&key), format!("notification:route_leases:b3RoZXI6aW50ZW50cw:{lease}"));
        assert_eq!(
            checkpoint_key("notification:intents"),
            "notification:stream_offsets:bm90aWZpY2F0aW9uOmludGVudHM"
        );
    }
}
