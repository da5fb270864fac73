//! The operations of the document, with their parameters, bodies and responses.

mod malformed_intents;

use domain::erase::{ErasurePlan, ErasureReport};
use domain::find::Matches;
use domain::hold::HoldPlan;
use domain::operations::Plan;
use domain::query::{ActivityHistory, Notification, Status};
use idempotency::MAX_KEY_BYTES;
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::examples;
use super::operations::{
    Body, Callers, KeyHeader, Operation, answer, change, get, in_chunks, list, path_parameter,
    planned_change, query_parameter,
};
use super::problems::{IN_PROGRESS, INTENT_REFUSED, NOT_FOUND, QUERY_TOO_EXPENSIVE, REQUEST_CONFLICT};
use super::schemas::{Schemas, header_refs, schema_ref};
use crate::erase::EraseRequest;
use crate::holds::{HoldRequest, ReleaseRequest};
use crate::operations::{CancelRequest, DiscardRequest, ReplayRequest, ResendRequest};
use crate::ports::ApiSettings;
use crate::receipts::ReceiptsRequest;
use crate::search::SearchRequest;
use crate::view::{
    Accepted, Actions, Cancelled, ChangedHold, DeadLetters, Discarded, Holds, KeyOutcome, Notifications,
    ReceiptResults, Replayed, Resent, Results,
};
use crate::{actions, activity, dead_letters, find, intent_outcome, notifications};

/// The path items of the document.
pub(super) fn paths(settings: &ApiSettings, schemas: &mut Schemas) -> Value {
    json!({
        "/v1/intents": {"post": send(settings, schemas).render()},
        "/v1/intents:batch": {"post": send_batch(settings, schemas).render()},
        "/v1/intents/{idempotency_key}": {"get": get_intent_outcome(schemas).render()},
        "/v1/notifications": {"get": list_notifications(schemas).render()},
        "/v1/notifications:query": {"post": search_notifications(settings, schemas).render()},
        "/v1/notifications/{notification_id}": {"get": get_notification(schemas).render()},
        "/v1/dead-letters": {"get": list_dead_letters(schemas).render()},
        "/v1/dead-letters:replay": {"post": replay(settings, schemas).render()},
        "/v1/dead-letters:discard": {"post": discard(settings, schemas).render()},
        "/v1/routes:cancel": {"post": cancel(settings, schemas).render()},
        "/v1/routes:resend": {"post": resend(settings, schemas).render()},
        "/v1/actions": {"get": list_actions(schemas).render()},
        "/v1/activity": {"get": get_activity(schemas).render()},
        "/v1/find": {"get": find(schemas).render()},
        "/v1/holds": {"get": list_holds(schemas).render()},
        "/v1/holds:hold": {"post": hold(settings, schemas).render()},
        "/v1/holds:release": {"post": release(settings, schemas).render()},
        "/v1/malformed-intents": {"get": malformed_intents::list_malformed_intents(schemas).render()},
        "/v1/malformed-intents:resubmit": {"post": malformed_intents::resubmit(settings, schemas).render()},
        "/v1/malformed-intents/{stream_entry_id}": {"get": malformed_intents::get_malformed_intents(schemas).render()},
        "/v1/users:erase": {"post": erase_user(settings, schemas).render()},
        "/v1/receipts": {"post": record_receipts(settings, schemas).render()},
        "/v1/status": {"get": get_status(schemas).render()},
        "/openapi.json": {"get": get_document().render()},
    })
}

