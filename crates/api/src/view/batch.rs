//! The results of `POST /v1/intents:batch`.

use axum::http::StatusCode;
use http_server::problem::Problem;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::AcceptedElement;
use crate::openapi::problems::element_schema;

/// The most elements of a batch.
pub(crate) const MAX_INTENTS: usize = 1_000;
/// The most recipients of all elements of a batch, as received.
pub(crate) const MAX_BATCH_RECIPIENTS: usize = 20_000;

/// The results of the elements, in their order.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatchResults")]
pub(crate) struct Results {
    /// The result of each element.
    pub(crate) results: Vec<ElementResult>,
}

/// The result of one element.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "BatchResult")]
pub(crate) enum ElementResult {
    /// The element is accepted.
    Accepted(AcceptedElement),
    /// The element is not accepted, or its outcome is unknown.
    #[schemars(schema_with = "element_schema")]
    Problem(Map<String, Value>),
}

impl ElementResult {
    /// The result of an element that is not accepted.
    pub(crate) fn problem(problem: &Problem) -> Self {
        Self::Problem(problem.body())
    }

    /// Returns true if the element may still be accepted.
    pub(crate) fn is_undecided(&self) -> bool {
        matches!(self, Self::Problem(body) if body["status"] == StatusCode::SERVICE_UNAVAILABLE.as_u16())
    }
}
