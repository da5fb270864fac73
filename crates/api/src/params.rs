//! Query strings, in which every parameter must be declared and occur at most once.

use std::collections::BTreeMap;
use std::str::FromStr;

use ambient::Timestamp;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use domain::query::{ActivityPeriod, DEFAULT_PAGE_ITEMS, MAX_PAGE_ITEMS, PageLimit, Place};
use domain::receipt::ReceiptStatus;
use domain::route::{Channel, RouteStatus};
use http_server::problem::Problem;
use idempotency::Key;
use serde_json::{Value, json};
use url::form_urlencoded;

use crate::problems::{bad_request, not_found};

/// The longest value of a parameter, in bytes: longer than any identifier, shorter than a request line.
const MAX_VALUE_BYTES: usize = 1_024;

/// The last part of a path, an id, decoded. Bytes that are not UTF-8 are refused, and NUL too: no id contains
/// it, and PostgreSQL does not accept it.
pub(crate) struct PathId(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Problem> {
        let id = last_part(head, state).await?;
        match id.contains('\0') {
            true => Err(not_found("id")),
            false => Ok(Self(id)),
        }
    }
}

/// The last part of a path, an idempotency key, decoded. A value that cannot be the key of a request is
/// refused.
pub(crate) struct PathKey(pub(crate) Key);

impl<S: Send + Sync> FromRequestParts<S> for PathKey {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Problem> {
        let key = Key::new(&last_part(head, state).await?);
        key.map(Self).map_err(|error| bad_request(format!("The path is wrong: {error}.")))
    }
}

async fn last_part<S: Send + Sync>(head: &mut Parts, state: &S) -> Result<String, Problem> {
    let part = Path::<String>::from_request_parts(head, state).await;
    part.map(|Path(part)| part).map_err(|_| bad_request("The path is not UTF-8 when it is decoded."))
}

/// A parameter that a query string may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    /// The meaning of the parameter, for the OpenAPI document.
    pub(crate) about: &'static str,
}

/// The values that a parameter takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takes {
    Text,
    Time,
    Channel,
    Status,
    Receipt,
    Flag,
    Period,
    Limit,
    Cursor,
}

/// The parameter for the size of a page.
pub(crate) const LIMIT: Param =
    Param { name: "limit", takes: Takes::Limit, about: "The most items of the page." };
/// The parameter for the start of a page.
pub(crate) const CURSOR: Param = Param {
    name: "cursor",
    takes: Takes::Cursor,
    about: "`next_cursor` of the page before, with the same other parameters; absent for the first page.",
};

impl Param {
    pub(crate) const fn new(name: &'static str, takes: Takes, about: &'static str) -> Self {
        Self { name, takes, about }
    }

    /// The schema of the value.
    pub(crate) fn schema(&self) -> Value {
        let text = || json!({"type": "string", "minLength": 1, "maxLength": MAX_VALUE_BYTES, "pattern": r"^[^\u0000-\u001F\u007F-\u009F]*$"});
        match self.takes {
            Takes::Text | Takes::Cursor => text(),
            Takes::Time => {
                json!({"type": "string", "format": "date-time", "examples": ["2026-04-02T09:30:00Z"]})
            }
            Takes::Channel => json!({"type": "string", "enum": Channel::ALL.map(Channel::as_str)}),
            Takes::Status => json!({"type": "string", "enum": RouteStatus::ALL.map(RouteStatus::as_str)}),
            Takes::Receipt => {
                json!({"type": "string", "enum": ReceiptStatus::ALL.map(ReceiptStatus::as_str)})
            }
            Takes::Flag => json!({"type": "boolean", "default": false}),
            Takes::Period => {
                json!({"type": "string", "enum": ActivityPeriod::ALL.map(ActivityPeriod::as_str), "default": "hour"})
            }
            Takes::Limit => {
                json!({"type": "integer", "minimum": 1, "maximum": MAX_PAGE_ITEMS, "default": DEFAULT_PAGE_ITEMS})
            }
        }
    }
}

/// The parameters of a request.
#[derive(Debug)]
pub(crate) struct Params(BTreeMap<String, String>);

