//! `POST /v1/intents:batch`: up to a thousand intents, each decided separately.
//!
//! Elements with the same key are decided in order: the second waits for the outcome of the first. An element
//! that is not decided in time gets a 503; elements accepted before that stay accepted.
//!
//! Only the text of the body is kept. Each element is decoded shortly before it is submitted, and so few are
//! in progress at a time ([`MAX_ELEMENTS_IN_PROGRESS`]) that the memory they take beyond their text is
//! negligible.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use ambient::Timestamp;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::response::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::catalog::Catalog;
use domain::conflict;
use domain::intent::{BodyContext, Intent, IntentBody};
use domain::malformed_intent::Rejection;
use domain::ports::{Queries, Submissions, error_chain};
use domain::query::MAX_RECORDS;
use domain::record::{IdempotencyKey, NotificationId, Record};
use domain::submission::{Held, Submission, SubmissionOutcome};
use domain::trace_parent::TraceParent;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_server::problem::Problem;
use http_server::tokens::{Charge, Principal};
use http_server::{JsonText, Object, Occupied, RequestId, Started, parse_apart};
use idempotency::{Fingerprint, Key};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::at_most::AtMost;
use crate::intents::trace_parent;
use crate::operator_request::guarded;
use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, idempotency_conflict, malformed_intent, producer_of, unavailable};
use crate::view::{
    AcceptedElement, ElementResult, MAX_BATCH_RECIPIENTS, MAX_INTENTS, OUTCOME_ACCEPTED, OUTCOME_DUPLICATE,
};

/// The most elements of a batch that are decided at the same time.
const MAX_ELEMENTS_IN_PROGRESS: usize = 256;
/// The memory of an element besides its text, in bytes, for all but a few: its result, and its decoded form
/// while it is in progress.
const ELEMENT_BYTES: usize = 1_024;
const PATH: &str = "/v1/intents:batch";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    #[serde(borrow)]
    intents: AtMost<&'a RawValue, MAX_INTENTS>,
}

/// A decoded element, and the index of its result.
struct Element {
    place: usize,
    intent: Intent,
}

/// A batch as it was received.
struct ReceivedBatch {
    producer: String,
    /// The request id for elements that have none.
    request_id: Option<String>,
    /// The trace of the request.
    request_trace: Option<TraceParent>,
    /// The time by which all elements have a result.
    deadline: Instant,
    body: Arc<String>,
    /// The positions of the elements in the body.
    elements: Vec<Range<usize>>,
    occupied: Occupied,
}

/// An element whose key belongs to another intent.
struct Conflict {
    element: Element,
    /// The notification of the other intent.
    of: NotificationId,
}

/// The outcome of one element.
enum Told {
    /// The element's result.
    Result(ElementResult),
    /// The key belongs to this notification; the differences are not determined yet.
    Conflict(NotificationId),
}

/// The results by the index of their elements, as serialised JSON, which takes a fraction of the memory.
struct Rendered {
    results: Vec<Option<Box<RawValue>>>,
    undecided: usize,
}

impl Rendered {
    fn set(&mut self, place: usize, result: &ElementResult) {
        self.undecided += usize::from(result.is_undecided());
        // Cannot fail: strings, numbers and lists in memory.
        self.results[place] = Some(to_raw_value(result).expect("it is JSON"));
    }
}

/// The serialised form of [`crate::view::Results`].
#[derive(Serialize)]
struct RenderedResults {
    results: Vec<Box<RawValue>>,
}

/// Marks a response with an element that was not decided. Such a response is not stored, so that a repeated
/// request decides that element.
#[derive(Clone, Copy, Debug)]
struct Undecided;

/// Returns true if a response contains an undecided element, so that it must not be stored.
pub fn is_undecided(answer: &Parts) -> bool {
    answer.extensions.get::<Undecided>().is_some()
}

