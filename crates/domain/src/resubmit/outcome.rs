//! The outcome of the new stream entry of a resubmitted malformed intent.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use crate::catalog::Catalog;
use crate::document::one_of;
use crate::intent::decode;
use crate::malformed_intent::whole_fields;
use crate::query::StoredMalformedIntent;
use crate::record::{NotificationId, Record};

/// The outcomes of a new entry that the tables show.
const OUTCOMES: [&str; 4] = ["accepted", "duplicate", "malformed", "unknown"];

/// The outcome of the new entry of a resubmitted intent, as far as the tables show it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct ResubmittedOutcome {
    /// `unknown` if the entry is not read yet, or if retention has deleted its notification or its row.
    #[schemars(schema_with = "outcome_schema")]
    pub outcome: &'static str,
    /// The notification that the intent became, or that it is a duplicate of.
    pub notification_id: Option<NotificationId>,
    /// The rule that the new entry breaks.
    pub failure_code: Option<String>,
}

fn outcome_schema(_: &mut SchemaGenerator) -> Schema {
    one_of(OUTCOMES)
}

impl ResubmittedOutcome {
    /// The outcome of the entry as which `row` was resubmitted; `None` if it was not. `again` are the
    /// malformed intents under the id of that entry, and `holder` is the record that has the key.
    pub fn of(
        row: &StoredMalformedIntent,
        again: &[StoredMalformedIntent],
        holder: Option<&Record>,
        catalog: &Catalog,
    ) -> Option<Self> {
        let new_id = row.summary.resubmitted_entry_id.as_deref()?;
        let fingerprint = &row.summary.key.fields_fingerprint;
        if let Some(again) = again.iter().find(|again| again.summary.key.fields_fingerprint == *fingerprint) {
            let failure_code = Some(again.summary.failure_code.clone());
            return Some(Self { outcome: "malformed", notification_id: None, failure_code });
        }
        let is_new = |holder: &&Record| holder.notification_id.as_str().split('~').next() == Some(new_id);
        let notification_id = |holder: &Record| Some(holder.notification_id.clone());
        if let Some(holder) = holder.filter(is_new) {
            let notification_id = notification_id(holder);
            return Some(Self { outcome: "accepted", notification_id, failure_code: None });
        }
        let fields = row.raw_fields.as_deref().and_then(whole_fields);
        let intent = fields.and_then(|fields| decode(&fields, catalog).ok());
        let same = holder.zip(intent).filter(|(holder, intent)| holder.fingerprint == intent.fingerprint);
        Some(match same {
            Some((holder, _)) => {
                let notification_id = notification_id(holder);
                Self { outcome: "duplicate", notification_id, failure_code: None }
            }
            None => Self { outcome: "unknown", notification_id: None, failure_code: None },
        })
    }

    /// The outcome for a person.
    pub fn text(&self) -> String {
        let of = self.notification_id.as_ref().map_or("", NotificationId::as_str);
        match (self.outcome, &self.failure_code) {
            ("malformed", Some(code)) => format!("malformed again: {code}"),
            ("accepted", _) => format!("accepted: it is the notification {of}"),
            ("duplicate", _) => format!("a duplicate of the notification {of}"),
            _ => "not read yet, or deleted since".to_owned(),
        }
    }
}
