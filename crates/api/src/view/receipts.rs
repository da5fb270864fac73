//! Consumers' reports, and their outcomes.

use domain::receipt::{Recorded, ReportOutcome};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

/// The outcome of a report that breaks a rule.
pub(crate) const OUTCOME_INVALID: &str = "invalid";

/// The outcomes of the reports, in their order.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ReceiptResults {
    pub(crate) results: Vec<ReceiptResult>,
}

/// The outcome of a report.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ReceiptResult {
    /// The reported value; `null` if it was not a string.
    pub(crate) id: Option<String>,
    /// `recorded`: the receipt is what the report says. `stale`: the status is not higher than what is known.
    /// `unknown_route`: there is no such route, or it is another consumer's. `invalid`: the report breaks a
    /// rule.
    #[schemars(schema_with = "outcome_schema")]
    pub(crate) outcome: &'static str,
    /// The rule that an invalid report breaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
}

fn outcome_schema(_: &mut SchemaGenerator) -> Schema {
    let outcomes = [
        ReportOutcome::Known(Recorded::Recorded),
        ReportOutcome::Known(Recorded::Stale),
        ReportOutcome::UnknownRoute,
    ];
    let mut names = outcomes.map(ReportOutcome::as_str).to_vec();
    names.push(OUTCOME_INVALID);
    json_schema!({"type": "string", "enum": names})
}
