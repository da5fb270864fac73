//! The producers of a simulation. Each sends its intent until a response shows that it was taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::entry::RawFields;
use domain::intent;
use domain::ports::{IntentProducer, Submissions};
use domain::submission::{Held, Submission, SubmissionOutcome};
use memory_stores::Remote;
use outbox::NewEvent;
use serde_json::json;
use tokio::time::{sleep, sleep_until, timeout};
use uuid::Uuid;

use crate::dice::Dice;
use crate::network::Connection;
use crate::outbox_streams::PRODUCER;
use crate::plan::{PlannedIntent, Way};
use crate::process::Process;
use crate::world::World;

const TYPE: &str = "game.turn.ready";
/// The pause before a request is repeated.
const RETRY: Duration = Duration::from_millis(400);
/// The time after which an HTTP client gives up a request.
const HTTP_TIMEOUT: Duration = Duration::from_secs(15);

/// The key of the intent with this number.
pub(crate) fn key(intent: &PlannedIntent) -> String {
    match intent.way {
        Way::Outbox => event_id(intent).to_string(),
        Way::Stream | Way::Http => format!("key-{}", intent.number),
    }
}

fn event_id(intent: &PlannedIntent) -> Uuid {
    Uuid::from_u128(0x1000 + intent.number as u128)
}

fn recipients(intent: &PlannedIntent) -> Vec<String> {
    (0..intent.recipients).map(|user| format!("u-{}", (intent.number as u64 + user) % 7)).collect()
}

fn payload(intent: &PlannedIntent) -> String {
    let turn = if intent.is_malformed { json!("many") } else { json!(intent.number) };
    json!({"game_id": "g", "game_name": "n", "turn_number": turn}).to_string()
}

fn fields(intent: &PlannedIntent) -> RawFields {
    RawFields::from_iter([
        ("notification_type", TYPE),
        ("producer", PRODUCER),
        ("audience_kind", "user"),
        ("recipient_user_ids_json", &json!(recipients(intent)).to_string()),
        ("idempotency_key", &key(intent)),
        ("occurred_at_ms", "1775121700000"),
        ("payload_json", &payload(intent)),
    ])
}

/// Sends an intent at its time, and again if the plan repeats it.
pub(crate) async fn produce(world: Arc<World>, intent: PlannedIntent) {
    sleep_until(world.started + intent.at).await;
    let dice = Dice::new(world.plan.seed, ("producer", intent.number));
    let times = if intent.is_repeated { 2 } else { 1 };
    for _ in 0..times {
        match intent.way {
            Way::Stream => append(&world, &intent).await,
            Way::Http => submit(&world, &intent, &dice).await,
            Way::Outbox => enqueue(&world, &intent),
        }
        sleep(dice.millis(0, 2_000)).await;
    }
}

async fn append(world: &World, intent: &PlannedIntent) {
    let process = Process::new(format!("producer {}", intent.number));
    let connection = Connection::new(&process, &world.redis.server, world.plan.seed, &world.trace);
    let stream = Remote::over(Arc::clone(&world.redis.intents), connection);
    let id = loop {
        match stream.append(&fields(intent)).await {
            Ok(id) => break id,
            Err(_) => sleep(RETRY).await,
        }
    };
    let mut ledger = world.ledger.state();
    // The entry may have been lost while its acknowledgement was on its way.
    if ledger.excused_entries.contains(&id) && !world.redis.intents.ids().contains(&id) {
        return;
    }
    if intent.is_malformed {
        ledger.malformed.insert(id);
    } else {
        ledger.acknowledged.entry(key(intent)).or_default().push(id);
    }
}

async fn submit(world: &World, intent: &PlannedIntent, dice: &Dice) {
    // Cannot fail: the producer sends what the catalogue wants.
    let decoded = intent::decode(&fields(intent), &world.catalog).expect("a well-formed intent");
    loop {
        let running = world.running();
        let Some(replica) = dice.one(&running) else {
            sleep(RETRY).await;
            continue;
        };
        let submission = Submission {
            intent: decoded.clone(),
            stores_response: true,
            request_trace: None,
            held: Held::default(),
        };
        let outcome = timeout(HTTP_TIMEOUT, replica.submissions.submit(submission)).await;
        // A killed replica sends no response.
        let outcome = outcome.ok().filter(|_| !replica.process.is_killed());
        let id = match outcome {
            Some(SubmissionOutcome::Accepted { notification_id, .. }) => notification_id.to_string(),
            Some(SubmissionOutcome::Replayed(response)) => {
                String::from_utf8_lossy(&response.body).into_owned()
            }
            Some(SubmissionOutcome::Duplicate(request)) => request.notification_id.to_string(),
            Some(outcome @ (SubmissionOutcome::Conflict(_) | SubmissionOutcome::Rejected(_))) => {
                let mut ledger = world.ledger.state();
                ledger.violations.push(format!("the client of {} received {outcome:?}", key(intent)));
                return;
            }
            Some(SubmissionOutcome::InProgress(_) | SubmissionOutcome::Unavailable(_)) | None => {
                sleep(RETRY).await;
                continue;
            }
        };
        world.trace.event(&format!("the client of {} received {id}", key(intent)));
        world.ledger.state().responses.entry(key(intent)).or_default().insert(id);
        return;
    }
}

/// Commits an event to the outbox.
fn enqueue(world: &World, intent: &PlannedIntent) {
    let body = json!({
        "audience_kind": "user",
        "recipient_user_ids": recipients(intent),
        "payload": {"game_id": "g", "game_name": "n", "turn_number": intent.number},
    });
    let event = NewEvent {
        event_id: event_id(intent),
        event_type: TYPE.to_owned(),
        partition_key: if intent.number.is_multiple_of(2) { String::new() } else { "g".to_owned() },
        payload: body.to_string().into(),
        headers: BTreeMap::new(),
        available_at: None,
    };
    world.outbox.insert(event, world.outbox.now());
    world.ledger.state().events.insert(key(intent));
}
