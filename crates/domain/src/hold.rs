//! Holds: an operator keeps the routes of a channel, a notification type or a producer from being published
//! until they are released (ADR 0058).
//!
//! A held route is live: it is accepted, keeps its budget, and is published after the release. Intents are
//! accepted as ever.

use std::fmt;
use std::str::FromStr;

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::document::{Counted, Guarded, counted_form, inline_schema, one_of};
use crate::operations::PLAN_IDS;
use crate::route::{Channel, LiveRoute, RouteKey, UnknownName, Version};

/// The longest name of a held type or producer, and the longest reason, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// The longest reason of a hold, in bytes.
pub const MAX_REASON_BYTES: usize = 1_024;

/// The property of a route that a hold selects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldScope {
    /// The channel.
    Channel,
    /// The notification type.
    Type,
    /// The producer.
    Producer,
}

impl HoldScope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::Channel, Self::Type, Self::Producer];

    /// The name in `holds.scope`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Type => "type",
            Self::Producer => "producer",
        }
    }
}

inline_schema!(HoldScope, one_of(Self::ALL.map(Self::as_str)));

impl FromStr for HoldScope {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text).ok_or(UnknownName)
    }
}

/// The key of a hold: what it holds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, JsonSchema)]
pub struct HoldKey {
    /// The property that is compared.
    pub scope: HoldScope,
    /// The channel, the notification type or the producer.
    pub name: String,
}

/// The reason why a name cannot be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidHold {
    /// The name of a channel is wrong.
    #[error("no such channel: push and email can be held")]
    UnknownChannel,
    /// The name is empty or too long.
    #[error("the name must have 1 to 255 bytes, and no U+0000")]
    InvalidName,
    /// The reason is empty or too long.
    #[error("the reason must have 1 to 1,024 bytes, and no U+0000")]
    InvalidReason,
}

impl HoldKey {
    /// The key of a hold of `name`.
    pub fn new(scope: HoldScope, name: String) -> Result<Self, InvalidHold> {
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) || name.contains('\0') {
            return Err(InvalidHold::InvalidName);
        }
        if scope == HoldScope::Channel && name.parse::<Channel>().is_err() {
            return Err(InvalidHold::UnknownChannel);
        }
        Ok(Self { scope, name })
    }

    fn selects(&self, route: &LiveRoute) -> bool {
        self.name
            == match self.scope {
                HoldScope::Channel => route.channel.as_str(),
                HoldScope::Type => &route.content.notification_type,
                HoldScope::Producer => &route.content.producer,
            }
    }
}

/// The format `channel email`.
impl fmt::Display for HoldKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.scope.as_str(), self.name)
    }
}

/// Checks the reason of a hold.
pub fn checked_reason(reason: String) -> Result<String, InvalidHold> {
    let is_reason = (1..=MAX_REASON_BYTES).contains(&reason.len()) && !reason.contains('\0');
    if is_reason { Ok(reason) } else { Err(InvalidHold::InvalidReason) }
}

/// A hold, with the routes that it keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Hold {
    /// The held channel, type or producer.
    #[serde(flatten)]
    pub key: HoldKey,
    /// The time at which it was made.
    pub since: Timestamp,
    /// The operator that made it.
    pub actor: String,
    /// The operator's reason.
    pub reason: String,
    /// The time at which it was released; its routes become due again since then. `null` while it holds.
    pub released_at: Option<Timestamp>,
    /// The number of routes that it keeps.
    #[serde(flatten, serialize_with = "HeldCount::serialize")]
    #[schemars(with = "HeldCount")]
    pub routes: Counted,
}

counted_form!(
    HeldCount,
    "The number of routes that it keeps. A route counts once a publisher has found it due.",
    routes,
    routes_capped,
    "There may be more than `routes`."
);

/// The hold that keeps a route.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct RouteHold {
    /// The held channel, type or producer.
    #[serde(flatten)]
    pub key: HoldKey,
    /// The time at which it was made.
    pub since: Timestamp,
    /// The operator that made it; `null` to a producer.
    pub actor: Guarded,
    /// The operator's reason; `null` to a producer.
    pub reason: Guarded,
    /// The time at which it was released; the route is due again soon. `null` while it holds.
    pub released_at: Option<Timestamp>,
}

/// The holds in force.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HoldsInForce(Vec<HoldKey>);

