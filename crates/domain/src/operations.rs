//! Operators' changes of routes: dead letters are replayed or discarded, live routes are cancelled, and
//! published ones are sent again.
//!
//! The API, the commands and the console share one rule. A request selects at most [`MAX_ROUTES_PER_REQUEST`]
//! routes, each with its version at that time, and changes them in chunks of [`CHUNK_ROUTES`]. A route whose
//! version differs when its chunk is written was changed by someone else and stays as it is.

mod plan;
mod selection;

use std::collections::BTreeMap;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::document::counted_form;
use crate::erase;
use crate::query::Counted;
use crate::resubmit::RESUBMIT_ACTION;
use crate::route::{Channel, RouteKey, RouteStatus, Version};
use crate::step_down::StepDown;

pub use plan::{Group, PLAN_IDS, Plan, PlanCounter, PlanGroup};
pub use selection::{LivePlace, RouteFilter, Selection, TargetPlace};

/// The most routes that one request changes, and the most ids that it may name.
pub const MAX_ROUTES_PER_REQUEST: usize = 10_000;
/// The most routes that are changed in one transaction.
pub const CHUNK_ROUTES: usize = 500;
/// The longest reason for a change, in bytes.
pub const MAX_REASON_BYTES: usize = 1_024;
/// The `last_error_classification` of a route that an operator cancelled.
pub const CANCELLED: &str = "cancelled";

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

/// A change that an operator makes to routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteChange {
    /// The routes of dead letters become pending again, with these budgets, and the dead letters are deleted.
    Replay(Budgets),
    /// The dead letters are marked and no longer listed among those that need attention.
    Discard {
        /// The reason, in the operator's words.
        reason: String,
    },
    /// The live routes are skipped: they are never published.
    Cancel {
        /// The reason, in the operator's words.
        reason: String,
    },
    /// The published routes become pending again, with these budgets: their entries are appended again.
    Resend {
        /// The budgets of the new attempts.
        budgets: Budgets,
        /// The reason, in the operator's words; may be empty.
        reason: String,
    },
}

/// The state in which routes must be for a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changeable {
    /// They are dead letters.
    DeadLetters,
    /// They are pending or failed, held or not.
    Live,
    /// Their entries are in the outbound streams.
    Published,
}

/// Every value of `operator_actions.action`.
pub const ACTIONS: [&str; 9] = [
    "replay_dead_letters",
    "discard_dead_letters",
    "cancel_routes",
    "resend_routes",
    "hold",
    "release",
    RESUBMIT_ACTION,
    erase::ACTION,
    StepDown::ACTION,
];

impl RouteChange {
    /// A discard for this reason. `None` if the text is not a reason.
    pub fn discard(reason: String) -> Option<Self> {
        is_reason(&reason).then_some(Self::Discard { reason })
    }

    /// A cancellation for this reason. `None` if the text is not a reason.
    pub fn cancel(reason: String) -> Option<Self> {
        is_reason(&reason).then_some(Self::Cancel { reason })
    }

    /// A resend with these budgets, for this reason, which may be empty. `None` if the text is not a reason.
    pub fn resend(budgets: Budgets, reason: String) -> Option<Self> {
        (reason.is_empty() || is_reason(&reason)).then_some(Self::Resend { budgets, reason })
    }

    /// The name in `operator_actions.action`.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Replay(_) => "replay_dead_letters",
            Self::Discard { .. } => "discard_dead_letters",
            Self::Cancel { .. } => "cancel_routes",
            Self::Resend { .. } => "resend_routes",
        }
    }

    /// The state in which a route must be.
    pub fn changes(&self) -> Changeable {
        match self {
            Self::Replay(_) | Self::Discard { .. } => Changeable::DeadLetters,
            Self::Cancel { .. } => Changeable::Live,
            Self::Resend { .. } => Changeable::Published,
        }
    }

    /// The operator's reason, if the change has one.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Replay(_) => None,
            Self::Discard { reason } | Self::Cancel { reason } => Some(reason),
            Self::Resend { reason, .. } => Some(reason.as_str()).filter(|reason| !reason.is_empty()),
        }
    }

    /// True if the change makes routes due.
    pub fn adds_due_routes(&self) -> bool {
        self.budgets().is_some()
    }

    /// The budgets that the change gives to routes.
    fn budgets(&self) -> Option<Budgets> {
        match self {
            Self::Replay(budgets) | Self::Resend { budgets, .. } => Some(*budgets),
            Self::Discard { .. } | Self::Cancel { .. } => None,
        }
    }

    /// True if the change may be made to a dead letter. A discarded one may only be replayed, and only if it
    /// is named by id.
    pub fn applies_to(&self, discarded: bool, is_named: bool) -> bool {
        !discarded || (is_named && matches!(self, Self::Replay(_)))
    }
}

impl Changeable {
    /// True if a route with this status is in this state.
    pub fn includes(self, status: RouteStatus) -> bool {
        match self {
            Self::DeadLetters => status == RouteStatus::DeadLetter,
            Self::Live => status.is_live(),
            Self::Published => status == RouteStatus::Published,
        }
    }

