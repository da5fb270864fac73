//! Every key of the service in Redis.
//!
//! | key | type | lives | written by |
//! |---|---|---|---|
//! | `notification:intents` (configurable) | stream | as its producers trim it | producers |
//! | `gateway:client-events`, `mail:delivery_commands` (configurable) | stream | as configured, or as its consumers trim it | publishers |
//! | `notification:route_leases:<notification_id>:<route_id>` | string | lease TTL as a token, then the dedupe TTL as `published:<entry id>` | publishers |
//! | `notification:stream_offsets:<stream>` | string | for ever | the intake |
//! | `notification:turns:<channel>` | string | a second at most | publishers, while they publish a page of due routes |
//! | `notification:vacancies:<office>` | list | five seconds | whoever resigns |
//!
//! Dynamic parts are base64url without padding, so that no id can reach into another key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::route::{Channel, RouteKey};

/// The key of a route's lease, and of its receipt.
pub fn route_lease(route: &RouteKey) -> String {
    let notification_id = URL_SAFE_NO_PAD.encode(route.notification_id.as_str());
    let route_id = URL_SAFE_NO_PAD.encode(&route.route_id);
    format!("notification:route_leases:{notification_id}:{route_id}")
}

/// The key of the turn at the due routes of `channel`.
pub(crate) fn turn(channel: Channel) -> String {
    format!("notification:turns:{}", channel.as_str())
}

/// The key of the bookmark in `stream`.
pub fn stream_offset(stream: &str) -> String {
    format!("notification:stream_offsets:{}", URL_SAFE_NO_PAD.encode(stream))
}

/// The key by which a resignation from `office` is announced.
pub(crate) fn vacancy(office: &str) -> String {
    format!("notification:vacancies:{}", URL_SAFE_NO_PAD.encode(office))
}

#[cfg(test)]
mod tests {
    use domain::record::NotificationId;

    use super::*;

    #[test]
    fn dynamic_parts_are_base64url_without_padding() {
        let notification_id = NotificationId::from("1775121700000-0".to_owned());
        let key = RouteKey { notification_id, route_id: "push:user:ü>?".into() };
        assert_eq!(route_lease(&key), "notification:route_leases:MTc3NTEyMTcwMDAwMC0w:cHVzaDp1c2VyOsO8Pj8");
        assert_eq!(
            stream_offset("notification:intents"),
            "notification:stream_offsets:bm90aWZpY2F0aW9uOmludGVudHM"
        );
    }
}