impl HoldsInForce {
    /// These holds.
    pub fn new(keys: Vec<HoldKey>) -> Self {
        Self(keys)
    }

    /// True if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first hold that selects the route.
    pub fn of(&self, route: &LiveRoute) -> Option<&HoldKey> {
        self.0.iter().find(|key| key.selects(route))
    }
}

/// A route to keep, with the version on which that was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteToHold {
    /// The key of the route.
    pub key: RouteKey,
    /// The version at which it was read.
    pub version: Version,
    /// The hold that selects it.
    pub hold: HoldKey,
}

/// A change of holds by an operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HoldChange {
    /// Hold what the key selects, for a reason.
    Hold {
        /// The operator's reason.
        reason: String,
    },
    /// Release what the key holds.
    Release,
}

impl HoldChange {
    /// The name in `operator_actions.action`.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Hold { .. } => "hold",
            Self::Release => "release",
        }
    }

    /// `operator_actions.arguments`.
    pub fn arguments(&self, key: &HoldKey, idempotency_key: Option<&str>) -> Value {
        let mut arguments = json!({ "scope": key.scope.as_str(), "name": key.name });
        if let Self::Hold { reason } = self {
            arguments["reason"] = json!(reason);
        }
        if let Some(key) = idempotency_key {
            arguments["idempotency_key"] = json!(key);
        }
        arguments
    }
}

/// The routes that a change of a hold concerns.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
pub struct HoldPlan {
    /// The number of routes: those that are live and would be held, or those that are held and would be
    /// released.
    #[serde(flatten, serialize_with = "PlannedRoutes::serialize")]
    #[schemars(with = "PlannedRoutes")]
    pub routes: Counted,
    /// The ids of some of them.
    #[schemars(length(max = PLAN_IDS))]
    pub first: Vec<RouteKey>,
    /// The present hold; `null` if there is none.
    pub hold: Option<Hold>,
}

counted_form!(
    PlannedRoutes,
    "The number of routes that are live and would be held, or that are held and would be released.",
    routes,
    routes_capped,
    "There may be more than `routes`."
);

/// The operator and the request behind a change of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldActor<'a> {
    /// The name of the operator's token, or `user@host`.
    pub name: &'a str,
    /// The id of the request.
    pub request_id: &'a str,
    /// The idempotency key of the request; a command has none.
    pub idempotency_key: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::live_route;

    fn key(scope: HoldScope, name: &str) -> HoldKey {
        HoldKey::new(scope, name.to_owned()).expect("a key")
    }

    #[test]
    fn a_hold_selects_by_channel_type_or_producer() {
        let route = live_route();
        let names = [route.channel.as_str(), &route.content.notification_type, &route.content.producer];
        for (scope, name) in HoldScope::ALL.into_iter().zip(names) {
            let holds = HoldsInForce::new(vec![key(HoldScope::Type, "another"), key(scope, name)]);
            assert_eq!(holds.of(&route), Some(&key(scope, name)));
        }
        assert_eq!(HoldsInForce::new(vec![key(HoldScope::Producer, "another")]).of(&route), None);
    }

    #[test]
    fn only_a_channel_that_exists_can_be_held_and_a_name_is_no_longer_than_a_column() {
        let new = |scope, name: String| HoldKey::new(scope, name).err();
        assert_eq!(new(HoldScope::Channel, "sms".into()), Some(InvalidHold::UnknownChannel));
        assert_eq!(new(HoldScope::Producer, String::new()), Some(InvalidHold::InvalidName));
        assert_eq!(new(HoldScope::Type, "x".repeat(MAX_NAME_BYTES + 1)), Some(InvalidHold::InvalidName));
        assert_eq!(new(HoldScope::Type, "x".repeat(MAX_NAME_BYTES)), None);
        assert_eq!(checked_reason("x".repeat(MAX_REASON_BYTES + 1)), Err(InvalidHold::InvalidReason));
    }

    #[test]
    fn a_hold_is_recorded_with_what_it_holds() {
        let change = HoldChange::Hold { reason: "wrong template".into() };
        assert_eq!(
            change.arguments(&key(HoldScope::Type, "game.turn.ready"), Some("k")).to_string(),
            r#"{"idempotency_key":"k","name":"game.turn.ready","reason":"wrong template","scope":"type"}"#
        );
    }
}
