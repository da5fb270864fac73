//! A stored response, and its conversion from and to an HTTP response.

use axum::body::Body;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use axum::http::response::Parts;
use axum::http::{Response, StatusCode};
use bytes::{Bytes, BytesMut};

use crate::{Answer, IdempotencyError};

/// The header that marks a replayed response.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Headers that belong to one connection or to one response, and are not stored. `Content-Length` is derived
/// from the body.
static NOT_STORED: [HeaderName; 20] = [
    CONNECTION,
    CONTENT_LENGTH,
    DATE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    SET_COOKIE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    VIA,
    IDEMPOTENCY_REPLAYED,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authentication-info"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("server-timing"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("x-request-id"),
];

impl Answer {
    /// Converts a response to its stored form: its status, its body, and its headers except those that belong
    /// to one connection or one response (hop-by-hop headers and those that `Connection` names, `Date`,
    /// `Set-Cookie`, request and trace ids, …). A header is stored as `name: value` and a line feed, which no
    /// value can contain.
    pub fn from_response(parts: &Parts, body: Bytes) -> Self {
        let named = named_by_connection(&parts.headers);
        let mut headers = BytesMut::new();
        for (name, value) in &parts.headers {
            if !NOT_STORED.contains(name)
                && !named.iter().any(|named| named.eq_ignore_ascii_case(name.as_str()))
            {
                for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\n"] {
                    headers.extend_from_slice(part);
                }
            }
        }
        Self { status: parts.status.as_u16(), headers: headers.freeze(), body }
    }

    /// Converts the stored response to an HTTP response, marked with `Idempotency-Replayed: true`.
    ///
    /// Returns [`IdempotencyError::Corrupt`] if status or headers do not have the form of
    /// [`Answer::from_response`].
    pub fn replay(&self) -> Result<Response<Body>, IdempotencyError> {
        let corrupt = IdempotencyError::Corrupt;
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.status_mut() = StatusCode::from_u16(self.status).map_err(|_| corrupt("response_status"))?;
        for line in self.headers.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let (name, value) = header(line).ok_or(corrupt("response_headers"))?;
            response.headers_mut().append(name, value);
        }
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
        Ok(response)
    }
}

fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let at = line.windows(2).position(|pair| pair == b": ")?;
    Some((HeaderName::from_bytes(&line[..at]).ok()?, HeaderValue::from_bytes(&line[at + 2..]).ok()?))
}

/// Returns the headers named by `Connection`: a sender can make any header hop-by-hop by naming it.
fn named_by_connection(headers: &HeaderMap) -> Vec<&str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(headers: &[(&str, &[u8])]) -> Parts {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::CREATED;
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            response.headers_mut().append(name, HeaderValue::from_bytes(value).expect("a value"));
        }
        response.into_parts().0
    }

    // I-03
    #[test]
    fn status_headers_and_body_come_back_as_they_were() {
        let body = Bytes::from_static(b"\x00\xff\n: ");
        let headers: [(&str, &[u8]); 4] =
            [("location", b"/a: b"), ("x-many", b"1"), ("x-many", b"2\xff"), ("x-empty", b"")];
        let answer = Answer::from_response(&response(&headers), body.clone());
        let replayed = answer.replay().expect("it can be read");
        assert_eq!(replayed.status(), StatusCode::CREATED);
        let found: Vec<(&str, &[u8])> = replayed
            .headers()
            .iter()
            .filter(|(name, _)| **name != IDEMPOTENCY_REPLAYED)
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        assert_eq!(found, headers);
        assert_eq!(replayed.headers()[IDEMPOTENCY_REPLAYED], "true");
        assert_eq!(answer.body, body);
    }

    // I-15
    #[test]
    fn what_belongs_to_one_connection_or_response_is_not_stored() {
        let mut headers: Vec<(&str, &[u8])> =
            NOT_STORED.iter().map(|name| (name.as_str(), &b"v"[..])).collect();
        headers.push(("connection", b"close, X-Hop"));
        headers.push(("x-hop", b"v"));
        headers.push(("etag", b"\"kept\""));
        let answer = Answer::from_response(&response(&headers), Bytes::new());
        assert_eq!(answer.headers, "etag: \"kept\"\n");
    }

    #[test]
    fn an_answer_that_cannot_be_is_an_error_that_names_its_column() {
        let answer =
            |status, headers: &'static str| Answer { status, headers: headers.into(), body: Bytes::new() };
        for (answer, column) in [
            (answer(7, ""), "response_status"),
            (answer(200, "no colon"), "response_headers"),
            (answer(200, "a b: c\n"), "response_headers"),
        ] {
            let error = answer.replay().expect_err("corrupt").to_string();
            assert!(error.contains(column), "{error}");
        }
    }
}
