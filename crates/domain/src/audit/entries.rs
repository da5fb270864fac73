//! Comparison of entries of the intents stream with their outcomes in PostgreSQL.
//!
//! A duplicate leaves no row. It is recognised by the record of its idempotency key, which has the same
//! fingerprint under another id.

use ambient::Timestamp;

use super::{Discrepancy, DiscrepancyKind as Kind, RetentionCutoffs, Subject};
use crate::catalog::Catalog;
use crate::entry::{EntryId, RawFields, Unread};
use crate::intent;
use crate::malformed_intent::FailureCode;
use crate::record::{IdempotencyKey, NotificationId};

/// The data of an entry that identifies its outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryTrace {
    /// The entry's id.
    pub id: EntryId,
    /// [`RawFields::fingerprint`]; `None` if the entry was not read.
    pub fields_fingerprint: Option<String>,
    /// The idempotency key as received, also if the entry is invalid.
    pub key: Option<IdempotencyKey>,
    /// The content under today's catalogue: fingerprint and time of the event, or the first rule that the
    /// entry breaks. `None` if the entry was not read.
    pub content: Option<Result<(String, Timestamp), FailureCode>>,
    /// True if the entry could not be read in time; it may then be a valid intent.
    pub is_too_slow: bool,
}

impl EntryTrace {
    /// Creates the trace of an entry with these fields.
    pub fn new(id: EntryId, fields: Result<&RawFields, Unread>, catalog: &Catalog) -> Self {
        let fields = match fields {
            Ok(fields) => fields,
            Err(why) => {
                let is_too_slow = why == Unread::TooSlow;
                return Self { id, fields_fingerprint: None, key: None, content: None, is_too_slow };
            }
        };
        let content = intent::decode(fields, catalog);
        let content = content.map(|intent| (intent.fingerprint, intent.occurred_at));
        Self {
            id,
            fields_fingerprint: Some(fields.fingerprint()),
            key: raw_key(fields),
            content: Some(content.map_err(|rejection| rejection.code)),
            is_too_slow: false,
        }
    }

    /// True if the entry may have been valid when it was processed: the catalogue may have been different
    /// then.
    fn may_be_valid(&self) -> bool {
        match &self.content {
            Some(Ok(_)) => true,
            Some(Err(code)) => matches!(
                code,
                FailureCode::UnknownNotificationType
                    | FailureCode::ProducerNotAllowed
                    | FailureCode::AudienceNotAllowed
                    | FailureCode::PayloadSchemaViolation
            ),
            None => false,
        }
    }

    fn intent_fingerprint(&self) -> Option<&str> {
        match &self.content {
            Some(Ok((fingerprint, _))) => Some(fingerprint),
            _ => None,
        }
    }

    /// True if retention may have deleted its outcome. The time of arrival decides, not the time of the
    /// event: the producer chooses the latter, and an entry that was never read must not be excused by an old
    /// event time.
    fn may_be_expired(&self, cutoffs: RetentionCutoffs) -> bool {
        let received = self.id.time();
        received <= cutoffs.malformed_intents || (self.may_be_valid() && received <= cutoffs.records)
    }
}

/// The idempotency key as received, if PostgreSQL can store it.
fn raw_key(fields: &RawFields) -> Option<IdempotencyKey> {
    let text = |name: &str| {
        let (_, value) = fields.0.iter().find(|(field, _)| field == name.as_bytes())?;
        let text = std::str::from_utf8(value).ok().filter(|text| !text.contains('\0'));
        text.filter(|text| !text.is_empty() && text.len() <= intent::MAX_IDENTIFIER).map(str::to_owned)
    };
    Some(IdempotencyKey { producer: text("producer")?, key: text("idempotency_key")? })
}

/// A row of `malformed_intents` with the id of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MalformedTrace {
    /// Fingerprint of the fields.
    pub fields_fingerprint: String,
    /// Failure code.
    pub failure_code: String,
}

