//! A route: one recipient on one channel, with its own retry budget. docs/state-machine.md draws its life.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ambient::Timestamp;

use crate::backoff::Backoff;
use crate::record::{Content, NotificationId};
use crate::republish::Acknowledged;

/// By which way a recipient is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Channel {
    /// `gateway:client-events`.
    Push,
    /// `mail:delivery_commands`.
    Email,
}

impl Channel {
    /// Every channel.
    pub const ALL: [Self; 2] = [Self::Push, Self::Email];

    /// As it is spelled in tables, route ids, metrics and the catalogue.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Email => "email",
        }
    }

    /// How a failed append to this channel's stream is classified.
    pub fn publish_failed(self) -> &'static str {
        match self {
            Self::Push => "gateway_stream_publish_failed",
            Self::Email => "mail_stream_publish_failed",
        }
    }
}

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

/// The text is none of the names it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not one of the known names")]
pub struct UnknownName;

/// The state of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteStatus {
    /// Never failed, to be published.
    Pending,
    /// Failed at least once, to be tried again.
    Failed,
    /// Its entry is in the outbound stream. Terminal.
    Published,
    /// Its budget is spent. Terminal.
    DeadLetter,
    /// Decided at acceptance: the route has no recipient to reach. Terminal.
    Skipped,
}

impl RouteStatus {
    /// Every status.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Failed, Self::Published, Self::DeadLetter, Self::Skipped];

    /// As it is spelled in `routes.status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Failed => "failed",
            Self::Published => "published",
            Self::DeadLetter => "dead_letter",
            Self::Skipped => "skipped",
        }
    }

    /// Whether the route will be tried (again): exactly then `next_attempt_at` is set.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Failed)
    }
}

impl FromStr for RouteStatus {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or(UnknownName)
    }
}

/// Why a route was skipped at acceptance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SkipReason {
    /// The directory knows no usable address of the user.
    NoEmailAddress,
    /// The type's list of administrators is empty.
    NoAdminRecipients,
}

impl SkipReason {
    /// As it is spelled in `routes.last_error_classification`.
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
    /// Its record.
    pub notification_id: NotificationId,
    /// `<channel>:<recipient_ref>`.
    pub route_id: String,
}

impl RouteKey {
    /// The route id as it may be logged: an administrator's address in it is masked. With the notification id
    /// beside it the row is still found.
    pub fn loggable_route_id(&self) -> &str {
        if self.route_id.starts_with("email:email:") { "email:email:****" } else { &self.route_id }
    }
}

/// `<notification_id>/<route_id>`: the id by which consumers deduplicate.
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

/// The version of a route that a store has given out. Opaque: only a store makes one, from `updated_at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version(Timestamp);

impl Version {
    /// For stores: the version of a row whose `updated_at` is `updated_at`.
    pub fn read(updated_at: Timestamp) -> Self {
        Self(updated_at)
    }

    /// For stores: what `updated_at` must still be.
    pub fn updated_at(self) -> Timestamp {
        self.0
    }
}

/// A text that a client sends back unread.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_micros())
    }
}

/// The text is no version.
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

/// A route as acceptance makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRoute {
    /// Primary key.
    pub key: RouteKey,
    /// Its channel.
    pub channel: Channel,
    /// `user:<user_id>`, `email:<address>` or `config:<notification_type>`.
    pub recipient_ref: String,
    /// The address, for the e-mail channel; empty otherwise.
    pub resolved_email: String,
    /// The language of the recipient, one of those configured.
    pub resolved_locale: String,
    /// The budget: this many failed attempts make a dead letter.
    pub max_attempts: u32,
    /// Pending with its first due time, or skipped with its reason.
    pub start: Start,
}

/// How a route begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// To be published by the replica that accepted it; by anyone from `due` on.
    Pending {
        /// When other replicas may take it.
        due: Timestamp,
    },
    /// Nothing to do, and why.
    Skipped(SkipReason),
}

/// A pending or failed route with all that publishing it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveRoute {
    /// Primary key.
    pub key: RouteKey,
    /// The version this copy was read at.
    pub version: Version,
    /// Its channel.
    pub channel: Channel,
    /// Whom it reaches.
    pub recipient_ref: String,
    /// The address, for the e-mail channel.
    pub resolved_email: String,
    /// The recipient's language.
    pub resolved_locale: String,
    /// Failed attempts so far.
    pub attempt_count: u32,
    /// Failed attempts that make a dead letter.
    pub max_attempts: u32,
    /// When it is, or was, due.
    pub next_attempt_at: Timestamp,
    /// What it carries.
    pub content: Arc<Content>,
}

/// A route whose entry is in its outbound stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// Which route.
    pub key: RouteKey,
    /// The version that was published.
    pub version: Version,
    /// Its entry, and the server that acknowledged it.
    pub entry: Acknowledged,
}

/// A route whose attempt failed, and what was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Which route.
    pub key: RouteKey,
    /// The version that was tried.
    pub version: Version,
    /// Its channel.
    pub channel: Channel,
    /// Failed attempts including this one.
    pub attempt_count: u32,
    /// When to try again; `None` makes it a dead letter.
    pub retry_at: Option<Timestamp>,
    /// `payload_encoding_failed`, `gateway_stream_publish_failed` or `mail_stream_publish_failed`.
    pub classification: &'static str,
    /// What happened, for a person; never a payload or an address.
    pub message: String,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFailure {
    /// Try again.
    Retry {
        /// Failed attempts including this one.
        attempt_count: u32,
        /// When.
        at: Timestamp,
    },
    /// The budget is spent.
    DeadLetter {
        /// Failed attempts including this one.
        attempt_count: u32,
    },
}

impl LiveRoute {
    /// The number of the attempt that is being made, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt_count.saturating_add(1)
    }

    /// Decides what follows when the attempt at `now` has failed. `jitter` is a fraction from 0 to 1.
    pub fn after_failure(&self, now: Timestamp, backoff: &Backoff, jitter: f64) -> AfterFailure {
        let attempt_count = self.attempt();
        if attempt_count >= self.max_attempts {
            return AfterFailure::DeadLetter { attempt_count: self.max_attempts };
        }
        AfterFailure::Retry { attempt_count, at: now + backoff.delay(attempt_count, jitter) }
    }
}

#[cfg(test)]
mod tests;
