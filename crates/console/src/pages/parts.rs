//! Shared parts of the pages about notifications: states of routes, facts, filter fields, formatted JSON.

use std::collections::BTreeSet;

use ambient::Timestamp;
use domain::catalog::Catalog;
use domain::document::Guarded;
use domain::query::{DEFAULT_PAGE_ITEMS, MAX_PAGE_ITEMS, PageLimit};
use domain::route::RouteStatus;
use maud::{Markup, html};
use url::form_urlencoded;

use crate::error::PageError;
use crate::params::Params;
use crate::widgets::{badge, pager};

/// The page sizes to choose from.
const PAGE_SIZES: [usize; 3] = [DEFAULT_PAGE_ITEMS, 100, MAX_PAGE_ITEMS];

/// The depth up to which JSON is indented; deeper levels have the indentation of this level.
const INDENTED_LEVELS: usize = 32;

/// The name of a route's state.
pub(crate) fn status_name(status: RouteStatus) -> &'static str {
    match status {
        RouteStatus::DeadLetter => "dead letter",
        other => other.as_str(),
    }
}

/// The badge of a route's state.
pub(crate) fn status(status: RouteStatus) -> Markup {
    badge(status.tone(), status_name(status))
}

/// A list of names and values.
pub(crate) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in facts {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// The note in place of personal data that the token does not see.
pub(crate) fn withheld() -> Markup {
    html! { span.soft { "withheld: your token does not see personal data" } }
}

/// A text that may be withheld.
pub(crate) fn guarded(text: &Guarded, show: fn(&str) -> Markup) -> Markup {
    text.shown().map_or_else(withheld, show)
}

/// Encodes a text as one part of a path.
pub(crate) fn segment(text: &str) -> String {
    // A plus means a space only in a query.
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// The address of the page of a notification.
pub(crate) fn notification_path(id: &str) -> String {
    format!("/console/notifications/{}", segment(id))
}

/// A filter field for a text. `list` is the id of a list of suggestions.
pub(crate) fn text_field(params: &Params, name: &str, label: &str, list: Option<&str>) -> Markup {
    html! {
        div {
            label for={ "f-" (name) } { (label) }
            input #{ "f-" (name) } name=(name) type="text" value=[params.text(name)] list=[list] autocomplete="off" spellcheck="false";
        }
    }
}

/// A filter field for a time.
pub(crate) fn time_field(name: &str, label: &str, value: Option<Timestamp>) -> Markup {
    // Up to its second, a time has 19 characters, all ASCII.
    let value = value.map(|time| time.to_string().get(..19).unwrap_or_default().to_owned());
    html! {
        div {
            label for={ "f-" (name) } { (label) }
            input #{ "f-" (name) } name=(name) type="datetime-local" step="1" value=[value];
        }
    }
}

/// A filter field for one of several values, each with its label; the first is the default.
pub(crate) fn choice_field(params: &Params, name: &str, label: &str, choices: &[(&str, &str)]) -> Markup {
    let chosen = params.text(name).unwrap_or_default();
    html! {
        div {
            label for={ "f-" (name) } { (label) }
            select #{ "f-" (name) } name=(name) {
                @for (value, label) in choices {
                    option value=(value) selected[*value == chosen] { (label) }
                }
            }
        }
    }
}

/// The field for the number of items of a page.
pub(crate) fn size_field(limit: PageLimit) -> Markup {
    // The address may contain another size, which the next use of the filter keeps.
    let sizes: BTreeSet<usize> = PAGE_SIZES.into_iter().chain([limit.get()]).collect();
    html! {
        div {
            label for="f-limit" { "Rows on a page" }
            select #f-limit name="limit" {
                @for size in sizes { option value=(size) selected[size == limit.get()] { (size) } }
            }
        }
    }
}

/// The form that filters a list. Its fields are folded while nothing is filtered, so that the rows come
/// first.
pub(crate) fn filter_form(path: &str, label: &str, params: &Params, fields: &Markup) -> Markup {
    html! {
        form.card method="get" action=(path) aria-label=(label) {
            details open[params.is_filtered()] {
                summary { "Filter" }
                div.fields { (fields) (filter_buttons(path)) }
            }
        }
    }
}

/// The buttons of a filter.
pub(crate) fn filter_buttons(path: &str) -> Markup {
    html! {
        div.actions.wide {
            button.primary type="submit" { "Show" }
            a.button href=(path) { "Clear" }
        }
    }
}

