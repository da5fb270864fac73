//! The page of a change without a result yet: the reason, the possible effects, and its form, to be sent
//! again.

use axum::http::StatusCode;
use idempotency::IdempotencyError;
use maud::html;

use super::asked::Asked;
use crate::forms::Form;
use crate::layout::Page;
use crate::operator::Operator;
use crate::widgets::{Tone, form_token, id, notice};

/// The reason why a change has no result yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unfinished {
    /// This run of the form, or an earlier one, has not ended.
    InProgress,
    /// This run has not begun, and may still begin without its page.
    Waiting,
    /// This run did not begin: the store did not accept its key.
    NotBegun,
    /// This run did not begin: the replica has reached its limit of concurrent changes.
    Busy,
    /// This run exceeded the time limit of a handler.
    TooLong,
    /// A store failed, or the replica is stopping.
    Interrupted,
    /// A row cannot be read.
    Corrupt,
    /// PostgreSQL refuses a statement of the change.
    Refused,
    /// The handler panicked.
    Panicked,
}

impl Unfinished {
    /// The reason for an error of a run that has `begun` or not.
    pub(super) fn of(error: &IdempotencyError, begun: bool) -> Self {
        match error {
            IdempotencyError::TooManyRequests { .. } => Self::Busy,
            IdempotencyError::HandlerTimedOut(_) => Self::TooLong,
            _ if begun => Self::Interrupted,
            _ => Self::NotBegun,
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::InProgress => StatusCode::CONFLICT,
            Self::Waiting | Self::NotBegun | Self::Busy | Self::TooLong | Self::Interrupted => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Corrupt | Self::Refused | Self::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The tone, the title, and the label of the button that sends the form again.
    fn labels(self) -> (Tone, &'static str, &'static str) {
        match self {
            Self::InProgress => (Tone::Busy, "In progress", "Look again"),
            Self::Waiting => (Tone::Busy, "Not begun yet", "Look again"),
            Self::NotBegun | Self::Busy => (Tone::Warning, "Not begun", "Send again"),
            Self::TooLong | Self::Interrupted | Self::Corrupt | Self::Refused | Self::Panicked => {
                (Tone::Warning, "Interrupted", "Continue")
            }
        }
    }

    /// The cause, as a sentence.
    fn cause(self) -> &'static str {
        match self {
            Self::InProgress => "The change is still being made.",
            Self::Waiting => "The change has not begun yet: PostgreSQL is slow to answer.",
            Self::NotBegun => {
                "PostgreSQL did not answer in time. Sending the form this time changed nothing."
            }
            Self::Busy => {
                "This replica makes as many changes at a time as it may. Sending the form this time changed nothing."
            }
            Self::TooLong => "The change took longer than it may. A part of the change may have been made.",
            Self::Interrupted => {
                "PostgreSQL did not answer in time. A part of the change may have been made."
            }
            Self::Corrupt => {
                "A row has a value that this service never writes. A part of the change may have been made."
            }
            Self::Refused => {
                "PostgreSQL refuses a row of the change. A part of the change may have been made."
            }
            Self::Panicked => {
                "The service made a mistake while it made the change. A part of the change may have been made."
            }
        }
    }

    /// The advice, as a sentence.
    fn advice(self) -> &'static str {
        match self {
            Self::InProgress => {
                "Large changes take some seconds. Looking again changes nothing a second time."
            }
            Self::Waiting => "It may still begin. Looking again makes the change once at most.",
            Self::NotBegun | Self::Busy => "Send it again in a few seconds. The change is made once at most.",
            Self::TooLong | Self::Interrupted => {
                "Sending the form again continues with the rest and repeats nothing."
            }
            Self::Corrupt => {
                "The log of this replica names the table, the column and the key. Correct the row; sending the form again then continues with the \
                 rest and repeats nothing."
            }
            Self::Refused => {
                "The log of this replica names the constraint or the rule. Undo it; sending the form again then continues with the rest and \
                 repeats nothing."
            }
            Self::Panicked => {
                "The log of this replica says where. Sending the form again continues with the rest and repeats nothing."
            }
        }
    }
}

/// The page with the same form, to be sent again; the form then leads to the result.
pub(super) fn page(why: Unfinished, operator: &Operator, form: &Form, asked: &Asked) -> Page {
    let (tone, title, label) = why.labels();
    let content = html! {
        (notice(tone, &html! {
            p { strong { (why.cause()) } }
            p { (why.advice()) }
            @if let Some(request_id) = form.text("request_id") {
                p { "What has been changed is recorded in " code { "operator_actions" } " under the request id " (id(request_id)) "." }
            }
        }))
        form.actions method="post" action=(asked.change.pages().change) {
            (form_token(operator))
            @for name in ["request_id", "reason"] {
                @if let Some(value) = form.text(name) { input type="hidden" name=(name) value=(value); }
            }
            (asked.fields())
            button.primary type="submit" { (label) }
        }
    };
    Page::new(asked.change.pages().section, title, content).with_status(why.status())
}
