//! Evaluates operators' searches on notifications that were read one by one, to compare with the results of
//! SQL.

use domain::query::{Notification, Route, SEARCH_NAMES, SearchName};
use state::json::Json;
use state::query::{Condition, Filter, Group, NameKind, Names};

struct KnownSearchNames;

impl Names for KnownSearchNames {
    fn kind(&self, name: &str) -> Option<NameKind> {
        SearchName::parse(name).map(|found| if found.is_time() { NameKind::Time } else { NameKind::Json })
    }

    fn describe(&self) -> &str {
        SEARCH_NAMES
    }
}

/// Returns true if the notification matches the filter, which must be valid.
pub(super) fn matches(filter: &str, notification: &Notification) -> bool {
    let filter = Filter::parse(filter.as_bytes(), &KnownSearchNames).expect("the filter is valid");
    let payload = Json::parse(notification.payload_json.as_bytes()).ok();
    Candidate { notification, payload }.matches(&filter)
}

/// A notification that may match.
struct Candidate<'a> {
    notification: &'a Notification,
    /// `None` if the payload is not JSON.
    payload: Option<Json>,
}

impl Candidate<'_> {
    fn matches(&self, filter: &Filter) -> bool {
        let of_route =
            |condition: &&Condition| SearchName::parse(&condition.name).is_some_and(SearchName::is_of_route);
        let (of_routes, of_record): (Vec<&Condition>, Vec<&Condition>) =
            filter.conditions.iter().partition(of_route);
        let passes = |condition: &&Condition, route: Option<&Route>| {
            let name = SearchName::parse(&condition.name);
            condition.test.passes(name.and_then(|name| self.value(name, route)).as_ref())
        };
        let one_route = || {
            let routes = &self.notification.routes;
            routes.iter().any(|route| of_routes.iter().all(|condition| passes(condition, Some(route))))
        };
        of_record.iter().all(|condition| passes(condition, None))
            && (of_routes.is_empty() || one_route())
            && filter.groups.iter().all(|group| match group {
                Group::And(filters) => filters.iter().all(|filter| self.matches(filter)),
                Group::Or(filters) => filters.iter().any(|filter| self.matches(filter)),
                Group::Not(filter) => !self.matches(filter),
            })
    }

    fn value(&self, name: SearchName<'_>, route: Option<&Route>) -> Option<Json> {
        let found = self.notification;
        let text = |text: &str| Some(Json::String(text.to_owned()));
        let unless_empty = |given: &str| text(given).filter(|_| !given.is_empty());
        match name {
            SearchName::NotificationId => text(found.notification_id.as_str()),
            SearchName::Producer => text(&found.producer),
            SearchName::NotificationType => text(&found.notification_type),
            SearchName::AudienceKind => text(found.audience_kind),
            SearchName::IdempotencyKey => text(&found.idempotency_key),
            SearchName::AcceptedAt => text(&found.accepted_at.to_string()),
            SearchName::OccurredAt => text(&found.occurred_at.to_string()),
            SearchName::RequestId => unless_empty(&found.request_id),
            SearchName::TraceId => unless_empty(&found.trace_id),
            SearchName::Payload(member) => self.payload.as_ref()?.get(member).cloned(),
            SearchName::Recipient => text(recipient(&route?.recipient_ref)?),
            SearchName::RouteChannel => text(route?.channel.as_str()),
            SearchName::RouteStatus => text(route?.status.as_str()),
            SearchName::RouteAttemptCount => Json::parse(route?.attempt_count.to_string().as_bytes()).ok(),
            SearchName::RouteLastErrorClassification => unless_empty(&route?.last_error_classification),
            SearchName::ReceiptStatus => text(route?.receipt.as_ref()?.highest.status.as_str()),
            SearchName::ReceiptAt => text(&route?.receipt.as_ref()?.highest.at.to_string()),
            SearchName::RoutePublishedAt => text(&route?.published_at?.to_string()),
        }
    }
}

fn recipient(reference: &str) -> Option<&str> {
    reference.strip_prefix("user:").or_else(|| reference.strip_prefix("email:"))
}
