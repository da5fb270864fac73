//! Submitted forms: read within a bound, and checked for their origin.
//!
//! A [`Form`] exists only after its check. `session.rs` makes it for every request that may change something,
//! before a handler sees the request. The sign-in, which has no session yet, makes its own; from a form that
//! it cannot check it reads only the page to continue with.

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use http_server::{BodyError, BodyLimit, has_media_type, is_compressed, read_body};
use subtle::ConstantTimeEq;
use url::form_urlencoded;

use crate::deadline::Deadline;
use crate::error::PageError;
use crate::operator::{FORM_TOKEN, FormToken};

/// The largest form, in bytes: the ids of a page of dead letters.
const MAX_FORM_BYTES: usize = 256 * 1024;
/// The largest form of a client that is not signed in, in bytes: a token, and the page to continue with.
const MAX_SIGN_IN_BYTES: usize = 4 * 1024;
/// The most fields of a form.
const MAX_FORM_FIELDS: usize = 1_000;

/// The fields of a form of this session.
#[derive(Clone, Debug)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// Reads a form, and checks that a page with `token` sent it.
    pub(crate) async fn read(head: &mut Parts, body: Body, token: &FormToken) -> Result<Self, PageError> {
        Self::read_within(head, body, MAX_FORM_BYTES).await?.checked(token)
    }

    /// Reads the form of a client that is not signed in, and checks that a page with `token` sent it.
    pub(crate) async fn read_sign_in(
        head: &mut Parts,
        body: Body,
        token: &FormToken,
    ) -> Result<Self, PageError> {
        Self::read_unchecked(head, body).await?.checked(token)
    }

    /// Checks that a page with `token` sent the form.
    fn checked(self, token: &FormToken) -> Result<Self, PageError> {
        let form = self;
        let mut given = form.all(FORM_TOKEN);
        let is_own = matches!((given.next(), given.next()), (Some(given), None) if given.as_bytes().ct_eq(token.0.as_bytes()).into());
        drop(given);
        if is_own { Ok(form) } else { Err(PageError::Forged) }
    }

    /// Reads a form without checking its token. It is refused only if the browser reports another site, so
    /// the caller must not change anything because of it.
    pub(crate) async fn read_unchecked(head: &mut Parts, body: Body) -> Result<Self, PageError> {
        Self::read_within(head, body, MAX_SIGN_IN_BYTES).await
    }

    async fn read_within(head: &mut Parts, body: Body, max_bytes: usize) -> Result<Self, PageError> {
        if is_foreign(head) {
            return Err(PageError::Forged);
        }
        if is_compressed(&head.headers) || !has_media_type(&head.headers, "application/x-www-form-urlencoded")
        {
            return Err(PageError::Invalid("The request is no form.".to_owned()));
        }
        // Without a deadline, the request did not come through the console's router.
        let deadline = *head.extensions.get::<Deadline>().ok_or(PageError::Forged)?;
        head.extensions.insert(BodyLimit(max_bytes));
        let bytes = deadline.limit(read_body(head, body)).await.ok_or(PageError::Late)?;
        let bytes = bytes.map_err(|error| match error {
            BodyError::TooLarge(limit) => PageError::TooLarge(limit),
            BodyError::Incomplete => PageError::Invalid("The form ended before it was complete.".to_owned()),
        })?;
        let fields = form_urlencoded::parse(&bytes).take(MAX_FORM_FIELDS + 1);
        let form = Self(fields.map(|(name, value)| (name.into_owned(), value.into_owned())).collect());
        if form.0.len() > MAX_FORM_FIELDS {
            return Err(PageError::Invalid(format!("A form has at most {MAX_FORM_FIELDS} fields.")));
        }
        Ok(form)
    }

    /// The first value of a field; `None` if it is absent or empty.
    pub(crate) fn text<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next().filter(|value| !value.is_empty())
    }

    /// All values of a field, in order.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

impl<S: Sync> FromRequestParts<S> for Form {
    type Rejection = PageError;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, PageError> {
        head.extensions.remove::<Self>().ok_or(PageError::Forged)
    }
}

/// Returns true if the browser reports that another site makes the request. `Sec-Fetch-Site` decides if it is
/// present; browsers send it with HTTPS and to this machine. Otherwise `Origin` decides, if it names an
/// origin: with the referrer policy of the console it is `null` for the console's own forms.
fn is_foreign(head: &Parts) -> bool {
    let text = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site") {
        return site != "same-origin";
    }
    // HTTP/2 does not have a header Host.
    let host = text("host").or(head.uri.authority().map(Authority::as_str));
    match text("origin") {
        None | Some("null") => false,
        Some(origin) => origin.split_once("://").is_none_or(|(_, authority)| Some(authority) != host),
    }
}
