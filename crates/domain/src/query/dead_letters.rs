//! Queries for dead letters.

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::Notification;
use super::cursor::{Place, Query};
use crate::record::NotificationId;
use crate::route::{Channel, RouteKey};

/// Filter for dead letters; a field that is `None` does not restrict the list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeadLetterFilter {
    /// Channel of the route.
    pub channel: Option<Channel>,
    /// Classification of the last failure.
    pub classification: Option<String>,
    /// Type of the notification.
    pub notification_type: Option<String>,
    /// Earliest time of the last failed attempt, inclusive.
    pub created_after: Option<Timestamp>,
    /// Latest time of the last failed attempt, exclusive.
    pub created_before: Option<Timestamp>,
    /// True selects only discarded dead letters, false only the others.
    pub discarded: bool,
}

impl DeadLetterFilter {
    /// The conditions that are set, except `discarded`, each with its name in the API.
    pub fn named_conditions(&self) -> Vec<(&'static str, String)> {
        let conditions = [
            ("channel", self.channel.map(|channel| channel.as_str().to_owned())),
            ("classification", self.classification.clone()),
            ("notification_type", self.notification_type.clone()),
            ("created_after", self.created_after.map(|at| at.to_string())),
            ("created_before", self.created_before.map(|at| at.to_string())),
        ];
        conditions.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

impl Query for DeadLetterFilter {
    const LIST: &'static str = "dead-letters";

    fn conditions(&self) -> Vec<Option<String>> {
        vec![
            self.channel.map(|channel| channel.as_str().to_owned()),
            self.classification.clone(),
            self.notification_type.clone(),
            self.created_after.map(|at| at.to_string()),
            self.created_before.map(|at| at.to_string()),
            Some(self.discarded.to_string()),
        ]
    }
}

/// A dead letter's place in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetterPlace {
    /// Time of the last failed attempt.
    pub created_at: Timestamp,
    /// Key of the route.
    pub key: RouteKey,
}

/// In place of the id of a route in a place of a reader who may not see it: its number follows.
const NUMBER: char = '#';

impl DeadLetterPlace {
    /// The same place without the id of its route, which may hold an address: with the number of the route
    /// among those of its notification, if that still exists.
    #[must_use]
    pub fn numbered(self, notification: Option<&Notification>) -> Self {
        let route = notification.and_then(|found| found.route(&self.key));
        let route_id = route.map(|route| format!("{NUMBER}{}", route.route_number)).unwrap_or_default();
        Self { key: RouteKey { route_id, ..self.key }, ..self }
    }

    /// The place with the id of its route again. Without the route, the place is after all dead letters of
    /// the notification: retention has deleted them. `None` if the place has an id in it: a reader could try
    /// ids that hold addresses, and learn from the page which one is next.
    #[must_use]
    pub fn resolved(self, notification: Option<&Notification>) -> Option<Self> {
        let number = match self.key.route_id.strip_prefix(NUMBER) {
            Some(number) => number.parse::<usize>().ok()?,
            None if self.key.route_id.is_empty() => 0,
            None => return None,
        };
        let mut routes = notification.into_iter().flat_map(|found| &found.routes);
        let route = routes.find(|route| route.route_number == number);
        let route_id = route.map(|route| route.route_id.to_string()).unwrap_or_default();
        Some(Self { key: RouteKey { route_id, ..self.key }, ..self })
    }
}

impl Place for DeadLetterPlace {
    type Filter = DeadLetterFilter;

    fn parts(&self) -> (Timestamp, Vec<&str>) {
        (self.created_at, vec![self.key.notification_id.as_str(), &self.key.route_id])
    }

    fn from_parts(created_at: Timestamp, texts: Vec<String>) -> Option<Self> {
        let [notification_id, route_id] = <[String; 2]>::try_from(texts).ok()?;
        Some(Self { created_at, key: RouteKey { notification_id: notification_id.into(), route_id } })
    }
}

/// A discard of a dead letter: its time, operator and reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Discarded {
    /// Time of the discard.
    pub at: Timestamp,
    /// The operator: the name of a token, or `user@host`.
    pub by: String,
    /// The reason, in the operator's words.
    pub reason: String,
}

