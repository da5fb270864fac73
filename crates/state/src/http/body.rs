//! Bodies of requests.

use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use http_server::has_media_type;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::ApiError;
use crate::Key;

/// The most keys of one `batchGet`.
pub(super) const MAX_BATCH_KEYS: usize = 1_000;

/// The required media type of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MediaTypes {
    /// `application/json`, or no type.
    Json,
    /// `application/merge-patch+json`, required.
    MergePatch,
}

impl MediaTypes {
    pub(super) fn check(self, headers: &HeaderMap) -> Result<(), ApiError> {
        let (is_right, message) = match self {
            Self::Json => (
                !headers.contains_key(CONTENT_TYPE) || has_media_type(headers, "application/json"),
                "the body must be application/json in UTF-8, or carry no type",
            ),
            Self::MergePatch => (
                has_media_type(headers, "application/merge-patch+json"),
                "the body must be application/merge-patch+json in UTF-8",
            ),
        };
        if is_right { Ok(()) } else { Err(ApiError::unsupported_media_type(message)) }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchGet {
    keys: BoundedList,
}

/// A list that is rejected while it is read if it is too long: its elements take more memory than their text.
struct BoundedList(Vec<String>);

impl<'de> Deserialize<'de> for BoundedList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;

        impl<'de> Visitor<'de> for ListVisitor {
            type Value = BoundedList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of keys")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<BoundedList, A::Error> {
                let mut keys = Vec::new();
                while let Some(key) = elements.next_element()? {
                    if keys.len() == MAX_BATCH_KEYS {
                        let reason = format!("a batch has at most {MAX_BATCH_KEYS} keys");
                        return Err(serde::de::Error::custom(reason));
                    }
                    keys.push(key);
                }
                Ok(BoundedList(keys))
            }
        }

        deserializer.deserialize_seq(ListVisitor)
    }
}

/// Parses the keys of a `batchGet`.
pub(super) fn parse_batch(text: &str) -> Result<Vec<Key>, ApiError> {
    let invalid = |error| ApiError::bad_request(format!("the body is not {{\"keys\":[…]}}: {error}"));
    let http_server::Object(BatchGet { keys: BoundedList(keys) }) =
        serde_json::from_str(text).map_err(invalid)?;
    keys.iter().map(|key| Key::new(key).map_err(ApiError::from)).collect()
}
