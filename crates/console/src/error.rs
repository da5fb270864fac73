//! Errors as pages: the cause, and advice.

use std::time::Duration;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::ports::{StoreError, error_chain};
use maud::html;

use crate::layout::{Page, Section};
use crate::widgets::visible;

/// The delay after which a retry is worthwhile if the data of a page is unavailable.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(5);

/// The reason why a page cannot be shown.
#[derive(Debug)]
pub(crate) enum PageError {
    /// The page or thing does not exist; contains a sentence that names it.
    NotFound(String),
    /// A value in the address or the form is invalid; contains a sentence that names it and the expected
    /// values.
    Invalid(String),
    /// Only an operator may do that.
    TakesOperator,
    /// Only a token that sees personal data may do that; contains a sentence that names it.
    Personal(&'static str),
    /// The form was not sent by a page of this session.
    Forged,
    /// The form is larger than this many bytes.
    TooLarge(usize),
    /// The page does not support this method.
    Method,
    /// The form did not arrive in time.
    Late,
    /// The page was not ready in time.
    TimedOut,
    /// The handler of the page panicked.
    Panicked,
    /// A row contains a value that the service never writes.
    Corrupt,
    /// PostgreSQL refuses a row of a change.
    Refused,
    /// A store cannot be reached, or it failed.
    Unavailable,
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused { .. } => {
                Self::Invalid("A value of the request cannot be looked for.".to_owned())
            }
            StoreError::Corrupt { .. } => {
                tracing::error!(cause = %error_chain(&error), "a row of another program's making keeps a page from being shown");
                Self::Corrupt
            }
            error => {
                tracing::debug!(cause = %error_chain(&error), "a page could not be shown");
                Self::Unavailable
            }
        }
    }
}

impl PageError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::TakesOperator | Self::Personal(_) | Self::Forged => StatusCode::FORBIDDEN,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::Panicked | Self::Corrupt | Self::Refused => StatusCode::INTERNAL_SERVER_ERROR,
            Self::TimedOut | Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The title, the cause, and the advice.
    fn texts(self) -> (&'static str, String, &'static str) {
        match self {
            Self::NotFound(what) => ("Not found", what, "Check the address, or start from one of the pages above."),
            Self::Invalid(what) => ("That does not work", what, "Go back and change the value."),
            Self::TakesOperator => (
                "This takes an operator's token",
                "You are signed in with a viewer's token, which changes nothing.".to_owned(),
                "Nothing was changed. Ask an operator, or sign in with an operator's token.",
            ),
            Self::Personal(what) => (
                "This takes a token that sees personal data",
                what.to_owned(),
                "Use an operator's token, or a viewer's whose entry in the tokens file has see = [\"personal\"].",
            ),
            Self::Forged => (
                "The form was refused",
                "It does not come from a page of this session: it may be from before you signed in, or from another site.".to_owned(),
                "Nothing was changed. Open the page again and repeat what you did.",
            ),
            Self::TooLarge(limit) => (
                "The form is too large",
                format!("A form has at most {limit} bytes."),
                "Nothing was changed. Choose fewer items.",
            ),
            Self::Method => {
                ("Not possible here", "The page does not take this kind of request.".to_owned(), "Start from one of the pages above.")
            }
            Self::Late => (
                "The form came too late",
                "It was not complete within the time that a request may take.".to_owned(),
                "Nothing was changed. Go back and send it again.",
            ),
            Self::TimedOut => (
                "The page took too long",
                "It was not ready within the time that a request may take.".to_owned(),
                "Try again in a few seconds, and ask for less if you can: a filter, or a shorter page. If it lasts, look at /readyz and at the log of this replica.",
            ),
            Self::Panicked => (
                "The page failed",
                "The service made a mistake while it made this page.".to_owned(),
                "The log of this replica says where. Other pages are not affected.",
            ),
            Self::Refused => (
                "A row cannot be changed",
                "PostgreSQL refuses it.".to_owned(),
                "The log of this replica names the constraint or the rule.",
            ),
            Self::Corrupt => (
                "A row cannot be read",
                "It has a value that this service never writes.".to_owned(),
                "The log of this replica names the table, the column and the key. Correct the row; trying again does not help.",
            ),
            Self::Unavailable => (
                "The data cannot be read now",
                "PostgreSQL cannot be reached, did not answer in time, or another transaction holds a lock.".to_owned(),
                "Try again in a few seconds. If it lasts, look at /readyz and at the log of this replica; accepted notifications are safe.",
            ),
        }
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let status = self.status();
        let (title, what, advice) = self.texts();
        let content = html! {
            div.state.failed role="alert" {
                p { strong { (visible(&what)) } }
                p { (advice) }
            }
        };
        let mut response = Page::new(Section::None, title, content).with_status(status).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_UNAVAILABLE.as_secs()));
        }
        response
    }
}

/// The page for all other paths below `/console/`.
pub(crate) async fn not_found() -> PageError {
    PageError::NotFound("There is no page at this address.".to_owned())
}

/// The page for an unsupported method.
pub(crate) async fn method_not_allowed() -> PageError {
    PageError::Method
}
