//! `POST /v1/intents:batch`: up to a thousand intents, each decided by itself.
//!
//! Elements with the same key are decided in order: the second waits for the outcome of the first. What is not decided in time is
//! answered with 503; what was accepted before that stays accepted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ambient::Timestamp;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::response::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::intent::{BodyContext, Intent, IntentBody};
use domain::ports::{Queries, Submissions, error_chain};
use domain::query::MAX_RECORDS;
use domain::record::{NotificationId, Record};
use domain::submission::{self, Submission, SubmissionOutcome};
use domain::trace_parent::TraceParent;
use futures_util::future::join_all;
use http_server::problem::Problem;
use http_server::tokens::Principal;
use http_server::{JsonText, Object, RequestId, Started};
use idempotency::{Fingerprint, Key};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use crate::changes::guarded;
use crate::intents::trace_parent;
use crate::openapi::element_problem_schema;
use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, idempotency_conflict, malformed_intent, producer_of, unavailable};
use crate::view::{AcceptedElement, OUTCOME_ACCEPTED, OUTCOME_DUPLICATE, Time};

/// The most elements of a batch.
pub(crate) const MAX_INTENTS: usize = 1_000;
/// The most recipients of all elements of a batch, as received.
pub(crate) const MAX_BATCH_RECIPIENTS: usize = 20_000;
const PATH: &str = "/v1/intents:batch";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    #[serde(borrow)]
    intents: Vec<&'a RawValue>,
}

/// An element that is decided, and where its result goes.
struct Element {
    place: usize,
    intent: Intent,
}

/// A batch as it was read.
struct ReadBatch {
    producer: String,
    /// The trace that the request belongs to.
    request_trace: Option<TraceParent>,
    /// By when all elements are answered.
    deadline: Instant,
    /// The elements that are well formed.
    elements: Vec<Element>,
    /// The results of those that are not, in the places of all.
    results: Vec<Option<ElementResult>>,
}

/// An element whose key belongs to another intent.
struct Conflict {
    element: Element,
    /// The notification that the other intent became.
    of: NotificationId,
}

/// What became of one element.
enum Told {
    /// Its result.
    Result(ElementResult),
    /// Its key belongs to this notification; in what they differ is not known yet.
    Conflict(NotificationId),
}

/// What became of the elements, in their order.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatchResults")]
pub(crate) struct Results {
    pub(crate) results: Vec<ElementResult>,
}

/// What became of one element.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "BatchResult")]
pub(crate) enum ElementResult {
    /// It is accepted.
    Accepted(AcceptedElement),
    /// It is not, or not known to be.
    #[schemars(schema_with = "element_problem_schema")]
    Problem(Map<String, Value>),
}

impl ElementResult {
    pub(crate) fn problem(problem: &Problem) -> Self {
        Self::Problem(problem.body())
    }

    fn is_undecided(&self) -> bool {
        matches!(self, Self::Problem(body) if body["status"] == StatusCode::SERVICE_UNAVAILABLE.as_u16())
    }
}

/// Marks an answer with an element that was not decided: it is not stored, so that a repeated request decides that element.
#[derive(Clone, Copy, Debug)]
struct Undecided;

/// Whether an answer leaves something undecided, so that it must not be stored.
pub fn is_undecided(answer: &Parts) -> bool {
    answer.extensions.get::<Undecided>().is_some()
}

pub(crate) async fn send<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    request_id: RequestId,
    Started(started): Started,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
    JsonText(body): JsonText,
) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    let key = Key::from_headers(&headers)
        .map_err(|error| bad_request(format!("The header Idempotency-Key is wrong: {error}.")))?;
    let producer = producer_of(&principal)?.to_owned();
    let context =
        BodyContext { producer: &producer, idempotency_key: None, request_id: request_id.from_client() };
    let (elements, results) = read(&api, &body, context)?;
    let scope = format!("POST {PATH} {producer}");
    // The request may have waited for room: what its listener counts from the first byte is left.
    let deadline = started + api.settings.batch_timeout;
    let batch = ReadBatch { producer, request_trace: trace_parent(&headers), deadline, elements, results };
    let Some(key) = key else { return decide(api, batch).await };
    let fingerprint = Fingerprint::of_request(&Method::POST, PATH, body.as_bytes());
    let handling = Arc::clone(&api);
    guarded(&api, &scope, key, fingerprint, move || decide(handling, batch)).await
}

/// The elements that are well formed, and the results of those that are not.
fn read<P: Ports>(
    api: &Api<P>,
    body: &str,
    context: BodyContext<'_>,
) -> Result<(Vec<Element>, Vec<Option<ElementResult>>), Problem> {
    let parsed: Result<Object<Batch<'_>>, _> = serde_json::from_str(body);
    let Object(batch) =
        parsed.map_err(|error| bad_request(format!("The body is not as expected: {error}.")))?;
    if !(1..=MAX_INTENTS).contains(&batch.intents.len()) {
        let found = batch.intents.len();
        return Err(bad_request(format!("intents has {found} elements and takes 1 to {MAX_INTENTS}.")));
    }
    let (mut elements, mut results) = (Vec::with_capacity(batch.intents.len()), Vec::new());
    let mut recipients = 0;
    for (place, text) in batch.intents.iter().enumerate() {
        let element = IntentBody::parse(text.get());
        let element =
            element.map_err(|error| bad_request(format!("intents[{place}] is no object: {error}.")))?;
        recipients += element.recipients();
        if recipients > MAX_BATCH_RECIPIENTS {
            return Err(bad_request(format!(
                "A batch takes at most {MAX_BATCH_RECIPIENTS} recipients in all."
            )));
        }
        results.push(match element.decode(context, &api.settings.catalog) {
            Ok(intent) => {
                elements.push(Element { place, intent });
                None
            }
            Err(rejection) => Some(ElementResult::problem(&malformed_intent(&rejection))),
        });
    }
    Ok((elements, results))
}

