//! The entries of the outbound streams, field by field.

use std::borrow::Cow;
use std::str::FromStr;

use serde_json::json;

use crate::entry::RawFields;
use crate::route::{Channel, LiveRoute, RouteKey};

/// The fields of one outbound entry, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboundEntry<'a>(pub Vec<(&'static str, Cow<'a, str>)>);

impl OutboundEntry<'_> {
    /// The length of all names and values, in bytes.
    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// The reason why a stored route cannot be written as an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodingError {
    /// The recipient of a push route is not a user.
    #[error("the recipient of a push route must be user:<user_id>")]
    NotAUser,
    /// An e-mail route without an address.
    #[error("the route has no e-mail address")]
    NoAddress,
    /// The record was edited by hand.
    #[error("the stored payload is not a JSON object")]
    PayloadNotAnObject,
}

/// Encodes `route` as an entry for its channel's stream.
pub fn encode(route: &LiveRoute) -> Result<OutboundEntry<'_>, EncodingError> {
    let mut fields = match route.channel {
        Channel::Push => client_event(route)?,
        Channel::Email => delivery_command(route)?,
    };
    let content = &route.content;
    let optional = [("request_id", &content.request_id), ("trace_id", &content.trace_id)];
    fields.extend(
        optional.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, value.into())),
    );
    Ok(OutboundEntry(fields))
}

/// The route that an entry with these fields belongs to: its `event_id` or `delivery_id`. `None` if another
/// program wrote the entry.
pub fn route_of(fields: &RawFields) -> Option<RouteKey> {
    let id = fields.0.iter().find(|(name, _)| matches!(&name[..], b"event_id" | b"delivery_id"));
    RouteKey::from_str(str::from_utf8(&id?.1).ok()?).ok()
}

type Fields<'a> = Vec<(&'static str, Cow<'a, str>)>;

fn client_event(route: &LiveRoute) -> Result<Fields<'_>, EncodingError> {
    let user_id = route.recipient_ref.strip_prefix("user:").ok_or(EncodingError::NotAUser)?;
    let content = &route.content;
    if !is_object(&content.payload_json) {
        return Err(EncodingError::PayloadNotAnObject);
    }
    Ok(vec![
        ("event_id", route.key.to_string().into()),
        ("event_type", (&content.notification_type).into()),
        ("user_id", user_id.into()),
        ("notification_id", route.key.notification_id.as_str().into()),
        ("route_id", (&route.key.route_id).into()),
        ("payload_json", (&content.payload_json).into()),
        ("occurred_at_ms", content.occurred_at.as_millis().to_string().into()),
        ("attempt", route.attempt().to_string().into()),
    ])
}

fn delivery_command(route: &LiveRoute) -> Result<Fields<'_>, EncodingError> {
    if route.resolved_email.is_empty() {
        return Err(EncodingError::NoAddress);
    }
    let content = &route.content;
    if !is_object(&content.payload_json) {
        return Err(EncodingError::PayloadNotAnObject);
    }
    let delivery_id = route.key.to_string();
    let idempotency_key = format!("notification:{delivery_id}");
    // Formatted as text, so that the payload is inserted byte for byte, in its normal form.
    let payload = format!(
        r#"{{"to":[{to}],"cc":[],"bcc":[],"reply_to":[],"template_id":{template},"locale":{locale},"variables":{variables},"attachments":[]}}"#,
        to = json!(route.resolved_email),
        template = json!(content.notification_type),
        locale = json!(route.resolved_locale),
        variables = content.payload_json,
    );
    Ok(vec![
        ("delivery_id", delivery_id.into()),
        ("source", "notification".into()),
        ("payload_mode", "template".into()),
        ("idempotency_key", idempotency_key.into()),
        ("requested_at_ms", content.accepted_at.as_millis().to_string().into()),
        ("payload_json", payload.into()),
    ])
}

