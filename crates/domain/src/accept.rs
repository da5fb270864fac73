//! From decoded entries to what is written: who is accepted, who is a duplicate, who must wait. Pure.
//!
//! A batch is decided in stream order, from what PostgreSQL knew of its keys and what the directory said of its
//! recipients. The decision covers a prefix of the batch: it ends before the first entry whose recipients are not all
//! known, because no later entry may be accepted before it. Whether the decision still holds when it is written, the
//! acceptance transaction finds out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;

use crate::catalog::{AudienceKind, Catalog, NotificationType};
use crate::entry::{EntryId, RawEntry, RawFields};
use crate::intent::{self, Audience, Intent};
use crate::malformed::{FailureCode, MalformedIntent, Rejection};
use crate::recipient::{Lookup, User};
use crate::record::{Content, IdempotencyScope, NotificationId, Record};
use crate::route::{Channel, LiveRoute, NewRoute, RouteKey, SkipReason, Start, Version};

/// The language of administrators, and of users without a configured one.
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

/// What PostgreSQL knows about the entries of a batch before it is decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// The fingerprints of the keys that are taken.
    pub fingerprints: HashMap<IdempotencyScope, String>,
    /// For entry ids that belong to another intent: the number to put after them.
    pub taken_ids: HashMap<EntryId, u32>,
}

/// By what an entry that has been processed is recognised: its id and its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessedTrace {
    /// Its id in the stream.
    pub entry_id: EntryId,
    /// [`crate::entry::RawFields::fingerprint`], which a malformed row has.
    pub fields_fingerprint: String,
    /// Key and fingerprint, which a record has; `None` if the entry is malformed.
    pub request: Option<(IdempotencyScope, String)>,
}

/// An entry of the stream, read by the rules of the envelope.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Its id in the stream.
    pub id: EntryId,
    /// What it costs to have it in memory, in bytes: [`crate::entry::cost`], or the length of its malformed row if that is
    /// more.
    pub cost: usize,
    /// What it says, or the row that it becomes because of the first rule that it breaks. Of a malformed entry nothing else is
    /// kept, because it may be large.
    pub content: Result<DecodedIntent, MalformedIntent>,
}

/// A well-formed intent and what it was read from, which becomes a malformed row if the intent is not accepted.
#[derive(Clone, Debug)]
pub struct DecodedIntent {
    /// What the entry says.
    pub intent: Intent,
    /// How many routes it will have.
    pub routes: usize,
    /// As it was received.
    pub fields: RawFields,
}

/// Reads an entry of `stream` by the rules of the envelope, at the time `now`.
pub fn decode(stream: &str, entry: RawEntry, policy: &Policy, now: Timestamp) -> Decoded {
    let (id, cost) = (entry.id, entry.fields.cost());
    match intent::decode(&entry.fields, &policy.catalog) {
        Ok(intent) => {
            let routes = policy.route_count(&intent);
            Decoded { id, cost, content: Ok(DecodedIntent { intent, routes, fields: entry.fields }) }
        }
        Err(rejection) => {
            let row = MalformedIntent::new(stream, id, entry.fields, rejection, now);
            Decoded { id, cost: cost.max(row.raw_fields.json_length()), content: Err(row) }
        }
    }
}

impl Decoded {
    /// What it says, if it is well formed.
    pub fn intent(&self) -> Option<&Intent> {
        self.content.as_ref().ok().map(|decoded| &decoded.intent)
    }

    /// How many routes it will have; 0 if it is malformed.
    pub fn routes(&self) -> usize {
        self.content.as_ref().map_or(0, |decoded| decoded.routes)
    }

    /// By what it can be recognised among the outcomes that PostgreSQL has.
    pub fn trace(&self) -> ProcessedTrace {
        let fields_fingerprint = match &self.content {
            Ok(decoded) => decoded.fields.fingerprint(),
            Err(row) => row.fields_fingerprint.clone(),
        };
        let request = self.intent().map(|intent| (intent.scope(), intent.fingerprint.clone()));
        ProcessedTrace { entry_id: self.id, fields_fingerprint, request }
    }