    /// The statuses of routes in this state.
    pub fn statuses(self) -> impl Iterator<Item = &'static str> {
        RouteStatus::ALL.into_iter().filter(move |status| self.includes(*status)).map(RouteStatus::as_str)
    }
}

/// True for 1 to [`MAX_REASON_BYTES`] bytes without U+0000.
fn is_reason(text: &str) -> bool {
    (1..=MAX_REASON_BYTES).contains(&text.len()) && !text.contains('\0')
}

/// The `last_error_message` of a route that `actor` cancelled.
pub fn cancelled_by(actor: &str, reason: &str) -> String {
    format!("cancelled by {actor}: {reason}")
}

/// The new values of a route that becomes pending again. Its ids, recipient and last error are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequeuedRoute {
    /// Always pending.
    pub status: RouteStatus,
    /// The attempts before the next one: none if it is replayed, all so far if it is sent again.
    pub attempt_count: u32,
    /// These, and the currently configured budget.
    pub max_attempts: u32,
    /// Immediately: no replica has the route in memory, so there is no head start.
    pub next_attempt_at: Timestamp,
}

/// The new values of a dead letter of `channel` that is replayed at `now`.
pub fn replay(channel: Channel, budgets: Budgets, now: Timestamp) -> RequeuedRoute {
    RequeuedRoute {
        status: RouteStatus::Pending,
        attempt_count: 0,
        max_attempts: budgets.of(channel),
        next_attempt_at: now,
    }
}

/// The new values of a published route that is sent again at `now`: the number of its next attempt is one
/// higher than that of the attempt that was published.
pub fn resend(target: &Target, budgets: Budgets, now: Timestamp) -> RequeuedRoute {
    let attempt_count = target.attempt_count.saturating_add(1);
    RequeuedRoute {
        status: RouteStatus::Pending,
        attempt_count,
        max_attempts: attempt_count.saturating_add(budgets.of(target.channel)),
        next_attempt_at: now,
    }
}

/// A route that a request selects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Key of the route.
    pub key: RouteKey,
    /// The version of the route when it was selected.
    pub version: Version,
    /// The channel of the route.
    pub channel: Channel,
    /// Its attempts so far, as [`LiveRoute`](crate::route::LiveRoute) counts them.
    pub attempt_count: u32,
    /// The id of the entry that its next one replaces, if it is live and sent again.
    pub replaces: Option<String>,
    /// The property by which a plan counts it.
    pub group: Group,
}

/// The routes that a request selects, in the order of the list if a filter selected them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Targets {
    /// Selected routes, at most [`MAX_ROUTES_PER_REQUEST`].
    pub targets: Vec<Target>,
    /// Ids that name no route.
    pub unknown: Vec<String>,
    /// Number of ids whose routes are not (or no longer) in the state that the change needs, or are already
    /// discarded: nothing to change.
    pub unchanged: u64,
    /// Further routes that the filter selects.
    pub remaining: Counted,
}

impl Targets {
    /// The plan of a request that selects these routes.
    pub fn plan(&self) -> Plan {
        let mut counter = PlanCounter::default();
        counter.add(&self.targets);
        counter.plan(self.unknown.clone(), self.remaining)
    }

    /// Keeps the routes whose version is still the planned one, by id. The others changed meanwhile and count
    /// as unchanged.
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
    /// Selected routes that were not changed: those beyond the bound of one request, and those that another
    /// transaction has locked or a publisher has leased.
    #[serde(flatten, serialize_with = "RemainingCount::serialize")]
    #[schemars(with = "RemainingCount")]
    pub remaining: Counted,
    /// Selected routes that stayed as they are: no longer in the state that the change needs, already
    /// discarded, or changed since they were selected.
    #[serde(skip)]
    pub unchanged: u64,
    /// Routes that were to be cancelled, and whose entry is in the outbound stream.
    #[serde(skip)]
    pub published: u64,
    /// Ids that name no route.
    pub unknown: Vec<String>,
}

counted_form!(
    RemainingCount,
    "Selected routes that were not changed: those beyond 10,000, and those that another transaction had \
     locked. The same request with another idempotency key continues with them.",
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
    pub fn arguments(&self, change: &RouteChange, chunk: &[Target]) -> Value {
        let mut arguments = match self.selection.named_conditions() {
            Some(conditions) => json!({ "filter": conditions.into_iter().collect::<BTreeMap<_, _>>() }),
            None => json!({ "ids": chunk.iter().map(|target| target.key.to_string()).collect::<Vec<_>>() }),
        };
        if let Some(key) = &self.idempotency_key {
            arguments["idempotency_key"] = json!(key);
        }
        if let Some(budgets) = change.budgets() {
            arguments["max_attempts"] = json!({ "push": budgets.push, "email": budgets.email });
        }
        if let Some(reason) = change.reason() {
            arguments["reason"] = json!(reason);
        }
        arguments
    }
}

/// The key of a row of `operator_actions`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OperatorActionId(pub i64);

#[cfg(test)]
mod tests;
