//! The fingerprint, which distinguishes a repeat of a request from another request with the same key.

use std::sync::Arc;

use axum::http::Method;
use sha2::{Digest, Sha256};

use crate::IdempotencyError;

/// The maximum length of a fingerprint, in bytes.
pub const MAX_FINGERPRINT_BYTES: usize = 255;

/// A text that is the same for repeats of the same request. It is only compared for equality.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(Arc<str>);

impl Fingerprint {
    /// Creates a fingerprint that the caller has computed: 1 to [`MAX_FINGERPRINT_BYTES`] bytes of UTF-8
    /// without NUL; [`IdempotencyError::InvalidArgument`] otherwise.
    pub fn new(text: &str) -> Result<Self, IdempotencyError> {
        if text.is_empty() || text.len() > MAX_FINGERPRINT_BYTES || text.contains('\0') {
            return Err(IdempotencyError::InvalidArgument(format!(
                "a fingerprint has 1 to {MAX_FINGERPRINT_BYTES} bytes and no NUL"
            )));
        }
        Ok(Self(text.into()))
    }

    /// Computes the fingerprint of an HTTP request: the SHA-256, in hexadecimal, of method, path with its
    /// query if there is one, and body, separated by line feeds.
    pub fn of_request(method: &Method, path_and_query: &str, body: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [method.as_str().as_bytes(), b"\n", path_and_query.as_bytes(), b"\n", body] {
            hash.update(part);
        }
        Self(hex::encode(hash.finalize()).into())
    }

    /// Returns the stored text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // I-15
    #[test]
    fn the_fingerprint_of_a_request_is_that_of_other_implementations() {
        assert_eq!(
            Fingerprint::of_request(&Method::POST, "/v1/intents", b"{}").as_str(),
            "72668cd102405cc7370468a6d0080f8386cca64383b2c26ea38836d748ce8881"
        );
    }

    #[test]
    fn method_path_query_and_body_all_count() {
        let first = Fingerprint::of_request(&Method::POST, "/a", b"x");
        for (method, path, body) in [
            (Method::PUT, "/a", &b"x"[..]),
            (Method::POST, "/b", b"x"),
            (Method::POST, "/a?b", b"x"),
            (Method::POST, "/a", b"y"),
        ] {
            assert_ne!(Fingerprint::of_request(&method, path, body), first, "{method} {path}");
        }
    }
}
