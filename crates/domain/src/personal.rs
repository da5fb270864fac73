//! Personal data in documents, and the readers who may see it.
//!
//! [`Document::seen_by`] is the only place that removes such data: API and console call it on everything that
//! they read for a caller. Addresses, payloads, raw fields and what a consumer wrote of a recipient are
//! personal; ids of users are identifiers and stay (ADR 0063).
//!
//! Fingerprints go with the data that they are computed from: all other input of one is shown, so a reader
//! could try payloads until the fingerprint is the same.

mod status;

use serde_json::Value;

use crate::conflict::Conflict;
use crate::find::{FindQuery, Match, Matches};
use crate::hold::Hold;
use crate::operations::CANCELLED;
use crate::query::{
    Causes, DeadLetter, Discarded, MalformedCause, MalformedPlace, MalformedSummary, Notification,
    NotificationSummary, RecordedAction, Route, StoredMalformedIntent,
};
use crate::receipt::{Receipt, Report};
use crate::route::{RouteKey, holds_address};

/// The text in place of a part that is withheld.
pub const MASK: &str = "****";
/// The beginning of the id of a route to an administrator's address.
const ADDRESS_ROUTE: &str = "email:email:";
/// The beginning of the recipient of such a route.
const ADDRESS_RECIPIENT: &str = "email:";

/// The part of a document that a reader sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// Everything: for operators, and for viewers who may see personal data.
    Whole,
    /// Everything except personal data: for other viewers.
    Masked,
    /// Its own notifications without addresses and without the words of operators: for a producer.
    Producer,
}

/// A document that may hold personal data.
pub trait Document: Sized {
    /// Removes what a reader with this sight does not see.
    fn hide(&mut self, sight: Sight);

    /// The document as a reader with this sight sees it. Explanations of routes are removed with the data: a
    /// notification is explained afterwards.
    #[must_use]
    fn seen_by(mut self, sight: Sight) -> Self {
        self.hide(sight);
        self
    }
}

impl<T: Document> Document for Option<T> {
    fn hide(&mut self, sight: Sight) {
        self.iter_mut().for_each(|document| document.hide(sight));
    }
}

impl<T: Document> Document for Vec<T> {
    fn hide(&mut self, sight: Sight) {
        self.iter_mut().for_each(|document| document.hide(sight));
    }
}

impl Document for Notification {
    fn hide(&mut self, sight: Sight) {
        self.routes.hide(sight);
        if sight == Sight::Producer {
            self.obstacles = None;
        }
        if sight == Sight::Masked {
            self.payload_json.withhold();
            self.request_fingerprint.withhold();
            for text in [&mut self.idempotency_key, &mut self.request_id, &mut self.trace_id] {
                mask_addresses(text);
            }
        }
    }
}

impl Document for Route {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Whole {
            return;
        }
        self.explanation.clear();
        self.resolved_email.withhold();
        if sight == Sight::Producer {
            if holds_address(&self.recipient_ref) {
                self.route_id.withhold();
                self.recipient_ref.withhold();
            }
            if self.last_error_classification == CANCELLED {
                "cancelled by an operator".clone_into(&mut self.last_error_message);
            }
            if let Some(resend) = &mut self.resend {
                resend.actor.withhold();
                resend.reason.withhold();
            }
            if let Some(hold) = &mut self.hold {
                hold.actor.withhold();
                hold.reason.withhold();
            }
            return;
        }
        if let Some(resend) = &mut self.resend {
            resend.reason.change(mask_addresses);
        }
        if let Some(hold) = &mut self.hold {
            hold.reason.change(mask_addresses);
        }
        self.route_id = masked_route_id(&self.route_id).into();
        self.recipient_ref = masked_recipient(&self.recipient_ref).into();
        mask_addresses(&mut self.last_error_message);
        self.failed_attempts.iter_mut().for_each(|failed| mask_addresses(&mut failed.message));
        mask_addresses(&mut self.recovery_hint);
        self.discarded.hide(sight);
        self.receipt.hide(sight);
    }
}

impl Document for Receipt {
    fn hide(&mut self, sight: Sight) {
        let hide = |report: &mut Report| {
            if sight == Sight::Masked && !report.detail.is_empty() {
                MASK.clone_into(&mut report.detail);
            }
        };
        hide(&mut self.highest);
        self.history.iter_mut().for_each(|past| hide(&mut past.report));
    }
}

impl Document for Discarded {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            mask_addresses(&mut self.reason);
        }
    }
}

