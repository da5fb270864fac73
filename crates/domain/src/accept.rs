//! From decoded entries to what is written: who is accepted, who is a duplicate, who must wait. Pure.
//!
//! A batch is decided in stream order, from what PostgreSQL knew of its keys and what the directory said of its
//! recipients. The decision covers a prefix of the batch: it ends before the first entry that must wait, because no
//! later entry may be accepted before it. Whether the decision still holds when it is written, the acceptance
//! transaction finds out ([`crate::ports::Commit`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;

use crate::catalog::Catalog;
use crate::entry::{EntryId, RawEntry};
use crate::intent::{self, Audience, Intent};
use crate::malformed::{FailureCode, MalformedIntent, Rejection};
use crate::ports::{Known, Lookup, User};
use crate::record::{Content, IdempotencyScope, NotificationId, Record};
use crate::route::{Channel, LiveRoute, NewRoute, RouteKey, SkipReason, Start, Version};

/// The language of whoever has none that is configured, and of administrators.
const DEFAULT_LOCALE: &str = "en";

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
    /// The language for a user who prefers `preferred`: that tag if it is configured, else its base language if
    /// that is, else `en`. Case is ignored; the configured spelling is given.
    fn locale(&self, preferred: &str) -> &str {
        let configured = |tag: &str| self.locales.iter().find(|locale| locale.eq_ignore_ascii_case(tag));
        let base = preferred.split('-').next().unwrap_or_default();
        configured(preferred).or_else(|| configured(base)).map_or(DEFAULT_LOCALE, String::as_str)
    }

    fn max_attempts(&self, channel: Channel) -> u32 {
        match channel {
            Channel::Push => self.push_max_attempts,
            Channel::Email => self.email_max_attempts,
        }
    }

    fn channels(&self, intent: &Intent) -> &[Channel] {
        let known_type = self.catalog.get(&intent.notification_type);
        known_type.and_then(|known| known.channels(intent.audience.kind())).unwrap_or_default()
    }

    /// How many routes `intent` will have.
    fn route_count(&self, intent: &Intent) -> usize {
        match &intent.audience {
            Audience::Users(users) => users.len() * self.channels(intent).len(),
            Audience::AdminEmail => {
                self.admin_emails.get(&intent.notification_type).map_or(1, |all| all.len().max(1))
            }
        }
    }
}

/// An entry of the stream, understood or not.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// As it was received.
    pub entry: RawEntry,
    /// What it says, or the first rule it breaks.
    pub intent: Result<Intent, Rejection>,
    /// How many routes it will have; 0 if it is malformed.
    pub routes: usize,
}

/// Reads an entry by the rules of the envelope.
pub fn decode(entry: RawEntry, policy: &Policy) -> Decoded {
    let intent = intent::decode(&entry.fields, &policy.catalog);
    let routes = intent.as_ref().map_or(0, |intent| policy.route_count(intent));
    Decoded { entry, intent, routes }
}

/// A new record and its routes, to be committed together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acceptance {
    /// The record.
    pub record: Record,
    /// All its routes.
    pub routes: Vec<NewRoute>,
}

impl Acceptance {
    /// Its pending routes as they stand right after the commit, for publishing without reading them back.
    pub fn live_routes(&self) -> impl Iterator<Item = LiveRoute> + '_ {
        self.routes.iter().filter_map(|route| match route.start {
            Start::Skipped(_) => None,
            Start::Pending { due } => Some(LiveRoute {
                key: route.key.clone(),
                version: Version::read(self.record.content.accepted_at),
                channel: route.channel,
                recipient_ref: route.recipient_ref.clone(),
                resolved_email: route.resolved_email.clone(),
                resolved_locale: route.resolved_locale.clone(),
                attempt_count: 0,
                max_attempts: route.max_attempts,
                next_attempt_at: due,
                content: Arc::clone(&self.record.content),
            }),
        })
    }
}

