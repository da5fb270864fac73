//! Checks of request heads that the server library does not make.

use axum::http::header::{HOST, TRANSFER_ENCODING};
use axum::http::{Request, Version};

/// Checks the head of a request; the error is the rule that it breaks (RFC 9112, RFC 9113).
pub(crate) fn check<B>(request: &Request<B>, has_fragment: bool) -> Result<(), &'static str> {
    if has_fragment {
        return Err("The target of the request has a fragment: # is written as %23.");
    }
    let (headers, version) = (request.headers(), request.version());
    let hosts = headers.get_all(HOST).iter().count();
    if hosts > 1 || hosts == 0 && version == Version::HTTP_11 {
        return Err("The request has no header Host, or more than one.");
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err("The only transfer coding that is taken is chunked.");
    }
    Ok(())
}