/// Acceptance validated the payload, but the row may have been edited by hand.
fn is_object(payload_json: &str) -> bool {
    payload_json.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(payload_json).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ambient::Timestamp;

    use super::*;
    use crate::record::{NotificationId, RecordContent};
    use crate::route::{RouteKey, Version};

    fn route(channel: Channel) -> LiveRoute {
        let at = Timestamp::from_millis(1_775_121_700_500).expect("in range");
        LiveRoute {
            replaces: None,
            key: RouteKey {
                notification_id: NotificationId::from("1775121700000-0".to_owned()),
                route_id: format!("{channel}:user:u-1"),
            },
            version: Version::read(at),
            channel,
            recipient_ref: "user:u-1".into(),
            resolved_email: "u-1@example.com".into(),
            resolved_locale: "en".into(),
            attempt_count: 1,
            max_attempts: 3,
            next_attempt_at: at,
            content: Arc::new(RecordContent {
                producer: "game-master".into(),
                notification_type: "game.turn.ready".into(),
                payload_json: r#"{"turn_number":54}"#.into(),
                occurred_at: Timestamp::from_millis(1_775_121_700_000).expect("in range"),
                accepted_at: at,
                request_id: "r-1".into(),
                trace_id: String::new(),
            }),
        }
    }

    fn fields<'a>(entry: &'a OutboundEntry<'_>) -> Vec<(&'a str, &'a str)> {
        entry.0.iter().map(|(name, value)| (*name, &**value)).collect()
    }

    #[test]
    fn a_push_route_becomes_a_client_event() {
        let route = route(Channel::Push);
        let entry = encode(&route).expect("encodes");
        assert_eq!(
            fields(&entry),
            [
                ("event_id", "1775121700000-0/push:user:u-1"),
                ("event_type", "game.turn.ready"),
                ("user_id", "u-1"),
                ("notification_id", "1775121700000-0"),
                ("route_id", "push:user:u-1"),
                ("payload_json", r#"{"turn_number":54}"#),
                ("occurred_at_ms", "1775121700000"),
                ("attempt", "2"),
                ("request_id", "r-1"),
            ]
        );
    }

    #[test]
    fn an_entry_tells_its_route_and_that_of_another_program_does_not() {
        for channel in Channel::ALL {
            let route = route(channel);
            let entry = encode(&route).expect("encodes");
            let raw = |entry: &OutboundEntry<'_>| -> RawFields {
                entry
                    .0
                    .iter()
                    .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                    .collect()
            };
            assert_eq!(route_of(&raw(&entry)), Some(route.key.clone()));
            assert_eq!(route_of(&raw(&OutboundEntry(vec![("event_id", "turn-54".into())]))), None);
        }
        assert_eq!(route_of(&RawFields::default()), None);
    }

    #[test]
    fn an_email_route_becomes_a_delivery_command() {
        let route = route(Channel::Email);
        let entry = encode(&route).expect("encodes");
        assert_eq!(
            fields(&entry),
            [
                ("delivery_id", "1775121700000-0/email:user:u-1"),
                ("source", "notification"),
                ("payload_mode", "template"),
                ("idempotency_key", "notification:1775121700000-0/email:user:u-1"),
                ("requested_at_ms", "1775121700500"),
                (
                    "payload_json",
                    r#"{"to":["u-1@example.com"],"cc":[],"bcc":[],"reply_to":[],"template_id":"game.turn.ready","locale":"en","variables":{"turn_number":54},"attachments":[]}"#
                ),
                ("request_id", "r-1"),
            ]
        );
    }

    #[test]
    fn a_row_edited_by_hand_is_an_error_and_not_an_entry() {
        let mut email = route(Channel::Email);
        email.resolved_email.clear();
        assert_eq!(encode(&email), Err(EncodingError::NoAddress));
        let mut push = route(Channel::Push);
        push.recipient_ref = "email:u-1".into();
        assert_eq!(encode(&push), Err(EncodingError::NotAUser));
        for broken in ["", "[]", "{", "{}}", "null"] {
            let mut push = route(Channel::Push);
            Arc::make_mut(&mut push.content).payload_json = broken.into();
            assert_eq!(encode(&push), Err(EncodingError::PayloadNotAnObject), "{broken}");
        }
    }
}