/// The rows that PostgreSQL holds for an entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundOutcome {
    /// The record with the entry's idempotency key: its id and fingerprint.
    pub record: Option<(NotificationId, String)>,
    /// The malformed rows with the entry's id: more than one if the stream was recreated.
    pub malformed: Vec<MalformedTrace>,
}

/// The data common to all entries of a page that are judged together.
#[derive(Clone, Copy, Debug)]
pub struct EntryContext<'a> {
    /// Key of the stream.
    pub stream: &'a str,
    /// The checkpoint, read before the entries.
    pub processed: EntryId,
    /// True if the stream ends before the checkpoint: an entry without an outcome may then be unread.
    pub is_stream_behind: bool,
    /// The times up to which retention may have deleted rows.
    pub cutoffs: RetentionCutoffs,
}

/// The outcome of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryOutcome {
    /// The entry has a record.
    Accepted,
    /// The intent has a record under another id.
    Duplicate,
    /// The idempotency key belongs to another intent.
    Conflict,
    /// The entry broke a rule.
    Malformed,
    /// The entry is after the checkpoint.
    NotRead,
    /// Retention may have deleted the outcome.
    Expired,
    /// The entry could not be read in time, and no malformed row has its id.
    NotCompared,
}

/// Returns the outcome of an entry, or its discrepancy.
pub fn judge_entry(
    entry: &EntryTrace,
    found: &FoundOutcome,
    context: &EntryContext<'_>,
) -> Result<EntryOutcome, Discrepancy> {
    if entry.id > context.processed {
        return Ok(EntryOutcome::NotRead);
    }
    let wrong = |kind, detail: String| {
        let subject = Subject::Entry { stream: context.stream.to_owned(), id: entry.id };
        Err(Discrepancy::new(kind, subject, detail))
    };
    let is_same = |row: &&MalformedTrace| {
        entry.fields_fingerprint.as_ref().is_none_or(|fields| *fields == row.fields_fingerprint)
    };
    let row = found.malformed.iter().find(is_same);
    let record = found.record.as_ref().map(|(id, fingerprint)| {
        let is_own = id.as_str().split('~').next() == Some(&entry.id.to_string());
        (id, is_own, entry.intent_fingerprint().map(|own| own == fingerprint))
    });
    match (row, record) {
        (Some(row), Some((id, true, Some(true)))) => wrong(
            Kind::EntryWithTwoOutcomes,
            format!("it is the notification {id}, and malformed ({})", row.failure_code),
        ),
        (Some(row), _) if row.failure_code == FailureCode::IdempotencyConflict.as_str() => {
            Ok(EntryOutcome::Conflict)
        }
        (Some(_), _) => Ok(EntryOutcome::Malformed),
        (None, Some((id, true, Some(false)))) => wrong(
            Kind::RecordDiffersFromEntry,
            format!("the notification {id} has another fingerprint than the entry"),
        ),
        (None, Some((_, true, _))) if entry.may_be_valid() => Ok(EntryOutcome::Accepted),
        (None, Some((_, false, Some(true) | None))) if entry.may_be_valid() => Ok(EntryOutcome::Duplicate),
        (None, Some((_, false, Some(false)))) if context.is_stream_behind => Ok(EntryOutcome::NotRead),
        (None, Some((_, false, Some(false)))) if entry.id.time() <= context.cutoffs.malformed_intents => {
            Ok(EntryOutcome::Conflict)
        }
        (None, Some((id, false, Some(false)))) => wrong(
            Kind::ConflictWithoutRow,
            format!("its idempotency key belongs to the notification {id}, which has other content"),
        ),
        (None, _) if entry.is_too_slow => Ok(EntryOutcome::NotCompared),
        (None, _) if context.is_stream_behind => Ok(EntryOutcome::NotRead),
        (None, _) if entry.may_be_expired(context.cutoffs) => Ok(EntryOutcome::Expired),
        (None, _) => wrong(
            Kind::EntryWithoutOutcome,
            format!(
                "there is neither a record nor a malformed row, and the checkpoint is {}",
                context.processed
            ),
        ),
    }
}