/// What became of one entry.
#[derive(Clone, PartialEq, Debug)]
pub enum Settled {
    /// A new record.
    Accepted(Acceptance),
    /// The key is taken by the same intent: nothing to write.
    Duplicate,
    /// It breaks a rule; conflicts are here, too, under their code.
    Malformed(MalformedIntent),
}

impl Settled {
    /// `accepted`, `duplicate`, `conflict` or `malformed`, for metrics and logs.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Accepted(_) => "accepted",
            Self::Duplicate => "duplicate",
            Self::Malformed(row) if row.rejection.code == FailureCode::IdempotencyConflict => "conflict",
            Self::Malformed(_) => "malformed",
        }
    }
}

/// An entry that cannot be decided yet, and the ones behind it with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// Which entry.
    pub entry_id: EntryId,
    /// What it waits for.
    pub cause: String,
}

/// What was decided about a batch.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision {
    /// One for each entry from the beginning of the batch, up to the one that must wait.
    pub settled: Vec<Settled>,
    /// The entry that must wait, if one must.
    pub wait: Option<Wait>,
}

/// The distinct users that the directory must be asked about: those of intents whose key is not known yet.
pub fn users_needed<'a>(batch: &[&'a Decoded], known: &Known) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    let intents = batch.iter().filter_map(|decoded| decoded.intent.as_ref().ok());
    intents
        .filter(|intent| !known.fingerprints.contains_key(&intent.scope()))
        .filter_map(|intent| match &intent.audience {
            Audience::Users(users) => Some(users),
            Audience::AdminEmail => None,
        })
        .flatten()
        .map(String::as_str)
        .filter(|user| seen.insert(*user))
        .collect()
}

/// Decides a batch at the time `now`.
pub fn decide(
    stream: &str,
    batch: &[&Decoded],
    known: &Known,
    users: &HashMap<&str, Lookup>,
    policy: &Policy,
    now: Timestamp,
) -> Decision {
    let mut taken_here: HashMap<IdempotencyScope, &str> = HashMap::new();
    let mut settled = Vec::with_capacity(batch.len());
    for decoded in batch {
        let reject =
            |rejection| Settled::Malformed(MalformedIntent::new(stream, &decoded.entry, rejection, now));
        let intent = match &decoded.intent {
            Ok(intent) => intent,
            Err(rejection) => {
                settled.push(reject(rejection.clone()));
                continue;
            }
        };
        let scope = intent.scope();
        let holder =
            known.fingerprints.get(&scope).map(String::as_str).or_else(|| taken_here.get(&scope).copied());
        settled.push(match holder {
            Some(fingerprint) if fingerprint == intent.fingerprint => Settled::Duplicate,
            Some(_) => reject(conflict()),
            None => match resolve(intent, users) {
                Recipients::Waiting(cause) => {
                    return Decision { settled, wait: Some(Wait { entry_id: decoded.entry.id, cause }) };
                }
                Recipients::NotFound(rejection) => reject(rejection),
                Recipients::Known(found) => {
                    taken_here.insert(scope.clone(), &intent.fingerprint);
                    let suffix = known.taken_ids.get(&decoded.entry.id).copied().unwrap_or(0);
                    let id = NotificationId::of(decoded.entry.id, suffix);
                    Settled::Accepted(accept(id, scope, intent, &found, policy, now))
                }
            },
        });
    }
    Decision { settled, wait: None }
}

/// What the directory's answers make of an intent's recipients.
enum Recipients<'a> {
    /// All of them exist; empty for administrators.
    Known(Vec<(&'a str, &'a User)>),
    NotFound(Rejection),
    Waiting(String),
}

/// A recipient that is missing outweighs one that could not be looked up: the intent is malformed either way.
fn resolve<'a>(intent: &'a Intent, users: &'a HashMap<&str, Lookup>) -> Recipients<'a> {
    let Audience::Users(ids) = &intent.audience else { return Recipients::Known(Vec::new()) };
    let mut found = Vec::with_capacity(ids.len());
    let mut waiting = None;
    for id in ids {
        match users.get(id.as_str()) {
            Some(Lookup::Found(user)) => found.push((id.as_str(), user)),
            Some(Lookup::Missing) => return Recipients::NotFound(not_found(id)),
            Some(Lookup::Unavailable(cause)) => waiting = Some(cause.clone()),
            None => waiting = Some("the user directory was not asked about a recipient".to_owned()),
        }
    }
    waiting.map_or(Recipients::Known(found), Recipients::Waiting)
}

