//! Operators' searches: notifications by conditions on themselves, on their routes and on their payloads.
//!
//! Defines the names and the column that each refers to; the filter language is that of the stores, which
//! parse the filter.

use ambient::Timestamp;

use super::cursor::{Place, Query};
use super::{NotificationSummary, Page};
use crate::personal::Sight;
use crate::record::RecordCursor;

/// The names of a search, as the end of the sentence "a name must be …".
pub const SEARCH_NAMES: &str = "one of notification_id, producer, notification_type, audience_kind, idempotency_key, accepted_at, \
     occurred_at, request_id, trace_id, recipient, route.channel, route.status, route.attempt_count, \
     route.last_error_classification, route.published_at, receipt.status, receipt.at and payload.<member>";

/// Prefix of names that refer to a member of the payload.
const PAYLOAD: &str = "payload.";

/// The column or member that a name of a search refers to. Empty text in the tables counts as missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchName<'a> {
    /// The id of the notification.
    NotificationId,
    /// Producer.
    Producer,
    /// Type of the notification.
    NotificationType,
    /// `user` or `admin_email`.
    AudienceKind,
    /// The key that the producer chose.
    IdempotencyKey,
    /// Time of acceptance.
    AcceptedAt,
    /// Time of the event, according to the producer.
    OccurredAt,
    /// Id of the originating request.
    RequestId,
    /// Id of the trace that the notification belongs to.
    TraceId,
    /// Recipient of a route: the user's id or the administrator's address.
    Recipient,
    /// Channel of a route.
    RouteChannel,
    /// State of a route.
    RouteStatus,
    /// Failed attempts of a route.
    RouteAttemptCount,
    /// Classification of the last failure of a route, or the reason for skipping it.
    RouteLastErrorClassification,
    /// Time of publication of a route.
    RoutePublishedAt,
    /// Highest status that the consumer of a route reported.
    ReceiptStatus,
    /// Time of that report, according to the consumer.
    ReceiptAt,
    /// Member of the payload with this name.
    Payload(&'a str),
}

impl SearchName<'static> {
    /// All names except those of members of the payload.
    pub const FIXED: [(&'static str, Self); 17] = [
        ("notification_id", Self::NotificationId),
        ("producer", Self::Producer),
        ("notification_type", Self::NotificationType),
        ("audience_kind", Self::AudienceKind),
        ("idempotency_key", Self::IdempotencyKey),
        ("accepted_at", Self::AcceptedAt),
        ("occurred_at", Self::OccurredAt),
        ("request_id", Self::RequestId),
        ("trace_id", Self::TraceId),
        ("recipient", Self::Recipient),
        ("route.channel", Self::RouteChannel),
        ("route.status", Self::RouteStatus),
        ("route.attempt_count", Self::RouteAttemptCount),
        ("route.last_error_classification", Self::RouteLastErrorClassification),
        ("route.published_at", Self::RoutePublishedAt),
        ("receipt.status", Self::ReceiptStatus),
        ("receipt.at", Self::ReceiptAt),
    ];
}

impl<'a> SearchName<'a> {
    /// Parses a name; `None` if there is no such name.
    pub fn parse(name: &'a str) -> Option<Self> {
        if let Some(member) = name.strip_prefix(PAYLOAD) {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            let begins_well = member.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
            return (begins_well && member.bytes().all(is_part)).then_some(Self::Payload(member));
        }
        let fixed = SearchName::FIXED.iter().find(|(known, _)| *known == name);
        fixed.map(|(_, found)| *found)
    }

    /// True for a time, which may only be compared with before and after.
    pub fn is_time(self) -> bool {
        matches!(self, Self::AcceptedAt | Self::OccurredAt | Self::RoutePublishedAt)
    }

    /// True for personal data: a search by it would tell a reader who may not see it what it is.
    pub fn is_personal(self) -> bool {
        matches!(self, Self::Recipient | Self::Payload(_))
    }

    /// True for a column of routes or of their receipts: all such conditions in one object of a filter refer
    /// to the same route.
    pub fn is_of_route(self) -> bool {
        use SearchName as Name;
        matches!(
            self,
            Name::Recipient
                | Name::RouteChannel
                | Name::RouteStatus
                | Name::RouteAttemptCount
                | Name::RouteLastErrorClassification
                | Name::RoutePublishedAt
                | Name::ReceiptStatus
                | Name::ReceiptAt
        )
    }
}