/// The producers of the catalogue, as suggestions.
pub(crate) fn producers(catalog: &Catalog) -> Markup {
    let producers = catalog.types().flat_map(|known| known.producers());
    let producers: BTreeSet<&str> = producers.map(String::as_str).collect();
    html! { datalist #producers { @for producer in producers { option value=(producer) {} } } }
}

/// The links to the first page of the list, unless this is the first page, and to the page that begins at
/// `next`.
pub(crate) fn pages(params: &Params, path: &str, next: Option<&str>) -> Markup {
    let first = params.text("cursor").map(|_| params.with(path, "cursor", None));
    let next = next.map(|cursor| params.with(path, "cursor", Some(cursor)));
    pager(first.as_deref(), next.as_deref())
}

/// The number of items of the page.
pub(crate) fn limit(params: &Params) -> Result<PageLimit, PageError> {
    let takes =
        || PageError::Invalid(format!("The parameter limit takes a number from 1 to {MAX_PAGE_ITEMS}."));
    let Some(text) = params.text("limit") else { return Ok(PageLimit::default()) };
    text.parse().ok().and_then(PageLimit::new).ok_or_else(takes)
}

/// Formats JSON on several lines. Returns at most `max` bytes, and true if that is all of it. Numbers and
/// strings stay as they are written; text that is not JSON is returned too. The size of the result bounds the
/// work, even for deeply nested JSON.
pub(crate) fn pretty(json: &str, max: usize) -> (String, bool) {
    let mut out = String::with_capacity(max.min(json.len().saturating_mul(2)));
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let mut characters = json.chars().filter(|c| *c != '\r' && *c != '\n').peekable();
    while out.len() <= max
        && let Some(character) = characters.next()
    {
        if in_string {
            out.push(character);
            in_string = character != '"' || escaped;
            escaped = character == '\\' && !escaped;
            continue;
        }
        match character {
            ' ' | '\t' => {}
            '{' | '[' => {
                out.push(character);
                let empty = characters.peek().is_some_and(|next| matches!(next, '}' | ']'));
                depth += 1;
                if !empty {
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                if !out.ends_with(['{', '[']) {
                    new_line(&mut out, depth);
                }
                out.push(character);
            }
            ',' => {
                out.push(character);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            other => {
                in_string = other == '"';
                out.push(other);
            }
        }
    }
    let is_whole = out.len() <= max;
    out.truncate(out.floor_char_boundary(max));
    (out, is_whole)
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth.min(INDENTED_LEVELS)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_laid_out_and_its_values_stay_as_they_are_written() {
        let json = r#"{"a":[1,12345678901234567890.10],"b":{},"c":"x, {\"y\": 1}\\","d":[],"e":null}"#;
        let expected = "{\n  \"a\": [\n    1,\n    12345678901234567890.10\n  ],\n  \"b\": {},\n  \
            \"c\": \"x, {\\\"y\\\": 1}\\\\\",\n  \"d\": [],\n  \"e\": null\n}";
        assert_eq!(pretty(json, 1_000), (expected.to_owned(), true));
        assert_eq!(pretty(json, expected.len()), (expected.to_owned(), true));
        let same: serde_json::Value = serde_json::from_str(expected).expect("JSON");
        assert_eq!(same, serde_json::from_str::<serde_json::Value>(json).expect("JSON"));
    }

    #[test]
    fn deep_json_is_laid_out_up_to_the_bound_and_no_further() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let many = format!("{}{}1{}", "[".repeat(120), "1,".repeat(50_000), "]".repeat(120));
        for json in [deep, many] {
            let (text, is_whole) = pretty(&json, 20_000);
            assert_eq!((text.len(), is_whole), (20_000, false));
            assert!(text.capacity() <= 40_000, "{}", text.capacity());
            let indented = |line: &str| line.len() - line.trim_start().len();
            assert_eq!(text.lines().map(indented).max(), Some(2 * INDENTED_LEVELS));
        }
    }

    #[test]
    fn a_layout_that_is_cut_ends_with_a_whole_character() {
        assert_eq!(pretty("\"ééé\"", 4), ("\"é".to_owned(), false));
    }

    #[test]
    fn the_size_of_a_page_is_among_the_choices_whatever_it_is() {
        let field = |size| size_field(PageLimit::new(size).expect("a size")).into_string();
        assert!(
            field(7).contains("<option value=\"7\" selected>7</option><option value=\"50\">"),
            "{}",
            field(7)
        );
        assert_eq!(field(100).matches("<option").count(), PAGE_SIZES.len());
    }

    #[test]
    fn an_id_is_one_part_of_a_path_whatever_it_holds() {
        assert_eq!(notification_path("1-0~2"), "/console/notifications/1-0%7E2");
        assert_eq!(segment("a/b ?#%+é"), "a%2Fb%20%3F%23%25%2B%C3%A9");
    }
}
