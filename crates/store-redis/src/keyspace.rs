//! Every key of the service in Redis.
//!
//! - `notification:intents` (configurable): stream, written by producers; trimmed by them or, if configured,
//!   by the intake.
//! - `gateway:client-events`, `mail:delivery_commands` (configurable): streams, written by publishers,
//!   trimmed as configured or by their consumers.
//! - `notification:route_leases:{<outbound tag>}:[<stream>:]<notification_id>:<route_id>`: string, written by
//!   publishers; lives for the lease TTL as a token, then for the dedupe TTL as `published:<entry id>`.
//! - `notification:publish_permits:{<outbound tag>}:[<stream>:]<token>`: string, written by publishers; lives
//!   for a fifth of the lease TTL.
//! - `notification:route_markers:{<outbound tag>}:[<stream>:]<time>`: hash, written by publishers; from the
//!   name of the lease to the entry id, for routes that were appended under a permit. The time is that in the
//!   notification ids, in quarters of a second and thousands of entries; the hash lives for the dedupe TTL
//!   after its last change.
//! - `notification:server_changes:{<outbound tag>}:<outbound stream>`: string, permanent, written by
//!   publishers; the servers that the stream was on, and the ids that each of them never had.
//! - `notification:stream_offsets:{<intents tag>}:<stream>`: string, permanent, written by the intake.
//! - `notification:scan_locks:{<outbound tag>}:[<stream>:]<channel>`: string, written by publishers; lives
//!   for at most a second, during a due scan.
//! - `notification:leader_changes:{<intents tag>}:<leadership>`: list, written by a leader that steps down;
//!   lives for five seconds. The key of an intake's leadership ends in the stream.
//! - `notification:installations:{<intents tag>}:<stream>`: string, permanent, written by the first start on
//!   a schema.
//! - `notification:outbox_receipts:{<target tag>}:<stream>:<producer>:<event_id>`: string, written by relays;
//!   lives as an entry id for the dedupe TTL, and the republish window if there is one. It has no producer
//!   where events go to streams unchanged.
//! - `notification:outbox_servers:[{<target tag>}:]<outbox>`: string, permanent, written by relays every 10 s
//!   while events are delivered; JSON with, for each set of event types, the Redis server that was compared
//!   with the outbox, and until when, or since when the comparison is pending. It has a tag in a Cluster
//!   only, so that elsewhere relays with another stream find it. If the relay has several streams, the tag
//!   is that of the first one by name.
//! - `notification:server_changes:{<tag>}:permission_check`: never written; the start tries commands on it.
//!
//! A tag is the hash tag of a stream: the part of the stream's name in braces, or the whole name. So each key
//! has the slot of its stream, and in a Redis Cluster everything that one script uses is on one node
//! (ADR 0067). Other dynamic parts are base64url without padding, so that no id can collide with another key.
//! `[<stream>:]` is the intents stream, and absent for the default one: ids of entries are unique only within
//! a stream, and several installations may share a Redis (ADR 0019).
//!
//! The same keys without `{<tag>}:` are those of versions before hash tags ([`OldKey`]). A process that is
//! younger than one dedupe TTL holds leases and markers under both names if an older version has used this
//! Redis, which is never so in a Cluster.

mod routes;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::ports::{LeaseToken, StoreError};
use domain::route::Channel;
use redis::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::connect::RedisClient;
use crate::error::unexpected;
pub(crate) use routes::RouteKeys;

const ROUTE_LEASES: &str = "notification:route_leases:";
const PUBLISH_PERMITS: &str = "notification:publish_permits:";
const ROUTE_MARKERS: &str = "notification:route_markers:";
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
pub const OWN_KEYS: [&str; 10] = [
    ROUTE_LEASES,
    PUBLISH_PERMITS,
    ROUTE_MARKERS,
    SERVER_CHANGES,
    STREAM_OFFSETS,
    SCAN_LOCKS,
    LEADER_CHANGES,
    INSTALLATIONS,
    OUTBOX_MARKERS,
    OUTBOX_SERVERS,
];

/// The hash tag of a key by the rule of Redis: what is between its first brace and the next closing one.
fn own_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

/// The hash tag that gives other keys the slot of `stream`. `None` if there is none: the name contains a
/// closing brace and has no hash tag of its own.
pub fn hash_tag(stream: &str) -> Option<&str> {
    own_tag(stream).or_else(|| Some(stream).filter(|stream| !stream.is_empty() && !stream.contains('}')))
}

/// `{<tag>}:`. A stream without a possible tag is allowed outside a Cluster, where slots do not matter.
fn tagged(stream: &str) -> String {
    let tag = hash_tag(stream).map_or_else(|| URL_SAFE_NO_PAD.encode(stream).into(), Cow::Borrowed);
    format!("{{{tag}}}:")
}

/// A key, and its name before keys had hash tags.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OldKey {
    /// The key.
    pub key: String,
    /// The name that versions before hash tags used.
    pub old: String,
}

