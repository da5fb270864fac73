//! The schemas of problems and the responses that consist of them, derived from the values that handlers
//! return.

use std::time::Duration;

use domain::conflict::{COMPARED_MEMBERS, Difference};
use domain::malformed_intent::{FailureCode, Rejection};
use http_server::problem::{self, Problem};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::schemas::{header_refs, schema_ref};
use crate::problems::{
    bad_request, idempotency_conflict, in_progress, malformed_intent, not_answered, not_found,
    query_too_expensive, request_conflict,
};

/// A problem of the document.
struct Sample {
    /// The name of its response; the name of its schema has the suffix `Problem`.
    name: &'static str,
    description: &'static str,
    problem: Problem,
    /// A path at which the problem occurs, for the example.
    instance: &'static str,
    /// Further headers of its response.
    headers: &'static [&'static str],
}

/// The problems that may also be the result of an element of a batch.
const OF_ELEMENTS: [&str; 3] = ["MalformedIntent", "IdempotencyConflict", "Unavailable"];

/// The names of all problems except those of the path and of the method.
pub(super) const BAD_REQUEST: &str = "BadRequest";
pub(super) const UNAUTHORIZED: &str = "Unauthorized";
pub(super) const FORBIDDEN: &str = "Forbidden";
pub(super) const NOT_FOUND: &str = "NotFound";
pub(super) const REQUEST_TIMEOUT: &str = "RequestTimeout";
pub(super) const IN_PROGRESS: &str = "InProgress";
pub(super) const BODY_TOO_LARGE: &str = "BodyTooLarge";
pub(super) const UNSUPPORTED_MEDIA_TYPE: &str = "UnsupportedMediaType";
pub(super) const INTENT_REFUSED: &str = "IntentRefused";
pub(super) const REQUEST_CONFLICT: &str = "RequestConflict";
pub(super) const QUERY_TOO_EXPENSIVE: &str = "QueryTooExpensive";
pub(super) const TOO_MANY_REQUESTS: &str = "TooManyRequests";
pub(super) const UNAVAILABLE: &str = "Unavailable";

fn sample(name: &'static str, description: &'static str, problem: Problem) -> Sample {
    Sample { name, description, problem, instance: "/v1/intents", headers: &[] }
}

fn samples() -> Vec<Sample> {
    let second = Duration::from_secs(1);
    let malformed = Rejection {
        code: FailureCode::AudienceNotAllowed,
        message: "audience_kind of game.turn.ready takes user".to_owned(),
    };
    vec![
        sample(
            BAD_REQUEST,
            "A header, a parameter or the body is not as expected.",
            bad_request("The header Idempotency-Key is missing."),
        ),
        Sample {
            headers: &["WWW-Authenticate"],
            ..sample(
                UNAUTHORIZED,
                "There is no token, or none that is known.",
                Problem::new(
                    problem::UNAUTHORIZED,
                    "The request needs a token: Authorization: Bearer <token>.",
                ),
            )
        },
        sample(
            FORBIDDEN,
            "The token may not do this.",
            Problem::new(problem::FORBIDDEN, "Only a producer's token may send."),
        ),
        Sample {
            instance: "/v1/notifications/1775121700000-0",
            ..sample(
                NOT_FOUND,
                "There is no such thing, or it is not the caller's.",
                not_found("notification"),
            )
        },
        Sample {
            headers: &["Allow"],
            ..sample(
                "MethodNotAllowed",
                "The path does not take this method.",
                Problem::new(
                    problem::METHOD_NOT_ALLOWED,
                    "This path does not take this method; see the header Allow.",
                ),
            )
        },
        sample(
            REQUEST_TIMEOUT,
            "The request was not complete in time; the connection is closed.",
            Problem::new(
                problem::REQUEST_TIMEOUT,
                "The request was not complete within the request timeout.",
            ),
        ),
        Sample {
            headers: &["Retry-After"],
            ..sample(IN_PROGRESS, "Another request with this key is being processed.", in_progress(second))
        },
        sample(
            BODY_TOO_LARGE,
            "The body is too large.",
            Problem::new(problem::BODY_TOO_LARGE, "The body is larger than 1048576 bytes."),
        ),
        sample(
            UNSUPPORTED_MEDIA_TYPE,
            "The body is not `application/json` in UTF-8, or is compressed.",
            Problem::new(problem::UNSUPPORTED_MEDIA_TYPE, "The body must be application/json in UTF-8."),
        ),
        sample(
            "MalformedIntent",
            "The intent breaks a rule. Its key stays free.",
            malformed_intent(&malformed),
        ),
        sample(
            "IdempotencyConflict",
            "The key belongs to another intent, which differs in these members.",
            idempotency_conflict(&[Difference {
                member: "payload",
                refused: Value::Null,
                accepted: Value::Null,
            }]),
        ),
        Sample {
            instance: "/v1/dead-letters:replay",
            ..sample(REQUEST_CONFLICT, "The key belongs to another request.", request_conflict())
        },
        Sample {
            instance: "/v1/notifications:query",
            ..sample(
                QUERY_TOO_EXPENSIVE,
                "The search took too long; a narrower one may not.",
                query_too_expensive(),
            )
        },
        Sample {
            headers: &["Retry-After"],
            ..sample(
                TOO_MANY_REQUESTS,
                "The token exceeded its rate limit.",
                Problem::new(problem::TOO_MANY_REQUESTS, "The token exceeded its rate limit.")
                    .retry_after(second),
            )
        },
        Sample {
            headers: &["Retry-After"],
            ..sample(
                UNAVAILABLE,
                "The service cannot answer now: repeat the request, with the same key if it has one. Whether one that changes something took effect is not known.",
                not_answered(),
            )
        },
    ]
}

