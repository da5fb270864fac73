//! Sample data for the console besides the sample intent: failed routes, dead letters, a malformed intent.
//!
//! The failures are recorded before the service starts, as a publisher would have recorded them: private
//! servers do not fail by themselves. Their routes are retried after [`RETRY_AFTER`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, SystemClock, Timestamp};
use anyhow::{Context, ensure};
use domain::accept::{self, Known};
use domain::catalog::Catalog;
use domain::entry::{EntryId, RawEntry};
use domain::intent::{IntentDraft, Recipients};
use domain::outcome::Outcome;
use domain::policy::Policy;
use domain::ports::{AcceptanceBatch, AcceptanceStore, Fate, RouteStore, RowLocks};
use domain::recipient::{Lookup, User};
use domain::route::{Channel, Failed, LiveRoute, RouteKey};
use store_postgres::PgStore;

use super::{PRODUCER, USERS};

/// The age of the samples: the time since their acceptance.
const ACCEPTED_BEFORE: Duration = Duration::from_secs(5 * 60);
/// The delay after which the failed routes are retried.
const RETRY_AFTER: Duration = Duration::from_secs(10 * 60);
/// The error message of the failures.
const FAILURE: &str = "the server answered: OOM command not allowed when used memory > 'maxmemory'";

/// Records two notifications, each with a dead letter and a route that failed.
pub(super) async fn record_failures(store: &PgStore) -> anyhow::Result<()> {
    let now = SystemClock.now();
    let accepted_at = now - ACCEPTED_BEFORE;
    let outcomes = accepted(accepted_at)?;
    let batch =
        AcceptanceBatch { outcomes: outcomes.iter().collect(), checkpoint: None, responses: Vec::new() };
    let commit = store.accept(batch).await.context("the samples of failures could not be stored")?;
    ensure!(commit == Fate::Committed, "the samples of failures could not be stored");
    let routes = outcomes.iter().filter_map(Outcome::acceptance).flat_map(|accepted| &accepted.routes);
    let keys: Vec<RouteKey> = routes.map(|route| route.key.clone()).collect();
    let keys: Vec<&RouteKey> = keys.iter().collect();
    let routes = store.get_live_routes(&keys).await.context("the samples of failures could not be read")?;
    let failed: Vec<Failed> = routes.routes.iter().map(|route| failure(route, now)).collect();
    let completed = store.complete_routes_failed(&failed, now, RowLocks::Wait).await;
    completed.map(drop).context("the samples of failures could not be stored")
}

/// The decisions on two intents, as if they had been accepted at `at`.
fn accepted(at: Timestamp) -> anyhow::Result<Vec<Outcome>> {
    let policy = Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::new(),
        locales: vec!["en".to_owned()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_hours(168),
        head_start: ACCEPTED_BEFORE + RETRY_AFTER,
    };
    let millis = u64::try_from(at.as_millis()).context("the clock is before 1970")?;
    let entry = |(number, (user, _)): (usize, &(&str, &str))| RawEntry {
        id: EntryId::new(millis, number as u64),
        fields: draft("game.turn.ready", user, &format!("game-123:turn-{}", 52 + number), at).into_entry(),
    };
    let entries = USERS.iter().enumerate().map(entry);
    let decoded: Vec<_> =
        entries.map(|entry| accept::decode("notification:intents", entry, &policy, at)).collect();
    let user = |(id, language): (&str, &str)| {
        let user = User { email: format!("{id}@example.com"), preferred_language: language.to_owned() };
        (id.to_owned(), Lookup::Found(user))
    };
    let (users, known) = (USERS.map(user).into(), Known::default());
    let schedule = policy.schedule(at, true);
    let decision = accept::decide("notification:intents", &decoded, &known, &users, &policy, schedule);
    Ok(decision.decided.into_iter().map(|decided| decided.outcome).collect())
}

/// The failure of a route. One route of each user, on different channels, becomes a dead letter; the other
/// two have a failed attempt and a scheduled retry.
fn failure(route: &LiveRoute, now: Timestamp) -> Failed {
    let is_last = (route.channel == Channel::Push) == route.recipient_ref.ends_with(USERS[0].0);
    Failed {
        key: route.key.clone(),
        version: route.version,
        channel: route.channel,
        attempt_count: if is_last { route.max_attempts } else { 2 },
        retry_at: (!is_last).then(|| now + RETRY_AFTER),
        classification: route.channel.publish_failed(),
        message: FAILURE.to_owned(),
    }
}

/// An intent whose type is not in the catalogue.
pub(super) fn malformed() -> IntentDraft {
    draft("game.paused", USERS[0].0, "game-123:paused", SystemClock.now())
}

fn draft(notification_type: &str, user: &str, key: &str, at: Timestamp) -> IntentDraft {
    IntentDraft {
        notification_type: notification_type.to_owned(),
        producer: PRODUCER.to_owned(),
        recipients: Recipients::Users(vec![user.to_owned()]),
        idempotency_key: key.to_owned(),
        occurred_at_ms: at.as_millis().to_string(),
        payload_json: r#"{"game_id":"game-123","game_name":"Nova","turn_number":52}"#.to_owned(),
        request_id: None,
        trace_id: None,
    }
}
