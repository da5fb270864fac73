//! Dead letters.

use ambient::Timestamp;

use super::cursor::{Place, Query};
use crate::route::{Channel, RouteKey};

/// Which dead letters to list; what is `None` selects nothing out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeadLetterFilter {
    /// Of this channel.
    pub channel: Option<Channel>,
    /// Whose last attempt failed for this reason.
    pub classification: Option<String>,
    /// Of a notification of this type.
    pub notification_type: Option<String>,
    /// Whose last attempt failed at this time or later.
    pub created_after: Option<Timestamp>,
    /// Whose last attempt failed before this time.
    pub created_before: Option<Timestamp>,
    /// Only those that an operator has discarded, or only the others.
    pub discarded: bool,
}

impl DeadLetterFilter {
    /// The conditions that it has but for `discarded`, each with its name in the API.
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
    /// When its last attempt failed.
    pub created_at: Timestamp,
    /// Which route it is.
    pub key: RouteKey,
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

/// Who discarded a dead letter, when and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Discarded {
    /// When.
    pub at: Timestamp,
    /// Who: the name of an operator's token, or `user@host`.
    pub by: String,
    /// Why, in the operator's words.
    pub reason: String,
}

/// A row of `dead_letters`, and the type of its notification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetter {
    /// Its route.
    pub key: RouteKey,
    /// The type of its notification.
    pub notification_type: String,
    /// The channel of the route.
    pub channel: Channel,
    /// Whom it would have reached.
    pub recipient_ref: String,
    /// Failed attempts in all.
    pub final_attempt_count: u32,
    /// How many were allowed.
    pub max_attempts: u32,
    /// Of the last attempt.
    pub failure_classification: String,
    /// Of the last attempt, for an operator.
    pub failure_message: String,
    /// What an operator can do.
    pub recovery_hint: String,
    /// When the last attempt failed.
    pub created_at: Timestamp,
    /// Set if an operator has discarded it.
    pub discarded: Option<Discarded>,
}

impl DeadLetter {
    /// Its place in the list.
    pub fn place(&self) -> DeadLetterPlace {
        DeadLetterPlace { created_at: self.created_at, key: self.key.clone() }
    }
}
