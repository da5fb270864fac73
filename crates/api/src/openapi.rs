//! The OpenAPI document of the API, generated from the code: the response of `GET /openapi.json`.
//!
//! Schemas of responses and of operators' requests are derived from the types that are serialised and parsed.
//! The schema of an intent is built from the limits of the domain and from the catalogue, and a test compares
//! it with the parser, which is written by hand. Parameters come from the tables with which handlers read
//! query strings, problems from the values that handlers return, and examples from the same rendering as
//! responses.
//!
//! docs/openapi.json is the document of the built-in catalogue and of the default limits; a test compares it.

mod examples;
mod intents;
mod operations;
mod paths;
pub(crate) mod problems;
mod schemas;
#[cfg(test)]
mod tests;

use axum::extract::RawQuery;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_server::problem::Problem;
use serde_json::{Value, json};

use crate::params::Params;
use crate::ports::ApiSettings;
use crate::view::{MAX_BATCH_RECIPIENTS, MAX_INTENTS};

use schemas::Schemas;

/// Returns the document as response.
pub(crate) async fn show(RawQuery(query): RawQuery, document: Bytes) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((json, document).into_response())
}

/// The OpenAPI document of an API with these settings.
pub fn document(settings: &ApiSettings) -> Value {
    let mut schemas = Schemas::new();
    let paths = paths::paths(settings, &mut schemas);
    let mut components = schemas.finish();
    components.extend(problems::schemas());
    components.extend(intents::schemas(&settings.catalog));
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "notification",
            "version": settings.version,
            "summary": "Accepts intents to notify users and administrators, and tells what became of them.",
            "description": description(),
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The service that this document comes from."}],
        "tags": [
            {"name": "intents", "description": "Sending, as a producer, and reading what became of it."},
            {"name": "notifications", "description": "Reading what became of intents, as their producer, as a viewer or as an operator."},
            {"name": "receipts", "description": "Reporting what became of published routes, as a consumer or as an operator."},
            {"name": "operations", "description": "Reading the state of the service, as a viewer or as an operator, and changing it, as an operator."},
            {"name": "description", "description": "This document."},
        ],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of the service's tokens file. A token is a producer's, a consumer's, a viewer's, an operator's, or several of these: an operation \
                    names which it takes. To a viewer whose entry lacks `see = [\"personal\"]`, payloads, raw fields and addresses are `null`; in other texts \
                    `****` stands for an address and for what a consumer wrote.",
            }},
            "headers": headers(),
            "responses": problems::responses(),
            "schemas": components,
        },
    });
    tell_types(&mut document);
    document
}

fn description() -> String {
    format!(
        "Every error is `application/problem+json` (RFC 9457); a program decides by `status` and `type`, and for malformed intents by \
         `code`. If several errors apply, the first of this order is told: 404 for an unknown path, 405, 401, 403, 429, 415, 413, 400, 409, \
         422; an unknown id is 404, after 403; 408 and 503 arise at any time.\n\n\
         A path that is not here is 404, a method that a path does not have is 405 with `Allow`; see the responses `NotFound` and \
         `MethodNotAllowed`. `HEAD` is answered like `GET`, without a body. What is not HTTP, a target that is too long and headers that are too many are \
         400, 414 or 431 without a body, and the connection is closed.\n\n\
         Request bodies are `application/json` in UTF-8, not compressed. Unknown members, unknown parameters and repeated parameters are \
         refused. Answers may get further members in later versions. Times are RFC 3339.\n\n\
         Limits: lengths of identifiers are in bytes of UTF-8, where this document counts characters. A batch has at most \
         {MAX_INTENTS} intents with {MAX_BATCH_RECIPIENTS} recipients in all. The sizes of bodies are at each operation, as \
         `x-max-bytes`; they and the rate limit are configured."
    )
}

/// The headers of responses.
fn headers() -> Value {
    json!({
        "X-Request-Id": {
            "description": "The id of the request: the client's, if it sent a valid one.",
            "required": true,
            "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
        },
        "Idempotency-Replayed": {
            "description": "The answer is the stored one of an earlier request with the same key, byte for byte.",
            "schema": {"const": "true"},
        },
        "Retry-After": {
            "description": "After how many seconds to repeat the request.",
            "required": true,
            "schema": {"type": "integer", "minimum": 1},
        },
        "Data-Age-Ms": {
            "description": "The data was read from a replica: changes of the last so many milliseconds may be missing. Without it, the data is current.",
            "schema": {"type": "integer", "minimum": 0},
        },
        "WWW-Authenticate": {
            "description": "How to authenticate.",
            "required": true,
            "schema": {"const": "Bearer"},
        },
        "Allow": {
            "description": "The methods that the path takes.",
            "required": true,
            "schema": {"type": "string", "examples": ["GET,HEAD", "POST"]},
        },
    })
}

/// Adds information that generators of clients need and validators do not: the format of integers, which have
/// 32 bits without one, and the type of constants.
fn tell_types(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let constant = members.get("const").and_then(type_of);
            if let Some(name) = constant.filter(|_| !members.contains_key("type")) {
                members.insert("type".to_owned(), name.into());
            }
            let is_integer = |kind: &Value| kind == "integer";
            if members.get("type").is_some_and(|kind| {
                is_integer(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_integer))
            }) {
                members.insert("format".to_owned(), "int64".into());
            }
            for (name, member) in members {
                match name.as_str() {
                    "const" | "default" | "enum" | "example" | "examples" => {}
                    // The keys of these members are names, not keywords.
                    "properties" | "patternProperties" | "$defs" => {
                        member
                            .as_object_mut()
                            .into_iter()
                            .flatten()
                            .for_each(|(_, schema)| tell_types(schema));
                    }
                    _ => tell_types(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(tell_types),
        _ => {}
    }
}

/// The JSON type of a constant; `None` for null, arrays and objects.
fn type_of(constant: &Value) -> Option<&'static str> {
    match constant {
        Value::String(_) => Some("string"),
        Value::Bool(_) => Some("boolean"),
        Value::Number(number) if number.is_f64() => Some("number"),
        Value::Number(_) => Some("integer"),
        _ => None,
    }
}
