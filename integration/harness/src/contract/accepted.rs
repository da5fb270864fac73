//! Intents with their outcomes, for suites that need rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::accept::{self, Decoded, Known};
use domain::catalog::Catalog;
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::outcome::Outcome;
use domain::policy::Policy;
use domain::ports::{AcceptanceBatch, AcceptanceStore, CheckpointMove, Fate};
use domain::recipient::{Lookup, User};

use crate::turn_ready;

pub(super) const STREAM: &str = "notification:intents";
/// The time after its acceptance at which a route becomes due.
pub(super) const HEAD_START: Duration = Duration::from_secs(5);

pub(super) fn id(number: u64) -> EntryId {
    EntryId::new(number, 0)
}

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
}

/// A well-formed entry: two routes of one user.
pub(super) fn entry(number: u64, key: &str, turn: u32) -> RawEntry {
    RawEntry { id: id(number), fields: turn_ready(["u-1"], key, turn).into_entry() }
}

pub(super) fn broken(number: u64) -> RawEntry {
    RawEntry { id: id(number), fields: RawFields::from_iter([("unknown", "x")]) }
}

pub(super) fn policy() -> Policy {
    Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::new(),
        locales: vec!["en".to_owned()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(7 * 24 * 3600),
        head_start: HEAD_START,
    }
}

pub(super) fn decode(entries: impl IntoIterator<Item = RawEntry>, now: Timestamp) -> Vec<Decoded> {
    let policy = policy();
    entries.into_iter().map(|entry| accept::decode(STREAM, entry, &policy, now)).collect()
}

/// The outcomes of entries, decided at `now`.
pub(super) fn decide(
    entries: impl IntoIterator<Item = RawEntry>,
    known: &Known,
    now: Timestamp,
) -> Vec<Outcome> {
    let policy = policy();
    let user = User { email: "u-1@example.com".to_owned(), preferred_language: "en".to_owned() };
    let users = HashMap::from([("u-1".to_owned(), Lookup::Found(user))]);
    let entries = decode(entries, now);
    let decision = accept::decide(STREAM, &entries, known, &users, &policy, policy.schedule(now, true));
    decision.decided.into_iter().map(|decided| decided.outcome).collect()
}

pub(super) async fn commit(
    store: &impl AcceptanceStore,
    outcomes: &[Outcome],
    checkpoint: Option<CheckpointMove<'_>>,
) -> Fate {
    let batch = AcceptanceBatch { outcomes: outcomes.iter().collect(), checkpoint, responses: Vec::new() };
    store.accept(batch).await.expect("the store is there")
}

/// Accepts intents with these numbers at `now`, each under its own key.
pub(super) async fn accept(
    store: &impl AcceptanceStore,
    numbers: impl IntoIterator<Item = u64>,
    now: Timestamp,
) -> Vec<Outcome> {
    let entries = numbers.into_iter().map(|number| entry(number, &format!("key-{number}"), 54));
    let outcomes = decide(entries, &Known::default(), now);
    assert_eq!(commit(store, &outcomes, None).await, Fate::Committed);
    outcomes
}
