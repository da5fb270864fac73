//! Operators' changes to dead letters: replay, which gives a route a new budget, and discard.
//!
//! The API, the commands and the console share one rule. A request selects at most [`MAX_ROUTES_PER_REQUEST`]
//! dead letters, each with its version at that time, and changes them in chunks of [`CHUNK_ROUTES`]. A route
//! whose version differs when its chunk is written was changed by someone else and stays as it is.

use std::collections::BTreeMap;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::document::counted_form;
use crate::query::{Counted, DeadLetterFilter};
use crate::route::{Channel, RouteKey, RouteStatus, Version};

/// The most routes that one request changes, and the most ids that it may name.
pub const MAX_ROUTES_PER_REQUEST: usize = 10_000;
/// The most routes that are changed in one transaction.
pub const CHUNK_ROUTES: usize = 500;
/// The longest reason for a discard, in bytes.
pub const MAX_REASON_BYTES: usize = 1_024;
/// The most ids that a plan lists.
pub const PLAN_IDS: usize = 20;

/// The currently configured budgets of routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budgets {
    /// Failed attempts that make a dead letter of a push route.
    pub push: u32,
    /// Failed attempts that make a dead letter of an e-mail route.
    pub email: u32,
}

impl Budgets {
    /// The budget of a route of `channel`.
    pub fn of(self, channel: Channel) -> u32 {
        match channel {
            Channel::Push => self.push,
            Channel::Email => self.email,
        }
    }
}

/// A change that an operator makes to dead letters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeadLetterChange {
    /// The routes become pending again, with these budgets, and the dead letters are deleted.
    Replay(Budgets),
    /// The dead letters are marked and no longer listed among those that need attention.
    Discard {
        /// The reason, in the operator's words.
        reason: String,
    },
}

impl DeadLetterChange {
    /// A discard for this reason: 1 to [`MAX_REASON_BYTES`] bytes without U+0000. `None` if the text is not
    /// such a reason.
    pub fn discard(reason: String) -> Option<Self> {
        let is_reason = (1..=MAX_REASON_BYTES).contains(&reason.len()) && !reason.contains('\0');
        is_reason.then_some(Self::Discard { reason })
    }

    /// The name in `operator_actions.action`.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Replay(_) => "replay_dead_letters",
            Self::Discard { .. } => "discard_dead_letters",
        }
    }

    /// True if the change may be made to a dead letter. A discarded one may only be replayed, and only if it
    /// is named by id.
    pub fn applies_to(&self, discarded: bool, is_named: bool) -> bool {
        !discarded || (is_named && matches!(self, Self::Replay(_)))
    }
}

/// The new values of a route that is replayed at `now`. Its ids, recipient and last error are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayedRoute {
    /// Always pending.
    pub status: RouteStatus,
    /// Always zero.
    pub attempt_count: u32,
    /// The currently configured budget.
    pub max_attempts: u32,
    /// Immediately: no replica has the route in memory, so there is no head start.
    pub next_attempt_at: Timestamp,
}

/// The new values of a dead letter of `channel` that is replayed at `now`.
pub fn replay(channel: Channel, budgets: Budgets, now: Timestamp) -> ReplayedRoute {
    ReplayedRoute {
        status: RouteStatus::Pending,
        attempt_count: 0,
        max_attempts: budgets.of(channel),
        next_attempt_at: now,
    }
}

/// The dead letters that a request selects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// Dead letters with these ids, `<notification_id>/<route_id>`, at most [`MAX_ROUTES_PER_REQUEST`].
    Ids(Vec<String>),
    /// Dead letters that the list would show; `discarded` is ignored here.
    Filter(DeadLetterFilter),
}

/// A dead letter that a request selects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Key of its route.
    pub key: RouteKey,
    /// The version of the route when it was selected.
    pub version: Version,
    /// The channel of the route.
    pub channel: Channel,
    /// Classification of its last failure.
    pub classification: String,
}

/// The dead letters that a request selects, newest first if a filter selected them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Targets {
    /// Selected dead letters, at most [`MAX_ROUTES_PER_REQUEST`].
    pub targets: Vec<Target>,
    /// Ids that name no route.
    pub unknown: Vec<String>,
    /// Number of ids whose routes are not (or no longer) dead letters, or are already discarded: nothing to
    /// change.
    pub unchanged: u64,
    /// Further dead letters that the filter selects.
    pub remaining: Counted,
}

/// The dead letters of a channel that share a cause.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "PlannedGroup")]
pub struct PlanGroup {
    /// The channel.
    pub channel: Channel,
    /// The classification of the failure.
    pub classification: String,
    /// Number of dead letters.
    pub count: u64,
}

