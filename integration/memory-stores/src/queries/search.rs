//! Searches in memory: each record is evaluated separately.

use domain::query::{
    FilterFault, NotificationSummary, PageLimit, SEARCH_NAMES, SearchFilter, SearchName, SearchOutcome,
};
use domain::record::{Record, RecordCursor};
use state::json::Json;
use state::query::{Condition, Filter, Group, NameKind, Names};

use super::super::database::{Row, ServiceTables};
use super::{page, summary};

struct KnownSearchNames;

impl Names for KnownSearchNames {
    fn kind(&self, name: &str) -> Option<NameKind> {
        SearchName::parse(name).map(|found| if found.is_time() { NameKind::Time } else { NameKind::Json })
    }

    fn describe(&self) -> &str {
        SEARCH_NAMES
    }
}

pub(super) fn search(
    tables: &ServiceTables,
    filter: &SearchFilter,
    after: Option<&RecordCursor>,
    limit: PageLimit,
) -> SearchOutcome {
    let filter = match Filter::parse(filter.as_str().as_bytes(), &KnownSearchNames) {
        Ok(filter) => filter,
        Err(error) => {
            let fault = FilterFault { reason: error.reason, line: error.line, column: error.column };
            return SearchOutcome::Invalid(fault);
        }
    };
    let selected = |record: &&Record| {
        let routes = tables.routes_of(&record.notification_id).collect();
        let payload = Json::parse(record.content.payload_json.as_bytes()).ok();
        Candidate { record, payload, routes }.matches(&filter)
    };
    let items = tables.records.values().filter(selected).map(|record| summary(tables, record)).collect();
    let place = |found: &RecordCursor| (found.accepted_at, found.notification_id.clone());
    SearchOutcome::Found(page(items, after.map(place), limit.get(), NotificationSummary::place, place))
}

/// A record that may match.
struct Candidate<'a> {
    record: &'a Record,
    /// `None` if the payload is not JSON.
    payload: Option<Json>,
    routes: Vec<&'a Row>,
}

impl Candidate<'_> {
    fn matches(&self, filter: &Filter) -> bool {
        let of_route =
            |condition: &&Condition| SearchName::parse(&condition.name).is_some_and(SearchName::is_of_route);
        let (of_routes, of_record): (Vec<&Condition>, Vec<&Condition>) =
            filter.conditions.iter().partition(of_route);
        let passes = |condition: &&Condition, route: Option<&Row>| {
            let name = SearchName::parse(&condition.name);
            condition.test.passes(name.and_then(|name| self.value(name, route)).as_ref())
        };
        let one_route = || {
            self.routes.iter().any(|route| of_routes.iter().all(|condition| passes(condition, Some(route))))
        };
        of_record.iter().all(|condition| passes(condition, None))
            && (of_routes.is_empty() || one_route())
            && filter.groups.iter().all(|group| match group {
                Group::And(filters) => filters.iter().all(|filter| self.matches(filter)),
                Group::Or(filters) => filters.iter().any(|filter| self.matches(filter)),
                Group::Not(filter) => !self.matches(filter),
            })
    }

    fn value(&self, name: SearchName<'_>, route: Option<&Row>) -> Option<Json> {
        let Record { notification_id, idempotency_key, audience_kind, content, .. } = self.record;
        let text = |text: &str| Some(Json::String(text.to_owned()));
        let unless_empty = |given: &str| text(given).filter(|_| !given.is_empty());
        match name {
            SearchName::NotificationId => text(notification_id.as_str()),
            SearchName::Producer => text(&idempotency_key.producer),
            SearchName::NotificationType => text(&content.notification_type),
            SearchName::AudienceKind => text(audience_kind),
            SearchName::IdempotencyKey => text(&idempotency_key.key),
            SearchName::AcceptedAt => text(&content.accepted_at.to_string()),
            SearchName::OccurredAt => text(&content.occurred_at.to_string()),
            SearchName::RequestId => unless_empty(&content.request_id),
            SearchName::TraceId => unless_empty(&content.trace_id),
            SearchName::Payload(member) => self.payload.as_ref()?.get(member).cloned(),
            SearchName::Recipient => text(recipient(&route?.route.recipient_ref)?),
            SearchName::RouteChannel => text(route?.route.channel.as_str()),
            SearchName::RouteStatus => text(route?.status.as_str()),
            SearchName::RouteAttemptCount => {
                Json::parse(route?.route.attempt_count.to_string().as_bytes()).ok()
            }
            SearchName::RouteLastErrorClassification => unless_empty(route?.last_error_classification),
            SearchName::RoutePublishedAt => text(&route?.published_at?.to_string()),
        }
    }
}

fn recipient(reference: &str) -> Option<&str> {
    reference.strip_prefix("user:").or_else(|| reference.strip_prefix("email:"))
}