impl OldKey {
    fn new(prefix: &str, stream: &str, rest: &str) -> Self {
        Self { key: format!("{prefix}{}{rest}", tagged(stream)), old: format!("{prefix}{rest}") }
    }
}

/// The keys of one installation. Installations on the same Redis are distinguished by the intents stream that
/// each serves.
#[derive(Clone, Debug)]
pub struct Keyspace {
    /// The intents stream in base64url with a colon after it; empty for the default stream.
    installation: Arc<str>,
    intents: Arc<str>,
    /// The outbound stream of each channel.
    outbound: [Arc<str>; 2],
    /// The time until which old names are used, too.
    old_names_until: Option<Instant>,
    /// True if an older version has used this Redis, once that is known.
    has_old_names: Arc<OnceCell<bool>>,
}

/// The keys of an installation on the default streams.
impl Default for Keyspace {
    fn default() -> Self {
        Self::new(DEFAULT_STREAM, "gateway:client-events", "mail:delivery_commands")
    }
}

impl Keyspace {
    /// The keys of the installation that serves `intents`, publishes push routes to `gateway` and e-mail
    /// routes to `mail`.
    pub fn new(intents: &str, gateway: &str, mail: &str) -> Self {
        let installation = match intents {
            DEFAULT_STREAM => Arc::default(),
            other => format!("{}:", URL_SAFE_NO_PAD.encode(other)).into(),
        };
        Self {
            installation,
            intents: intents.into(),
            outbound: [gateway.into(), mail.into()],
            old_names_until: None,
            has_old_names: Arc::default(),
        }
    }

    /// Uses the old names, too, for `dedupe_ttl` from now on: for as long as a replica of an older version
    /// may have left leases and markers. They are never used in a Cluster, nor in a Redis that no older
    /// version has used.
    #[must_use]
    pub fn with_old_names(self, dedupe_ttl: Duration) -> Self {
        Self { old_names_until: Some(Instant::now() + dedupe_ttl), ..self }
    }

    /// True if leases and markers are held under their old names, too. The first call looks for the permanent
    /// keys of an older version.
    async fn uses_old_names(&self, client: &RedisClient) -> Result<bool, StoreError> {
        const OPERATION: &str = "look for keys of an older version";
        if client.is_cluster() || self.old_names_until.is_none_or(|until| Instant::now() >= until) {
            return Ok(false);
        }
        let look = async || {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(checkpoint_key(&self.intents).old).arg(installation(&self.intents).old);
            for stream in &self.outbound {
                exists.arg(server_changes(stream).old);
            }
            match client.command(OPERATION, &exists).await? {
                Value::Int(found) => Ok(found > 0),
                other => Err(unexpected(OPERATION, &other)),
            }
        };
        self.has_old_names.get_or_try_init(look).await.copied()
    }

    /// The names of these keys of one slot that a script uses: the keys, then, if they are used, their old
    /// names.
    pub(crate) async fn names(
        &self,
        client: &RedisClient,
        keys: Vec<OldKey>,
    ) -> Result<Vec<String>, StoreError> {
        let (mut names, old): (Vec<String>, Vec<String>) =
            keys.into_iter().map(|key| (key.key, key.old)).unzip();
        if self.uses_old_names(client).await? {
            names.extend(old);
        }
        Ok(names)
    }

    /// The outbound stream of `channel`.
    pub(crate) fn outbound(&self, channel: Channel) -> &str {
        match channel {
            Channel::Push => &self.outbound[0],
            Channel::Email => &self.outbound[1],
        }
    }

    /// The keys of an outbound stream that a script uses: the stream, its server changes, and their old name;
    /// where old names are not used, this is the same key again.
    pub(crate) async fn stream_keys(
        &self,
        client: &RedisClient,
        stream: &str,
    ) -> Result<Vec<String>, StoreError> {
        let OldKey { key, old } = server_changes(stream);
        let old = if self.uses_old_names(client).await? { old } else { key.clone() };
        Ok(vec![stream.to_owned(), key, old])
    }

    /// The key of a permit to append routes of `channel`.
    pub fn permit(&self, channel: Channel, token: &LeaseToken) -> String {
        let rest = format!("{}{}", self.installation, URL_SAFE_NO_PAD.encode(&token.0));
        OldKey::new(PUBLISH_PERMITS, self.outbound(channel), &rest).key
    }

    /// The key of the scan lock on the due routes of `channel`.
    pub(crate) fn scan_lock(&self, channel: Channel) -> OldKey {
        let rest = format!("{}{}", self.installation, channel.as_str());
        OldKey::new(SCAN_LOCKS, self.outbound(channel), &rest)
    }
}

/// The key of the server changes of an outbound stream.
pub fn server_changes(outbound_stream: &str) -> OldKey {
    OldKey::new(SERVER_CHANGES, outbound_stream, &URL_SAFE_NO_PAD.encode(outbound_stream))
}

/// A key in the slot of `stream` that only the check of permissions uses.
pub(crate) fn permission_check(stream: &str) -> String {
    OldKey::new(SERVER_CHANGES, stream, "permission_check").key
}