    /// The malformed row that it becomes for a reason that is not in the entry itself, or for a reason that outweighs the
    /// one found there.
    fn rejected(&self, stream: &str, rejection: Rejection, now: Timestamp) -> MalformedIntent {
        match &self.content {
            Ok(decoded) => MalformedIntent::new(stream, self.id, decoded.fields.clone(), rejection, now),
            Err(row) => row.with_rejection(rejection, now),
        }
    }
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
pub enum Outcome {
    /// A new record.
    Accepted(Acceptance),
    /// The key is taken by the same intent: nothing to write.
    Duplicate,
    /// The key is taken by another intent.
    Conflict(MalformedIntent),
    /// It breaks a rule.
    Malformed(MalformedIntent),
}

impl Outcome {
    /// `accepted`, `duplicate`, `conflict` or `malformed`, for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accepted(_) => "accepted",
            Self::Duplicate => "duplicate",
            Self::Conflict(_) => "conflict",
            Self::Malformed(_) => "malformed",
        }
    }

    /// What is written for an accepted intent.
    pub fn acceptance(&self) -> Option<&Acceptance> {
        match self {
            Self::Accepted(acceptance) => Some(acceptance),
            Self::Duplicate | Self::Conflict(_) | Self::Malformed(_) => None,
        }
    }

    /// The row of `malformed_intents`, if it is one.
    pub fn malformed_row(&self) -> Option<&MalformedIntent> {
        match self {
            Self::Conflict(row) | Self::Malformed(row) => Some(row),
            Self::Accepted(_) | Self::Duplicate => None,
        }
    }

    /// The code that `malformed_intents` has for it, if it is a row there.
    pub fn failure_code(&self) -> Option<FailureCode> {
        self.malformed_row().map(|row| row.rejection.code)
    }
}

/// An entry with its outcome.
#[derive(Clone, Debug)]
pub struct Decided<'a> {
    /// The entry.
    pub entry: &'a Decoded,
    /// What becomes of it.
    pub outcome: Outcome,
}

impl Decided<'_> {
    /// What becomes of an element that PostgreSQL refuses, while it takes others: `not_storable`, with `message`. If it is that
    /// already, next to nothing of its fields is kept; `None` if even that is refused.
    #[must_use]
    pub fn not_storable(&self, stream: &str, message: String, now: Timestamp) -> Option<Self> {
        let row = match &self.outcome {
            Outcome::Malformed(row) if row.rejection.code == FailureCode::NotStorable => row.reduced()?,
            _ => {
                let rejection = Rejection { code: FailureCode::NotStorable, message };
                self.entry.rejected(stream, rejection, now)
            }
        };
        Some(Self { entry: self.entry, outcome: Outcome::Malformed(row) })
    }
}

/// An entry that cannot be processed yet, and the ones after it with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// Which entry.
    pub entry_id: EntryId,
    /// What it waits for.
    pub cause: String,
}

/// What a decision says of the first entry that it does not cover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rest {
    /// There is none: the whole batch is decided.
    Nothing,
    /// The directory has not been asked about all of its users.
    NotAsked,
    /// It must wait.
    Waits(Wait),
}

/// What was decided about a batch.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// The entries from the beginning of the batch, each with its outcome.
    pub decided: Vec<Decided<'a>>,
    /// What holds the first entry after them.
    pub rest: Rest,
}

