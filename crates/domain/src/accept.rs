//! From decoded entries to what is written: who is accepted, who is a duplicate, who must wait. Pure.
//!
//! A batch is decided in stream order, from what PostgreSQL knew of its keys and what the directory said of
//! its recipients. The decision covers a prefix of the batch: it ends before the first entry whose recipients
//! are not all known, because no later entry may be accepted before it. Whether the decision still holds when
//! it is written, the acceptance transaction finds out.

use std::collections::{HashMap, HashSet};

use ambient::Timestamp;

use crate::entry::EntryId;
use crate::intent::Intent;
use crate::malformed::{FailureCode, MalformedIntent, Rejection};
use crate::outcome::{Acceptance, Outcome};
use crate::policy::{Policy, Schedule};
use crate::recipient::{Lookup, User};
use crate::record::{IdempotencyScope, NotificationId};

mod decoded;
mod probe;
mod record;

pub use decoded::{Decoded, DecodedIntent, ProcessedTrace, decode, decode_large};
pub use probe::{Probe, probe};
use record::new_acceptance;

/// What PostgreSQL knows about the entries of a batch before it is decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// The fingerprints of the keys that are taken.
    pub fingerprints: HashMap<IdempotencyScope, String>,
    /// For entry ids that belong to another intent: the number to put after them.
    pub taken_ids: HashMap<EntryId, u32>,
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
    /// What becomes of an element that PostgreSQL refuses, while it takes others: `not_storable`, with
    /// `message`. If it is that already, next to nothing of its fields is kept; `None` if even that is
    /// refused.
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
    /// Whether an intent is not accepted because of what the directory said, or could not say. Then its key
    /// must be looked up before the decision is written: what becomes of a replay never depends on what the
    /// directory says today.
    pub fn directory_objects(&self) -> bool {
        let missing = |decided: &Decided<'_>| matches!(&decided.outcome, Outcome::Malformed(row) if row.rejection.code == FailureCode::RecipientNotFound);
        matches!(self.rest, Rest::Waits(_)) || self.decided.iter().any(missing)
    }

    /// Whether the keys of the next batch should be looked up before it is decided: what has just happened is
    /// likely to happen again, and a batch over a key that is taken is decided twice.
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
            None => {
                let suffix = known.taken_ids.get(&entry.id).copied().unwrap_or(0);
                match decide_new(intent, users, NotificationId::of(entry.id, suffix), policy, schedule) {
                    Verdict::NotAsked => return Decision { decided, rest: Rest::NotAsked },
                    Verdict::Waiting(cause) => {
                        let wait = Wait { entry_id: entry.id, cause };
                        return Decision { decided, rest: Rest::Waits(wait) };
                    }
                    Verdict::NotFound(rejection) => {
                        Outcome::Malformed(entry.rejected(stream, rejection, now))
                    }
                    Verdict::Accepted(acceptance) => {
                        taken_here.insert(scope, &intent.fingerprint);
                        Outcome::Accepted(acceptance)
                    }
                }
            }
        };
        decided.push(Decided { entry, outcome });
    }
    Decision { decided, rest: Rest::Nothing }
}

/// What becomes of an intent whose key is free, wherever it comes from.
pub(crate) enum Verdict {
    Accepted(Acceptance),
    /// A recipient does not exist.
    NotFound(Rejection),
    /// A recipient could not be looked up, for this cause.
    Waiting(String),
    /// The directory has not been asked about all recipients.
    NotAsked,
}

/// Decides about an intent whose key is free. `id` is the id of its record, if it becomes one.
pub(crate) fn decide_new(
    intent: &Intent,
    users: &HashMap<String, Lookup>,
    id: NotificationId,
    policy: &Policy,
    schedule: Schedule,
) -> Verdict {
    match resolve(intent, users) {
        Recipients::NotAsked => Verdict::NotAsked,
        Recipients::Waiting(cause) => Verdict::Waiting(cause.to_owned()),
        Recipients::NotFound(rejection) => Verdict::NotFound(rejection),
        Recipients::Known(found) => {
            Verdict::Accepted(new_acceptance(id, intent.scope(), intent, &found, policy, schedule))
        }
    }
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

/// A recipient that is missing outweighs one that could not be looked up: the intent is malformed either way.
/// One that could not be looked up outweighs one that was not asked about.
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

#[cfg(test)]
mod tests;