/// The key that holds the id of the installation that serves `stream`.
pub fn installation(stream: &str) -> OldKey {
    OldKey::new(INSTALLATIONS, stream, &URL_SAFE_NO_PAD.encode(stream))
}

/// The key of the cached checkpoint of `stream`.
pub fn checkpoint_key(stream: &str) -> OldKey {
    OldKey::new(STREAM_OFFSETS, stream, &URL_SAFE_NO_PAD.encode(stream))
}

/// The key of the marker of an event that a relay appended to `stream` for `producer`, which is empty for
/// events without one.
pub fn outbox_marker(stream: &str, producer: &str, event_id: &str) -> OldKey {
    let parts = [stream, producer, event_id].map(|part| URL_SAFE_NO_PAD.encode(part));
    OldKey::new(OUTBOX_MARKERS, stream, &parts.join(":"))
}

/// The key of the records of the Redis servers that were compared with the delivered events of `outbox`.
/// `cluster_stream` is the stream to which a relay appends them, in a Cluster.
pub(crate) fn outbox_servers(cluster_stream: Option<&str>, outbox: &str) -> String {
    let tag = cluster_stream.map(tagged).unwrap_or_default();
    format!("{OUTBOX_SERVERS}{tag}{}", URL_SAFE_NO_PAD.encode(outbox))
}

/// The key of the leader-change notices of `leadership`, whose leader reads `stream`.
pub(crate) fn leader_change(stream: &str, leadership: &str) -> String {
    OldKey::new(LEADER_CHANGES, stream, &URL_SAFE_NO_PAD.encode(leadership)).key
}

#[cfg(test)]
mod tests {
    use domain::record::NotificationId;
    use domain::route::RouteKey;
    use redis::cluster_routing::Slot;

    use super::*;

    fn route(route_id: &str) -> RouteKey {
        let notification_id = NotificationId::from("1775121700000-0".to_owned());
        RouteKey { notification_id, route_id: route_id.into() }
    }

    #[test]
    fn the_scan_lock_of_another_stream_is_another_key() {
        let lock = Keyspace::default().scan_lock(Channel::Push);
        assert_eq!(lock.key, "notification:scan_locks:{gateway:client-events}:push");
        assert_eq!(lock.old, "notification:scan_locks:push");
        assert_eq!(
            Keyspace::new("other:intents", "g", "{m}1").scan_lock(Channel::Email).key,
            "notification:scan_locks:{m}:b3RoZXI6aW50ZW50cw:email"
        );
    }

    #[test]
    fn dynamic_parts_are_base64url_without_padding() {
        let lease = "MTc3NTEyMTcwMDAwMC0w:cHVzaDp1c2VyOsO8Pj8";
        let key = Keyspace::default().route_lease(&route("push:user:ü>?"));
        assert_eq!(key.key, format!("notification:route_leases:{{gateway:client-events}}:{lease}"));
        assert_eq!(key.old, format!("notification:route_leases:{lease}"));
        let other = Keyspace::new("other:intents", "gateway:client-events", "m");
        assert_eq!(
            other.route_lease(&route("push:user:ü>?")).key,
            format!("notification:route_leases:{{gateway:client-events}}:b3RoZXI6aW50ZW50cw:{lease}")
        );
        assert_eq!(
            checkpoint_key("notification:intents").key,
            "notification:stream_offsets:{notification:intents}:bm90aWZpY2F0aW9uOmludGVudHM"
        );
    }

    #[test]
    fn every_key_has_the_slot_of_its_stream() {
        for stream in ["gateway:client-events", "{orders}:created", "a}b{c}", "a{b", "x{y{z}"] {
            let of = Keyspace::new(stream, stream, stream);
            let keys = [
                of.route_lease(&route("push:user:}{")).key,
                of.route_lease(&route("email:email:{x}@y")).key,
                of.scan_lock(Channel::Push).key,
                of.scan_lock(Channel::Email).key,
                of.permit(Channel::Email, &LeaseToken("}{".to_owned())),
                of.marker_hash(&route("push:user:}{")),
                server_changes(stream).key,
                installation(stream).key,
                checkpoint_key(stream).key,
                leader_change(stream, "intake:{x}"),
                outbox_marker(stream, "{p}", "e").key,
                outbox_servers(Some(stream), "{outbox}"),
            ];
            for key in keys {
                assert_eq!(Slot::for_key(&key), Slot::for_key(stream), "{key}");
            }
        }
    }

    #[test]
    fn a_name_with_a_closing_brace_and_without_a_tag_has_no_tag() {
        for stream in ["a}b", "{}", "a{}b{c}", "}", ""] {
            assert_eq!(hash_tag(stream), None, "{stream}");
        }
        assert_eq!(hash_tag("a{b}c{d}"), Some("b"));
        assert_eq!(hash_tag("a{b"), Some("a{b"));
        assert_ne!(server_changes("a}b").key, server_changes("a}c").key);
    }
}