/// A filter of a search: the JSON that the client sent. The store parses it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchFilter {
    json: String,
    sight: Sight,
}

impl SearchFilter {
    /// Wraps this JSON, of a reader with this sight, without parsing it.
    pub fn new(json: impl Into<String>, sight: Sight) -> Self {
        Self { json: json.into(), sight }
    }

    /// The JSON.
    pub fn as_str(&self) -> &str {
        &self.json
    }

    /// True if the reader may search by this name.
    pub fn allows(&self, name: &str) -> bool {
        self.sight == Sight::Whole || !SearchName::parse(name).is_some_and(SearchName::is_personal)
    }
}

/// The default filter selects every notification.
impl Default for SearchFilter {
    fn default() -> Self {
        Self::new("{}", Sight::Whole)
    }
}

/// Filters that differ only in white space between tokens are the same query.
impl Query for SearchFilter {
    const LIST: &'static str = "search";

    fn conditions(&self) -> Vec<Option<String>> {
        let (mut in_string, mut escaped) = (false, false);
        let kept = |character: &char| {
            let keep = in_string || !character.is_ascii_whitespace();
            in_string ^= *character == '"' && !escaped;
            escaped = in_string && *character == '\\' && !escaped;
            keep
        };
        vec![Some(self.json.chars().filter(kept).collect())]
    }
}

/// A place in the results of a search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchPlace(pub RecordCursor);

impl Place for SearchPlace {
    type Filter = SearchFilter;

    fn parts(&self) -> (Timestamp, Vec<&str>) {
        self.0.parts()
    }

    fn from_parts(at: Timestamp, texts: Vec<String>) -> Option<Self> {
        RecordCursor::from_parts(at, texts).map(Self)
    }
}

/// The fault of a filter and its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterFault {
    /// Description of the fault.
    pub reason: String,
    /// Line in the text of the filter, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub column: usize,
}

/// The outcome of a search.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SearchOutcome {
    /// A page of the results.
    Found(Page<NotificationSummary, RecordCursor>),
    /// The text is not a filter.
    Invalid(FilterFault),
    /// The filter names personal data, which the reader may not see.
    Personal,
    /// The search exceeded the time limit of a query. A narrower search may succeed.
    TooExpensive,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_what_it_is_called_and_is_told_to_the_client() {
        for (name, expected) in SearchName::FIXED {
            assert_eq!(SearchName::parse(name), Some(expected));
            assert!(SEARCH_NAMES.split([' ', ',']).any(|word| word == name), "{name}");
            assert_eq!(expected.is_time(), name.ends_with("_at"), "{name}");
            let is_of_route =
                ["route.", "receipt."].iter().any(|prefix| name.starts_with(prefix)) || name == "recipient";
            assert_eq!(expected.is_of_route(), is_of_route, "{name}");
        }
        assert_eq!(SearchName::parse("payload.turn_number"), Some(SearchName::Payload("turn_number")));
        for name in [
            "",
            "payload",
            "payload.",
            "payload.a.b",
            "payload.1",
            "payload.a-b",
            "payload.é",
            "route.",
            "Producer",
        ] {
            assert_eq!(SearchName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn only_a_reader_of_personal_data_searches_by_recipients_and_payloads() {
        let fixed = SearchName::FIXED.iter().map(|(name, _)| *name);
        let refused = |sight| {
            let filter = SearchFilter::new("{}", sight);
            let names = fixed.clone().chain(["payload.x"]).filter(|name| !filter.allows(name));
            names.collect::<Vec<_>>()
        };
        assert_eq!(refused(Sight::Masked), ["recipient", "payload.x"]);
        assert!(refused(Sight::Whole).is_empty());
    }

    #[test]
    fn a_cursor_is_of_its_filter_however_that_is_laid_out_and_of_no_other() {
        let of = |json| SearchFilter::new(json, Sight::Whole);
        let place = SearchPlace(RecordCursor::before(Timestamp::UNIX_EPOCH));
        let cursor = place.to_cursor(&of(r#"{"producer":"a \" b"}"#));
        let same = of("{ \"producer\" :\n\t\"a \\\" b\" }");
        assert_eq!(SearchPlace::from_cursor(&cursor, &same), Ok(place));
        for other in
            [r#"{"producer":"a\"b"}"#, r#"{"producer":"a \"  b"}"#, r#"{"producer":"a \" b"} "x y""#, "{}"]
        {
            assert!(SearchPlace::from_cursor(&cursor, &of(other)).is_err(), "{other}");
        }
    }
}
