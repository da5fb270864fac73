//! A route: one recipient on one channel, with its own retry budget. docs/state-machine.md shows its states.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ambient::Timestamp;
use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize, Serializer};

use crate::backoff::BackoffBounds;
use crate::document::{Tone, inline_schema, one_of};
use crate::record::{NotificationId, RecordContent};
use crate::republish::Acknowledged;

/// The delivery channel of a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// Client events, through `gateway:client-events`.
    Push,
    /// E-mail commands, through `mail:delivery_commands`.
    Email,
}

impl Channel {
    /// Every channel.
    pub const ALL: [Self; 2] = [Self::Push, Self::Email];

    /// The name in tables, route ids, metrics and the catalogue.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Email => "email",
        }
    }

    /// The classification of a failed append to this channel's stream.
    pub fn publish_failed(self) -> &'static str {
        match self {
            Self::Push => "gateway_stream_publish_failed",
            Self::Email => "mail_stream_publish_failed",
        }
    }
}

inline_schema!(Channel, one_of(Self::ALL.map(Self::as_str)));

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Channel {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|channel| channel.as_str() == text).ok_or(UnknownName)
    }
}

/// The text is not one of the known names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not one of the known names")]
pub struct UnknownName;

/// The state of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteStatus {
    /// Never failed, to be published.
    Pending,
    /// Failed at least once, to be tried again.
    Failed,
    /// Its entry is in the outbound stream. Terminal.
    Published,
    /// The retry budget is spent. Terminal.
    DeadLetter,
    /// The route has no recipient to reach, as acceptance found, or an operator cancelled it. Terminal.
    Skipped,
}

impl RouteStatus {
    /// Every status.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Failed, Self::Published, Self::DeadLetter, Self::Skipped];

    /// The name in `routes.status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Failed => "failed",
            Self::Published => "published",
            Self::DeadLetter => "dead_letter",
            Self::Skipped => "skipped",
        }
    }

    /// The tone of this state.
    pub fn tone(self) -> Tone {
        match self {
            Self::Skipped => Tone::Neutral,
            Self::Published => Tone::Good,
            Self::Pending => Tone::Busy,
            Self::Failed => Tone::Warning,
            Self::DeadLetter => Tone::Bad,
        }
    }

    /// True if the route will be tried (again): exactly then `next_attempt_at` is set.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Failed)
    }
}

inline_schema!(RouteStatus, one_of(Self::ALL.map(Self::as_str)));

impl FromStr for RouteStatus {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or(UnknownName)
    }
}

/// The reason for skipping a route at acceptance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SkipReason {
    /// The directory has no usable address of the user.
    NoEmailAddress,
    /// The type's list of administrators is empty.
    NoAdminRecipients,
}

impl SkipReason {
    /// The name in `routes.last_error_classification`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoEmailAddress => "no_email_address",
            Self::NoAdminRecipients => "no_admin_recipients",
        }
    }
}

/// The primary key of a route.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RouteKey {
    /// Id of its record.
    pub notification_id: NotificationId,
    /// `<channel>:<recipient_ref>`.
    pub route_id: String,
}

impl RouteKey {
    /// The channel with which the route id begins; push if it begins with none, which no route of the service
    /// does.
    pub fn channel(&self) -> Channel {
        let name = self.route_id.split_once(':').map_or("", |(name, _)| name);
        name.parse().unwrap_or(Channel::Push)
    }

    /// The route id in a form that may be logged: an administrator's address in it is masked. Together with
    /// the notification id it still identifies the row.
    pub fn loggable_route_id(&self) -> &str {
        if self.route_id.starts_with("email:email:") { "email:email:****" } else { &self.route_id }
    }
}

/// True if the recipient is an administrator's address, which the id of the route then holds too.
pub fn holds_address(recipient_ref: &str) -> bool {
    recipient_ref.starts_with("email:")
}

/// The place of each of these route ids among them by bytes, from 1 on.
pub fn route_numbers<'a>(route_ids: impl Iterator<Item = &'a str> + Clone) -> Vec<usize> {
    let mut sorted: Vec<&str> = route_ids.clone().collect();
    sorted.sort_unstable();
    route_ids.map(|route_id| sorted.partition_point(|other| *other < route_id) + 1).collect()
}

impl Serialize for RouteKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

inline_schema!(RouteKey, json_schema!({"type": "string"}));

/// The format `<notification_id>/<route_id>`: the id by which consumers deduplicate.
impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.notification_id, self.route_id)
    }
}

/// The text is not `<notification_id>/<route_id>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a route (<notification_id>/<route_id>)")]
pub struct NotARouteKey;

/// The inverse of `Display`: a notification id has no slash, a route id may have some.
impl FromStr for RouteKey {
    type Err = NotARouteKey;
    fn from_str(text: &str) -> Result<Self, NotARouteKey> {
        let (notification_id, route_id) = text.split_once('/').ok_or(NotARouteKey)?;
        if notification_id.is_empty() || route_id.is_empty() {
            return Err(NotARouteKey);
        }
        Ok(Self { notification_id: notification_id.to_owned().into(), route_id: route_id.to_owned() })
    }
}