impl Decision<'_> {
    /// Whether an intent is not accepted because of what the directory said, or could not say. Then its key must be looked up
    /// before the decision is written: what becomes of a replay never depends on what the directory says today.
    pub fn directory_objects(&self) -> bool {
        let missing = |decided: &Decided<'_>| matches!(&decided.outcome, Outcome::Malformed(row) if row.rejection.code == FailureCode::RecipientNotFound);
        matches!(self.rest, Rest::Waits(_)) || self.decided.iter().any(missing)
    }

    /// Whether the keys of the next batch should be looked up before it is decided: what has just happened is likely to happen
    /// again, and a batch over a key that is taken is decided twice.
    pub fn next_has_known_keys(&self) -> bool {
        let known =
            |decided: &Decided<'_>| matches!(decided.outcome, Outcome::Duplicate | Outcome::Conflict(_));
        self.directory_objects() || self.decided.iter().any(known)
    }
}

/// A user whom the directory has yet to be asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unanswered<'a> {
    /// The place in the batch of the first entry that needs the user.
    pub place: usize,
    /// The user's id.
    pub user_id: &'a str,
}

/// The distinct users without an answer in `users` that intents with unknown keys need, in stream order.
pub fn unanswered<'a>(
    batch: impl IntoIterator<Item = &'a Decoded>,
    known: &Known,
    users: &HashMap<String, Lookup>,
) -> Vec<Unanswered<'a>> {
    let mut seen = HashSet::new();
    let intents = batch.into_iter().enumerate().filter_map(|(place, entry)| Some((place, entry.intent()?)));
    intents
        .filter(|(_, intent)| {
            known.fingerprints.is_empty() || !known.fingerprints.contains_key(&intent.scope())
        })
        .flat_map(|(place, intent)| {
            intent.audience.users().iter().map(move |user_id| Unanswered { place, user_id })
        })
        .filter(|user| !users.contains_key(user.user_id) && seen.insert(user.user_id))
        .collect()
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
    /// For an acceptance at `now`. Routes that this replica will dispatch to its own publishers have a head start of one
    /// lease TTL, in which other replicas leave them alone; those that it cannot dispatch are due at once.
    pub fn schedule(&self, now: Timestamp, dispatched: bool) -> Schedule {
        Schedule { accepted_at: now, due: if dispatched { now + self.head_start } else { now } }
    }
}

/// Decides a batch at the time of `schedule`, from the answers in `users`.
pub fn decide<'a>(
    stream: &str,
    batch: impl IntoIterator<Item = &'a Decoded>,
    known: &Known,
    users: &HashMap<String, Lookup>,
    policy: &Policy,
    schedule: Schedule,
) -> Decision<'a> {
    let now = schedule.accepted_at;
    let mut taken_here: HashMap<IdempotencyScope, &str> = HashMap::new();
    let mut decided = Vec::new();
    for entry in batch {
        let intent = match &entry.content {
            Ok(content) => &content.intent,
            Err(row) => {
                let row = MalformedIntent { recorded_at: now, ..row.clone() };
                decided.push(Decided { entry, outcome: Outcome::Malformed(row) });
                continue;
            }
        };
        let scope = intent.scope();
        let holder =
            known.fingerprints.get(&scope).map(String::as_str).or_else(|| taken_here.get(&scope).copied());
        let outcome = match holder {
            Some(fingerprint) if fingerprint == intent.fingerprint => Outcome::Duplicate,
            Some(_) => Outcome::Conflict(entry.rejected(stream, conflict(), now)),
            None => match resolve(intent, users) {
                Recipients::NotAsked => return Decision { decided, rest: Rest::NotAsked },
                Recipients::Waiting(cause) => {
                    let wait = Wait { entry_id: entry.id, cause: cause.to_owned() };
                    return Decision { decided, rest: Rest::Waits(wait) };
                }
                Recipients::NotFound(rejection) => Outcome::Malformed(entry.rejected(stream, rejection, now)),
                Recipients::Known(found) => {
                    taken_here.insert(scope.clone(), &intent.fingerprint);
                    let suffix = known.taken_ids.get(&entry.id).copied().unwrap_or(0);
                    let id = NotificationId::of(entry.id, suffix);
                    Outcome::Accepted(accept(id, scope, intent, &found, policy, schedule))
                }
            },
        };
        decided.push(Decided { entry, outcome });
    }
    Decision { decided, rest: Rest::Nothing }
}

