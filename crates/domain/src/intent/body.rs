//! An intent as a JSON object: the body of a request, an element of a batch, or (without its type) the
//! payload of an event.
//!
//! The object becomes the flat entry that it would be in the stream, with recipients and payload in normal
//! form. From there on, the rules of stream entries apply ([`decode_members`]). Errors that only JSON can
//! have are found here. A body that is not an object is [`NotAnObject`], and the caller rejects the whole
//! request. A member that is unknown, repeated or of the wrong type breaks the rule given in the contract.
//!
//! Nothing here takes more than a few times the bytes of the body, whatever the body contains. Items beyond
//! the limits of an intent are counted and not kept.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::decode::decode_named;
use super::envelope::{
    AUDIENCE_KIND, IDEMPOTENCY_KEY, NOTIFICATION_TYPE, OCCURRED_AT_MS, PAYLOAD, PRODUCER, RECIPIENTS,
    REQUEST_ID, TRACE_ID, quote,
};
use super::{Intent, MAX_ENTRY, MAX_PAYLOAD, MAX_RECIPIENTS};
use crate::catalog::Catalog;
use crate::entry::RawFields;
use crate::json::{self, NormalForm, least_normal_length, normalise};
use crate::malformed_intent::{FailureCode, Rejection, reject};

/// The number of members beyond which only one more is kept. An object with that many members has an unknown
/// or repeated one among those kept.
const MAX_MEMBERS: usize = 64;

/// The members of an intent's object, each with its field and its type. Only elements of a batch may have the
/// key as a member.
const MEMBERS: [BodyMember; 8] = [
    BodyMember { name: "notification_type", field: NOTIFICATION_TYPE, kind: MemberKind::Text },
    BodyMember { name: "audience_kind", field: AUDIENCE_KIND, kind: MemberKind::Text },
    BodyMember { name: "recipient_user_ids", field: RECIPIENTS, kind: MemberKind::Recipients },
    BodyMember { name: "idempotency_key", field: IDEMPOTENCY_KEY, kind: MemberKind::Text },
    BodyMember { name: "occurred_at_ms", field: OCCURRED_AT_MS, kind: MemberKind::Integer },
    BodyMember { name: "payload", field: PAYLOAD, kind: MemberKind::Payload },
    BodyMember { name: "request_id", field: REQUEST_ID, kind: MemberKind::Text },
    BodyMember { name: "trace_id", field: TRACE_ID, kind: MemberKind::Text },
];

#[derive(Clone, Copy)]
struct BodyMember {
    name: &'static str,
    field: &'static str,
    kind: MemberKind,
}

#[derive(Clone, Copy, PartialEq)]
enum MemberKind {
    Text,
    Integer,
    Recipients,
    Payload,
}

/// The error for a text that is not JSON, or not an object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotAnObject(String);

/// The members of an intent's object as received, not yet checked.
#[derive(Debug)]
pub struct IntentBody<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// The values of an intent that are not in its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyContext<'a> {
    /// The producer that sends it.
    pub producer: &'a str,
    /// The idempotency key, if it is given outside the body. The body must not contain it then.
    pub idempotency_key: Option<&'a str>,
    /// The request id of an intent without its own.
    pub request_id: Option<&'a str>,
}

impl<'a> IntentBody<'a> {
    /// Reads the members of an object.
    pub fn parse(text: &'a str) -> Result<Self, NotAnObject> {
        serde_json::from_str(text).map_err(|error| NotAnObject(error.to_string()))
    }

    /// Returns the number of listed recipients, repeats included; 0 if the member is not a list.
    pub fn recipients(&self) -> usize {
        let listed =
            self.get("recipient_user_ids").map(|list| serde_json::from_str::<Vec<IgnoredAny>>(list.get()));
        listed.and_then(Result::ok).map_or(0, |list| list.len())
    }

    /// Returns the intent, or the first rule that it breaks.
    pub fn decode(&self, context: BodyContext<'_>, catalog: &Catalog) -> Result<Intent, Rejection> {
        let mut fixed = vec![(PRODUCER, context.producer)];
        fixed.extend(context.idempotency_key.map(|key| (IDEMPOTENCY_KEY, key)));
        let defaults: Vec<_> = context.request_id.map(|id| (REQUEST_ID, id)).into_iter().collect();
        decode_members(&self.to_entry(&fixed, &defaults)?, catalog)
    }

