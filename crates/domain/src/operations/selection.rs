//! Selections of routes, and positions in the lists from which a filter selects.

use ambient::Timestamp;

use crate::query::{DeadLetterFilter, DeadLetterPlace};
use crate::record::NotificationId;
use crate::route::{Channel, RouteKey};

/// The routes that a request selects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// Routes with these ids, `<notification_id>/<route_id>`, at most
    /// [`MAX_ROUTES_PER_REQUEST`](super::MAX_ROUTES_PER_REQUEST).
    Ids(Vec<String>),
    /// Dead letters that the list would show; `discarded` is ignored here.
    DeadLetters(DeadLetterFilter),
    /// Other routes. The change determines their state.
    Routes(RouteFilter),
}

impl Selection {
    /// The conditions of a filter, each with its name in the API; `None` for ids.
    pub fn named_conditions(&self) -> Option<Vec<(&'static str, String)>> {
        match self {
            Self::Ids(_) => None,
            Self::DeadLetters(filter) => Some(filter.named_conditions()),
            Self::Routes(filter) => Some(filter.named_conditions()),
        }
    }
}

/// A filter of routes that are not dead letters; a field that is `None` does not restrict the selection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteFilter {
    /// The notification.
    pub notification_id: Option<NotificationId>,
    /// The channel of the route.
    pub channel: Option<Channel>,
    /// The type of the notification.
    pub notification_type: Option<String>,
    /// The producer of the notification.
    pub producer: Option<String>,
    /// The recipient: a user, by id, or an administrator, by address.
    pub recipient: Option<String>,
    /// The earliest time, inclusive: of acceptance for live routes, of publication for published ones.
    pub since: Option<Timestamp>,
    /// The latest time, exclusive. A route that was sent again counts by the later of both times.
    pub until: Option<Timestamp>,
}

impl RouteFilter {
    /// The conditions that are set, each with its name in the API.
    pub fn named_conditions(&self) -> Vec<(&'static str, String)> {
        let conditions = [
            ("notification_id", self.notification_id.as_ref().map(|id| id.as_str().to_owned())),
            ("channel", self.channel.map(|channel| channel.as_str().to_owned())),
            ("notification_type", self.notification_type.clone()),
            ("producer", self.producer.clone()),
            ("recipient", self.recipient.clone()),
            ("since", self.since.map(|at| at.to_string())),
            ("until", self.until.map(|at| at.to_string())),
        ];
        conditions.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The `recipient_ref` of the recipient, as a user and as an administrator: an id may look like an
    /// address. Empty without a recipient.
    pub fn recipients(&self) -> Vec<String> {
        let named = |name: &String| [format!("user:{name}"), format!("email:{name}")];
        self.recipient.iter().flat_map(named).collect()
    }

    /// True if it selects every route.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A position in a list of targets. The list continues after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TargetPlace {
    /// A position in the list of dead letters.
    DeadLetter(DeadLetterPlace),
    /// A position in the list of live routes.
    Live(LivePlace),
    /// A position among the published routes: the time of acceptance and the key of the last one.
    Published(Timestamp, RouteKey),
    /// A position among the routes of one notification: the last id.
    OfNotification(String),
}

/// A position in the list of the live routes of a channel, in the order in which they are due.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LivePlace {
    /// The channel.
    pub channel: Channel,
    /// The due time of the last listed route, as stored: that of a held route is no [`Timestamp`].
    pub next_attempt_at: String,
    /// The key of the last listed route.
    pub key: RouteKey,
}

impl LivePlace {
    /// The position before the first live route of `channel`.
    pub fn beginning(channel: Channel) -> Self {
        let key = RouteKey { notification_id: String::new().into(), route_id: String::new() };
        Self { channel, next_attempt_at: "-infinity".to_owned(), key }
    }
}