/// The schema of each problem, and those of problems of batch elements, which have no `instance`.
pub(super) fn schemas() -> Map<String, Value> {
    let mut all = Map::new();
    for sample in samples() {
        let schema = schema(&sample);
        if OF_ELEMENTS.contains(&sample.name) {
            all.insert(element_name(sample.name), schema.clone());
        }
        all.insert(schema_name(sample.name), with_instance(schema));
    }
    all
}

fn schema_name(name: &str) -> String {
    format!("{name}Problem")
}

fn element_name(name: &str) -> String {
    format!("{name}ElementProblem")
}

/// The schema of a problem: its members. A member that is not constant has the type documented for its name.
fn schema(sample: &Sample) -> Value {
    let body = sample.problem.body();
    let members: Map<String, Value> =
        body.iter().map(|(name, value)| (name.clone(), member(name, value, sample.name))).collect();
    json!({
        "description": sample.description,
        "type": "object",
        "required": body.keys().collect::<Vec<_>>(),
        "properties": members,
    })
}

fn member(name: &str, value: &Value, problem: &str) -> Value {
    match name {
        "detail" => {
            json!({"description": "What is wrong with this request, for a person.", "type": "string"})
        }
        "code" if problem == "MalformedIntent" => {
            let codes = FailureCode::ALL.into_iter().filter(|code| *code != FailureCode::IdempotencyConflict);
            let codes: Vec<&str> = codes.map(FailureCode::as_str).collect();
            json!({"description": "The first rule that the intent breaks.", "type": "string", "enum": codes})
        }
        "differs" => {
            json!({"type": "array", "items": {"type": "string", "enum": COMPARED_MEMBERS}, "uniqueItems": true})
        }
        _ => json!({"const": value}),
    }
}

fn with_instance(mut schema: Value) -> Value {
    schema["properties"]["instance"] =
        json!({"description": "The path of the request.", "type": "string", "format": "uri-reference"});
    if let Some(required) = schema["required"].as_array_mut() {
        required.push("instance".into());
    }
    schema
}

/// The responses that consist of a problem.
pub(super) fn responses() -> Map<String, Value> {
    let samples = samples();
    let mut all: Map<String, Value> = samples
        .iter()
        .map(|sample| {
            (sample.name.to_owned(), response(sample, schema_ref(&schema_name(sample.name)), &[sample]))
        })
        .collect();
    let refusals: Vec<&Sample> = samples.iter().filter(|sample| is_refusal(sample)).collect();
    for sample in &refusals {
        all.remove(sample.name);
    }
    if let Some(first) = refusals.first() {
        let any = refusals.iter().map(|sample| schema_ref(&schema_name(sample.name))).collect::<Vec<_>>();
        let mut refused = response(first, json!({"oneOf": any}), &refusals);
        refused["description"] = "The intent breaks a rule, or its key belongs to another intent.".into();
        all.insert(INTENT_REFUSED.to_owned(), refused);
    }
    all
}

/// Returns true for the two problems that refuse an intent.
fn is_refusal(sample: &Sample) -> bool {
    ["MalformedIntent", "IdempotencyConflict"].contains(&sample.name)
}

fn response(sample: &Sample, schema: Value, examples: &[&Sample]) -> Value {
    let examples: Map<String, Value> = examples
        .iter()
        .map(|sample| (sample.problem.kind().name().to_owned(), json!({"value": example(sample)})))
        .collect();
    json!({
        "description": sample.description,
        "headers": header_refs(sample.headers),
        "content": {problem::PROBLEM_JSON: {"schema": schema, "examples": examples}},
    })
}

fn example(sample: &Sample) -> Value {
    let mut body = sample.problem.body();
    body.insert("instance".to_owned(), sample.instance.into());
    Value::Object(body)
}

/// The schema of a problem of an element of a batch.
pub(crate) fn element_schema(_: &mut SchemaGenerator) -> Schema {
    let any: Vec<Value> = OF_ELEMENTS.iter().map(|name| schema_ref(&element_name(name))).collect();
    json_schema!({"oneOf": any})
}