async fn decide<P: Ports>(api: Arc<Api<P>>, batch: ReadBatch) -> Result<Response, Problem> {
    let ReadBatch { producer, request_trace, deadline, mut elements, mut results } = batch;
    let malformed = results.len() - elements.len();
    api.submissions.count_malformed(&producer, malformed as u64, true);
    while !elements.is_empty() {
        let mut keys = HashSet::new();
        let (now, later): (Vec<_>, Vec<_>) =
            elements.into_iter().partition(|element| keys.insert(element.intent.scope()));
        let decided = join_all(now.into_iter().map(|element| {
            let intent = element.intent.clone();
            let submission = Submission { intent, stores_answer: false, request_trace };
            let submitting = timeout_at(deadline, api.submissions.submit(submission));
            async move { (element, submitting.await.unwrap_or_else(|_| undecided())) }
        }));
        let mut conflicts = Vec::new();
        for (element, outcome) in decided.await {
            match tell(outcome) {
                Told::Result(result) => results[element.place] = Some(result),
                Told::Conflict(of) => conflicts.push(Conflict { element, of }),
            }
        }
        for (place, result) in compare(&api, conflicts, deadline).await {
            results[place] = Some(result);
        }
        elements = later;
    }
    // None is left out: each element was refused when it was read, or is decided now.
    let results: Vec<ElementResult> = results.into_iter().flatten().collect();
    let undecided = results.iter().filter(|result| result.is_undecided()).count();
    if undecided == results.len() {
        return Err(unavailable("no element of a batch could be decided"));
    }
    let mut response = Json(Results { results }).into_response();
    if undecided > 0 {
        response.extensions_mut().insert(Undecided);
    }
    Ok(response)
}

fn undecided() -> SubmissionOutcome {
    SubmissionOutcome::Unavailable("an element of a batch was not decided in time".to_owned())
}

/// Says of each conflict in what the two intents differ. Their records are read in few queries, however many there are: the queries
/// have few connections. What cannot be read by `deadline` is unavailable.
async fn compare<P: Ports>(
    api: &Api<P>,
    conflicts: Vec<Conflict>,
    deadline: Instant,
) -> Vec<(usize, ElementResult)> {
    let mut results = Vec::with_capacity(conflicts.len());
    for some in conflicts.chunks(MAX_RECORDS) {
        let ids: Vec<NotificationId> = some.iter().map(|conflict| conflict.of.clone()).collect();
        let records = match timeout_at(deadline, api.queries.list_records(&ids)).await {
            Ok(Ok(records)) => records,
            Ok(Err(error)) => {
                tracing::debug!(error = error_chain(&error), "conflicts of a batch could not be explained");
                Vec::new()
            }
            Err(_) => Vec::new(),
        };
        let records: HashMap<&NotificationId, &Record> =
            records.iter().map(|record| (&record.notification_id, record)).collect();
        results.extend(some.iter().map(|Conflict { element, of }| {
            let told = match records.get(of) {
                Some(record) => idempotency_conflict(&submission::differences(&element.intent, record)),
                None => unavailable("the record of the key could not be read"),
            };
            (element.place, ElementResult::problem(&told))
        }));
    }
    results
}

fn tell(outcome: SubmissionOutcome) -> Told {
    Told::Result(match outcome {
        SubmissionOutcome::Conflict(of) => return Told::Conflict(of),
        SubmissionOutcome::Accepted { notification_id, accepted_at, routes, .. } => {
            element(OUTCOME_ACCEPTED, &notification_id, accepted_at, routes)
        }
        SubmissionOutcome::Duplicate(request) => {
            element(OUTCOME_DUPLICATE, &request.notification_id, request.accepted_at, request.routes)
        }
        SubmissionOutcome::Rejected(rejection) => ElementResult::problem(&malformed_intent(&rejection)),
        // An element claims no key.
        SubmissionOutcome::Replayed(_) | SubmissionOutcome::InProgress(_) => {
            ElementResult::problem(&unavailable("an element of a batch met a claim"))
        }
        SubmissionOutcome::Unavailable(cause) => ElementResult::problem(&unavailable(&cause)),
    })
}

fn element(
    outcome: &'static str,
    id: &NotificationId,
    accepted_at: Timestamp,
    routes: usize,
) -> ElementResult {
    ElementResult::Accepted(AcceptedElement {
        status: StatusCode::ACCEPTED.as_u16(),
        notification_id: id.as_str().to_owned(),
        outcome,
        accepted_at: Time(accepted_at),
        routes,
    })
}
