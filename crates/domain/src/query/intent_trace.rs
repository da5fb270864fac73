//! Traces of the intents with an idempotency key, and the outcome that they show.

use super::{MalformedSummary, Notification};
use crate::entry::EntryId;
use crate::malformed_intent::FailureCode;

/// The rows of the tables under the idempotency key of a producer. The fields are read in their order:
/// outcomes up to the checkpoint are in the other two, and a conflict is accompanied by its notification.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IntentTrace {
    /// The entry up to which every entry of the stream has its outcome; `None` before the first batch.
    pub checkpoint: Option<EntryId>,
    /// The newest malformed intent that names the producer and the key.
    pub malformed: Option<MalformedSummary>,
    /// The notification that has the key.
    pub notification: Option<Notification>,
}

/// The outcome of the newest intent with a key that left a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntentOutcome<'a> {
    /// The intent became a notification.
    Accepted(&'a Notification),
    /// The key belonged to another intent.
    Conflict(&'a MalformedSummary),
    /// The intent breaks a rule.
    Malformed(&'a MalformedSummary),
}

impl IntentTrace {
    /// The newest outcome; `None` if there is none. Outcomes of one batch have the same time; the order of
    /// the stream then decides.
    pub fn outcome(&self) -> Option<IntentOutcome<'_>> {
        let accepted = self.notification.as_ref();
        let accepted_at = accepted.map(|found| (found.accepted_at, found.notification_id.entry()));
        let is_newest =
            |row: &&MalformedSummary| accepted_at < Some((row.recorded_at, row.key.entry_id.parse().ok()));
        match self.malformed.as_ref().filter(is_newest) {
            Some(row) if row.failure_code == FailureCode::IdempotencyConflict.as_str() => {
                Some(IntentOutcome::Conflict(row))
            }
            Some(row) => Some(IntentOutcome::Malformed(row)),
            None => accepted.map(IntentOutcome::Accepted),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use ambient::Timestamp;

    use super::*;
    use crate::catalog::Catalog;
    use crate::malformed_intent::MalformedKey;
    use crate::record::{IdempotencyKey, Record, RecordContent};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000).expect("in range")
    }

    pub(crate) fn notification(accepted_at: Timestamp) -> Notification {
        let record = Record {
            notification_id: "5-0".to_owned().into(),
            idempotency_key: IdempotencyKey { producer: "game_master".to_owned(), key: "k-1".to_owned() },
            audience_kind: "user",
            recipient_user_ids: Vec::new(),
            fingerprint: String::new(),
            content: Arc::new(RecordContent {
                producer: "p".into(),
                notification_type: "game.turn.ready".to_owned(),
                payload_json: "{}".to_owned(),
                occurred_at: accepted_at,
                accepted_at,
                request_id: String::new(),
                trace_id: String::new(),
            }),
            idempotency_expires_at: accepted_at,
        };
        Notification::new(record, accepted_at, Vec::new())
    }

    fn malformed(code: FailureCode, entry_id: &str, recorded_at: Timestamp) -> MalformedSummary {
        let key = MalformedKey {
            stream: "intents".to_owned(),
            entry_id: entry_id.to_owned(),
            fields_fingerprint: String::new(),
        };
        MalformedSummary {
            key,
            notification_type: "game.turn.ready".to_owned().into(),
            producer: "game_master".to_owned(),
            idempotency_key: "k-1".to_owned().into(),
            failure_code: code.as_str().to_owned(),
            failure_message: String::new().into(),
            recorded_at,
            resubmitted_at: None,
            resubmitted_entry_id: None,
        }
    }

    #[test]
    fn the_newest_outcome_counts_and_of_one_batch_that_of_the_last_entry() {
        const BROKEN: FailureCode = FailureCode::UnknownField;
        const CONFLICT: FailureCode = FailureCode::IdempotencyConflict;
        for (accepted_at, refused, expected) in [
            (None, None, None),
            (Some(5), None, Some("accepted")),
            (None, Some((BROKEN, "4-0", 4)), Some("malformed")),
            (None, Some((CONFLICT, "4-0", 4)), Some("conflict")),
            (Some(5), Some((BROKEN, "9-0", 4)), Some("accepted")),
            (Some(5), Some((BROKEN, "4-0", 5)), Some("accepted")),
            (Some(5), Some((BROKEN, "5-1", 5)), Some("malformed")),
            (Some(5), Some((BROKEN, "4-0", 6)), Some("malformed")),
            (Some(5), Some((CONFLICT, "4-0", 4)), Some("accepted")),
            (Some(5), Some((CONFLICT, "10-0", 5)), Some("conflict")),
            (Some(5), Some((CONFLICT, "6-0", 6)), Some("conflict")),
        ] {
            let trace = IntentTrace {
                checkpoint: None,
                malformed: refused.map(|(code, entry_id, seconds)| malformed(code, entry_id, at(seconds))),
                notification: accepted_at.map(|seconds| notification(at(seconds))),
            };
            let found = trace.outcome().map(|outcome| match outcome {
                IntentOutcome::Accepted(_) => "accepted",
                IntentOutcome::Conflict(_) => "conflict",
                IntentOutcome::Malformed(_) => "malformed",
            });
            assert_eq!(found, expected, "accepted at {accepted_at:?}, refused {refused:?}");
        }
    }

    #[test]
    fn a_producer_is_allowed_the_types_that_the_catalogue_gives_it_and_no_unknown_one() {
        let catalog = Catalog::built_in();
        for (notification_type, producer, expected) in [
            ("game.turn.ready", "game_master", true),
            ("game.turn.ready", "geoprofile", false),
            ("no.such.type", "game_master", false),
            ("", "game_master", false),
            ("game.turn.ready", "", false),
        ] {
            let row = MalformedSummary {
                notification_type: notification_type.to_owned().into(),
                producer: producer.to_owned(),
                ..malformed(FailureCode::UnknownField, "1-0", at(1))
            };
            assert_eq!(row.allows_producer(&catalog), expected, "{notification_type} of {producer}");
        }
    }
}
