//! Rows that PostgreSQL accepts if it accepts any. They distinguish a bad entry from a database that rejects
//! everything.

use ambient::Timestamp;

use super::record::new_acceptance;
use crate::catalog::{AudienceKind, NotificationType};
use crate::entry::{EntryId, RawFields};
use crate::intent::{Audience, Intent};
use crate::malformed_intent::{FailureCode, MalformedIntent, Rejection};
use crate::outcome::Acceptance;
use crate::policy::Policy;
use crate::recipient::User;
use crate::record::NotificationId;

/// Makes one valid row of each kind, to test whether PostgreSQL accepts any. If the catalogue allows it, type
/// and producer differ from those of `refused`.
pub fn probe(stream: &str, policy: &Policy, refused: Option<&Intent>, now: Timestamp) -> Probe {
    let unlike = |kind: &&NotificationType| {
        refused.is_none_or(|intent| {
            kind.name() != intent.notification_type && !kind.allows_producer(&intent.producer)
        })
    };
    let with_users = || policy.catalog.types().filter(|kind| kind.channels(AudienceKind::User).is_some());
    let kind = with_users().find(unlike).or_else(|| with_users().next());
    let user = User::default();
    let (name, producer) = kind
        .map_or((PROBE, PROBE), |kind| (kind.name(), kind.producers().first().map_or(PROBE, String::as_str)));
    let intent = Intent {
        notification_type: name.to_owned(),
        producer: producer.to_owned(),
        audience: Audience::Users(vec![PROBE.to_owned()]),
        idempotency_key: PROBE.to_owned(),
        occurred_at: now,
        payload_json: "{}".to_owned(),
        request_id: String::new(),
        trace_id: String::new(),
        fingerprint: PROBE.to_owned(),
    };
    let id = NotificationId::from(PROBE.to_owned());
    let acceptance = new_acceptance(id, &intent, &[(PROBE, &user)], policy, policy.schedule(now, true));
    let rejection = Rejection { code: FailureCode::NotStorable, message: PROBE.to_owned() };
    let malformed = MalformedIntent::new(stream, EntryId::ZERO, RawFields::default(), rejection, now);
    Probe { acceptance, malformed }
}

/// The filler text of a [`Probe`].
const PROBE: &str = "notification-service-probe";

/// Valid rows that are never committed.
#[derive(Clone, PartialEq, Debug)]
pub struct Probe {
    /// A record and its routes.
    pub acceptance: Acceptance,
    /// A malformed intent.
    pub malformed: MalformedIntent,
}