#[expect(clippy::too_many_arguments, reason = "what is extracted from the request")]
pub(crate) async fn send<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    charge: Charge,
    request_id: RequestId,
    Started(started): Started,
    headers: HeaderMap,
    occupied: Occupied,
    RawQuery(query): RawQuery,
    JsonText(body): JsonText,
) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    let key = Key::from_headers(&headers)
        .map_err(|error| bad_request(format!("The header Idempotency-Key is wrong: {error}.")))?;
    let producer = producer_of(&principal)?.to_owned();
    let body = Arc::new(body);
    let text = Arc::clone(&body);
    let elements = parse_apart(body.len(), occupied.clone(), move || find_elements(&text)).await?;
    charge.further(elements.len() - 1)?;
    occupied.add(elements.len() * ELEMENT_BYTES);
    let owner = format!("POST {PATH} {producer}");
    // The request may have waited for capacity. The deadline counts from its first byte, as the listener's
    // does.
    let deadline = started + api.settings.batch_timeout;
    let batch = ReceivedBatch {
        producer,
        request_id: request_id.from_client().map(str::to_owned),
        request_trace: trace_parent(&headers),
        deadline,
        body: Arc::clone(&body),
        elements,
        occupied: occupied.clone(),
    };
    let Some(key) = key else { return decide(api, batch).await };
    let fingerprint = Fingerprint::of_request(&Method::POST, PATH, body.as_bytes());
    let handling = Arc::clone(&api);
    guarded(&api, &owner, key, fingerprint, occupied, move || decide(handling, batch)).await
}

