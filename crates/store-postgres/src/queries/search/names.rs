//! The columns and documents behind the names of a search.

use domain::query::{SEARCH_NAMES, SearchName};
use state::query::compile::{FilterTarget, Source};
use state::query::expressions::{Member, Path, helper_name};
use state::query::{Filter, NameKind, Names};

use crate::schema::receipts_table;

/// The payload as a document, in the SQL of [`OnRecords::join_payload`].
const PAYLOAD: &str = "payload.document";
/// The user's id or the administrator's address; NULL for a route without a recipient.
const RECIPIENT: &str = "(CASE WHEN starts_with(routes.recipient_ref, 'user:') THEN substr(routes.recipient_ref, 6) \
     WHEN starts_with(routes.recipient_ref, 'email:') THEN substr(routes.recipient_ref, 7) END)";

/// The receipt of a route as a document; NULL if it has none.
const RECEIPT: &str = "(SELECT value FROM receipts \
     WHERE key = routes.notification_id || '/' || routes.route_id LIMIT 1)";

/// The names that a filter may use.
pub(super) struct SearchNames;

impl Names for SearchNames {
    fn kind(&self, name: &str) -> Option<NameKind> {
        SearchName::parse(name).map(|found| if found.is_time() { NameKind::Time } else { NameKind::Json })
    }

    fn describe(&self) -> &str {
        SEARCH_NAMES
    }
}

/// The records, their payloads and their routes.
pub(super) struct OnRecords {
    /// The members of the payload that the filter uses.
    members: Vec<Member>,
    /// The members of a receipt that a filter may use.
    receipt_status: Option<Member>,
    receipt_at: Option<Member>,
    /// The function that reads times within payloads. A migration creates it with the table of receipts.
    helper: String,
}

impl OnRecords {
    pub(super) fn of(filter: &Filter) -> Self {
        let payload = |name: &str| match SearchName::parse(name) {
            Some(SearchName::Payload(member)) => Member::new(member),
            _ => None,
        };
        Self {
            receipt_status: Member::new("status"),
            receipt_at: Member::new("at"),
            members: filter.names().into_iter().filter_map(payload).collect(),
            helper: helper_name(receipts_table().as_str()),
        }
    }

    /// A member of the receipt of a route.
    fn receipt<'a>(&'a self, member: &'a Member) -> Source<'a> {
        let path = Path { document: RECEIPT, member, helper: &self.helper };
        Source::Member { path, indexed: Vec::new(), in_order: false }
    }

    /// Converts the payload of each record to a document, once for all conditions on it, and only for records
    /// that meet the other conditions of the outermost object: an offset keeps the planner from repeating the
    /// function in each condition.
    pub(super) fn join_payload(&self) -> &'static str {
        if self.members.is_empty() {
            return "";
        }
        "JOIN LATERAL (SELECT payload_document(records.payload_json) AS document OFFSET 0) AS payload ON true"
    }
}

impl FilterTarget for OnRecords {
    fn source(&self, name: &str) -> Option<Source<'_>> {
        let text = |column: &str| Source::Text { column: column.to_owned(), helper: &self.helper };
        let time = |column: &str| Source::Time(column.to_owned());
        Some(match SearchName::parse(name)? {
            SearchName::NotificationId => text("records.notification_id"),
            SearchName::Producer => text("records.producer"),
            SearchName::NotificationType => text("records.notification_type"),
            SearchName::AudienceKind => text("records.audience_kind"),
            SearchName::IdempotencyKey => text("records.idempotency_key"),
            SearchName::AcceptedAt => time("records.accepted_at"),
            SearchName::OccurredAt => time("records.occurred_at"),
            SearchName::RequestId => text("nullif(records.request_id, '')"),
            SearchName::TraceId => text("nullif(records.trace_id, '')"),
            SearchName::Recipient => text(RECIPIENT),
            SearchName::RouteChannel => text("routes.channel"),
            SearchName::RouteStatus => text("routes.status"),
            SearchName::RouteAttemptCount => Source::Integer("routes.attempt_count".to_owned()),
            SearchName::RouteLastErrorClassification => text("nullif(routes.last_error_classification, '')"),
            SearchName::RoutePublishedAt => time("routes.published_at"),
            SearchName::ReceiptStatus => self.receipt(self.receipt_status.as_ref()?),
            SearchName::ReceiptAt => self.receipt(self.receipt_at.as_ref()?),
            SearchName::Payload(name) => {
                let member = self.members.iter().find(|member| member.as_str() == name)?;
                let path = Path { document: PAYLOAD, member, helper: &self.helper };
                Source::Member { path, indexed: Vec::new(), in_order: false }
            }
        })
    }

    fn relation(&self, name: &str) -> Option<&'static str> {
        SearchName::parse(name).filter(|found| found.is_of_route()).map(|_| "routes")
    }

    /// A subquery by the primary key of the routes, for each record separately. Unlike `EXISTS`, the planner
    /// never turns it into a scan of all rows of the table.
    fn some_row(&self, _: &'static str, condition: String) -> String {
        format!(
            "coalesce((SELECT true FROM routes
                WHERE routes.notification_id = records.notification_id AND {condition} LIMIT 1), false)"
        )
    }
}
