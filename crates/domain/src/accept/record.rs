//! The record and the routes of an accepted intent.

use std::sync::Arc;

use ambient::Timestamp;

use crate::intent::{Audience, Intent};
use crate::outcome::Acceptance;
use crate::policy::{DEFAULT_LOCALE, Policy, Schedule};
use crate::recipient::User;
use crate::record::{NotificationId, Record, RecordContent};
use crate::route::{Channel, NewRoute, RouteKey, SkipReason, Start};

/// Builds the record and the routes of `intent` under `notification_id`. `users` are its recipients in the
/// intent's order; empty for administrators.
pub(super) fn new_acceptance(
    notification_id: NotificationId,
    intent: &Intent,
    users: &[(&str, &User)],
    policy: &Policy,
    schedule: Schedule,
) -> Acceptance {
    let now = schedule.accepted_at;
    let factory = RouteFactory { id: &notification_id, policy, due: schedule.due };
    let routes = match &intent.audience {
        Audience::Users(_) => factory.user_routes(users, policy.channels(intent)),
        Audience::AdminEmail => factory.admin_routes(&intent.notification_type),
    };
    let record = Record {
        notification_id: notification_id.clone(),
        idempotency_key: intent.key(),
        audience_kind: intent.audience.kind().as_str(),
        recipient_user_ids: intent.audience.users().to_vec(),
        fingerprint: intent.fingerprint.clone(),
        content: Arc::new(RecordContent {
            producer: intent.producer.clone(),
            notification_type: intent.notification_type.clone(),
            payload_json: intent.payload_json.clone(),
            occurred_at: intent.occurred_at,
            accepted_at: now,
            request_id: intent.request_id.clone(),
            trace_id: intent.trace_id.clone(),
        }),
        idempotency_expires_at: now + policy.idempotency_ttl,
    };
    Acceptance { record, routes }
}

/// Builds the routes of one notification from the values that they share.
struct RouteFactory<'a> {
    id: &'a NotificationId,
    policy: &'a Policy,
    due: Timestamp,
}

impl RouteFactory<'_> {
    /// One route for each user and channel. An e-mail route without an address is skipped.
    fn user_routes(&self, users: &[(&str, &User)], channels: &[Channel]) -> Vec<NewRoute> {
        let mut routes = Vec::with_capacity(users.len() * channels.len());
        for (id, user) in users {
            let locale = self.policy.locale(&user.preferred_language);
            for channel in channels {
                let email = if *channel == Channel::Email { user.email.as_str() } else { "" };
                let mut route = self.route(*channel, format!("user:{id}"), email, locale);
                if *channel == Channel::Email && email.is_empty() {
                    route.start = Start::Skipped(SkipReason::NoEmailAddress);
                }
                routes.push(route);
            }
        }
        routes
    }

    /// One route for each address of the type; one skipped route if there is none.
    fn admin_routes(&self, notification_type: &str) -> Vec<NewRoute> {
        match self.policy.admin_emails.get(notification_type).map(Vec::as_slice) {
            None | Some([]) => {
                let reference = format!("config:{notification_type}");
                let start = Start::Skipped(SkipReason::NoAdminRecipients);
                vec![NewRoute { start, ..self.route(Channel::Email, reference, "", DEFAULT_LOCALE) }]
            }
            Some(addresses) => {
                let to = |address: &String| {
                    self.route(Channel::Email, format!("email:{address}"), address, DEFAULT_LOCALE)
                };
                addresses.iter().map(to).collect()
            }
        }
    }

    fn route(&self, channel: Channel, recipient_ref: String, email: &str, locale: &str) -> NewRoute {
        NewRoute {
            key: RouteKey {
                notification_id: self.id.clone(),
                route_id: format!("{channel}:{recipient_ref}"),
            },
            channel,
            recipient_ref,
            resolved_email: email.to_owned(),
            resolved_locale: locale.to_owned(),
            max_attempts: self.policy.max_attempts(channel),
            start: Start::Pending { due: self.due },
        }
    }
}
