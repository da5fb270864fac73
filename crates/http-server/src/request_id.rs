//! The id by which a client can trace its request.

use std::sync::Arc;

use ambient::{RandomTokens, Tokens};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use std::convert::Infallible;

/// The header of requests and responses.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is echoed, in characters.
const MAX_REQUEST_ID: usize = 255;

/// The id of a request: the client's `X-Request-Id` if it is valid, else a random id. The response contains
/// it.
///
/// Handlers extract it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId {
    text: Arc<str>,
    from_client: bool,
}

impl RequestId {
    /// The client's id, if the headers contain exactly one of 1 to 255 visible ASCII characters; else a
    /// random one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(X_REQUEST_ID).iter();
        match (given.next().and_then(valid), given.next()) {
            (Some(text), None) => Self { text: text.into(), from_client: true },
            _ => Self { text: hex::encode(RandomTokens.next()).into(), from_client: false },
        }
    }

    /// The text: 1 to 255 visible ASCII characters.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The id if the client chose it.
    pub fn from_client(&self) -> Option<&str> {
        self.from_client.then_some(&*self.text)
    }

    pub(crate) fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.text).ok()
    }
}

fn valid(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?;
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    (is_visible && (1..=MAX_REQUEST_ID).contains(&text.len())).then_some(text)
}

impl<S: Sync> FromRequestParts<S> for RequestId {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let given = head.extensions.get::<Self>().cloned();
        // Without a listener, as in tests of a router, the extension is missing.
        let id = given.unwrap_or_else(|| Self::of(&head.headers));
        head.extensions.insert(id.clone());
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> RequestId {
        let value = |text: &&str| (X_REQUEST_ID, HeaderValue::from_str(text).expect("a header"));
        RequestId::of(&values.iter().map(value).collect::<Vec<_>>().into_iter().fold(
            HeaderMap::new(),
            |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            },
        ))
    }

    #[test]
    fn an_id_of_visible_ascii_is_the_clients() {
        for text in ["x", "req-1/α".trim_end_matches('α'), &"~".repeat(MAX_REQUEST_ID)] {
            assert_eq!(of(&[text]).from_client(), Some(text));
        }
    }

    #[test]
    fn anything_else_is_replaced_by_an_id_of_its_own() {
        for values in [&[][..], &[""], &["a b"], &["\t"], &["a", "a"], &[&*"~".repeat(MAX_REQUEST_ID + 1)]] {
            let id = of(values);
            assert_eq!((id.from_client(), id.as_str().len()), (None, 32), "{values:?}");
            assert_ne!(of(values), id);
        }
    }
}
