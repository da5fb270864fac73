//! Consumers' reports, and their outcomes.

use domain::receipt::{self, Recorded, ReportOutcome};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::{Time, receipt_status_schema};

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

/// The report of the consumer of a route.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Receipt<'a> {
    /// The highest of all that was reported.
    #[schemars(schema_with = "receipt_status_schema")]
    status: &'static str,
    /// When that was, by the clock of the consumer.
    at: Time,
    /// Further words of the consumer.
    detail: &'a str,
    /// The last 50 reports in the order of their arrival, the newest first.
    #[schemars(length(max = receipt::MAX_HISTORY))]
    history: Vec<PastReport<'a>>,
}

/// A report.
#[derive(Serialize, JsonSchema)]
struct PastReport<'a> {
    #[schemars(schema_with = "receipt_status_schema")]
    status: &'static str,
    at: Time,
    detail: &'a str,
    /// `recorded` if it was the highest then, else `stale`.
    #[schemars(schema_with = "recorded_schema")]
    outcome: &'static str,
}

fn recorded_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": [Recorded::Recorded.as_str(), Recorded::Stale.as_str()]})
}

impl<'a> Receipt<'a> {
    pub(crate) fn new(receipt: &'a receipt::Receipt) -> Self {
        let receipt::Receipt { highest, history } = receipt;
        let past = history.iter().map(|receipt::PastReport { report, outcome }| PastReport {
            status: report.status.as_str(),
            at: Time(report.at),
            detail: &report.detail,
            outcome: outcome.as_str(),
        });
        Self {
            status: highest.status.as_str(),
            at: Time(highest.at),
            detail: &highest.detail,
            history: past.collect(),
        }
    }
}
