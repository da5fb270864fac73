//! Accepted drafts, and the outcomes of their routes.

use std::collections::HashMap;

use ambient::Timestamp;
use domain::accept::{self, Known};
use domain::entry::RawEntry;
use domain::intent::{IntentDraft, Recipients};
use domain::outcome::Outcome;
use domain::ports::{AcceptanceStore, Completion, RouteStore, RowLocks};
use domain::recipient::{Lookup, User};
use domain::route::{Failed, LiveRoute, Published};

use super::accepted::{STREAM, commit, id, policy};
use super::acknowledged;
use crate::turn_ready;

/// The administrators' address of one type.
pub(super) const ADMINISTRATOR: &str = "ops@example.com";
pub(super) const WITH_ADMINISTRATOR: &str = "game.generation_failed";
pub(super) const WITHOUT_ADMINISTRATOR: &str = "lobby.runtime_paused_after_start";

pub(super) fn to_administrators(notification_type: &str, producer: &str, key: &str) -> IntentDraft {
    let reason =
        if notification_type == WITH_ADMINISTRATOR { r#","failure_reason":"disk full""# } else { "" };
    IntentDraft {
        notification_type: notification_type.to_owned(),
        producer: producer.to_owned(),
        recipients: Recipients::Administrators,
        payload_json: format!(r#"{{"game_id":"g-1","game_name":"Nova"{reason}}}"#),
        ..turn_ready(["u-1"], key, 1)
    }
}

/// Accepts a draft as entry `number`. Every user exists and has an address.
pub(super) async fn accept_draft(
    store: &impl AcceptanceStore,
    number: u64,
    draft: IntentDraft,
    now: Timestamp,
) -> Vec<Outcome> {
    let mut policy = policy();
    policy.admin_emails.insert(WITH_ADMINISTRATOR.to_owned(), vec![ADMINISTRATOR.to_owned()]);
    let users: Vec<String> = match &draft.recipients {
        Recipients::Users(users) => users.clone(),
        Recipients::Administrators => Vec::new(),
    };
    let user = |id: String| {
        let email = format!("{id}@example.com");
        (id, Lookup::Found(User { email, preferred_language: "en".to_owned() }))
    };
    let users: HashMap<String, Lookup> = users.into_iter().map(user).collect();
    let entry = RawEntry { id: id(number), fields: draft.into_entry() };
    let entries = [accept::decode(STREAM, entry, &policy, now)];
    let schedule = policy.schedule(now, true);
    let decision = accept::decide(STREAM, &entries, &Known::default(), &users, &policy, schedule);
    let outcomes: Vec<Outcome> = decision.decided.into_iter().map(|decided| decided.outcome).collect();
    assert!(outcomes[0].acceptance().is_some(), "{outcomes:?}");
    let _ = commit(store, &outcomes, None).await;
    outcomes
}

pub(super) fn live(outcomes: &[Outcome]) -> Vec<LiveRoute> {
    outcomes.iter().filter_map(Outcome::acceptance).flat_map(|acceptance| acceptance.live_routes()).collect()
}

pub(super) async fn publish(store: &impl RouteStore, route: &LiveRoute, now: Timestamp) {
    let done = [Published { key: route.key.clone(), version: route.version, entry: acknowledged("7-0") }];
    let completed = store.complete_routes_published(&done, now, RowLocks::Wait).await;
    assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
}

pub(super) async fn fail(
    store: &impl RouteStore,
    route: &LiveRoute,
    retry_at: Option<Timestamp>,
    now: Timestamp,
) {
    let failed = [Failed {
        key: route.key.clone(),
        version: route.version,
        channel: route.channel,
        attempt_count: if retry_at.is_some() { 1 } else { route.max_attempts },
        retry_at,
        classification: route.channel.publish_failed(),
        message: "WRONGTYPE".to_owned(),
    }];
    let completed = store.complete_routes_failed(&failed, now, RowLocks::Wait).await;
    assert_eq!(completed.expect("the store is there"), [Completion::Applied]);
}
