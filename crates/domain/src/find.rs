//! Search for an intent, a notification or a route by any of its ids (ADR 0062): the query, and the document
//! that answers it. The rules are in [`crate::explanation::intent`].

use ambient::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::conflict::Conflict;
use crate::document::Tone;
use crate::explanation::intent::Fate;
use crate::query::{MalformedSummary, Notification};
use crate::record::NotificationId;
use crate::route::RouteKey;

/// The most notifications that a result contains whole.
pub const SHOWN_NOTIFICATIONS: usize = 3;
/// The number of the newest notifications whose request and trace ids are compared: these ids have no index.
pub const TRACED_NOTIFICATIONS: usize = 100_000;

/// A search.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FindQuery {
    /// Any id.
    pub name: String,
    /// The name is an idempotency key of this producer.
    pub producer: Option<String>,
    /// The name is the id of an entry of this stream.
    pub stream: Option<String>,
}

/// The answer to a search.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Matches {
    /// The requested id.
    pub name: String,
    /// Everything that the id refers to. If that is nothing, one element or more say so.
    pub found: Vec<Match>,
    /// The places that were searched, as sentences.
    pub searched: Vec<String>,
    /// The first of the notifications in `found`, whole.
    #[schemars(length(max = SHOWN_NOTIFICATIONS))]
    pub notifications: Vec<Notification>,
    /// The error of Redis, if it is unavailable.
    #[serde(skip)]
    pub stream_error: Option<String>,
}

/// Something that an id refers to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Match {
    /// `accepted`, `duplicate`, `conflict`, `malformed` or `unread`; `published`, which is an entry of an
    /// outbound stream; `change`, which is a request of an operator; of an entry whose outcome nothing shows,
    /// `forgotten`. If nothing was found, `trimmed`, `deleted`, `stream_unavailable`, `no_route` or
    /// `unknown`.
    pub outcome: &'static str,
    /// Explanation for a person, without a full stop.
    pub sentence: String,
    /// The notification that the intent became, or that has its key.
    pub notification_id: Option<NotificationId>,
    /// The route, if the id is that of a route.
    pub route_id: Option<String>,
    /// The request of an operator: its actions are those of `GET /v1/actions?request_id=`.
    pub request_id: Option<String>,
    /// The malformed intent.
    pub malformed_intent: Option<MalformedSummary>,
    /// The other intent of a conflict; else `null`.
    pub conflict: Option<Conflict>,
    /// The quality of the outcome.
    #[serde(skip)]
    pub tone: Tone,
    /// False if this says that nothing was found.
    #[serde(skip)]
    pub is_found: bool,
}

impl Match {
    /// The match for `fate` at `now`. `conflict` is that of its malformed intent.
    pub fn new(fate: &Fate, conflict: Option<Conflict>, now: Timestamp) -> Self {
        let members = conflict.as_ref().and_then(Conflict::members);
        let differs = members.map_or_else(String::new, |members| format!("; it differs in {members}"));
        Self {
            outcome: fate.name(),
            sentence: format!("{}{differs}", fate.sentence(now)),
            notification_id: fate.notification().cloned(),
            route_id: fate.route_id().map(str::to_owned),
            request_id: fate.request_id().map(str::to_owned),
            malformed_intent: fate.malformed().cloned(),
            conflict,
            tone: fate.tone(),
            is_found: fate.is_found(),
        }
    }

    /// The key of the route.
    pub fn route(&self) -> Option<RouteKey> {
        let (notification_id, route_id) = self.notification_id.clone().zip(self.route_id.clone())?;
        Some(RouteKey { notification_id, route_id })
    }
}

impl Matches {
    /// Explains the notifications as they are at `now`.
    #[must_use]
    pub fn explained(mut self, now: Timestamp) -> Self {
        self.notifications = self.notifications.into_iter().map(|found| found.explained(now)).collect();
        self
    }

    /// True if anything was found.
    pub fn is_found(&self) -> bool {
        self.found.iter().any(|one| one.is_found)
    }

    /// The ids of the routes of a notification that the name refers to; empty if it refers to all of them.
    pub fn routes_of(&self, id: &NotificationId) -> Vec<&str> {
        let of = self.found.iter().filter(|one| one.notification_id.as_ref() == Some(id));
        of.map(|one| one.route_id.as_deref()).collect::<Option<_>>().unwrap_or_default()
    }
}
