//! The delivery receipt of a route: the reports of its consumer, and a status that never falls.
//!
//! Not the published marker in Redis, which only records that an entry is in the stream: the receipt reports
//! the fate of the entry after that.

use std::str::FromStr;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::document::{inline_schema, one_of};
use crate::route::{RouteKey, UnknownName};

/// The most reports of one request.
pub const MAX_REPORTS: usize = 1_000;
/// The longest detail of a report, in characters.
pub const MAX_DETAIL_CHARS: usize = 1_000;
/// The number of reports kept of each route, the newest ones.
pub const MAX_HISTORY: usize = 50;

/// The status in a consumer's report, from the lowest to the highest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptStatus {
    /// Delivery failed; a later attempt may succeed.
    Failed,
    /// The entry reached the recipient's device or mailbox.
    Delivered,
    /// The recipient opened the message.
    Opened,
    /// The recipient complained about the message as unwanted.
    Complained,
    /// The message was returned: the address does not accept mail.
    Bounced,
}

impl ReceiptStatus {
    /// Every status, the lowest first.
    pub const ALL: [Self; 5] = [Self::Failed, Self::Delivered, Self::Opened, Self::Complained, Self::Bounced];

    /// The spelling in requests, responses and the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Delivered => "delivered",
            Self::Opened => "opened",
            Self::Complained => "complained",
            Self::Bounced => "bounced",
        }
    }
}

inline_schema!(ReceiptStatus, one_of(Self::ALL.map(Self::as_str)));

impl FromStr for ReceiptStatus {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or(UnknownName)
    }
}

/// A consumer's report of a route.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The reported status.
    pub status: ReceiptStatus,
    /// The time by the clock of the consumer. No decision depends on it.
    pub at: Timestamp,
    /// Further text from the consumer, at most 1,000 characters; empty if there is none. It
    /// may contain an address, so it is not logged.
    pub detail: String,
}

/// A report with its route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteReport {
    /// The key of the route.
    pub key: RouteKey,
    /// The report.
    pub report: Report,
}

/// The effect of a report of a known route.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recorded {
    /// The status is the highest so far, and the receipt contains it.
    Recorded,
    /// The status is not higher than the known one. The report is added to the history and changes nothing
    /// else.
    Stale,
}

inline_schema!(Recorded, one_of(Self::ALL.map(Self::as_str)));

impl Recorded {
    /// Every effect.
    pub const ALL: [Self; 2] = [Self::Recorded, Self::Stale];

    /// The spelling in responses and the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Stale => "stale",
        }
    }
}

/// The effect of a report.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportOutcome {
    /// The route exists.
    Known(Recorded),
    /// The route does not exist, or its channel is not the caller's. Nothing is stored.
    UnknownRoute,
}

impl ReportOutcome {
    /// The spelling in responses and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Known(recorded) => recorded.as_str(),
            Self::UnknownRoute => "unknown_route",
        }
    }
}

/// A report in the history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PastReport {
    /// The report.
    #[serde(flatten)]
    pub report: Report,
    /// The effect of the report: `recorded` if its status was the highest then, else `stale`.
    pub outcome: Recorded,
}

/// The receipt of a route: all that its consumer reported.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// The first report of the highest status.
    #[serde(flatten)]
    pub highest: Report,
    /// The last 50 reports in the order of their arrival, the newest first.
    #[schemars(length(max = MAX_HISTORY))]
    pub history: Vec<PastReport>,
}

impl Receipt {
    /// Adds `report` to the known receipt, and returns the new receipt and the effect of the report. The
    /// status is the highest of all reports, in whatever order they arrive; among equal ones, the first
    /// counts.
    pub fn after(known: Option<Self>, report: Report) -> (Self, Recorded) {
        let (highest, mut history, outcome) = match known {
            Some(known) if report.status <= known.highest.status => {
                (known.highest, known.history, Recorded::Stale)
            }
            Some(known) => (report.clone(), known.history, Recorded::Recorded),
            None => (report.clone(), Vec::new(), Recorded::Recorded),
        };
        history.truncate(MAX_HISTORY - 1);
        history.insert(0, PastReport { report, outcome });
        (Self { highest, history }, outcome)
    }

    /// Returns the JSON document for the table: `status`, `at`, `detail` and `history`.
    pub fn to_json(&self) -> String {
        // Cannot fail: texts and a list in memory.
        serde_json::to_string(self).expect("it is JSON")
    }

    /// Parses a JSON document. The error describes a document that another program wrote.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests;
