//! Rows for the pages, written like acceptance and publishing write them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ambient::Timestamp;
use domain::accept::{self, Decoded, Known};
use domain::catalog::Catalog;
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::intent::{IntentDraft, Recipients};
use domain::outcome::{Acceptance, Outcome};
use domain::policy::Policy;
use domain::ports::{AcceptanceBatch, AcceptanceStore, Completion, Fate, RouteStore, RowLocks};
use domain::recipient::{Lookup, User};
use domain::route::{Failed, LiveRoute};
use store_postgres::PgStore;

pub(crate) const STREAM: &str = "notification:intents";

/// `game.turn.ready` for one user.
pub(crate) fn draft(user: &str, key: &str) -> IntentDraft {
    IntentDraft {
        notification_type: "game.turn.ready".to_owned(),
        producer: "game_master".to_owned(),
        recipients: Recipients::Users(vec![user.to_owned()]),
        idempotency_key: key.to_owned(),
        occurred_at_ms: "1775121700000".to_owned(),
        payload_json: r#"{"game_id":"game-1","game_name":"Nova","turn_number":54}"#.to_owned(),
        request_id: None,
        trace_id: None,
    }
}

/// Decides entries at `now` and commits the decision. Every user exists.
async fn decide(
    store: &PgStore,
    entries: impl IntoIterator<Item = (u64, RawFields)>,
    users: &[&str],
    now: Timestamp,
) -> Vec<Outcome> {
    let policy = Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::new(),
        locales: vec!["en".to_owned()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_hours(24),
        head_start: Duration::from_secs(5),
    };
    let user = |id: &&str| {
        let user = User { email: "someone@example.com".to_owned(), preferred_language: "en".to_owned() };
        ((*id).to_owned(), Lookup::Found(user))
    };
    let users: HashMap<String, Lookup> = users.iter().map(user).collect();
    let decode = |(number, fields)| {
        accept::decode(STREAM, RawEntry { id: EntryId::new(number, 0), fields }, &policy, now)
    };
    let entries: Vec<Decoded> = entries.into_iter().map(decode).collect();
    let decision =
        accept::decide(STREAM, &entries, &Known::default(), &users, &policy, policy.schedule(now, true));
    let outcomes: Vec<Outcome> = decision.decided.into_iter().map(|decided| decided.outcome).collect();
    let batch =
        AcceptanceBatch { outcomes: outcomes.iter().collect(), checkpoint: None, responses: Vec::new() };
    assert_eq!(store.accept(batch).await.expect("the store is there"), Fate::Committed);
    outcomes
}

/// Accepts an intent and returns its routes.
pub(crate) async fn accepted(
    store: &PgStore,
    number: u64,
    draft: IntentDraft,
    now: Timestamp,
) -> Vec<LiveRoute> {
    let users = match &draft.recipients {
        Recipients::Users(users) => users.clone(),
        Recipients::Administrators => Vec::new(),
    };
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let outcomes = decide(store, [(number, draft.into_entry())], &users, now).await;
    let acceptance = outcomes[0].acceptance().unwrap_or_else(|| panic!("{outcomes:?}"));
    acceptance.live_routes().collect()
}

/// Accepts intents with these numbers, whose routes become dead letters at `now`.
pub(crate) async fn dead(store: &PgStore, numbers: impl IntoIterator<Item = u64>, now: Timestamp) {
    let entry = |number| (number, draft("u-1", &format!("key-{number}")).into_entry());
    let outcomes = decide(store, numbers.into_iter().map(entry), &["u-1"], now).await;
    let routes = outcomes.iter().filter_map(Outcome::acceptance).flat_map(Acceptance::live_routes);
    let failed = |route: LiveRoute| Failed {
        key: route.key,
        version: route.version,
        channel: route.channel,
        attempt_count: route.max_attempts,
        retry_at: None,
        classification: route.channel.publish_failed(),
        message: "WRONGTYPE".to_owned(),
    };
    let failed: Vec<Failed> = routes.map(failed).collect();
    let completed = store.complete_routes_failed(&failed, now, RowLocks::Wait).await;
    let completed = completed.expect("the store is there");
    assert!(completed.iter().all(|completion| *completion == Completion::Applied), "{completed:?}");
}

/// Stores an entry that breaks a rule.
pub(crate) async fn malformed(store: &PgStore, number: u64, fields: &[(&[u8], &[u8])], now: Timestamp) {
    let fields: RawFields = fields.iter().copied().collect();
    let outcomes = decide(store, [(number, fields)], &[], now).await;
    assert!(outcomes[0].acceptance().is_none(), "{outcomes:?}");
}
