//! The headers of an event: a JSON object of strings.

use std::collections::BTreeMap;

use serde_json::Value;

/// The maximum number of headers of an event.
const MAX_EVENT_HEADERS: usize = 1_000;

/// Parses the headers. The error is the reason why they are invalid.
pub(super) fn parse(headers: &str) -> Result<BTreeMap<String, String>, String> {
    let object = match serde_json::from_str(headers) {
        Ok(Value::Object(object)) => object,
        _ => return Err("INVALID_HEADERS: they must be a JSON object".to_owned()),
    };
    if object.len() > MAX_EVENT_HEADERS {
        let count = object.len();
        return Err(format!("INVALID_HEADERS: there are {count} and there may be {MAX_EVENT_HEADERS}"));
    }
    let text = |(name, value): (String, Value)| match value {
        Value::String(text) => Ok((name, text)),
        _ => Err(format!("INVALID_HEADERS: the value of {} is not a string", quote(&name))),
    };
    object.into_iter().map(text).collect()
}

/// The header `traceparent` if it is a string, even if other headers are invalid.
pub(super) fn traceparent(headers: &str) -> Option<String> {
    match serde_json::from_str(headers) {
        Ok(Value::Object(mut object)) => match object.remove("traceparent") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// Shortens and escapes an untrusted name for use in a message.
fn quote(name: &str) -> String {
    format!("{:?}", name.chars().take(64).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_an_object_of_strings() {
        let parsed = parse(r#"{"b":"2","a":""}"#).expect("strings");
        assert_eq!(
            parsed.into_iter().collect::<Vec<_>>(),
            [("a", ""), ("b", "2")].map(|(n, v)| (n.into(), v.into()))
        );
        for wrong in ["", "[]", "null", r#""a""#, r#"{"a":1}"#, r#"{"a":null}"#, r#"{"a":{"b":"c"}}"#] {
            assert!(parse(wrong).expect_err(wrong).starts_with("INVALID_HEADERS: "), "{wrong}");
        }
    }

    #[test]
    fn a_thousand_headers_are_taken_and_no_more() {
        let headers = |count: usize| {
            let each: Vec<String> = (0..count).map(|n| format!("\"h{n}\":\"\"")).collect();
            format!("{{{}}}", each.join(","))
        };
        assert_eq!(parse(&headers(MAX_EVENT_HEADERS)).map(|parsed| parsed.len()), Ok(MAX_EVENT_HEADERS));
        assert!(parse(&headers(MAX_EVENT_HEADERS + 1)).is_err());
    }

    #[test]
    fn the_trace_is_a_string_whatever_stands_beside_it() {
        assert_eq!(traceparent(r#"{"traceparent":"00-a-b-01","other":1}"#).as_deref(), Some("00-a-b-01"));
        for none in ["", "[]", "{}", r#"{"traceparent":1}"#, r#"{"Traceparent":"00"}"#] {
            assert_eq!(traceparent(none), None, "{none}");
        }
    }
}