/// A route whose retry budget is spent, and the type of its notification.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct DeadLetter {
    /// Key of its route.
    #[serde(flatten, serialize_with = "route_members")]
    #[schemars(with = "RouteMembers<'_>")]
    pub key: RouteKey,
    /// The type of its notification.
    pub notification_type: String,
    /// The channel of the route.
    pub channel: Channel,
    /// Recipient of the route.
    pub recipient_ref: String,
    /// Total failed attempts.
    pub final_attempt_count: u32,
    /// Budget of attempts.
    pub max_attempts: u32,
    /// Classification of the last failure.
    pub failure_classification: String,
    /// Message of the last failure, for an operator.
    pub failure_message: String,
    /// Possible action of an operator.
    pub recovery_hint: String,
    /// Time of the last failed attempt.
    pub created_at: Timestamp,
    /// The discard, if an operator discarded the dead letter.
    #[serde(flatten, serialize_with = "discard_members")]
    #[schemars(with = "DiscardMembers<'_>")]
    pub discarded: Option<Discarded>,
}

#[derive(Serialize, JsonSchema)]
struct RouteMembers<'a> {
    /// `<notification_id>/<route_id>`: an id for `ids` of a replay or discard.
    id: String,
    notification_id: &'a NotificationId,
    route_id: &'a str,
}

fn route_members<S: Serializer>(key: &RouteKey, serializer: S) -> Result<S::Ok, S::Error> {
    let RouteKey { notification_id, route_id } = key;
    RouteMembers { id: key.to_string(), notification_id, route_id }.serialize(serializer)
}

#[derive(Serialize, JsonSchema)]
struct DiscardMembers<'a> {
    /// Time of the discard; `null` if no operator discarded it.
    discarded_at: Option<Timestamp>,
    /// The operator: the name of a token, or `user@host`.
    discarded_by: Option<&'a str>,
    /// The reason, in the operator's words.
    discard_reason: Option<&'a str>,
}

fn discard_members<S: Serializer>(discard: &Option<Discarded>, serializer: S) -> Result<S::Ok, S::Error> {
    let discard = discard.as_ref();
    DiscardMembers {
        discarded_at: discard.map(|discard| discard.at),
        discarded_by: discard.map(|discard| &*discard.by),
        discard_reason: discard.map(|discard| &*discard.reason),
    }
    .serialize(serializer)
}

impl DeadLetter {
    /// Its place in the list.
    pub fn place(&self) -> DeadLetterPlace {
        DeadLetterPlace { created_at: self.created_at, key: self.key.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explanation::tests::pending;
    use crate::query::{Route, intent_trace_fixture};

    #[test]
    fn a_numbered_place_has_no_route_id_and_is_resolved_to_the_same_place() {
        let admin = Route { route_id: "email:email:a@b".into(), route_number: 1, ..pending() };
        let user = Route { route_number: 2, ..pending() };
        let found = Notification { routes: vec![admin, user], ..intent_trace_fixture(Timestamp::UNIX_EPOCH) };
        for route in &found.routes {
            let place = DeadLetterPlace { created_at: Timestamp::UNIX_EPOCH, key: found.key_of(route) };
            let numbered = place.clone().numbered(Some(&found));
            assert_eq!(numbered.key.route_id, format!("#{}", route.route_number));
            assert_eq!(numbered.clone().resolved(Some(&found)), Some(place.clone()));
            let after_all = numbered.resolved(None).expect("is resolved");
            assert_eq!((after_all.key.route_id.as_str(), &after_all), ("", &place.clone().numbered(None)));
            assert_eq!(place.resolved(Some(&found)), None, "an id is no number");
        }
    }
}