    /// Returns the entry that the intent would be in the stream, unless the object already breaks a rule.
    /// `fixed` are fields that no member may provide; `defaults` apply where the member is absent.
    pub(super) fn to_entry(
        &self,
        fixed: &[(&'static str, &str)],
        defaults: &[(&'static str, &str)],
    ) -> Result<RawFields, Rejection> {
        self.check_names(fixed)?;
        let mut fields: Vec<_> = fixed.iter().map(|(field, value)| (*field, (*value).to_owned())).collect();
        let mut wrong_type = None;
        for member in MEMBERS {
            match self.get(member.name).map(|received| member.kind.to_field(member.name, received)) {
                Some(Ok(text)) => fields.push((member.field, text)),
                Some(Err(rejection)) => wrong_type = wrong_type.or(Some(rejection)),
                None => {
                    let default = defaults.iter().find(|(field, _)| *field == member.field);
                    fields.extend(default.map(|(field, value)| (*field, (*value).to_owned())));
                }
            }
        }
        match wrong_type {
            Some(rejection) => Err(rejection),
            None => Ok(RawFields::from_iter(fields)),
        }
    }

    /// Returns a member's value; `null` is the same as absent.
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let received = self.0.iter().find(|(known, _)| known == name).map(|(_, received)| *received);
        received.filter(|received| received.get() != "null")
    }

    fn check_names(&self, fixed: &[(&'static str, &str)]) -> Result<(), Rejection> {
        let mut names: Vec<&str> = self.0.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("the member {} occurs more than once", quote(pair[0]));
            return reject(FailureCode::RepeatedField, message);
        }
        let may_be_given = |member: &BodyMember| !fixed.iter().any(|(field, _)| *field == member.field);
        let known = |name: &str| MEMBERS.iter().any(|member| member.name == name && may_be_given(member));
        match names.into_iter().find(|name| !known(name)) {
            Some(name) => {
                reject(FailureCode::UnknownField, format!("{} is not a member of an intent", quote(name)))
            }
            None => Ok(()),
        }
    }
}

/// Decodes the entry that an object would be in the stream. Messages name the members of the object.
pub(super) fn decode_members(entry: &RawFields, catalog: &Catalog) -> Result<Intent, Rejection> {
    let member =
        |field| MEMBERS.iter().find(|member| member.field == field).map_or(field, |member| member.name);
    decode_named(entry, member, catalog)
}

impl MemberKind {
    /// Converts a member to the value of its field.
    fn to_field(self, name: &str, received: &RawValue) -> Result<String, Rejection> {
        let text = received.get();
        match self {
            Self::Text => serde_json::from_str(text)
                .or_else(|_| reject(FailureCode::InvalidField, format!("{name} takes a string"))),
            // Kept as written: the rule of the field allows digits only, so neither 1.0 nor 1e3 is an
            // integer.
            Self::Integer if text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
                Ok(text.to_owned())
            }
            Self::Integer => reject(FailureCode::InvalidField, format!("{name} takes an integer")),
            Self::Recipients => recipients(name, text),
            Self::Payload => payload(name, text),
        }
    }
}

/// Returns the payload in normal form. A payload that is too long is replaced by as many spaces, so that the
/// rules about sizes are applied in their usual order.
fn payload(name: &str, text: &str) -> Result<String, Rejection> {
    let refuse = |message: String| reject(FailureCode::InvalidPayloadJson, message);
    let too_long = |length: usize| Ok(" ".repeat(length.min(MAX_ENTRY + 1)));
    if !text.starts_with('{') {
        return refuse(format!("{name} takes an object"));
    }
    let least = least_normal_length(text, MAX_ENTRY);
    if least > MAX_PAYLOAD {
        return too_long(least);
    }
    match normalise(text, MAX_ENTRY) {
        Ok(NormalForm::Text(text)) => Ok(text),
        Ok(NormalForm::TooLong) => too_long(MAX_ENTRY + 1),
        Err(error) => refuse(format!("{name} is not strict JSON: {error}")),
    }
}

/// Returns the array in normal form. Repeats count towards the limit on the number of elements.
fn recipients(name: &str, text: &str) -> Result<String, Rejection> {
    let Ok(listed) = serde_json::from_str::<UserList<'_>>(text) else {
        return reject(FailureCode::InvalidRecipients, format!("{name} takes an array of strings"));
    };
    if listed.bytes > MAX_ENTRY {
        return Ok(" ".repeat(MAX_ENTRY + 1));
    }
    if listed.count > MAX_RECIPIENTS {
        let message = format!("{name} has {} elements and takes 1 to {MAX_RECIPIENTS}", listed.count);
        return reject(FailureCode::InvalidRecipients, message);
    }
    Ok(json::to_text(&listed.users))
}

/// A list of users without repeats.
#[derive(Default)]
struct UserList<'a> {
    /// The distinct users, up to one more than the limit.
    users: BTreeSet<Cow<'a, str>>,
    /// The length of the users in bytes, with quotes and a comma each. A user that is not kept counts each
    /// time it is listed.
    bytes: usize,
    /// The number of users listed, repeats included.
    count: usize,
}

#[derive(Deserialize)]
struct UserId<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for UserList<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(UserListVisitor)
    }
}

struct UserListVisitor;

impl<'de> Visitor<'de> for UserListVisitor {
    type Value = UserList<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<UserList<'de>, A::Error> {
        let mut listed = UserList::default();
        while let Some(UserId(user)) = items.next_element()? {
            listed.count += 1;
            if !listed.users.contains(&user) {
                listed.bytes += user.len() + 3;
                if listed.users.len() <= MAX_RECIPIENTS {
                    listed.users.insert(user);
                }
            }
        }
        Ok(listed)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for IntentBody<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BodyVisitor).map(Self)
    }
}

/// Visits an object and keeps repeated members.
struct BodyVisitor;

impl<'de> Visitor<'de> for BodyVisitor {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((name, received)) = map.next_entry::<&RawValue, &RawValue>()? {
            if members.len() <= MAX_MEMBERS {
                // A name with a lone surrogate is valid JSON, but no known member has such a name.
                let text: Result<UserId<'_>, _> = serde_json::from_str(name.get());
                members.push((text.map_or(Cow::Borrowed(name.get()), |UserId(name)| name), received));
            }
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests;