fn conflict() -> Rejection {
    Rejection {
        code: FailureCode::IdempotencyConflict,
        message: "this producer has used this idempotency_key for an intent with another content".to_owned(),
    }
}

fn not_found(user_id: &str) -> Rejection {
    Rejection {
        code: FailureCode::RecipientNotFound,
        message: format!("the user directory knows no user {user_id:?}"),
    }
}

fn accept(
    notification_id: NotificationId,
    scope: IdempotencyScope,
    intent: &Intent,
    users: &[(&str, &User)],
    policy: &Policy,
    now: Timestamp,
) -> Acceptance {
    let drafts = Drafts { id: &notification_id, policy, due: now + policy.head_start };
    let routes = match &intent.audience {
        Audience::Users(_) => drafts.user_routes(users, policy.channels(intent)),
        Audience::AdminEmail => drafts.admin_routes(&intent.notification_type),
    };
    let record = Record {
        notification_id: notification_id.clone(),
        scope,
        audience_kind: intent.audience.kind().as_str(),
        recipient_user_ids: intent.audience.users().to_vec(),
        fingerprint: intent.fingerprint.clone(),
        content: Arc::new(Content {
            notification_type: intent.notification_type.clone(),
            payload_json: intent.payload_json.clone(),
            occurred_at: intent.occurred_at,
            accepted_at: now,
            request_id: intent.request_id.clone(),
            trace_id: intent.trace_id.clone(),
        }),
        idempotency_expires_at: now + policy.idempotency_ttl,
    };
    Acceptance { record, routes }
}

/// What the routes of one notification have in common.
struct Drafts<'a> {
    id: &'a NotificationId,
    policy: &'a Policy,
    due: Timestamp,
}

impl Drafts<'_> {
    /// One for each user and channel; without an address, the e-mail is skipped.
    fn user_routes(&self, users: &[(&str, &User)], channels: &[Channel]) -> Vec<NewRoute> {
        let mut routes = Vec::with_capacity(users.len() * channels.len());
        for (id, user) in users {
            let locale = self.policy.locale(&user.preferred_language);
            for channel in channels {
                let email = if *channel == Channel::Email { user.email.as_str() } else { "" };
                let mut route = self.route(*channel, format!("user:{id}"), email, locale);
                if *channel == Channel::Email && email.is_empty() {
                    route.start = Start::Skipped(SkipReason::NoEmailAddress);
                }
                routes.push(route);
            }
        }
        routes
    }

    /// One for each address of the type; one that is skipped if there is none.
    fn admin_routes(&self, notification_type: &str) -> Vec<NewRoute> {
        match self.policy.admin_emails.get(notification_type).map(Vec::as_slice) {
            None | Some([]) => {
                let reference = format!("config:{notification_type}");
                let start = Start::Skipped(SkipReason::NoAdminRecipients);
                vec![NewRoute { start, ..self.route(Channel::Email, reference, "", DEFAULT_LOCALE) }]
            }
            Some(addresses) => {
                let to = |address: &String| {
                    self.route(Channel::Email, format!("email:{address}"), address, DEFAULT_LOCALE)
                };
                addresses.iter().map(to).collect()
            }
        }
    }

    fn route(&self, channel: Channel, recipient_ref: String, email: &str, locale: &str) -> NewRoute {
        NewRoute {
            key: RouteKey {
                notification_id: self.id.clone(),
                route_id: format!("{channel}:{recipient_ref}"),
            },
            channel,
            recipient_ref,
            resolved_email: email.to_owned(),
            resolved_locale: locale.to_owned(),
            max_attempts: self.policy.max_attempts(channel),
            start: Start::Pending { due: self.due },
        }
    }
}

#[cfg(test)]
mod tests;
