//! An intent as a JSON object: the body of a request, an element of a batch, or (without its type) the
//! payload of an event.
//!
//! The object becomes the flat entry that it would be in the stream, with recipients and payload in normal
//! form. From there on, the rules of stream entries apply ([`decode`]). Errors that only JSON can have are
//! found here. A body that is not an object is [`NotAnObject`], and the caller rejects the whole request. A
//! member that is unknown, repeated or of the wrong type breaks the rule given in the contract.
//!
//! Nothing here takes more than a few times the bytes of the body, whatever the body contains. Items beyond
//! the limits of an intent are counted and not kept.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::decode::decode;
use super::envelope::{
    AUDIENCE_KIND, IDEMPOTENCY_KEY, NOTIFICATION_TYPE, OCCURRED_AT_MS, PAYLOAD, PRODUCER, RECIPIENTS,
    REQUEST_ID, TRACE_ID, quote,
};
use super::{Intent, MAX_ENTRY, MAX_PAYLOAD, MAX_RECIPIENTS};
use crate::catalog::Catalog;
use crate::entry::RawFields;
use crate::json::{self, NormalForm, least_normal_length, normalise};
use crate::malformed::{FailureCode, Rejection, reject};

/// The number of members beyond which only one more is kept. An object with that many members has an unknown
/// or repeated one among those kept.
const MAX_MEMBERS: usize = 64;

/// The members of an intent's object, each with its field and its type. Only elements of a batch may have the
/// key as a member.
const MEMBERS: [Member; 8] = [
    Member { name: "notification_type", field: NOTIFICATION_TYPE, kind: Kind::Text },
    Member { name: "audience_kind", field: AUDIENCE_KIND, kind: Kind::Text },
    Member { name: "recipient_user_ids", field: RECIPIENTS, kind: Kind::Recipients },
    Member { name: "idempotency_key", field: IDEMPOTENCY_KEY, kind: Kind::Text },
    Member { name: "occurred_at_ms", field: OCCURRED_AT_MS, kind: Kind::Integer },
    Member { name: "payload", field: PAYLOAD, kind: Kind::Payload },
    Member { name: "request_id", field: REQUEST_ID, kind: Kind::Text },
    Member { name: "trace_id", field: TRACE_ID, kind: Kind::Text },
];

#[derive(Clone, Copy)]
struct Member {
    name: &'static str,
    field: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
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
        decode(&self.to_entry(&fixed, &defaults)?, catalog)
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
        let may_be_given = |member: &Member| !fixed.iter().any(|(field, _)| *field == member.field);
        let known = |name: &str| MEMBERS.iter().any(|member| member.name == name && may_be_given(member));
        match names.into_iter().find(|name| !known(name)) {
            Some(name) => {
                reject(FailureCode::UnknownField, format!("{} is not a member of an intent", quote(name)))
            }
            None => Ok(()),
        }
    }
}

impl Kind {
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
    let Ok(listed) = serde_json::from_str::<Listed<'_>>(text) else {
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
struct Listed<'a> {
    /// The distinct users, up to one more than the limit.
    users: BTreeSet<Cow<'a, str>>,
    /// The length of the users in bytes, with quotes and a comma each. A user that is not kept counts each
    /// time it is listed.
    bytes: usize,
    /// The number of users listed, repeats included.
    count: usize,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Listed<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Users)
    }
}

struct Users;

impl<'de> Visitor<'de> for Users {
    type Value = Listed<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Listed<'de>, A::Error> {
        let mut listed = Listed::default();
        while let Some(Text(user)) = items.next_element()? {
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
        deserializer.deserialize_map(Members).map(Self)
    }
}

