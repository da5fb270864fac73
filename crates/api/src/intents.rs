//! `POST /v1/intents`: one intent, accepted before it is answered.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use domain::intent::{BodyContext, IntentBody};
use domain::outcome::Acceptance;
use domain::ports::{Queries, Submissions};
use domain::query::NotificationDetail;
use domain::record::NotificationId;
use domain::route::{RouteStatus, Start};
use domain::submission::{self, StoredAnswer, Submission, SubmissionOutcome};
use http_server::problem::{self, Problem};
use http_server::tokens::Principal;
use http_server::{JsonText, RequestId};
use idempotency::Key;
use serde_json::json;

use crate::ports::{Api, Ports};
use crate::problems::{
    bad_request, idempotency_conflict, malformed_intent, producer_of, store_failed, unavailable,
};

/// What an answer that was stored has.
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

pub(crate) async fn send<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    request_id: RequestId,
    headers: HeaderMap,
    JsonText(body): JsonText,
) -> Result<Response, Problem> {
    let key = match Key::from_headers(&headers) {
        Ok(Some(key)) => key,
        Ok(None) => return Err(bad_request("The header Idempotency-Key is missing.")),
        Err(error) => return Err(bad_request(format!("The header Idempotency-Key is wrong: {error}."))),
    };
    let body =
        IntentBody::parse(&body).map_err(|error| bad_request(format!("The body is no object: {error}.")))?;
    let producer = producer_of(&principal)?;
    let context =
        BodyContext { producer, idempotency_key: Some(key.as_str()), request_id: request_id.from_client() };
    let intent = body.decode(context, &api.settings.catalog).map_err(|rejection| {
        api.submissions.count_malformed(producer, 1, false);
        malformed_intent(&rejection)
    })?;
    let outcome = api.submissions.submit(Submission { intent: intent.clone(), stores_answer: true }).await;
    match outcome {
        SubmissionOutcome::Accepted { answer: Some(answer), .. } => Ok(stored(answer, false)),
        SubmissionOutcome::Replayed(answer) => Ok(stored(answer, true)),
        SubmissionOutcome::Accepted { notification_id, .. } => {
            Ok(duplicate(&accepted(&api, &notification_id).await?))
        }
        SubmissionOutcome::Duplicate(request) => {
            Ok(duplicate(&accepted(&api, &request.notification_id).await?))
        }
        SubmissionOutcome::Conflict(notification_id) => {
            let other = accepted(&api, &notification_id).await?;
            Err(idempotency_conflict(&submission::differences(&intent, &other.record)))
        }
        SubmissionOutcome::InProgress(retry_after) => {
            let detail = "Another request with this idempotency key is being processed.";
            // The other request usually ends long before its claim does.
            let retry_after = retry_after.min(idempotency::RETRY_PAUSE);
            Err(Problem::new(problem::IN_PROGRESS, detail).retry_after(retry_after))
        }
        SubmissionOutcome::Rejected(rejection) => Err(malformed_intent(&rejection)),
        SubmissionOutcome::Unavailable(cause) => Err(unavailable(&cause)),
    }
}

/// The answer to an intent that is accepted, made before the commit: its bytes are stored and replayed.
pub fn accepted_answer(acceptance: &Acceptance) -> StoredAnswer {
    let Acceptance { record, routes } = acceptance;
    let routes = routes.iter().map(|route| {
        let status = match route.start {
            Start::Pending { .. } => RouteStatus::Pending,
            Start::Skipped(_) => RouteStatus::Skipped,
        };
        json!({
            "route_id": route.key.route_id,
            "channel": route.channel.as_str(),
            "recipient_ref": route.recipient_ref,
            "status": status.as_str(),
        })
    });
    let body = json!({
        "notification_id": record.notification_id.as_str(),
        "outcome": "accepted",
        "accepted_at": record.content.accepted_at.to_string(),
        "routes": routes.collect::<Vec<_>>(),
    });
    StoredAnswer { status: StatusCode::ACCEPTED.as_u16(), body: body.to_string().into_bytes() }
}

/// The notification of a key that is taken. Retention may just have deleted it: then the key is free for the next attempt.
async fn accepted<P: Ports>(
    api: &Api<P>,
    notification_id: &NotificationId,
) -> Result<NotificationDetail, Problem> {
    let found = api.queries.get_notification(notification_id).await.map_err(|error| store_failed(&error))?;
    found.ok_or_else(|| unavailable("the record of the key was deleted meanwhile"))
}

fn duplicate(detail: &NotificationDetail) -> Response {
    let routes = detail.routes.iter().map(|route| {
        json!({
            "route_id": route.key.route_id,
            "channel": route.channel.as_str(),
            "recipient_ref": route.recipient_ref,
            "status": route.status.as_str(),
        })
    });
    let body = json!({
        "notification_id": detail.record.notification_id.as_str(),
        "outcome": "duplicate",
        "accepted_at": detail.record.content.accepted_at.to_string(),
        "routes": routes.collect::<Vec<_>>(),
    });
    (StatusCode::ACCEPTED, Json(body)).into_response()
}

fn stored(answer: StoredAnswer, replayed: bool) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::ACCEPTED);
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let mut response = (status, json, answer.body).into_response();
    if replayed {
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
