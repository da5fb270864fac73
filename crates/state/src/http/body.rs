//! Bodies of requests.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use http_server::has_media_type;
use serde::Deserialize;

use super::error::ApiError;
use crate::Key;

/// The most keys of one `batchGet`.
pub(super) const MAX_BATCH_KEYS: usize = 1_000;

/// Of which type a body must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MediaTypes {
    /// `application/json`, or none is given.
    Json,
    /// `application/merge-patch+json`, always.
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
    keys: Vec<String>,
}

/// The keys of a `batchGet`.
pub(super) fn parse_batch(text: &str) -> Result<Vec<Key>, ApiError> {
    let invalid = |error| ApiError::bad_request(format!("the body is not {{\"keys\":[…]}}: {error}"));
    let http_server::Object(BatchGet { keys }) = serde_json::from_str(text).map_err(invalid)?;
    if keys.len() > MAX_BATCH_KEYS {
        return Err(ApiError::bad_request(format!(
            "a batch has at most {MAX_BATCH_KEYS} keys, not {}",
            keys.len()
        )));
    }
    keys.iter().map(|key| Key::new(key).map_err(ApiError::from)).collect()
}