/// Visits an object and keeps repeated members.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((name, received)) = map.next_entry::<&RawValue, &RawValue>()? {
            if members.len() <= MAX_MEMBERS {
                // A name with a lone surrogate is valid JSON, but no known member has such a name.
                let text: Result<Text<'_>, _> = serde_json::from_str(name.get());
                members.push((text.map_or(Cow::Borrowed(name.get()), |Text(name)| name), received));
            }
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json as value};

    use super::*;

    const CONTEXT: BodyContext<'_> =
        BodyContext { producer: "game_master", idempotency_key: Some("k-1"), request_id: None };

    /// An intent of type `game.turn.ready` for two users.
    fn turn_ready() -> Value {
        value!({
            "notification_type": "game.turn.ready",
            "audience_kind": "user",
            "recipient_user_ids": ["u-2", "u-1", "u-2"],
            "occurred_at_ms": 1_775_121_700_000_i64,
            "payload": {"game_id": "g", "game_name": "n", "turn_number": 54},
        })
    }

    fn with(member: &str, received: Value) -> String {
        let mut body = turn_ready();
        body[member] = received;
        body.to_string()
    }

    fn decoded(text: &str) -> Result<Intent, Rejection> {
        IntentBody::parse(text).expect("an object").decode(CONTEXT, &Catalog::built_in())
    }

    fn code(text: &str) -> FailureCode {
        decoded(text).expect_err("it breaks a rule").code
    }

    #[test]
    fn a_body_is_the_intent_that_its_entry_would_be() {
        let intent = decoded(&turn_ready().to_string()).expect("well formed");
        let entry = RawFields::from_iter([
            (NOTIFICATION_TYPE, "game.turn.ready"),
            (PRODUCER, "game_master"),
            (AUDIENCE_KIND, "user"),
            (RECIPIENTS, r#"["u-1","u-2"]"#),
            (IDEMPOTENCY_KEY, "k-1"),
            (OCCURRED_AT_MS, "1775121700000"),
            (PAYLOAD, r#"{"turn_number":54,"game_name":"n","game_id":"g"}"#),
        ]);
        assert_eq!(Ok(intent), decode(&entry, &Catalog::built_in()));
    }

    #[test]
    fn each_member_of_the_wrong_type_breaks_the_rule_of_the_contract() {
        for (member, received, expected) in [
            ("notification_type", value!(1), FailureCode::InvalidField),
            ("audience_kind", value!(["user"]), FailureCode::InvalidField),
            ("recipient_user_ids", value!("u-1"), FailureCode::InvalidRecipients),
            ("recipient_user_ids", value!(["u-1", 2]), FailureCode::InvalidRecipients),
            ("occurred_at_ms", value!("1775121700000"), FailureCode::InvalidField),
            ("occurred_at_ms", value!(1.5), FailureCode::InvalidField),
            ("occurred_at_ms", value!(-1), FailureCode::InvalidField),
            ("payload", value!("{}"), FailureCode::InvalidPayloadJson),
            ("payload", value!([]), FailureCode::InvalidPayloadJson),
            ("request_id", value!(7), FailureCode::InvalidField),
            ("trace_id", value!({}), FailureCode::InvalidField),
            ("colour", value!("red"), FailureCode::UnknownField),
            ("producer", value!("game_master"), FailureCode::UnknownField),
            ("idempotency_key", value!("k-2"), FailureCode::UnknownField),
            ("recipient_user_ids_json", value!("[]"), FailureCode::UnknownField),
        ] {
            assert_eq!(code(&with(member, received.clone())), expected, "{member}: {received}");
        }
    }

    #[test]
    fn a_number_that_is_not_written_as_an_integer_is_none() {
        for number in ["1.0", "1e3", "1E3", "0.0", "-0"] {
            let text = turn_ready().to_string().replace("1775121700000", number);
            assert_eq!(code(&text), FailureCode::InvalidField, "{number}");
        }
    }

    #[test]
    fn null_is_absent() {
        assert_eq!(code(&with("payload", Value::Null)), FailureCode::MissingField);
        assert!(decoded(&with("request_id", Value::Null)).is_ok());
    }

    #[test]
    fn a_repeated_member_is_refused_at_the_top_and_in_the_payload() {
        let text = turn_ready().to_string();
        let twice = text.replacen('{', r#"{"payload":{},"#, 1);
        assert_eq!(code(&twice), FailureCode::RepeatedField);
        let inside = text.replace(r#""game_id":"g""#, r#""game_id":"g","game_id":"h""#);
        assert_eq!(code(&inside), FailureCode::InvalidPayloadJson);
    }

    #[test]
    fn sizes_are_those_of_the_normal_form() {
        let padding = " ".repeat(MAX_PAYLOAD);
        let spaced =
            turn_ready().to_string().replace(r#""turn_number":"#, &format!(r#""turn_number":{padding}"#));
        assert!(spaced.len() > MAX_PAYLOAD && decoded(&spaced).is_ok());
        let repeated = vec!["u".repeat(128); MAX_RECIPIENTS];
        assert_eq!(
            decoded(&with("recipient_user_ids", value!(repeated))).expect("one user").audience.users().len(),
            1
        );
        let too_many = vec!["u-1"; MAX_RECIPIENTS + 1];
        assert_eq!(code(&with("recipient_user_ids", value!(too_many))), FailureCode::InvalidRecipients);
        // Found by a review: 3,000 repeats of 128 bytes are one user, but too many elements.
        let repeated = vec!["u".repeat(128); 3_000];
        assert_eq!(code(&with("recipient_user_ids", value!(repeated))), FailureCode::InvalidRecipients);
        let distinct: Vec<String> = (0..3_000).map(|n| format!("{n:0>128}")).collect();
        assert_eq!(code(&with("recipient_user_ids", value!(distinct))), FailureCode::EntryTooLarge);
    }

    #[test]
    fn a_payload_that_is_too_long_breaks_the_rule_of_its_size_in_its_place() {
        let payload = |items: usize| value!({"a": vec![value!({"a": 0}); items]});
        assert_eq!(code(&with("payload", payload(10_000))), FailureCode::InvalidPayloadJson);
        assert_eq!(code(&with("payload", payload(40_000))), FailureCode::EntryTooLarge);
        // Its numbers are longer than the least length that is computed for them.
        let widened = value!({"a": vec![f64::MAX; 30_000]}).to_string();
        let text =
            turn_ready().to_string().replace(r#"{"game_id":"g","game_name":"n","turn_number":54}"#, &widened);
        assert_eq!(code(&text), FailureCode::EntryTooLarge);
        // Rules that precede the rule of the payload are applied first.
        let mut body = turn_ready();
        (body["payload"], body["notification_type"]) = (payload(10_000), value!("none"));
        assert_eq!(code(&body.to_string()), FailureCode::UnknownNotificationType);
    }

    #[test]
    fn a_name_with_a_lone_surrogate_is_that_of_no_member() {
        let text = turn_ready().to_string().replacen('{', r#"{"\ud800":1,"#, 1);
        assert_eq!(code(&text), FailureCode::UnknownField);
    }

    #[test]
    fn of_very_many_members_one_is_unknown_or_repeated() {
        let many = |name: fn(usize) -> String| {
            let members: Vec<String> = (0..100_000).map(|n| format!("\"{}\":0", name(n))).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(code(&many(|n| n.to_string())), FailureCode::UnknownField);
        assert_eq!(code(&many(|_| "payload".to_owned())), FailureCode::RepeatedField);
    }

    #[test]
    fn the_levels_of_a_payload_count_from_the_payload() {
        let nested =
            |levels: usize| format!("{}{}", r#"{"a":"#.repeat(levels - 1), "{}") + &"}".repeat(levels - 1);
        let deepest = turn_ready()
            .to_string()
            .replace(r#""game_id":"g""#, &format!(r#""game_id":"g","x":{}"#, nested(63)));
        assert_ne!(
            decoded(&deepest).map_err(|rejection| rejection.code),
            Err(FailureCode::InvalidPayloadJson)
        );
        let deeper = turn_ready()
            .to_string()
            .replace(r#""game_id":"g""#, &format!(r#""game_id":"g","x":{}"#, nested(64)));
        assert_eq!(code(&deeper), FailureCode::InvalidPayloadJson);
    }

    #[test]
    fn the_request_id_of_the_caller_is_for_intents_without_one() {
        let context = BodyContext { request_id: Some("r-header"), ..CONTEXT };
        let request_id = |text: &str| {
            let body = IntentBody::parse(text).expect("an object");
            body.decode(context, &Catalog::built_in()).expect("well formed").request_id
        };
        assert_eq!(request_id(&turn_ready().to_string()), "r-header");
        assert_eq!(request_id(&with("request_id", value!("r-body"))), "r-body");
    }

    #[test]
    fn an_element_of_a_batch_names_its_key() {
        let context = BodyContext { idempotency_key: None, ..CONTEXT };
        let decode =
            |text: &str| IntentBody::parse(text).expect("an object").decode(context, &Catalog::built_in());
        assert_eq!(decode(&turn_ready().to_string()).expect_err("no key").code, FailureCode::MissingField);
        assert_eq!(decode(&with("idempotency_key", value!("k"))).expect("well formed").idempotency_key, "k");
        let long = "k".repeat(256);
        assert_eq!(
            decode(&with("idempotency_key", value!(long))).expect_err("too long").code,
            FailureCode::InvalidField
        );
    }

    #[test]
    fn what_is_no_object_has_no_members() {
        for text in ["", "[]", "1", "\"{}\"", "{", "{}x", "{\"a\":}", "nul"] {
            assert!(IntentBody::parse(text).is_err(), "{text}");
        }
    }
}
