//! `If-Match` and `If-None-Match`: one strong quoted value each, or `*`.

use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::error::ApiError;
use crate::{Version, VersionCondition};

/// The value of one of the two headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    /// `*`
    Any,
    /// A quoted value; `None` if it cannot be the version of a document.
    Value(Option<Version>),
}

/// The version as the value of `ETag`.
pub(super) fn etag(version: Version) -> HeaderValue {
    // Cannot fail: digits and quotes are visible ASCII.
    HeaderValue::from_str(&format!("\"{}\"", version.0)).expect("visible ASCII")
}

/// The precondition of a `GET` or `HEAD`.
pub(super) fn of_get(headers: &HeaderMap) -> Result<Option<Tag>, ApiError> {
    forbid(headers, &IF_MATCH)?;
    read(headers, &IF_NONE_MATCH)
}

/// The precondition of a `PUT`.
pub(super) fn of_put(headers: &HeaderMap) -> Result<VersionCondition, ApiError> {
    match (read(headers, &IF_MATCH)?, read(headers, &IF_NONE_MATCH)?) {
        (matching, None) => Ok(condition(matching)),
        (None, Some(Tag::Any)) => Ok(VersionCondition::Absent),
        (None, Some(Tag::Value(_))) => Err(ApiError::bad_request("If-None-Match takes * here")),
        (Some(_), Some(_)) => Err(ApiError::bad_request("If-Match and If-None-Match exclude each other")),
    }
}

/// The precondition of a `PATCH` or `DELETE`.
pub(super) fn of_change(headers: &HeaderMap) -> Result<VersionCondition, ApiError> {
    forbid(headers, &IF_NONE_MATCH)?;
    read(headers, &IF_MATCH).map(condition)
}

fn condition(tag: Option<Tag>) -> VersionCondition {
    match tag {
        None => VersionCondition::Any,
        Some(Tag::Any) => VersionCondition::Exists,
        Some(Tag::Value(version)) => VersionCondition::Is(version),
    }
}

fn forbid(headers: &HeaderMap, name: &HeaderName) -> Result<(), ApiError> {
    let message = || format!("{} has no meaning for this method", shown(name));
    if headers.contains_key(name) { Err(ApiError::bad_request(message())) } else { Ok(()) }
}

fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tag>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let tag = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => parse(value.as_bytes()),
        (Some(_), Some(_)) => None,
    };
    let message = || format!("{} takes one strong value in quotes, or *", shown(name));
    tag.map(Some).ok_or_else(|| ApiError::bad_request(message()))
}

fn shown(name: &HeaderName) -> &'static str {
    if *name == IF_MATCH { "If-Match" } else { "If-None-Match" }
}

fn parse(value: &[u8]) -> Option<Tag> {
    if value == b"*" {
        return Some(Tag::Any);
    }
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    // RFC 9110: visible characters without quotes, and bytes beyond ASCII.
    let is_tag = inner.iter().all(|byte| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..));
    is_tag.then(|| Tag::Value(version(inner)))
}

/// The version, if the text has the form in which versions are returned.
fn version(text: &[u8]) -> Option<Version> {
    let text = str::from_utf8(text).ok()?;
    let version: i64 = text.parse().ok()?;
    (version >= 0 && version.to_string() == text).then_some(Version(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strong_quoted_value_or_a_star_is_taken_and_nothing_else() {
        let version = |version| Some(Tag::Value(Some(Version(version))));
        for (value, expected) in [
            ("*", Some(Tag::Any)),
            ("\"0\"", version(0)),
            ("\"9223372036854775807\"", version(i64::MAX)),
            ("\"9223372036854775808\"", Some(Tag::Value(None))),
            ("\"\"", Some(Tag::Value(None))),
            ("\"abc\"", Some(Tag::Value(None))),
            ("\"-1\"", Some(Tag::Value(None))),
            ("\"+1\"", Some(Tag::Value(None))),
            ("\"01\"", Some(Tag::Value(None))),
            ("\"*\"", Some(Tag::Value(None))),
            ("\"1,2\"", Some(Tag::Value(None))),
            ("\"ü\"", Some(Tag::Value(None))),
            ("", None),
            ("1", None),
            ("\"", None),
            ("\"1", None),
            ("1\"", None),
            ("W/\"1\"", None),
            ("w/\"1\"", None),
            ("\"1\", \"2\"", None),
            ("\"1\",", None),
            ("*, \"1\"", None),
            ("\"a b\"", None),
            ("'1'", None),
        ] {
            assert_eq!(parse(value.as_bytes()), expected, "{value}");
        }
    }
}
