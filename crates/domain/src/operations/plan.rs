//! The plan of a change: the number of routes that it concerns, by channel and cause or type, and the ids of
//! the first ones.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::Target;
use crate::document::counted_form;
use crate::query::Counted;
use crate::route::{Channel, RouteKey};

/// The most ids that a plan lists.
pub const PLAN_IDS: usize = 20;

/// The property by which a plan counts the routes of a channel.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// Dead letters: the classification of the last failure.
    Cause(String),
    /// Other routes: the type of their notification.
    Type(String),
}

impl Group {
    /// The classification or the type.
    pub fn name(&self) -> &str {
        match self {
            Self::Cause(name) | Self::Type(name) => name,
        }
    }
}

/// The routes of a channel that share a cause or a type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "PlannedGroup")]
pub struct PlanGroup {
    /// The channel.
    pub channel: Channel,
    /// The cause or the type.
    #[serde(flatten, serialize_with = "group_members")]
    #[schemars(with = "GroupMembers<'_>")]
    pub group: Group,
    /// Number of routes.
    pub count: u64,
}

#[derive(Serialize, JsonSchema)]
struct GroupMembers<'a> {
    /// The classification of the failure, if they are dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    classification: Option<&'a str>,
    /// The type of their notification, if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    notification_type: Option<&'a str>,
}

fn group_members<S: Serializer>(group: &Group, serializer: S) -> Result<S::Ok, S::Error> {
    let (classification, notification_type) = match group {
        Group::Cause(cause) => (Some(&**cause), None),
        Group::Type(name) => (None, Some(&**name)),
    };
    GroupMembers { classification, notification_type }.serialize(serializer)
}

/// The effect that a request would have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Planned")]
pub struct Plan {
    /// Number of selected routes, including those that would remain for another request.
    #[serde(flatten, serialize_with = "PlanCount::serialize")]
    #[schemars(with = "PlanCount")]
    pub count: Counted,
    /// Routes that this request would change, by channel and cause or type; the most frequent first.
    pub by: Vec<PlanGroup>,
    /// The ids of the first of them.
    #[schemars(length(max = PLAN_IDS))]
    pub first: Vec<RouteKey>,
    /// Ids that name no route.
    pub unknown: Vec<String>,
    /// Number of routes that would remain for another request.
    #[serde(skip)]
    pub remaining: Counted,
}

counted_form!(
    PlanCount,
    "How many routes are selected, those that would remain for another request among them.",
    count,
    count_capped,
    "There may be more than `count`."
);

/// Counts the routes of a plan, page by page.
#[derive(Clone, Debug, Default)]
pub struct PlanCounter {
    groups: BTreeMap<(Channel, Group), u64>,
    first: Vec<RouteKey>,
    count: u64,
}

impl PlanCounter {
    /// Adds these routes to the count.
    pub fn add(&mut self, targets: &[Target]) {
        for target in targets {
            *self.groups.entry((target.channel, target.group.clone())).or_default() += 1;
        }
        let shown = PLAN_IDS - self.first.len();
        self.first.extend(targets.iter().take(shown).map(|target| target.key.clone()));
        self.count += targets.len() as u64;
    }

    /// The plan of a request that changes the counted routes and leaves `remaining` for another
    /// request.
    pub fn plan(self, unknown: Vec<String>, remaining: Counted) -> Plan {
        let group = |((channel, group), count)| PlanGroup { channel, group, count };
        let mut by: Vec<PlanGroup> = self.groups.into_iter().map(group).collect();
        by.sort_by_key(|group| std::cmp::Reverse(group.count));
        let Counted { count, capped } = remaining;
        let count = Counted { count: count + self.count, capped };
        Plan { count, by, first: self.first, unknown, remaining }
    }
}
