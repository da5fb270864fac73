//! Decides what is written for decoded entries: which are accepted, which are duplicates, which must wait. No
//! I/O.
//!
//! A batch is decided in stream order, from the rows that PostgreSQL has for its keys and from the lookups of
//! its recipients. The decision covers a prefix of the batch. It ends before the first entry with an unknown
//! recipient, because no later entry may be accepted before that one. The acceptance transaction checks that
//! the decision still holds when it is written.

use std::collections::{HashMap, HashSet};

use ambient::Timestamp;

use crate::entry::EntryId;
use crate::intent::Intent;
use crate::malformed_intent::{FailureCode, MalformedIntent, Rejection};
use crate::outcome::{Acceptance, Outcome};
use crate::policy::{Policy, Schedule};
use crate::recipient::{Lookup, User};
use crate::record::{IdempotencyKey, NotificationId};

mod decoded;
mod fate;
mod probe;
mod record;

pub use decoded::{Decoded, DecodedIntent, ProcessedTrace, decode, decode_large};
pub use fate::Fate;
pub use probe::{Probe, probe};
use record::new_acceptance;

/// The rows in PostgreSQL that concern a batch, read before it is decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// The fingerprints of the keys that are taken.
    pub fingerprints: HashMap<IdempotencyKey, String>,
    /// The entry ids that belong to another intent, each with the suffix number to append to the id.
    pub taken_ids: HashMap<EntryId, u32>,
}

/// An entry with its outcome.
#[derive(Clone, Debug)]
pub struct Decided<'a> {
    /// The entry.
    pub entry: &'a Decoded,
    /// The outcome of the entry.
    pub outcome: Outcome,
}

impl Decided<'_> {
    /// The outcome `not_storable`, with `message`, for an element that PostgreSQL rejects while it accepts
    /// others. If the outcome is `not_storable` already, its fields are reduced to almost nothing. `None` if
    /// PostgreSQL rejected even that.
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

/// An entry that cannot be processed yet. The entries after it wait with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The id of the entry.
    pub entry_id: EntryId,
    /// The reason for the wait.
    pub cause: String,
}

/// The state of the first entry that a decision does not cover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FirstUndecided {
    /// No such entry: the whole batch is decided.
    Nothing,
    /// Some of its users have not been looked up.
    NotLookedUp,
    /// The entry must wait.
    Waits(Wait),
}

/// The decision about a batch.
#[derive(Clone, Debug)]
pub struct BatchDecision<'a> {
    /// The entries from the beginning of the batch, each with its outcome.
    pub decided: Vec<Decided<'a>>,
    /// The state of the first entry after them.
    pub rest: FirstUndecided,
}

impl BatchDecision<'_> {
    /// True if an intent is not accepted because of a lookup, missing or unavailable. Its key must then be
    /// read before the decision is written: the outcome of a replay never depends on the directory's present
    /// state.
    pub fn depends_on_directory(&self) -> bool {
        let missing = |decided: &Decided<'_>| matches!(&decided.outcome, Outcome::Malformed(row) if row.rejection.code == FailureCode::RecipientNotFound);
        matches!(self.rest, FirstUndecided::Waits(_)) || self.decided.iter().any(missing)
    }

    /// True if the keys of the next batch should be read before it is decided. Duplicates and lookup failures
    /// tend to repeat, and a batch with a taken key is decided twice.
    pub fn next_has_known_keys(&self) -> bool {
        let known =
            |decided: &Decided<'_>| matches!(decided.outcome, Outcome::Duplicate | Outcome::Conflict(_));
        self.depends_on_directory() || self.decided.iter().any(known)
    }
}

/// A user who has not been looked up yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingLookup<'a> {
    /// The index in the batch of the first entry that needs the user.
    pub place: usize,
    /// The user's id.
    pub user_id: &'a str,
}

/// Returns the distinct users that intents with unknown keys need and `users` does not contain, in stream
/// order.
pub fn missing_lookups<'a>(
    batch: impl IntoIterator<Item = &'a Decoded>,
    known: &Known,
    users: &HashMap<String, Lookup>,
) -> Vec<MissingLookup<'a>> {
    let mut seen = HashSet::new();
    let intents = batch.into_iter().enumerate().filter_map(|(place, entry)| Some((place, entry.intent()?)));
    intents
        .filter(|(_, intent)| {
            known.fingerprints.is_empty() || !known.fingerprints.contains_key(&intent.key())
        })
        .flat_map(|(place, intent)| {
            intent.audience.users().iter().map(move |user_id| MissingLookup { place, user_id })
        })
        .filter(|user| !users.contains_key(user.user_id) && seen.insert(user.user_id))
        .collect()
}

