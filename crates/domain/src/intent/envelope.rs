//! The envelope: checks names and encoding of an entry's fields before their values.

use super::MAX_ENTRY;
use crate::catalog::AudienceKind;
use crate::entry::RawFields;
use crate::malformed_intent::{FailureCode, Rejection, reject};

/// The most characters of an unknown or repeated field's name that a message quotes.
const MAX_QUOTED: usize = 64;

pub(super) const NOTIFICATION_TYPE: &str = "notification_type";
pub(super) const PRODUCER: &str = "producer";
pub(super) const AUDIENCE_KIND: &str = "audience_kind";
pub(super) const RECIPIENTS: &str = "recipient_user_ids_json";
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency_key";
pub(super) const OCCURRED_AT_MS: &str = "occurred_at_ms";
pub(super) const PAYLOAD: &str = "payload_json";
pub(super) const REQUEST_ID: &str = "request_id";
pub(super) const TRACE_ID: &str = "trace_id";

/// Every field that an entry may have.
pub const FIELDS: [&str; 9] = [
    NOTIFICATION_TYPE,
    PRODUCER,
    AUDIENCE_KIND,
    RECIPIENTS,
    IDEMPOTENCY_KEY,
    OCCURRED_AT_MS,
    PAYLOAD,
    REQUEST_ID,
    TRACE_ID,
];

/// The fields that every entry must have, whatever its audience.
pub(super) const REQUIRED: [&str; 6] =
    [NOTIFICATION_TYPE, PRODUCER, AUDIENCE_KIND, IDEMPOTENCY_KEY, OCCURRED_AT_MS, PAYLOAD];

/// The fields of an entry as text: only known names, no repeats, none missing.
pub(super) struct Envelope<'a> {
    fields: Vec<(&'a str, &'a str)>,
    /// The name that messages give to a field: that which the producer used.
    pub(super) shown: fn(&'static str) -> &'static str,
}

impl<'a> Envelope<'a> {
    /// Applies the rules from `entry_too_large` to `missing_field`.
    pub(super) fn open(
        raw: &'a RawFields,
        shown: fn(&'static str) -> &'static str,
    ) -> Result<Self, Rejection> {
        let size = raw.size();
        if size > MAX_ENTRY {
            let message = format!("the entry has {size} bytes and takes at most {MAX_ENTRY}");
            return reject(FailureCode::EntryTooLarge, message);
        }
        let fields = raw.0.iter().map(|(name, value)| as_text(name, value));
        let envelope = Self { fields: fields.collect::<Result<_, _>>()?, shown };
        envelope.check_names()?;
        envelope.check_required()?;
        Ok(envelope)
    }

    /// The value of a field, if it is present.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The value of a field. An absent field is the same as an empty one.
    pub(super) fn text(&self, name: &str) -> &'a str {
        self.get(name).unwrap_or_default()
    }

    fn check_names(&self) -> Result<(), Rejection> {
        let mut names: Vec<&str> = self.fields.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("the field {} occurs more than once", quote(pair[0]));
            return reject(FailureCode::RepeatedField, message);
        }
        match names.into_iter().find(|name| !FIELDS.contains(name)) {
            Some(name) => {
                reject(FailureCode::UnknownField, format!("{} is not a field of an intent", quote(name)))
            }
            None => Ok(()),
        }
    }

    fn check_required(&self) -> Result<(), Rejection> {
        let for_users = (self.text(AUDIENCE_KIND) == AudienceKind::User.as_str()).then_some(RECIPIENTS);
        let missing = REQUIRED.into_iter().chain(for_users).find(|name| self.text(name).is_empty());
        match missing {
            Some(name) => {
                reject(FailureCode::MissingField, format!("{} is absent or empty", (self.shown)(name)))
            }
            None => Ok(()),
        }
    }
}

fn as_text<'a>(name: &'a [u8], value: &'a [u8]) -> Result<(&'a str, &'a str), Rejection> {
    match (str::from_utf8(name), str::from_utf8(value)) {
        (Ok(name), Ok(value)) => Ok((name, value)),
        (Ok(name), Err(_)) => {
            reject(FailureCode::InvalidEncoding, format!("the value of {} is not UTF-8", quote(name)))
        }
        (Err(_), _) => reject(FailureCode::InvalidEncoding, "the name of a field is not UTF-8"),
    }
}

/// A field name received from outside, formatted for a message: short and without control characters.
pub(super) fn quote(name: &str) -> String {
    let shown: String = name.chars().take(MAX_QUOTED).flat_map(char::escape_debug).collect();
    let rest = if name.chars().nth(MAX_QUOTED).is_some() { "…" } else { "" };
    format!("\"{shown}{rest}\"")
}
