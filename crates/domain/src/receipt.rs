//! What the consumers of the outbound streams report of a route: its receipt, whose status only ever rises.
//!
//! Not the receipt of an append in Redis, which says that an entry is in the stream: this one says what
//! became of it after that.

use std::str::FromStr;

use ambient::Timestamp;
use serde::{Deserialize, Serialize};

use crate::route::{RouteKey, UnknownName};

/// The most reports of one request.
pub const MAX_REPORTS: usize = 1_000;
/// The longest detail of a report, in characters.
pub const MAX_DETAIL_CHARS: usize = 1_000;
/// How many reports of a route are kept, the newest.
pub const MAX_HISTORY: usize = 50;

/// What a consumer reports, from the lowest to the highest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptStatus {
    /// It could not be delivered; a later attempt may succeed.
    Failed,
    /// It reached the recipient's device or mailbox.
    Delivered,
    /// The recipient opened it.
    Opened,
    /// The recipient called it unwanted.
    Complained,
    /// It came back: the address takes nothing.
    Bounced,
}

impl ReceiptStatus {
    /// Every status, the lowest first.
    pub const ALL: [Self; 5] = [Self::Failed, Self::Delivered, Self::Opened, Self::Complained, Self::Bounced];

    /// As it is spelled in requests, answers and the table.
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

impl FromStr for ReceiptStatus {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or(UnknownName)
    }
}

/// What a consumer says of a route.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// What became of it.
    pub status: ReceiptStatus,
    /// When, by the clock of the consumer. It decides nothing.
    #[serde(with = "rfc3339")]
    pub at: Timestamp,
    /// Further words of the consumer: at most [`MAX_DETAIL_CHARS`] characters; empty if there are none. May
    /// hold an address, so it is not logged.
    pub detail: String,
}

/// A report and the route that it is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteReport {
    /// Which route.
    pub key: RouteKey,
    /// What is said of it.
    pub report: Report,
}

/// What a report of a known route came to.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recorded {
    /// It is the highest so far, and the receipt is what it says.
    Recorded,
    /// It is not higher than what was known. It is in the history and changes nothing else.
    Stale,
}

impl Recorded {
    /// As it is spelled in answers and the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Stale => "stale",
        }
    }
}

/// What a report of a route came to.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportOutcome {
    /// There is such a route.
    Known(Recorded),
    /// There is no such route, or its channel is not the caller's. Nothing is kept.
    UnknownRoute,
}

impl ReportOutcome {
    /// As it is spelled in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Known(recorded) => recorded.as_str(),
            Self::UnknownRoute => "unknown_route",
        }
    }
}

/// A report as the history has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PastReport {
    /// What was said.
    #[serde(flatten)]
    pub report: Report,
    /// What it came to.
    pub outcome: Recorded,
}

/// What is known of a route from its consumer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// The first report of the highest status.
    #[serde(flatten)]
    pub highest: Report,
    /// The last [`MAX_HISTORY`] reports in the order of their arrival, the newest first.
    pub history: Vec<PastReport>,
}

impl Receipt {
    /// What is known after `report`, and what the report came to. The status is the highest of all reports,
    /// whatever their order; of equal ones the first counts.
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

    /// The document in the table: `status`, `at`, `detail` and `history`.
    pub fn to_json(&self) -> String {
        // Cannot fail: texts and a list in memory.
        serde_json::to_string(self).expect("it is JSON")
    }

    /// Reads a document; the error says what is wrong with one that another program wrote.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// A time as RFC 3339 in UTC with microseconds.
mod rfc3339 {
    use ambient::Timestamp;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(at)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|_| D::Error::custom("not a time of RFC 3339"))
    }
}

#[cfg(test)]
mod tests;