/// A row of each kind that the service itself makes, to find out whether PostgreSQL takes any. Of another producer and type
/// than `refused`, where the catalogue has one.
pub fn probe(stream: &str, policy: &Policy, refused: &Decoded, now: Timestamp) -> Probe {
    let unlike = |kind: &&NotificationType| {
        refused.intent().is_none_or(|intent| {
            kind.name() != intent.notification_type && !kind.allows_producer(&intent.producer)
        })
    };
    let with_users = || policy.catalog.types().filter(|kind| kind.channels(AudienceKind::User).is_some());
    let kind = with_users().find(unlike).or_else(|| with_users().next());
    let user = User::default();
    let (name, producer) = kind
        .map_or((PROBE, PROBE), |kind| (kind.name(), kind.producers().first().map_or(PROBE, String::as_str)));
    let intent = Intent {
        notification_type: name.to_owned(),
        producer: producer.to_owned(),
        audience: Audience::Users(vec![PROBE.to_owned()]),
        idempotency_key: PROBE.to_owned(),
        occurred_at: now,
        payload_json: "{}".to_owned(),
        request_id: String::new(),
        trace_id: String::new(),
        fingerprint: PROBE.to_owned(),
    };
    let id = NotificationId::from(PROBE.to_owned());
    let acceptance =
        accept(id, intent.scope(), &intent, &[(PROBE, &user)], policy, policy.schedule(now, true));
    let rejection = Rejection { code: FailureCode::NotStorable, message: PROBE.to_owned() };
    let malformed = MalformedIntent::new(stream, EntryId::ZERO, RawFields::default(), rejection, now);
    Probe { acceptance, malformed }
}

/// What the rows of a [`Probe`] hold where any text will do.
const PROBE: &str = "notification-service-probe";

/// Valid rows that are never committed.
#[derive(Clone, PartialEq, Debug)]
pub struct Probe {
    /// A record and its routes.
    pub acceptance: Acceptance,
    /// A malformed intent.
    pub malformed: MalformedIntent,
}

/// What the directory's answers make of an intent's recipients.
enum Recipients<'a> {
    /// All of them exist; empty for administrators.
    Known(Vec<(&'a str, &'a User)>),
    NotFound(Rejection),
    /// One gave no usable answer, for this cause.
    Waiting(&'a str),
    NotAsked,
}

/// A recipient that is missing outweighs one that could not be looked up: the intent is malformed either way. One that could
/// not be looked up outweighs one that was not asked about.
fn resolve<'a>(intent: &'a Intent, users: &'a HashMap<String, Lookup>) -> Recipients<'a> {
    let ids = intent.audience.users();
    let mut found = Vec::with_capacity(ids.len());
    let (mut waiting, mut not_asked) = (None, false);
    for id in ids {
        match users.get(id) {
            Some(Lookup::Found(user)) => found.push((id.as_str(), user)),
            Some(Lookup::Missing) => return Recipients::NotFound(not_found(id)),
            Some(Lookup::Unavailable(cause)) => waiting = waiting.or(Some(cause.as_str())),
            None => not_asked = true,
        }
    }
    match waiting {
        Some(cause) => Recipients::Waiting(cause),
        None if not_asked => Recipients::NotAsked,
        None => Recipients::Known(found),
    }
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
    schedule: Schedule,
) -> Acceptance {
    let now = schedule.accepted_at;
    let factory = RouteFactory { id: &notification_id, policy, due: schedule.due };
    let routes = match &intent.audience {
        Audience::Users(_) => factory.user_routes(users, policy.channels(intent)),
        Audience::AdminEmail => factory.admin_routes(&intent.notification_type),
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
struct RouteFactory<'a> {
    id: &'a NotificationId,
    policy: &'a Policy,
    due: Timestamp,
}

impl RouteFactory<'_> {
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