/// The effect that a request would have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Planned")]
pub struct Plan {
    /// Number of selected dead letters, including those that would remain for another request.
    #[serde(flatten, serialize_with = "PlanCount::serialize")]
    #[schemars(with = "PlanCount")]
    pub count: Counted,
    /// Dead letters that this request would change, by channel and cause; the most frequent first.
    pub by: Vec<PlanGroup>,
    /// The ids of the first of them.
    #[schemars(length(max = PLAN_IDS))]
    pub first: Vec<RouteKey>,
    /// Ids that name no route.
    pub unknown: Vec<String>,
    /// Number of dead letters that would remain for another request.
    #[serde(skip)]
    pub remaining: Counted,
}

counted_form!(
    PlanCount,
    "How many dead letters are selected, those that would remain for another request among them.",
    count,
    count_capped,
    "There may be more than `count`."
);

/// Counts the dead letters of a plan, page by page.
#[derive(Clone, Debug, Default)]
pub struct PlanCounter {
    groups: BTreeMap<(Channel, String), u64>,
    first: Vec<RouteKey>,
    count: u64,
}

impl PlanCounter {
    /// Adds these dead letters to the count.
    pub fn add(&mut self, targets: &[Target]) {
        for target in targets {
            *self.groups.entry((target.channel, target.classification.clone())).or_default() += 1;
        }
        let shown = PLAN_IDS - self.first.len();
        self.first.extend(targets.iter().take(shown).map(|target| target.key.clone()));
        self.count += targets.len() as u64;
    }

    /// The plan of a request that changes the counted dead letters and leaves `remaining` for another
    /// request.
    pub fn plan(self, unknown: Vec<String>, remaining: Counted) -> Plan {
        let group = |((channel, classification), count)| PlanGroup { channel, classification, count };
        let mut by: Vec<PlanGroup> = self.groups.into_iter().map(group).collect();
        by.sort_by_key(|group| std::cmp::Reverse(group.count));
        let Counted { count, capped } = remaining;
        let count = Counted { count: count + self.count, capped };
        Plan { count, by, first: self.first, unknown, remaining }
    }
}

impl Targets {
    /// The plan of a request that selects these dead letters.
    pub fn plan(&self) -> Plan {
        let mut counter = PlanCounter::default();
        counter.add(&self.targets);
        counter.plan(self.unknown.clone(), self.remaining)
    }

    /// Keeps the dead letters whose version is still the planned one, by id. The others changed meanwhile and
    /// count as unchanged.
    pub fn keep_planned(&mut self, planned: &BTreeMap<String, Version>) {
        let selected = self.targets.len();
        self.targets.retain(|target| planned.get(&target.key.to_string()) == Some(&target.version));
        self.unchanged += (selected - self.targets.len()) as u64;
    }

    /// The chunks, one per transaction.
    pub fn chunks(&self) -> impl Iterator<Item = &[Target]> {
        self.targets.chunks(CHUNK_ROUTES)
    }
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
pub struct ChangeReport {
    /// Routes that were changed. Documents call it what was done.
    #[serde(skip)]
    pub changed: u64,
    /// Selected dead letters that were not changed: those beyond the bound of one request, and those that
    /// another transaction has locked.
    #[serde(flatten, serialize_with = "RemainingCount::serialize")]
    #[schemars(with = "RemainingCount")]
    pub remaining: Counted,
    /// Selected dead letters that stayed as they are: no longer a dead letter, already discarded, or changed
    /// since they were selected.
    #[serde(skip)]
    pub unchanged: u64,
    /// Ids that name no route.
    pub unknown: Vec<String>,
}

counted_form!(
    RemainingCount,
    "Selected dead letters that were not changed: those beyond 10,000, and those that another \
     transaction had locked. The same request with another idempotency key continues with them.",
    remaining,
    remaining_capped,
    "There may be more than `remaining`."
);

/// The operator and the request behind a change, for `operator_actions`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OperatorAction {
    /// The name of the operator's token, or `user@host`.
    pub actor: String,
    /// Id that the chunks of a request share.
    pub request_id: String,
    /// The idempotency key of the request; a command has none.
    pub idempotency_key: Option<String>,
    /// The selection of the request.
    pub selection: Selection,
}

impl OperatorAction {
    /// `operator_actions.arguments` for a chunk: the idempotency key, the filter or the ids of the chunk, and
    /// the arguments of the change.
    pub fn arguments(&self, change: &DeadLetterChange, chunk: &[Target]) -> Value {
        let mut arguments = match &self.selection {
            Selection::Filter(filter) => {
                let conditions: BTreeMap<_, _> = filter.named_conditions().into_iter().collect();
                json!({ "filter": conditions })
            }
            Selection::Ids(_) => {
                json!({ "ids": chunk.iter().map(|target| target.key.to_string()).collect::<Vec<_>>() })
            }
        };
        if let Some(key) = &self.idempotency_key {
            arguments["idempotency_key"] = json!(key);
        }
        match change {
            DeadLetterChange::Replay(budgets) => {
                arguments["max_attempts"] = json!({ "push": budgets.push, "email": budgets.email });
            }
            DeadLetterChange::Discard { reason } => arguments["reason"] = json!(reason),
        }
        arguments
    }
}

/// The key of a row of `operator_actions`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OperatorActionId(pub i64);

#[cfg(test)]
mod tests;