/// Decides a batch at the time of `schedule`, from the lookups in `users`.
pub fn decide<'a>(
    stream: &str,
    batch: impl IntoIterator<Item = &'a Decoded>,
    known: &Known,
    users: &HashMap<String, Lookup>,
    policy: &Policy,
    schedule: Schedule,
) -> BatchDecision<'a> {
    let now = schedule.accepted_at;
    let mut taken_here: HashMap<IdempotencyKey, &str> = HashMap::new();
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
        let key = intent.key();
        let holder =
            known.fingerprints.get(&key).map(String::as_str).or_else(|| taken_here.get(&key).copied());
        let outcome = match holder {
            Some(fingerprint) if fingerprint == intent.fingerprint => Outcome::Duplicate,
            Some(_) => Outcome::Conflict(entry.rejected(stream, conflict(), now)),
            None => {
                let suffix = known.taken_ids.get(&entry.id).copied().unwrap_or(0);
                match decide_new(intent, users, NotificationId::of(entry.id, suffix), policy, schedule) {
                    Verdict::NotLookedUp => {
                        return BatchDecision { decided, rest: FirstUndecided::NotLookedUp };
                    }
                    Verdict::Waiting(cause) => {
                        let wait = Wait { entry_id: entry.id, cause };
                        return BatchDecision { decided, rest: FirstUndecided::Waits(wait) };
                    }
                    Verdict::NotFound(rejection) => {
                        Outcome::Malformed(entry.rejected(stream, rejection, now))
                    }
                    Verdict::Accepted(acceptance) => {
                        taken_here.insert(key, &intent.fingerprint);
                        Outcome::Accepted(acceptance)
                    }
                }
            }
        };
        decided.push(Decided { entry, outcome });
    }
    BatchDecision { decided, rest: FirstUndecided::Nothing }
}

/// The verdict on an intent whose key is free, whatever its source.
pub(crate) enum Verdict {
    Accepted(Acceptance),
    /// A recipient does not exist.
    NotFound(Rejection),
    /// A recipient could not be looked up, for this cause.
    Waiting(String),
    /// Some recipients have not been looked up.
    NotLookedUp,
}

/// Decides about an intent whose key is free. `id` is the id of its record if the intent is accepted.
pub(crate) fn decide_new(
    intent: &Intent,
    users: &HashMap<String, Lookup>,
    id: NotificationId,
    policy: &Policy,
    schedule: Schedule,
) -> Verdict {
    match resolve(intent, users) {
        RecipientLookups::NotLookedUp => Verdict::NotLookedUp,
        RecipientLookups::Waiting(cause) => Verdict::Waiting(cause.to_owned()),
        RecipientLookups::NotFound(rejection) => Verdict::NotFound(rejection),
        RecipientLookups::Known(found) => {
            Verdict::Accepted(new_acceptance(id, intent, &found, policy, schedule))
        }
    }
}

/// An intent's recipients after their lookups.
enum RecipientLookups<'a> {
    /// All of them exist; empty for administrators.
    Known(Vec<(&'a str, &'a User)>),
    NotFound(Rejection),
    /// The lookup of one of them is unavailable, for this cause.
    Waiting(&'a str),
    NotLookedUp,
}

/// A missing recipient outweighs one that could not be looked up, because the intent is malformed either way.
/// One that could not be looked up outweighs one that has not been looked up yet.
fn resolve<'a>(intent: &'a Intent, users: &'a HashMap<String, Lookup>) -> RecipientLookups<'a> {
    let ids = intent.audience.users();
    let mut found = Vec::with_capacity(ids.len());
    let (mut waiting, mut not_looked_up) = (None, false);
    for id in ids {
        match users.get(id) {
            Some(Lookup::Found(user)) => found.push((id.as_str(), user)),
            Some(Lookup::Missing) => return RecipientLookups::NotFound(not_found(id)),
            Some(Lookup::Unavailable(cause)) => waiting = waiting.or(Some(cause.as_str())),
            None => not_looked_up = true,
        }
    }
    match waiting {
        Some(cause) => RecipientLookups::Waiting(cause),
        None if not_looked_up => RecipientLookups::NotLookedUp,
        None => RecipientLookups::Known(found),
    }
}

fn conflict() -> Rejection {
    Rejection {
        code: FailureCode::IdempotencyConflict,
        message: "this producer has used this idempotency_key for an intent with different content"
            .to_owned(),
    }
}

fn not_found(user_id: &str) -> Rejection {
    Rejection {
        code: FailureCode::RecipientNotFound,
        message: format!("the user directory has no user {user_id:?}"),
    }
}

#[cfg(test)]
mod tests;
