//! `POST /v1/notifications:query`: searches by a filter, by those who read the notifications of all
//! producers.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::json::has_more_values_than;
use domain::personal::Document;
use domain::ports::Queries;
use domain::query::{
    DEFAULT_PAGE_ITEMS, FilterFault, MAX_PAGE_ITEMS, PageLimit, Place, SearchFilter, SearchName,
    SearchOutcome, SearchPlace,
};
use http_server::problem::Problem;
use http_server::tokens::Principal;
use http_server::{JsonText, Object};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::{bad_request, personal_search, query_too_expensive, read_failed, sight_of};
use crate::view::Notifications;

/// The most values and names in the body of a search: more than twice as many as a filter can have.
const MAX_SEARCH_VALUES: usize = 4_096;

/// The conditions of a search. Absent and null members are ignored.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchRequest<'a> {
    #[serde(borrow, default)]
    #[schemars(schema_with = "filter_schema")]
    filter: Option<&'a RawValue>,
    /// The most items of the page.
    #[serde(default)]
    #[schemars(schema_with = "limit_schema")]
    limit: Limit,
    /// `next_cursor` of the page before, with the same filter; absent for the first page.
    cursor: Option<String>,
}

/// The size of a page. A parse error of it contains its place in the body.
#[derive(Default)]
struct Limit(PageLimit);

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Some(items) = Option::<u64>::deserialize(deserializer)? else { return Ok(Self::default()) };
        let limit = usize::try_from(items).ok().and_then(PageLimit::new);
        limit
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("limit takes a number from 1 to {MAX_PAGE_ITEMS}")))
    }
}

fn limit_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": MAX_PAGE_ITEMS,
        "default": DEFAULT_PAGE_ITEMS,
    })
}

/// The schema of a filter: only the names of the outermost object. The description explains their values,
/// because a complete schema would repeat the language.
fn filter_schema(_: &mut SchemaGenerator) -> Schema {
    let fixed: Vec<String> = SearchName::FIXED.iter().map(|(name, _)| name.replace('.', "\\.")).collect();
    let names = format!("^(\\$and|\\$or|\\$not|{}|payload\\.[a-zA-Z_][a-zA-Z0-9_]*)$", fixed.join("|"));
    json_schema!({
        "description": "Conditions by name, all of which must hold: a literal, which the value must equal, or an object of operators \
            (`$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$nin`, `$exists`, `$contains`, `$before`, `$after`). `$and` and `$or` take \
            arrays of such objects, `$not` one. `recipient` and `payload.…` take a token that sees personal data. Times (`accepted_at`, `occurred_at`, `route.published_at`) take `$before` and `$after` \
            only. `recipient` is a user id or an administrator's address. The conditions on `recipient` and `route.…` of one object \
            speak of one and the same route; under `$not`, of no route at all. Without conditions all notifications are found.",
        "type": ["object", "null"],
        "propertyNames": {"pattern": names},
        // Without this, generators of clients produce an object that takes no member.
        "additionalProperties": true,
    })
}

pub(crate) async fn search<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    principal: Principal,
    RawQuery(query): RawQuery,
    JsonText(body): JsonText,
) -> Result<Response, Problem> {
    Params::none(query.as_deref())?;
    if has_more_values_than(&body, MAX_SEARCH_VALUES) {
        return Err(bad_request(format!("A search has at most {MAX_SEARCH_VALUES} values and names.")));
    }
    let request: Result<Object<SearchRequest<'_>>, _> = serde_json::from_str(&body);
    let Object(request) =
        request.map_err(|error| bad_request(format!("The body is not as expected: {error}.")))?;
    let sight = sight_of(&principal);
    let filter = SearchFilter::new(request.filter.map_or("{}", RawValue::get), sight);
    let after = request.cursor.map(|cursor| SearchPlace::from_cursor(&cursor, &filter)).transpose();
    let after = after.map_err(|_| bad_request("The cursor is not one of this filter."))?;
    let after = after.map(|SearchPlace(place)| place);
    let outcome = api.queries.search_notifications(&filter, after.as_ref(), request.limit.0).await;
    match outcome.map_err(|error| read_failed(&error))? {
        SearchOutcome::Found(page) => Ok(Json(Notifications {
            notifications: page.items.seen_by(sight),
            next_cursor: page.next.map(|place| SearchPlace(place).to_cursor(&filter)),
        })
        .into_response()),
        SearchOutcome::Invalid(fault) => {
            let FilterFault { reason, .. } = &fault;
            let (line, column) = request.filter.map_or((1, 1), |raw| place_in(&body, raw.get(), &fault));
            Err(bad_request(format!("The filter is wrong: {reason} at line {line} column {column}.")))
        }
        SearchOutcome::Personal => Err(personal_search()),
        SearchOutcome::TooExpensive => Err(query_too_expensive()),
    }
}

/// The line and the column in the body of a fault in `filter`, which is a part of the body.
fn place_in(body: &str, filter: &str, fault: &FilterFault) -> (usize, usize) {
    let start = (filter.as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    let before = body.get(..start).unwrap_or_default();
    let line = before.matches('\n').count();
    let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1);
    (line + fault.line, if fault.line == 1 { column + fault.column } else { fault.column })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<SearchRequest<'_>, String> {
        let parsed: Result<Object<SearchRequest<'_>>, _> = serde_json::from_str(body);
        parsed.map(|Object(request)| request).map_err(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_from_1_to_200_and_50_if_absent_or_null() {
        let limit = |body: &str| parse(body).map(|request| request.limit.0.get());
        for (body, expected) in
            [("{}", 50), (r#"{"limit": null}"#, 50), (r#"{"limit": 1}"#, 1), (r#"{"limit": 200}"#, 200)]
        {
            assert_eq!(limit(body), Ok(expected), "{body}");
        }
        for wrong in ["0", "201", "-1", "1.5", "\"1\"", "1e1", "true", "[]", "18446744073709551616"] {
            let error = limit(&format!("{{\n \"limit\": {wrong}}}")).expect_err(wrong);
            assert!(error.contains("at line 2 column"), "{error}");
        }
    }

    #[test]
    fn a_fault_of_the_filter_has_its_place_in_the_body() {
        let fault = |line, column| FilterFault { reason: String::new(), line, column };
        let body = "{\"limit\": 1,\n \"filter\": {\"a\":\n 1}}";
        let request = parse(body).expect("a request");
        let filter = request.filter.expect("it is there").get();
        assert_eq!(place_in(body, filter, &fault(1, 2)), (2, 13));
        assert_eq!(&body.lines().nth(1).expect("a line")[12..13], "\"");
        assert_eq!(place_in(body, filter, &fault(2, 2)), (3, 2));
    }

    #[test]
    fn an_unknown_and_a_repeated_member_are_refused() {
        for body in ["{\"sort\": []}", "{\"limit\": 1, \"limit\": 1}", "[]", "null", "{\"cursor\": 1}"] {
            assert!(parse(body).is_err(), "{body}");
        }
    }
}
