//! The field for a filter of the search language, and its combination with the other fields.

use std::time::Duration;

use domain::personal::Sight;
use domain::query::{FilterFault, NotificationFilter, SEARCH_NAMES, SearchFilter};
use maud::{Markup, html};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::widgets::visible;

/// The text before the typed filter. It is a separate line, so that line numbers in the typed filter are easy
/// to derive.
const BEFORE: &str = "{\"$and\":[\n";

/// Combines the typed filter and the other fields in one search. The error describes an invalid filter.
pub(super) fn combined(
    fields: &NotificationFilter,
    typed: &str,
    sight: Sight,
) -> Result<SearchFilter, String> {
    let object: Result<&RawValue, _> = serde_json::from_str(typed);
    match object {
        Err(error) => return Err(format!("It is not JSON: {error}.")),
        Ok(object) if !object.get().starts_with('{') => return Err("It takes a JSON object.".to_owned()),
        Ok(_) => {}
    }
    let text = |name: &str, value: Option<&str>| value.map(|value| json!({ name: value }));
    let conditions: [Option<Value>; 8] = [
        text("producer", fields.producer.as_deref()),
        text("notification_type", fields.notification_type.as_deref()),
        text("route.status", fields.status.map(|status| status.as_str())),
        text("receipt.status", fields.receipt.map(|status| status.as_str())),
        text("recipient", fields.recipient.as_deref()),
        text("idempotency_key", fields.idempotency_key.as_deref()),
        // The field includes its time, but `$after` in a search excludes it.
        fields
            .accepted_after
            .map(|at| json!({"accepted_at": {"$after": (at - Duration::from_micros(1)).to_string()}})),
        fields.accepted_before.map(|at| json!({"accepted_at": {"$before": at.to_string()}})),
    ];
    let others: String = conditions.into_iter().flatten().map(|condition| format!(",{condition}")).collect();
    Ok(SearchFilter::new(format!("{BEFORE}{typed}\n{others}]}}"), sight))
}

/// Describes the fault in the typed filter.
pub(super) fn explained(fault: &FilterFault, typed: &str) -> String {
    match fault.line.checked_sub(1).filter(|line| (1..=typed.lines().count()).contains(line)) {
        Some(line) => format!("{} at line {line} column {}.", fault.reason, fault.column),
        None => format!("{}.", fault.reason),
    }
}

/// Renders the field. It is collapsed until it is used.
pub(super) fn field(typed: Option<&str>, problem: Option<&str>) -> Markup {
    html! {
        details.wide open[typed.is_some()] {
            summary { "Search by a filter" }
            label for="f-filter" { "Filter (JSON)" }
            textarea #f-filter name="filter" rows="4" spellcheck="false" maxlength="4096" aria-describedby="filter-help"
                aria-invalid=[problem.map(|_| "true")] placeholder="{\"payload.game_id\": \"game-1\"}" { (typed.unwrap_or_default()) }
            @if let Some(problem) = problem {
                p.bad.problem role="alert" { "The filter is wrong: " (visible(problem)) }
            }
            p.hint #filter-help {
                "Conditions by name, all of which must hold, as in the API's search: " code { "{\"route.attempt_count\": {\"$gte\": 2}}" }
                ". A name is " (SEARCH_NAMES) "."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::route::RouteStatus;

    use super::*;

    #[test]
    fn a_filter_and_the_other_fields_must_all_hold() {
        let at = "2026-04-02T09:30:00Z".parse().expect("a time");
        let fields = NotificationFilter {
            producer: Some("a\"b".into()),
            status: Some(RouteStatus::Failed),
            accepted_after: Some(at),
            ..NotificationFilter::default()
        };
        let search = combined(&fields, r#"{"payload.x": 1}"#, Sight::Whole).expect("a filter");
        let found: Value = serde_json::from_str(search.as_str()).expect("JSON");
        let expected = json!({"$and": [
            {"payload.x": 1}, {"producer": "a\"b"}, {"route.status": "failed"},
            {"accepted_at": {"$after": "2026-04-02T09:29:59.999999Z"}},
        ]});
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_no_object_is_refused_and_cannot_end_the_search_early() {
        for typed in ["{} , {}", "{}]}", "[]", "1", "{", "\"{}\""] {
            assert!(combined(&NotificationFilter::default(), typed, Sight::Whole).is_err(), "{typed}");
        }
    }

    #[test]
    fn a_fault_is_told_by_its_place_in_what_was_typed() {
        let fault = |line| FilterFault { reason: "no".into(), line, column: 3 };
        assert_eq!(explained(&fault(3), "{\n\"a\": 1}"), "no at line 2 column 3.");
        assert_eq!(explained(&fault(4), "{\n\"a\": 1}"), "no.");
    }
}
