//! The results and the plans of operators' changes.

use domain::operations::{ChangeReport, PLAN_IDS, Plan};
use domain::route::Channel;
use schemars::JsonSchema;
use serde::Serialize;

use super::{capped, is_false};

/// The effect that a request would have.
#[derive(Serialize, JsonSchema)]
pub struct Planned {
    /// How many dead letters are selected, those that would remain for another request among them.
    count: u64,
    /// There may be more than `count`.
    #[serde(skip_serializing_if = "is_false")]
    count_capped: bool,
    /// Those that this request would change, by channel and cause; the most frequent first.
    by: Vec<PlannedGroup>,
    /// The ids of the first of them.
    #[schemars(length(max = PLAN_IDS))]
    first: Vec<String>,
    /// Ids that name no route.
    unknown: Vec<String>,
}

/// Dead letters of one channel with the same cause.
#[derive(Serialize, JsonSchema)]
struct PlannedGroup {
    channel: Channel,
    classification: String,
    count: u64,
}

impl Planned {
    /// Renders a plan.
    pub fn new(plan: Plan) -> Self {
        let by = plan.by.into_iter().map(|group| PlannedGroup {
            channel: group.channel,
            classification: group.classification,
            count: group.count,
        });
        let (count, count_capped) = capped(plan.count);
        Self {
            count,
            count_capped,
            by: by.collect(),
            first: plan.first.iter().map(ToString::to_string).collect(),
            unknown: plan.unknown,
        }
    }
}

/// The result of a replay.
#[derive(Serialize, JsonSchema)]
pub struct Replayed {
    /// How many routes are pending again.
    replayed: u64,
    #[serde(flatten)]
    rest: Rest,
}

/// The result of a discard.
#[derive(Serialize, JsonSchema)]
pub struct Discarded {
    /// How many dead letters are marked.
    discarded: u64,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Serialize, JsonSchema)]
struct Rest {
    /// Selected dead letters that were not changed: those beyond 10,000, and those that another transaction
    /// had locked. The same request with another idempotency key continues with them.
    remaining: u64,
    /// There may be more than `remaining`.
    #[serde(skip_serializing_if = "is_false")]
    remaining_capped: bool,
    /// Ids that name no route.
    unknown: Vec<String>,
}

impl Rest {
    fn new(report: ChangeReport) -> (u64, Self) {
        let (remaining, remaining_capped) = capped(report.remaining);
        (report.changed, Self { remaining, remaining_capped, unknown: report.unknown })
    }
}

impl From<ChangeReport> for Replayed {
    fn from(report: ChangeReport) -> Self {
        let (replayed, rest) = Rest::new(report);
        Self { replayed, rest }
    }
}

impl From<ChangeReport> for Discarded {
    fn from(report: ChangeReport) -> Self {
        let (discarded, rest) = Rest::new(report);
        Self { discarded, rest }
    }
}
