//! Configuration of acceptance, and the times derived from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;

use crate::catalog::Catalog;
use crate::intent::{Audience, Intent};
use crate::route::Channel;

/// The language of administrators, and of users without a configured one.
pub(crate) const DEFAULT_LOCALE: &str = "en";

/// The configuration of acceptance.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The types, with the audiences that each allows.
    pub catalog: Arc<Catalog>,
    /// The administrators' addresses by notification type.
    pub admin_emails: HashMap<String, Vec<String>>,
    /// The language tags for which templates exist.
    pub locales: Vec<String>,
    /// The retry budget of a push route.
    pub push_max_attempts: u32,
    /// The retry budget of an e-mail route.
    pub email_max_attempts: u32,
    /// The time from acceptance to `idempotency_expires_at`.
    pub idempotency_ttl: Duration,
    /// The time that other replicas leave a new route to the replica that accepted it: one lease TTL.
    pub head_start: Duration,
}

impl Policy {
    /// Returns the language for a user who prefers `preferred`: that tag if it is configured, otherwise its
    /// base language if that is configured, otherwise `en`. Case is ignored; the configured spelling is
    /// returned.
    pub(crate) fn locale(&self, preferred: &str) -> &str {
        let configured = |tag: &str| self.locales.iter().find(|locale| locale.eq_ignore_ascii_case(tag));
        let base = preferred.split('-').next().unwrap_or_default();
        configured(preferred).or_else(|| configured(base)).map_or(DEFAULT_LOCALE, String::as_str)
    }

    pub(crate) fn max_attempts(&self, channel: Channel) -> u32 {
        match channel {
            Channel::Push => self.push_max_attempts,
            Channel::Email => self.email_max_attempts,
        }
    }

    pub(crate) fn channels(&self, intent: &Intent) -> &[Channel] {
        let known_type = self.catalog.get(&intent.notification_type);
        known_type.and_then(|known| known.channels(intent.audience.kind())).unwrap_or_default()
    }

    /// Returns the number of routes that `intent` will have.
    pub fn route_count(&self, intent: &Intent) -> usize {
        match &intent.audience {
            Audience::Users(users) => users.len() * self.channels(intent).len(),
            Audience::AdminEmail => {
                self.admin_emails.get(&intent.notification_type).map_or(1, |all| all.len().max(1))
            }
        }
    }
}

/// The time at which an intent is accepted, and the time at which its routes become due for every replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The time of acceptance.
    pub accepted_at: Timestamp,
    /// The time from which any replica may publish the routes.
    pub due: Timestamp,
}

impl Schedule {
    /// The time between both.
    pub fn head_start(&self) -> Duration {
        self.due.saturating_since(self.accepted_at)
    }
}

impl Policy {
    /// Returns the schedule of an acceptance at `now`. Routes that this replica dispatches to its own
    /// publishers have a head start of one lease TTL, in which other replicas leave them alone. Routes that
    /// it cannot dispatch are due at once.
    pub fn schedule(&self, now: Timestamp, dispatched: bool) -> Schedule {
        Schedule { accepted_at: now, due: if dispatched { now + self.head_start } else { now } }
    }
}
