//! The results of operators' changes.

use domain::operations::ChangeReport;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of a replay.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Replayed {
    /// How many routes are pending again.
    replayed: u64,
    #[serde(flatten)]
    report: ChangeReport,
}

/// The result of a discard.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Discarded {
    /// How many dead letters are marked.
    discarded: u64,
    #[serde(flatten)]
    report: ChangeReport,
}

/// The result of a cancellation.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Cancelled {
    /// How many routes are cancelled.
    cancelled: u64,
    /// How many are published: their entry was in the outbound stream.
    published: u64,
    #[serde(flatten)]
    report: ChangeReport,
}

impl From<ChangeReport> for Cancelled {
    fn from(report: ChangeReport) -> Self {
        Self { cancelled: report.changed, published: report.published, report }
    }
}

/// The result of a resend.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Resent {
    /// How many routes are pending again.
    resent: u64,
    #[serde(flatten)]
    report: ChangeReport,
}

impl From<ChangeReport> for Resent {
    fn from(report: ChangeReport) -> Self {
        Self { resent: report.changed, report }
    }
}

impl From<ChangeReport> for Replayed {
    fn from(report: ChangeReport) -> Self {
        Self { replayed: report.changed, report }
    }
}

impl From<ChangeReport> for Discarded {
    fn from(report: ChangeReport) -> Self {
        Self { discarded: report.changed, report }
    }
}