/// The version of a route that a store returned. Opaque: only stores create it, from `updated_at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version(Timestamp);

impl Version {
    /// For stores: creates the version of a row from its `updated_at`.
    pub fn read(updated_at: Timestamp) -> Self {
        Self(updated_at)
    }

    /// For stores: the value that `updated_at` must still have.
    pub fn updated_at(self) -> Timestamp {
        self.0
    }
}

/// Opaque text that a client sends back unchanged.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_micros())
    }
}

/// The text is not a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a version of a route")]
pub struct InvalidVersion;

impl FromStr for Version {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let micros = text.parse().map_err(|_| InvalidVersion)?;
        Timestamp::from_micros(micros).map(Self).map_err(|_| InvalidVersion)
    }
}

/// A new route, created by acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRoute {
    /// Primary key.
    pub key: RouteKey,
    /// Channel of the route.
    pub channel: Channel,
    /// `user:<user_id>`, `email:<address>` or `config:<notification_type>`.
    pub recipient_ref: String,
    /// Address, for the e-mail channel; empty otherwise.
    pub resolved_email: String,
    /// Language of the recipient, one of those configured.
    pub resolved_locale: String,
    /// Retry budget: this many failed attempts make a dead letter.
    pub max_attempts: u32,
    /// Initial state: pending with its first due time, or skipped with its reason.
    pub start: Start,
}

/// The initial state of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The route is published by the replica that accepted it, or by any replica from `due` on.
    Pending {
        /// Time from which other replicas may take it.
        due: Timestamp,
    },
    /// The route needs no publishing, for this reason.
    Skipped(SkipReason),
}

/// A pending or failed route with all data needed to publish it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveRoute {
    /// Primary key.
    pub key: RouteKey,
    /// Version at which this copy was read.
    pub version: Version,
    /// Channel of the route.
    pub channel: Channel,
    /// Recipient of the route.
    pub recipient_ref: String,
    /// Address, for the e-mail channel.
    pub resolved_email: String,
    /// Language of the recipient.
    pub resolved_locale: String,
    /// Attempts so far: those that failed, and before a resend the one that was published.
    pub attempt_count: u32,
    /// An attempt that fails at this count makes a dead letter.
    pub max_attempts: u32,
    /// Due time.
    pub next_attempt_at: Timestamp,
    /// The id of the entry that the next one replaces, if an operator has the route sent again: a marker of
    /// that entry does not mean that the next one is in the stream.
    pub replaces: Option<String>,
    /// Content of the notification.
    pub content: Arc<RecordContent>,
}

/// A route whose entry is in its outbound stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// Key of the route.
    pub key: RouteKey,
    /// Version that was published.
    pub version: Version,
    /// Its outbound entry, and the server that acknowledged it.
    pub entry: Acknowledged,
}

/// A route whose attempt failed, and the decision about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Key of the route.
    pub key: RouteKey,
    /// Version that was tried.
    pub version: Version,
    /// Channel of the route.
    pub channel: Channel,
    /// Failed attempts including this one.
    pub attempt_count: u32,
    /// Time of the next attempt; `None` makes the route a dead letter.
    pub retry_at: Option<Timestamp>,
    /// `payload_encoding_failed`, `gateway_stream_publish_failed` or `mail_stream_publish_failed`.
    pub classification: &'static str,
    /// Description of the failure for a person; never a payload or an address.
    pub message: String,
}

impl Failed {
    /// The attempt as it is kept, if it is recorded at `at`.
    pub fn attempt(&self, at: Timestamp) -> FailedAttempt {
        FailedAttempt {
            attempt: self.attempt_count,
            at,
            classification: self.classification.to_owned(),
            message: self.message.chars().take(MAX_MESSAGE_CHARS).collect(),
        }
    }
}

/// The longest kept message of a failed attempt, in characters.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// A failed attempt of a route. The route keeps the newest ones, as many as its retry budget has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FailedAttempt {
    /// Its number, from 1 on. A replay starts again at 1.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// Time at which it was recorded.
    pub at: Timestamp,
    /// `payload_encoding_failed`, `gateway_stream_publish_failed` or `mail_stream_publish_failed`.
    pub classification: String,
    /// Description of the failure, at most 1,000 characters.
    pub message: String,
}

/// The consequence of a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFailure {
    /// The route is tried again.
    Retry {
        /// Failed attempts including this one.
        attempt_count: u32,
        /// Time of the next attempt.
        at: Timestamp,
    },
    /// The budget is spent.
    DeadLetter {
        /// Failed attempts including this one.
        attempt_count: u32,
    },
}

impl LiveRoute {
    /// The number of the current attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt_count.saturating_add(1)
    }

    /// Decides the consequence of an attempt that failed at `now`. `jitter` is a fraction from 0 to 1.
    pub fn after_failure(&self, now: Timestamp, backoff: &BackoffBounds, jitter: f64) -> AfterFailure {
        let attempt_count = self.attempt();
        if attempt_count >= self.max_attempts {
            return AfterFailure::DeadLetter { attempt_count: self.max_attempts };
        }
        AfterFailure::Retry { attempt_count, at: now + backoff.delay(attempt_count, jitter) }
    }
}

#[cfg(test)]
pub(crate) mod tests;
