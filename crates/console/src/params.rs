//! The parameters in the address of a page, and addresses with parameters.

use std::collections::BTreeMap;
use std::str::FromStr;

use ambient::Timestamp;
use domain::query::Place;
use url::form_urlencoded;

use crate::error::PageError;

/// The longest value of a parameter, in bytes: a search filter, or a cursor.
const MAX_PARAMETER_BYTES: usize = 4_096;

/// The most bytes shown of the name of an unknown parameter.
const MAX_SHOWN_NAME_BYTES: usize = 64;

/// The parameters of a page. A form also sends its empty fields, so an empty value counts as absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params(BTreeMap<String, String>);

impl Params {
    /// Reads the query of an address that may contain these parameters, each once.
    pub(crate) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, PageError> {
        let mut params = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if !known.contains(&&*name) {
                let shown = &name[..name.floor_char_boundary(MAX_SHOWN_NAME_BYTES)];
                let rest = if shown.len() < name.len() { "…" } else { "" };
                return Err(PageError::Invalid(format!(
                    "The page has no parameter of this name: {shown}{rest}"
                )));
            }
            if value.len() > MAX_PARAMETER_BYTES || value.contains('\0') {
                return Err(invalid(&name, &format!("at most {MAX_PARAMETER_BYTES} bytes without NUL")));
            }
            let value = value.trim().to_owned();
            if !value.is_empty() && params.insert(name.clone().into_owned(), value).is_some() {
                return Err(PageError::Invalid(format!("The parameter {name} is there more than once.")));
            }
        }
        Ok(Self(params))
    }

    /// The value of a parameter as text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns true if a parameter selects rows, not only a page of them.
    pub(crate) fn is_filtered(&self) -> bool {
        self.0.keys().any(|name| !matches!(name.as_str(), "limit" | "cursor"))
    }

    /// Parses a value of a closed set, or of a syntax, that `takes` describes.
    pub(crate) fn value<T: FromStr>(&self, name: &str, takes: &str) -> Result<Option<T>, PageError> {
        let parsed = self.text(name).map(str::parse).transpose();
        parsed.map_err(|_| invalid(name, takes))
    }

    /// Parses a time in UTC, in the format of a browser's time field or in RFC 3339.
    pub(crate) fn time(&self, name: &str) -> Result<Option<Timestamp>, PageError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse_time(text).map(Some).ok_or_else(|| invalid(name, "a time such as 2026-04-02T09:30"))
    }

    /// The start of the page, in a list with this filter.
    pub(crate) fn cursor<P: Place>(&self, filter: &P::Filter) -> Result<Option<P>, PageError> {
        let cursor = self.text("cursor").map(|cursor| P::from_cursor(cursor, filter)).transpose();
        cursor.map_err(|_| wrong_cursor())
    }

    /// The address of `path` with these parameters, except that `name` gets `value` or, if it is `None`, is
    /// left out.
    pub(crate) fn with(&self, path: &str, name: &str, value: Option<&str>) -> String {
        let others = self.0.iter().filter(|(found, _)| *found != name);
        let pairs = others
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .chain(value.map(|value| (name, value)));
        address(path, pairs)
    }
}

/// Parses a time in UTC, in the format of a browser's time field or in RFC 3339.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let completed = [text.to_owned(), format!("{text}Z"), format!("{text}:00Z"), format!("{text}T00:00:00Z")];
    completed.iter().find_map(|text| text.parse().ok())
}

/// The address of `path` with these parameters.
pub(crate) fn address<'a>(path: &str, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// The error of a cursor that is not of this list.
pub(crate) fn wrong_cursor() -> PageError {
    PageError::Invalid("The address is no page of this list: start with the first one.".to_owned())
}

fn invalid(name: &str, takes: &str) -> PageError {
    PageError::Invalid(format!("The parameter {name} takes {takes}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["producer", "since", "cursor"];

    fn parse(query: &str) -> Result<Params, PageError> {
        Params::parse(Some(query), &KNOWN)
    }

    #[test]
    fn an_empty_field_of_a_form_is_no_parameter() {
        let params = parse("producer=&since=++").expect("well formed");
        assert_eq!((params.text("producer"), params.text("since")), (None, None));
    }

    #[test]
    fn an_unknown_a_repeated_and_a_long_parameter_are_refused() {
        for query in ["colour=red", "producer=a&producer=b", "producer=%00"] {
            assert!(parse(query).is_err(), "{query}");
        }
        assert!(parse(&format!("producer={}", "p".repeat(MAX_PARAMETER_BYTES + 1))).is_err());
    }

    #[test]
    fn of_the_name_of_an_unknown_parameter_no_more_is_shown_than_the_bound() {
        let shown = |name: &str| match parse(&format!("{name}=1")) {
            Err(PageError::Invalid(what)) => what.split_once(": ").map(|(_, name)| name.to_owned()),
            other => panic!("{other:?}"),
        };
        assert_eq!(shown("colour"), Some("colour".to_owned()));
        assert_eq!(shown(&"x".repeat(64)), Some("x".repeat(64)));
        assert_eq!(shown(&format!("x{}", "é".repeat(100_000))), Some(format!("x{}…", "é".repeat(31))));
    }

    #[test]
    fn a_time_without_an_offset_is_in_utc() {
        let time =
            |text| parse(&format!("since={text}")).expect("well formed").time("since").expect("a time");
        let expected = "2026-04-02T09:30:00Z".parse().ok();
        for text in
            ["2026-04-02T09:30", "2026-04-02T09:30:00", "2026-04-02T09:30:00Z", "2026-04-02T11:30:00%2B02:00"]
        {
            assert_eq!(time(text), expected, "{text}");
        }
        assert_eq!(time("2026-04-02"), "2026-04-02T00:00:00Z".parse().ok());
        assert!(parse("since=yesterday").expect("well formed").time("since").is_err());
    }

    #[test]
    fn an_address_keeps_the_other_parameters_and_encodes_all() {
        let params = parse("producer=a%26b&cursor=x").expect("well formed");
        assert_eq!(params.with("/console/n", "cursor", Some("y z")), "/console/n?producer=a%26b&cursor=y+z");
        assert_eq!(params.with("/console/n", "cursor", None), "/console/n?producer=a%26b");
    }
}