/// Returns the positions of the elements of a batch; an error if the body as a whole is invalid.
fn find_elements(body: &str) -> Result<Vec<Range<usize>>, Problem> {
    let parsed: Result<Object<Batch<'_>>, _> = serde_json::from_str(body);
    let Object(Batch { intents }) =
        parsed.map_err(|error| bad_request(format!("The body is not as expected: {error}.")))?;
    if !(1..=MAX_INTENTS).contains(&intents.count) {
        let found = intents.count;
        return Err(bad_request(format!("intents has {found} elements and takes 1 to {MAX_INTENTS}.")));
    }
    let mut recipients = 0;
    for (place, text) in intents.kept.iter().enumerate() {
        let element = IntentBody::parse(text.get());
        let element =
            element.map_err(|error| bad_request(format!("intents[{place}] is no object: {error}.")))?;
        recipients += element.recipients();
        if recipients > MAX_BATCH_RECIPIENTS {
            return Err(bad_request(format!(
                "A batch takes at most {MAX_BATCH_RECIPIENTS} recipients in all."
            )));
        }
    }
    let place = |element: &&RawValue| {
        let start = (element.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
        start..start + element.get().len()
    };
    Ok(intents.kept.iter().map(place).collect())
}

impl ReceivedBatch {
    /// Decodes an element; the error is the rule that it breaks.
    async fn decode(&self, place: usize, catalog: &Arc<Catalog>) -> Result<Element, Rejection> {
        let range = self.elements[place].clone();
        let (body, catalog) = (Arc::clone(&self.body), Arc::clone(catalog));
        let (producer, request_id) = (self.producer.clone(), self.request_id.clone());
        let decode = move || {
            let context =
                BodyContext { producer: &producer, idempotency_key: None, request_id: request_id.as_deref() };
            // Cannot fail: the element was parsed as an object before.
            IntentBody::parse(&body[range]).expect("an object").decode(context, &catalog)
        };
        let decoded = parse_apart(self.elements[place].len(), self.occupied.clone(), decode).await;
        decoded.map(|intent| Element { place, intent })
    }
}

async fn decide<P: Ports>(api: Arc<Api<P>>, batch: ReceivedBatch) -> Result<Response, Problem> {
    let count = batch.elements.len();
    let mut rendered = Rendered { results: vec![None; count], undecided: 0 };
    let (mut next, mut later, mut malformed) = (0, VecDeque::<(usize, IdempotencyKey)>::new(), Vec::new());
    let (mut in_progress, mut keys) = (FuturesUnordered::new(), HashSet::new());
    let mut conflicts = Vec::new();
    loop {
        while in_progress.len() < MAX_ELEMENTS_IN_PROGRESS {
            // A postponed element whose key is free again comes first: elements after it may have the same
            // key.
            let free = later.iter().position(|(_, key)| !keys.contains(key));
            let place = match free.and_then(|at| later.remove(at)) {
                Some((place, _)) => place,
                None if next < count => {
                    next += 1;
                    next - 1
                }
                None => break,
            };
            // Other tasks may run between two elements, because decoding a large one takes long.
            yield_now().await;
            match batch.decode(place, &api.settings.catalog).await {
                Ok(element) if keys.insert(element.intent.key()) => {
                    in_progress.push(submit(&api, &batch, element));
                }
                Ok(element) => later.push_back((place, element.intent.key())),
                Err(rejection) => {
                    malformed.push(rejection.code);
                    rendered.set(place, &ElementResult::problem(&malformed_intent(&rejection)));
                }
            }
        }
        let Some((element, outcome)) = in_progress.next().await else { break };
        keys.remove(&element.intent.key());
        match tell(outcome) {
            Told::Result(result) => rendered.set(element.place, &result),
            Told::Conflict(of) => conflicts.push(Conflict { element, of }),
        }
        if conflicts.len() >= MAX_RECORDS {
            compare(&api, conflicts.drain(..), batch.deadline, &mut rendered).await;
        }
    }
    compare(&api, conflicts.drain(..), batch.deadline, &mut rendered).await;
    api.submissions.count_malformed(&batch.producer, &malformed, true);
    if rendered.undecided == count {
        return Err(unavailable("no element of a batch could be decided"));
    }
    let undecided = rendered.undecided;
    // No result is missing: each element was rejected when it was decoded, or has been decided.
    let results = rendered.results.into_iter().flatten().collect();
    let mut response = Json(RenderedResults { results }).into_response();
    if undecided > 0 {
        response.extensions_mut().insert(Undecided);
    }
    Ok(response)
}

/// Submits an element; an element not decided by the deadline is unavailable.
async fn submit<P: Ports>(
    api: &Api<P>,
    batch: &ReceivedBatch,
    element: Element,
) -> (Element, SubmissionOutcome) {
    let submission = Submission {
        intent: element.intent.clone(),
        stores_response: false,
        request_trace: batch.request_trace,
        held: Held::new(batch.occupied.clone()),
    };
    let outcome = timeout_at(batch.deadline, api.submissions.submit(submission)).await;
    (element, outcome.unwrap_or_else(|_| undecided()))
}

fn undecided() -> SubmissionOutcome {
    SubmissionOutcome::Unavailable("an element of a batch was not decided in time".to_owned())
}

/// Sets the result of each conflict: the members in which the two intents differ. One query reads the records
/// of all, because there are few enough. A conflict whose record cannot be read by `deadline` is unavailable.
async fn compare<P: Ports>(
    api: &Api<P>,
    conflicts: impl Iterator<Item = Conflict>,
    deadline: Instant,
    rendered: &mut Rendered,
) {
    let conflicts: Vec<Conflict> = conflicts.collect();
    if conflicts.is_empty() {
        return;
    }
    let ids: Vec<NotificationId> = conflicts.iter().map(|conflict| conflict.of.clone()).collect();
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
    for Conflict { element, of } in conflicts {
        let told = match records.get(&of) {
            Some(record) => idempotency_conflict(&conflict::differences(&element.intent, record)),
            None => unavailable("the record of the key could not be read"),
        };
        rendered.set(element.place, &ElementResult::problem(&told));
    }
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
        // An element does not claim a key.
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
        accepted_at,
        routes,
    })
}
