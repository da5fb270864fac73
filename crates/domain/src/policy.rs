//! What acceptance is told by configuration, and the times that follow from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;

use crate::catalog::Catalog;
use crate::intent::{Audience, Intent};
use crate::route::Channel;

/// The language of administrators, and of users without a configured one.
pub(crate) const DEFAULT_LOCALE: &str = "en";

/// What acceptance is told by configuration.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Which type may go to whom.
    pub catalog: Arc<Catalog>,
    /// Addresses by notification type.
    pub admin_emails: HashMap<String, Vec<String>>,
    /// Language tags that the templates exist in.
    pub locales: Vec<String>,
    /// The retry budget of a push route.
    pub push_max_attempts: u32,
    /// The retry budget of an e-mail route.
    pub email_max_attempts: u32,
    /// For `idempotency_expires_at`.
    pub idempotency_ttl: Duration,
    /// How long other replicas leave a new route to the one that accepted it: one lease TTL.
    pub head_start: Duration,
}

impl Policy {
    /// The language for a user who prefers `preferred`: that tag if it is configured, else its base language
    /// if that is, else `en`. Case is ignored; the configured spelling is given.
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

    /// How many routes `intent` will have.
    pub fn route_count(&self, intent: &Intent) -> usize {
        match &intent.audience {
            Audience::Users(users) => users.len() * self.channels(intent).len(),
            Audience::AdminEmail => {
                self.admin_emails.get(&intent.notification_type).map_or(1, |all| all.len().max(1))
            }
        }
    }
}

/// When an intent is accepted, and when its routes become due for every replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The time of acceptance.
    pub accepted_at: Timestamp,
    /// When any replica may publish the routes.
    pub due: Timestamp,
}

impl Policy {
    /// For an acceptance at `now`. Routes that this replica will dispatch to its own publishers have a head
    /// start of one lease TTL, in which other replicas leave them alone; those that it cannot dispatch are
    /// due at once.
    pub fn schedule(&self, now: Timestamp, dispatched: bool) -> Schedule {
        Schedule { accepted_at: now, due: if dispatched { now + self.head_start } else { now } }
    }
}