impl Document for NotificationSummary {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            mask_addresses(&mut self.idempotency_key);
        }
    }
}

impl Document for DeadLetter {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            self.key.route_id = masked_route_id(&self.key.route_id);
            self.recipient_ref = masked_recipient(&self.recipient_ref);
            mask_addresses(&mut self.failure_message);
            mask_addresses(&mut self.recovery_hint);
            self.discarded.hide(sight);
        }
    }
}

impl Document for Hold {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            mask_addresses(&mut self.reason);
        }
    }
}

/// The names of producers are as received.
impl Document for Causes<MalformedCause> {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            self.counts.iter_mut().for_each(|(cause, _)| mask_addresses(&mut cause.producer));
        }
    }
}

/// The names in an entry are as received, so they may be anything.
impl Document for MalformedSummary {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            MASK.clone_into(&mut self.key.fields_fingerprint);
            mask_addresses(&mut self.producer);
            for text in [&mut self.notification_type, &mut self.idempotency_key, &mut self.failure_message] {
                text.change(mask_addresses);
            }
        }
    }
}

impl Document for StoredMalformedIntent {
    fn hide(&mut self, sight: Sight) {
        self.summary.hide(sight);
        self.conflict.hide(sight);
        if sight == Sight::Masked {
            self.raw_fields = None;
        }
    }
}

/// The members that differ stay, without their values.
impl Document for Conflict {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            for difference in self.differs.iter_mut().flatten() {
                (difference.refused, difference.accepted) = (MASK.into(), MASK.into());
            }
        }
    }
}

impl FindQuery {
    /// The search for a reader with this sight; `None` if the reader may not look for this text, because it
    /// may be or contain an address.
    #[must_use]
    pub fn sought_by(self, sight: Sight) -> Option<Self> {
        let is_refused = sight == Sight::Masked && may_be_address(&self.name);
        (!is_refused).then_some(self)
    }
}

impl Document for Match {
    fn hide(&mut self, sight: Sight) {
        self.malformed_intent.hide(sight);
        self.conflict.hide(sight);
        if sight == Sight::Masked {
            mask_addresses(&mut self.sentence);
            self.route_id = self.route_id.as_deref().map(masked_route_id);
        }
    }
}

impl Document for Matches {
    fn hide(&mut self, sight: Sight) {
        self.found.hide(sight);
        self.notifications.hide(sight);
    }
}

/// A place in the list of malformed intents holds a fingerprint. Without it the place is before all entries
/// of the same id and time, of which there is only one.
impl Document for MalformedPlace {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            self.key.fields_fingerprint.clear();
        }
    }
}

impl Document for RecordedAction {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            mask_arguments(&mut self.arguments);
        }
    }
}

/// Masks ids of routes and addresses in all texts of the arguments of an action.
fn mask_arguments(arguments: &mut Value) {
    match arguments {
        Value::String(text) => match text.parse::<RouteKey>() {
            Ok(mut key) if key.route_id.starts_with(ADDRESS_ROUTE) => {
                key.route_id = masked_route_id(&key.route_id);
                *text = key.to_string();
            }
            _ => mask_addresses(text),
        },
        Value::Array(items) => items.iter_mut().for_each(mask_arguments),
        Value::Object(members) => members.values_mut().for_each(mask_arguments),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The id of a route, with the mask in place of an administrator's address.
pub fn masked_route_id(route_id: &str) -> String {
    let is_address = route_id.starts_with(ADDRESS_ROUTE);
    if is_address { format!("{ADDRESS_ROUTE}{MASK}") } else { route_id.to_owned() }
}

fn masked_recipient(recipient_ref: &str) -> String {
    let is_address = holds_address(recipient_ref);
    if is_address { format!("{ADDRESS_RECIPIENT}{MASK}") } else { recipient_ref.to_owned() }
}

/// True if a text may be an e-mail address.
pub fn may_be_address(text: &str) -> bool {
    text.contains('@')
}

/// Puts the mask in place of each word that may be an address.
fn mask_addresses(text: &mut String) {
    if !may_be_address(text) {
        return;
    }
    let is_between = |c: char| c.is_whitespace() || "\"<>()[],;:/".contains(c);
    let mut masked = String::with_capacity(text.len());
    for piece in text.split_inclusive(is_between) {
        let word = piece.trim_end_matches(is_between);
        if may_be_address(word) {
            masked.push_str(MASK);
            masked.push_str(&piece[word.len()..]);
        } else {
            masked.push_str(piece);
        }
    }
    *text = masked;
}

#[cfg(test)]
mod tests;
