//! Conflicts: intents whose idempotency key belongs to another intent, and the members in which the two
//! differ. Both are stored, so the comparison is made when it is shown.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use crate::catalog::Catalog;
use crate::document::{json_of, one_of};
use crate::intent::{Intent, decode};
use crate::malformed_intent::{FailureCode, whole_fields};
use crate::query::{MalformedSummary, StoredMalformedIntent};
use crate::record::{IdempotencyKey, NotificationId, Record};

/// The members of a request in which two intents with one key can differ.
pub const COMPARED_MEMBERS: [&str; 5] =
    ["notification_type", "audience_kind", "recipient_user_ids", "occurred_at_ms", "payload"];

/// A member in which two intents with one key differ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Difference {
    /// The member, by its name in a request.
    #[schemars(schema_with = "member_schema")]
    pub member: &'static str,
    /// Its value in the intent that was refused.
    pub refused: Value,
    /// Its value in the intent that has the key.
    pub accepted: Value,
}

fn member_schema(_: &mut SchemaGenerator) -> Schema {
    one_of(COMPARED_MEMBERS)
}

/// The other intent of a conflict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Conflict {
    /// The notification that has the key; `null` if retention has deleted it.
    pub notification_id: Option<NotificationId>,
    /// The members that differ. `null` if the two cannot be compared: the notification is deleted, not all
    /// fields were kept, or the entry is malformed by the present catalogue.
    pub differs: Option<Vec<Difference>>,
}

/// The members in which an intent differs from the one that became `record`, in the order of
/// [`COMPARED_MEMBERS`].
pub fn differences(intent: &Intent, record: &Record) -> Vec<Difference> {
    let content = &record.content;
    let pairs = [
        (json!(intent.notification_type), json!(content.notification_type)),
        (json!(intent.audience.kind().as_str()), json!(record.audience_kind)),
        (json!(intent.audience.users()), json!(record.recipient_user_ids)),
        (json!(intent.occurred_at.as_millis()), json!(content.occurred_at.as_millis())),
        (json_of(&intent.payload_json), json_of(&content.payload_json)),
    ];
    let compared = COMPARED_MEMBERS.into_iter().zip(pairs);
    let differs = compared.filter(|(member, (refused, accepted))| match *member {
        // The normal form of a payload is compared as text: numbers may differ in digits that JSON values
        // lose.
        "payload" => intent.payload_json != content.payload_json,
        "occurred_at_ms" => intent.occurred_at != content.occurred_at,
        _ => refused != accepted,
    });
    differs.map(|(member, (refused, accepted))| Difference { member, refused, accepted }).collect()
}

impl Conflict {
    /// The key over which a malformed intent is in conflict; `None` if it was refused for another reason.
    pub fn key(row: &MalformedSummary) -> Option<IdempotencyKey> {
        let is_conflict = row.failure_code == FailureCode::IdempotencyConflict.as_str();
        is_conflict.then(|| row.idempotency_key())
    }

    /// The conflict of a malformed intent with the intent that became `holder`.
    pub fn of(row: &StoredMalformedIntent, holder: Option<&Record>, catalog: &Catalog) -> Self {
        let fields = row.raw_fields.as_deref().and_then(whole_fields);
        let intent = fields.and_then(|fields| decode(&fields, catalog).ok());
        Self {
            notification_id: holder.map(|record| record.notification_id.clone()),
            differs: intent.zip(holder).map(|(intent, holder)| differences(&intent, holder)),
        }
    }

    /// The names of the members that differ, for a sentence; `None` if none is known.
    pub fn members(&self) -> Option<String> {
        let differs = self.differs.as_ref().filter(|differs| !differs.is_empty())?;
        let names: Vec<&str> = differs.iter().map(|difference| difference.member).collect();
        Some(names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{EntryId, RawFields};
    use crate::explanation::intent::tests::{fields, record, row};
    use crate::malformed_intent::KeptFields;

    fn stored(fields: RawFields) -> StoredMalformedIntent {
        let summary = row(EntryId::new(40_000, 0), &fields, FailureCode::IdempotencyConflict);
        StoredMalformedIntent {
            summary,
            raw_fields: Some(KeptFields::of(fields).text().into_owned()),
            resubmitted_from: None,
            resubmitted_outcome: None,
            conflict: None,
        }
    }

    #[test]
    fn a_conflict_names_the_members_that_differ_with_both_values() {
        let catalog = Catalog::built_in();
        let holder = record("30000-0", &fields("k", 1));
        let conflict = Conflict::of(&stored(fields("k", 2)), Some(&holder), &catalog);
        assert_eq!(conflict.members().as_deref(), Some("payload"));
        let differs = conflict.differs.expect("both are there");
        assert_eq!(
            (&differs[0].refused["turn_number"], &differs[0].accepted["turn_number"]),
            (&json!(2), &json!(1))
        );
        let same = Conflict::of(&stored(fields("k", 1)), Some(&holder), &catalog);
        assert_eq!((same.members(), same.differs), (None, Some(Vec::new())));
    }

    #[test]
    fn what_is_deleted_was_not_kept_or_is_malformed_is_not_compared() {
        let catalog = Catalog::built_in();
        let holder = record("30000-0", &fields("k", 1));
        assert_eq!(
            Conflict::of(&stored(fields("k", 2)), None, &catalog),
            Conflict { notification_id: None, differs: None }
        );
        let mut withheld = stored(fields("k", 2));
        withheld.raw_fields = None;
        assert_eq!(Conflict::of(&withheld, Some(&holder), &catalog).differs, None);
        let broken = stored(RawFields(vec![(b"colour".to_vec(), b"red".to_vec())]));
        assert_eq!(Conflict::of(&broken, Some(&holder), &catalog).differs, None);
    }
}
