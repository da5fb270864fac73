//! `POST /v1/intents`: one intent, accepted before the response is sent.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use domain::catalog::MAX_NAME;
use domain::conflict;
use domain::intent::{BodyContext, IntentBody, MAX_IDENTIFIER};
use domain::outcome::Acceptance;
use domain::personal::{Document, Sight};
use domain::ports::{Queries, Submissions};
use domain::query::Notification;
use domain::record::{IdempotencyKey, NotificationId};
use domain::submission::{Held, StoredResponse, Submission, SubmissionOutcome};
use domain::trace_parent::TraceParent;
use http_server::problem::Problem;
use http_server::tokens::Principal;
use http_server::{JsonText, Occupied, RequestId, parse_apart};
use idempotency::{Key, MAX_KEY_BYTES, MAX_OWNER_BYTES};

use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::{
    bad_request, idempotency_conflict, in_progress, malformed_intent, producer_of, store_failed, unavailable,
};
use crate::view::Accepted;

/// The endpoint of submissions, which their idempotency keys belong to.
pub const INTENTS_ENDPOINT: &str = "POST /v1/intents";
// A key that cannot be claimed would fail its whole group.
const _: () = assert!(INTENTS_ENDPOINT.len() + " ".len() + MAX_NAME <= MAX_OWNER_BYTES);
const _: () = assert!(MAX_IDENTIFIER <= MAX_KEY_BYTES);
/// The header with the trace of a request.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The most decisions on an intent whose record is deleted in the meantime.
const MAX_DECISIONS: usize = 2;
/// The header of a stored response that is replayed.
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

pub(crate) async fn send<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    request_id: RequestId,
    headers: HeaderMap,
    occupied: Occupied,
    RawQuery(query): RawQuery,
    JsonText(body): JsonText,
) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    let length = body.len();
    let key = match Key::from_headers(&headers) {
        Ok(Some(key)) => key,
        Ok(None) => return Err(bad_request("The header Idempotency-Key is missing.")),
        Err(error) => return Err(bad_request(format!("The header Idempotency-Key is wrong: {error}."))),
    };
    let producer = producer_of(&principal)?.to_owned();
    let given_key = key.as_str().to_owned();
    let (sender, catalog) = (producer.clone(), Arc::clone(&api.settings.catalog));
    let decode = move || {
        let context = BodyContext {
            producer: &sender,
            idempotency_key: Some(key.as_str()),
            request_id: request_id.from_client(),
        };
        IntentBody::parse(&body).map(|body| body.decode(context, &catalog))
    };
    let decoded = parse_apart(length, occupied.clone(), decode).await;
    let decoded = decoded.map_err(|error| bad_request(format!("The body is no object: {error}.")))?;
    let intent = match decoded {
        Ok(intent) => intent,
        Err(rejection) => {
            let key = IdempotencyKey { producer: producer.clone(), key: given_key };
            if let Some(time) = api.submissions.time_in_progress(&key).await {
                return Err(in_progress(time.min(idempotency::RETRY_PAUSE)));
            }
            api.submissions.count_malformed(&producer, &[rejection.code], false);
            return Err(malformed_intent(&rejection));
        }
    };
    let submission = Submission {
        intent,
        stores_response: true,
        request_trace: trace_parent(&headers),
        held: Held::new(occupied),
    };
    // Retention may delete the record between the decision and its reading. The key is then free, and the
    // intent is decided again.
    for _ in 0..MAX_DECISIONS {
        if let Some(response) = decide(&api, &submission).await? {
            return Ok(response);
        }
    }
    tracing::warn!("the record of a repeated intent was deleted each time before it could be read");
    Err(unavailable("the record of the key was deleted meanwhile"))
}

/// Submits the intent and builds the response. `None` if the notification of its key was deleted before it
/// could be read.
async fn decide<P: Ports>(api: &Api<P>, submission: &Submission) -> Result<Option<Response>, Problem> {
    match api.submissions.submit(submission.clone()).await {
        SubmissionOutcome::Accepted { response: Some(response), .. } => Ok(Some(stored(response, false))),
        SubmissionOutcome::Replayed(response) => Ok(Some(stored(response, true))),
        SubmissionOutcome::Accepted { notification_id, .. } => {
            Ok(accepted(api, &notification_id).await?.map(duplicate))
        }
        SubmissionOutcome::Duplicate(request) => {
            Ok(accepted(api, &request.notification_id).await?.map(duplicate))
        }
        SubmissionOutcome::Conflict(notification_id) => {
            let other = api.queries.list_records(&[notification_id]).await;
            match other.map_err(|error| store_failed(&error))?.first() {
                Some(other) => Err(idempotency_conflict(&conflict::differences(&submission.intent, other))),
                None => Ok(None),
            }
        }
        // The other request usually ends long before its claim expires.
        SubmissionOutcome::InProgress(retry_after) => {
            Err(in_progress(retry_after.min(idempotency::RETRY_PAUSE)))
        }
        SubmissionOutcome::Rejected(rejection) => Err(malformed_intent(&rejection)),
        SubmissionOutcome::Unavailable(cause) => Err(unavailable(&cause)),
    }
}

/// The trace of a request, from its header `traceparent`; `None` if the header is invalid or repeated.
pub(crate) fn trace_parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    match (values.next(), values.next()) {
        (Some(only), None) => TraceParent::parse(only.to_str().ok()?),
        _ => None,
    }
}

/// The response to an accepted intent, built before the commit: its bytes are stored and replayed.
pub fn accepted_response(acceptance: &Acceptance) -> StoredResponse {
    let body = serde_json::to_vec(&Accepted::new(acceptance));
    // Cannot fail: strings, numbers and lists in memory.
    StoredResponse { status: StatusCode::ACCEPTED.as_u16(), body: body.expect("it is JSON") }
}

/// The notification that holds a key; `None` if retention has deleted it in the meantime.
async fn accepted<P: Ports>(
    api: &Api<P>,
    notification_id: &NotificationId,
) -> Result<Option<Notification>, Problem> {
    api.queries.get_notification(notification_id).await.map_err(|error| store_failed(&error))
}

fn duplicate(found: Notification) -> Response {
    (StatusCode::ACCEPTED, Json(Accepted::duplicate(&found.seen_by(Sight::Producer)))).into_response()
}

fn stored(stored: StoredResponse, replayed: bool) -> Response {
    let status = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::ACCEPTED);
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let mut response = (status, json, stored.body).into_response();
    if replayed {
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
