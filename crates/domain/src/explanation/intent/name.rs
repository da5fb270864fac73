//! Names under which an operator may look for an intent.

use std::str::FromStr;

use crate::entry::EntryId;
use crate::find::FindQuery;
use crate::record::NotificationId;
use crate::route::RouteKey;

/// The number of numeric suffixes that are tried after the id of an entry: each stands for a stream that was
/// recreated.
pub const MAX_ID_NUMBERS: u32 = 10;
/// The prefix of the `delivery_id` in the idempotency key of an e-mail command.
const MAIL_KEY_PREFIX: &str = "notification:";
/// The length of a UUID with its hyphens.
const UUID_LENGTH: usize = 36;

/// A possible meaning of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reading {
    /// The id of an entry of the intents stream, which is also that of its notification.
    Entry(EntryId),
    /// The id of a notification that is not the id of an entry.
    Notification(NotificationId),
    /// The id of an entry of an outbound stream.
    Outbound(EntryId),
    /// A route: the `event_id` of a client event, or the `delivery_id` of an e-mail command.
    Route(RouteKey),
    /// An idempotency key, which is also the `event_id` of an event from an outbox.
    Key(String),
    /// A request id, of an intent or of an operator's change, or a trace id.
    Trace(String),
}

/// All possible meanings of the name, in the order of lookup. With a producer, the name is always that
/// producer's idempotency key; with a stream, the id of an entry.
pub fn readings(query: &FindQuery) -> Vec<Reading> {
    let name = query.name.as_str();
    let key = Reading::Key(name.to_owned());
    if query.producer.is_some() {
        return vec![key];
    }
    let entry = EntryId::from_str(name).ok();
    let entry = entry.into_iter().flat_map(|id| [Reading::Entry(id), Reading::Outbound(id)]);
    if query.stream.is_some() {
        return entry.collect();
    }
    let route = RouteKey::from_str(name.strip_prefix(MAIL_KEY_PREFIX).unwrap_or(name)).ok();
    let is_notification = is_numbered(name) || is_uuid(name);
    let notification = is_notification.then(|| Reading::Notification(NotificationId::from(name.to_owned())));
    let last = [key, Reading::Trace(name.to_owned())];
    route.map(Reading::Route).into_iter().chain(entry).chain(notification).chain(last).collect()
}

/// True for `<entry id>~<number>`.
fn is_numbered(name: &str) -> bool {
    name.split_once('~').is_some_and(|(entry, number)| {
        EntryId::from_str(entry).is_ok() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}

fn is_uuid(name: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| {
        if [8, 13, 18, 23].contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() }
    };
    name.len() == UUID_LENGTH && name.bytes().enumerate().all(is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_for_as_all_that_it_may_be() {
        let notification = |id: &str| Reading::Notification(NotificationId::from(id.to_owned()));
        let route = |id: &str, route_id: &str| {
            Reading::Route(RouteKey {
                notification_id: NotificationId::from(id.to_owned()),
                route_id: route_id.to_owned(),
            })
        };
        let entry = EntryId::new(1_775_121_700_000, 0);
        let uuid = "0197a2c4-7f00-7000-8000-0123456789ab";
        for (name, expected) in [
            ("1775121700000-0", vec![Reading::Entry(entry), Reading::Outbound(entry)]),
            ("1775121700000-0~1", vec![notification("1775121700000-0~1")]),
            (uuid, vec![notification(uuid)]),
            ("1-0/push:user:u/1", vec![route("1-0", "push:user:u/1")]),
            ("notification:1-0/email:user:u-1", vec![route("1-0", "email:user:u-1")]),
            ("game-123:turn-54", Vec::new()),
            ("1-0~x", Vec::new()),
            ("1-0/", Vec::new()),
        ] {
            let query = FindQuery { name: name.to_owned(), ..FindQuery::default() };
            let last = [Reading::Key(name.to_owned()), Reading::Trace(name.to_owned())];
            assert_eq!(readings(&query), [expected, last.to_vec()].concat(), "{name}");
        }
        let query = FindQuery { name: "1775121700000-0".to_owned(), ..FindQuery::default() };
        let of_stream = FindQuery { stream: Some("s".to_owned()), ..query.clone() };
        assert_eq!(readings(&of_stream), [Reading::Entry(entry), Reading::Outbound(entry)]);
        assert_eq!(readings(&FindQuery { name: "k".to_owned(), ..of_stream }), []);
        let of_producer = FindQuery { producer: Some("p".to_owned()), ..query };
        assert_eq!(readings(&of_producer), [Reading::Key("1775121700000-0".to_owned())]);
    }
}