fn send(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    Operation {
        id: "sendIntent",
        tag: "intents",
        summary: "Sends an intent.",
        description: "The answer comes once the intent is committed. A repeated request gets the stored answer, byte for byte and with \
            `Idempotency-Replayed`, for as long as `NOTIFICATION_IDEMPOTENCY_TTL` says; after that, and if the intent came by the stream or in a \
            batch, `outcome` is `duplicate`. Repeat a request without an answer with the same key."
            .to_owned(),
        callers: Callers::Producers,
        key: KeyHeader::Required,
        parameters: Vec::new(),
        body: Some(Body {
            schema: schema_ref("Intent"),
            examples: examples::intent(&settings.catalog),
            max_bytes: settings.max_body_bytes,
        }),
        success: (
            "202",
            answer("The intent is accepted.", schemas.answer::<Accepted<'_>>(), examples::accepted(), &["Idempotency-Replayed"]),
        ),
        problems: vec![("409", IN_PROGRESS), ("422", INTENT_REFUSED)],
    }
}

fn send_batch(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    Operation {
        id: "sendIntents",
        tag: "intents",
        summary: "Sends up to a thousand intents.",
        description: "Each element is decided by itself and has the status that it would get alone; what is accepted stays accepted. Send the elements \
            with 503 again. A repeated element is a duplicate."
            .to_owned(),
        callers: Callers::Producers,
        key: KeyHeader::Optional(
            "Guards the request as a whole: a repeated request with the same body gets the first answer. An answer with a 503 in it is not stored.",
        ),
        parameters: Vec::new(),
        body: Some(Body {
            schema: schema_ref("Batch"),
            examples: examples::batch(&settings.catalog),
            max_bytes: settings.max_batch_body_bytes,
        }),
        success: (
            "200",
            answer(
                "What became of each element, in their order.",
                schemas.answer::<Results>(),
                examples::batch_results(),
                &["Idempotency-Replayed"],
            ),
        ),
        problems: vec![("409", IN_PROGRESS), ("422", REQUEST_CONFLICT)],
    }
}

fn get_intent_outcome(schemas: &mut Schemas) -> Operation {
    let about = "The idempotency key, percent-encoded.";
    let mut key = path_parameter("idempotency_key", about, "game-123:turn-54");
    key["schema"]["maxLength"] = MAX_KEY_BYTES.into();
    let mut parameters = vec![key];
    parameters.extend(intent_outcome::PARAMS.iter().map(query_parameter));
    Operation {
        description: "Whether they came by the stream, over HTTP or by an outbox. An intent that was refused over HTTP has its answer and leaves no trace; \
            neither does a duplicate. An intent in a producer's outbox is `unknown` until it is relayed."
            .to_owned(),
        callers: Callers::Readers,
        parameters,
        ..get(
            "getIntentOutcome",
            "intents",
            "Shows what became of the intents with an idempotency key.",
            answer("What is known.", schemas.answer::<KeyOutcome<'_>>(), examples::intent_outcomes(), &[]),
        )
    }
}

fn list_notifications(schemas: &mut Schemas) -> Operation {
    Operation {
        description: "A producer's token lists that producer's notifications.".to_owned(),
        callers: Callers::Readers,
        ..list(
            "listNotifications",
            "notifications",
            "Lists notifications, newest first.",
            &notifications::PARAMS,
            answer("A page.", schemas.answer::<Notifications>(), examples::notifications(), &["Data-Age-Ms"]),
        )
    }
}

fn search_notifications(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    Operation {
        description: "By the query language of the state store. A search is bounded by `NOTIFICATION_API_QUERY_TIMEOUT`; those for a notification_id, \
            an idempotency_key, a recipient, a receipt.status of failed, complained or bounced, or a route.status other than published are served by an index."
            .to_owned(),
        body: Some(Body {
            schema: schemas.request::<SearchRequest<'_>>(),
            examples: examples::searches(),
            max_bytes: settings.max_body_bytes,
        }),
        problems: vec![("422", QUERY_TOO_EXPENSIVE)],
        ..get(
            "searchNotifications",
            "notifications",
            "Searches notifications by a filter, newest first.",
            answer("A page.", schemas.answer::<Notifications>(), examples::notifications(), &["Data-Age-Ms"]),
        )
    }
}

fn get_notification(schemas: &mut Schemas) -> Operation {
    Operation {
        callers: Callers::Readers,
        parameters: vec![path_parameter("notification_id", "The id of the notification.", "1775121700000-0")],
        problems: vec![("404", NOT_FOUND)],
        ..get(
            "getNotification",
            "notifications",
            "Shows a notification with its routes.",
            answer("The notification.", schemas.answer::<Notification>(), examples::notification(), &[]),
        )
    }
}

fn find(schemas: &mut Schemas) -> Operation {
    let mut parameters: Vec<Value> = find::PARAMS.iter().map(query_parameter).collect();
    parameters[0]["required"] = true.into();
    parameters[0]["example"] = "1775121700000-0/push:user:u-1".into();
    Operation {
        description: "Without `producer` and `stream` the id is looked for as all that it may be, and everything found is listed. Request ids and trace ids are \
            compared with those of the newest 100,000 notifications, if nothing else was found."
            .to_owned(),
        parameters,
        ..get(
            "find",
            "operations",
            "Finds what an id refers to.",
            answer("Everything found.", schemas.answer::<Matches>(), examples::matches(), &[]),
        )
    }
}

fn list_dead_letters(schemas: &mut Schemas) -> Operation {
    list(
        "listDeadLetters",
        "operations",
        "Lists dead letters, newest first.",
        &dead_letters::PARAMS,
        answer("A page.", schemas.answer::<DeadLetters>(), examples::dead_letters(), &["Data-Age-Ms"]),
    )
}

fn replay(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    let about = "Their routes are pending again with a new budget, under the ids that they always had; the dead letters are deleted.";
    let texts = ("replayDeadLetters", "Replays dead letters.", about);
    let examples = (examples::replay_requests(), examples::replayed());
    route_change::<ReplayRequest, Replayed>(settings, schemas, texts, examples)
}

fn discard(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    let about = "They stay, are listed with `discarded=true` only, and are replayed only by their ids.";
    let texts = ("discardDeadLetters", "Discards dead letters.", about);
    let examples = (examples::discard_requests(), examples::discarded());
    route_change::<DiscardRequest, Discarded>(settings, schemas, texts, examples)
}

fn cancel(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    let about = "Pending and failed routes, held or not, are `skipped` with the classification `cancelled`. One that a publisher has taken is waited \
        for, and then counted as published or cancelled.";
    let texts = ("cancelRoutes", "Cancels routes that are not published yet.", about);
    let examples = (examples::cancel_requests(), examples::cancelled());
    route_change::<CancelRequest, Cancelled>(settings, schemas, texts, examples)
}

fn resend(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    let about = "They are pending again with a new budget, and appended again under the ids that they always had, with the next number of attempt: \
        consumers that have processed them drop them. The request does not wait for publishers.";
    let texts = ("resendRoutes", "Sends published routes again.", about);
    let examples = (examples::resend_requests(), examples::resent());
    route_change::<ResendRequest, Resent>(settings, schemas, texts, examples)
}

/// A change of routes with these texts (id, summary, description) and examples (of bodies and of responses).
fn route_change<Request: JsonSchema, Done: JsonSchema>(
    settings: &ApiSettings,
    schemas: &mut Schemas,
    (id, summary, about): (&'static str, &'static str, &str),
    (requests, responses): (Value, Value),
) -> Operation {
    let any = json!({"anyOf": [schemas.answer::<Done>(), schemas.answer::<Plan>()]});
    let said = "What was done; with `dry_run`, what would be.";
    let success = answer(said, any, responses, &["Idempotency-Replayed"]);
    let schema = schemas.request::<Request>();
    let body = Body { schema, examples: requests, max_bytes: settings.max_body_bytes };
    change(id, summary, in_chunks(about), body, success)
}

fn list_actions(schemas: &mut Schemas) -> Operation {
    Operation {
        description: "A request that changes much has an action for each of its transactions.".to_owned(),
        ..list(
            "listActions",
            "operations",
            "Lists what operators changed, newest first.",
            &actions::PARAMS,
            answer("A page.", schemas.answer::<Actions>(), examples::actions(), &["Data-Age-Ms"]),
        )
    }
}

fn list_holds(schemas: &mut Schemas) -> Operation {
    get(
        "listHolds",
        "operations",
        "Lists what operators hold, the oldest first.",
        answer("The holds.", schemas.answer::<Holds>(), examples::holds(), &[]),
    )
}

fn hold(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    let about = "Intents are accepted as ever. Live routes that it selects are not published and count no attempt, on every replica within 2 s, until the \
        release.";
    let texts = ("holdRoutes", "Holds the routes of a channel, a type or a producer.", about);
    let examples = (examples::hold_requests(), examples::changed_hold());
    planned_change::<HoldRequest, ChangedHold, HoldPlan>(settings, schemas, texts, examples)
}

fn release(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    let about = "The routes that were due first go first, beside the other traffic. The request does not wait for them: the list shows how many are left.";
    let texts = ("releaseRoutes", "Releases what was held.", about);
    let examples = (examples::release_requests(), examples::changed_hold());
    planned_change::<ReleaseRequest, ChangedHold, HoldPlan>(settings, schemas, texts, examples)
}

fn erase_user(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    let about = "Routes, dead letters and receipts of the user, stored answers that list them, raw fields of malformed intents and entries of streams that name the user, and \
        the document of the user directory are deleted. Notifications that name no one else are deleted, others lose the recipient, and former actions of operators \
        the id. What only mentions the user stays, and is counted. `complete` is false if something is left: then repeat the request with another key.";
    let texts = ("eraseUser", "Erases a person.", about);
    let examples = (examples::erase_requests(), examples::erased());
    planned_change::<EraseRequest, ErasureReport, ErasurePlan>(settings, schemas, texts, examples)
}

fn record_receipts(settings: &ApiSettings, schemas: &mut Schemas) -> Operation {
    Operation {
        id: "recordReceipts",
        tag: "receipts",
        summary: "Takes what became of up to a thousand routes.",
        description: "Of all reports of a route the highest status counts, whatever their order: `failed`, `delivered`, `opened`, `complained`, `bounced`. \
            Each report is taken by itself. A repeated request changes nothing: its reports are stale. To a consumer's token the routes of other channels \
            are unknown."
            .to_owned(),
        callers: Callers::Reporters,
        key: KeyHeader::Absent,
        parameters: Vec::new(),
        body: Some(Body {
            schema: schemas.request::<ReceiptsRequest>(),
            examples: examples::receipts(),
            max_bytes: settings.max_batch_body_bytes,
        }),
        success: (
            "200",
            answer(
                "What became of each report, in their order.",
                schemas.answer::<ReceiptResults>(),
                examples::receipt_results(),
                &[],
            ),
        ),
        problems: Vec::new(),
    }
}

fn get_status(schemas: &mut Schemas) -> Operation {
    get(
        "getStatus",
        "operations",
        "Shows the state of the service.",
        answer("The state.", schemas.answer::<Status>(), examples::status(), &["Data-Age-Ms"]),
    )
}

fn get_activity(schemas: &mut Schemas) -> Operation {
    list(
        "getActivity",
        "operations",
        "Shows what the service did in the last hour or day, in steps.",
        &activity::PARAMS,
        answer("The activity.", schemas.answer::<ActivityHistory>(), examples::activity(), &["Data-Age-Ms"]),
    )
}

fn get_document() -> Operation {
    let schema = json!({"type": "object", "required": ["openapi", "info", "paths"]});
    Operation {
        callers: Callers::Anyone,
        ..get(
            "getOpenApi",
            "description",
            "Shows this document.",
            json!({
                "description": "An OpenAPI 3.1 document.",
                "headers": header_refs(&[]),
                "content": {"application/json": {"schema": schema}},
            }),
        )
    }
}