impl Params {
    /// Reads a query string that may contain these parameters.
    pub(crate) fn parse(query: Option<&str>, known: &[Param]) -> Result<Self, Problem> {
        let mut params = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if !known.iter().any(|param| param.name == name) {
                return Err(unknown_parameter(known));
            }
            if value.is_empty() || value.len() > MAX_VALUE_BYTES || value.contains(char::is_control) {
                let takes = format!("1 to {MAX_VALUE_BYTES} bytes without control characters");
                return Err(bad_request(format!("The parameter {name} takes {takes}.")));
            }
            if params.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                return Err(bad_request(format!("The parameter {name} is there more than once.")));
            }
        }
        Ok(Self(params))
    }

    /// Checks that a query string has no parameter, for an operation that takes none.
    pub(crate) fn none(query: Option<&str>) -> Result<(), Problem> {
        Self::parse(query, &[]).map(|_| ())
    }

    /// The value of a parameter as text.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// Parses a value of a closed set, or of a syntax, that `takes` describes.
    pub(crate) fn value<T: FromStr>(&self, name: &str, takes: &str) -> Result<Option<T>, Problem> {
        let parsed = self.0.get(name).map(|text| text.parse()).transpose();
        parsed.map_err(|_| bad_request(format!("The parameter {name} takes {takes}.")))
    }

    /// Parses a time.
    pub(crate) fn time(&self, name: &str) -> Result<Option<Timestamp>, Problem> {
        self.value(name, "a time of RFC 3339, such as 2026-04-02T09:30:00Z")
    }

    /// The number of items of a page.
    pub(crate) fn limit(&self) -> Result<PageLimit, Problem> {
        let takes = format!("a number from 1 to {MAX_PAGE_ITEMS}");
        let Some(items) = self.value("limit", &takes)? else { return Ok(PageLimit::default()) };
        PageLimit::new(items).ok_or_else(|| bad_request(format!("The parameter limit takes {takes}.")))
    }

    /// The start of the page, in a list with this filter.
    pub(crate) fn cursor<P: Place>(&self, filter: &P::Filter) -> Result<Option<P>, Problem> {
        let cursor = self.0.get("cursor").map(|cursor| P::from_cursor(cursor, filter)).transpose();
        cursor.map_err(|_| wrong_cursor())
    }
}

/// The problem of a cursor that another query returned.
pub(crate) fn wrong_cursor() -> Problem {
    bad_request("The parameter cursor is not one of this query.")
}

fn unknown_parameter(known: &[Param]) -> Problem {
    let names: Vec<&str> = known.iter().map(|param| param.name).collect();
    bad_request(match names.is_empty() {
        true => "This takes no parameters in the query string.".to_owned(),
        false => format!("There is no parameter of that name; there are {}.", names.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Param; 3] =
        [LIMIT, Param::new("recipient", Takes::Text, ""), Param::new("accepted_after", Takes::Time, "")];

    fn parse(query: &str) -> Result<Params, Problem> {
        Params::parse(Some(query), &KNOWN)
    }

    #[test]
    fn values_are_decoded() {
        let params = parse("recipient=u%2F1+%26").expect("well formed");
        assert_eq!(params.text("recipient").as_deref(), Some("u/1 &"));
        assert!(Params::parse(None, &KNOWN).expect("well formed").text("recipient").is_none());
    }

    #[test]
    fn an_unknown_a_repeated_and_an_empty_parameter_are_refused() {
        for query in ["colour=red", "limit=1&limit=1", "recipient=", "recipient=%00", "recipient=a%0Ab"] {
            assert!(parse(query).is_err(), "{query}");
        }
        assert!(parse(&format!("recipient={}", "u".repeat(MAX_VALUE_BYTES + 1))).is_err());
    }

    #[test]
    fn a_limit_is_from_1_to_200_and_50_if_absent() {
        let limit = |query: &str| parse(query).expect("well formed").limit().map(PageLimit::get);
        assert_eq!((limit(""), limit("limit=1"), limit("limit=200")), (Ok(50), Ok(1), Ok(200)));
        for query in ["limit=0", "limit=201", "limit=-1", "limit=ten"] {
            assert!(limit(query).is_err(), "{query}");
        }
    }

    #[test]
    fn a_time_is_read_with_any_offset_and_anything_else_is_refused() {
        let time = |query: &str| parse(query).expect("well formed").time("accepted_after");
        let utc = time("accepted_after=2026-04-02T09:30:00Z").expect("a time");
        assert_eq!(time("accepted_after=2026-04-02T11:30:00%2B02:00").expect("a time"), utc);
        assert!(time("accepted_after=yesterday").is_err());
    }
}
