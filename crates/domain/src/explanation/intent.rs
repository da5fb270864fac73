//! Derives the fate of an intent, and a sentence for a person, from what the tables and the stream hold under
//! a name.
//!
//! An intent leaves one trace of its outcome: a record if it is accepted, a malformed row if it is not. A
//! duplicate leaves none: an entry that was read and has no row of its own is recognised by the record that
//! holds its key.

mod fate;
mod name;
mod sentence;

use crate::checkpoint::{StreamCheck, StreamState, check_stream};
use crate::entry::{EntryId, RawFields};
use crate::intent::Intent;
use crate::malformed_intent::{FailureCode, Rejection};
use crate::query::{Counted, EntryLook, FoundEntry, MalformedSummary, UnreadEntries, Waiting};
use crate::record::{IdempotencyKey, NotificationId, Record};

pub use fate::{Absence, Expected, Fate, TermState};
pub use name::{MAX_ID_NUMBERS, Reading, readings};

/// The intent of an entry by the rules of the envelope, or the first rule that it breaks.
pub type Content = Result<Intent, Rejection>;

/// State of the intents stream and its reader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamPosition {
    /// The last entry up to which every entry has its outcome; `None` before the first batch. See
    /// [`read_until`].
    pub checkpoint: Option<EntryId>,
    /// The entries after it; `None` if Redis is unavailable.
    pub unread: Option<UnreadEntries>,
    /// True if a replica reads the stream.
    pub leads: bool,
    /// The reason for which that replica waits, if it does.
    pub waiting: Option<Waiting>,
}

/// The last entry that counts as read: the checkpoint, unless the stream ends before it. Such a stream was
/// recreated or cut short, and intake is about to detect that: none of its entries counts as read.
pub fn read_until(checkpoint: Option<EntryId>, stream: Option<StreamState>) -> Option<EntryId> {
    checkpoint.filter(|checkpoint| check_stream(*checkpoint, stream) != StreamCheck::EndsBefore)
}

/// Data found under the id of an entry.
#[derive(Clone, Debug)]
pub struct EntryFindings {
    /// Id of the entry.
    pub id: EntryId,
    /// State of the stream and its reader.
    pub progress: StreamPosition,
    /// Lookup of the entry in the stream; `None` if Redis is unavailable.
    pub look: Option<EntryLook>,
    /// Content of the entry, if its fields were read.
    pub content: Option<Content>,
    /// [`RawFields::fingerprint`] of its fields, if they were read.
    pub fields_fingerprint: Option<String>,
    /// Records under the id, or under the id with a numeric suffix.
    pub records: Vec<Record>,
    /// Malformed intents under the id, from the stream that the service reads.
    pub malformed: Vec<MalformedSummary>,
    /// The records that hold the keys of the entry and of the malformed intents.
    pub holders: Vec<Record>,
}

/// Data found under an idempotency key.
#[derive(Clone, Debug)]
pub struct KeyFindings {
    /// State of the stream and its reader.
    pub progress: StreamPosition,
    /// Records with the key: at most one of each producer.
    pub records: Vec<Record>,
    /// Malformed intents with the key.
    pub malformed: Vec<MalformedSummary>,
    /// Unread entries with the key, and their content.
    pub unread: Vec<(EntryId, Content)>,
}

/// The fates of the intents that arrived as the entry of these findings: at least one. More than one if the
/// stream was recreated and generated an id twice.
pub fn entry_fates(found: &EntryFindings) -> Vec<Fate> {
    let mut fates: Vec<Fate> = present_entry(found).into_iter().collect();
    let told = |fates: &[Fate], id: &NotificationId| fates.iter().any(|fate| fate.notification() == Some(id));
    for record in &found.records {
        // An id with a suffix is from an earlier stream with this key; so is the plain id if the entry has
        // different content.
        if !told(&fates, &record.notification_id) {
            fates.push(Fate::accepted(record));
        }
    }
    for row in &found.malformed {
        if !fates.iter().any(|fate| fate.malformed() == Some(row)) {
            fates.push(malformed(row, &found.holders));
        }
    }
    if fates.is_empty() {
        fates.push(Fate::Absent { id: found.id, absence: absence(found) });
    }
    fates
}

/// The fates of the intents with the key of these findings; empty if there are none.
pub fn key_fates(found: &KeyFindings) -> Vec<Fate> {
    let accepted = found.records.iter().map(Fate::accepted);
    let unread = found
        .unread
        .iter()
        .map(|(id, content)| unread(*id, &found.progress, expected(Some(content), &found.records)));
    let malformed = found.malformed.iter().map(|row| malformed(row, &found.records));
    accepted.chain(unread).chain(malformed).collect()
}

/// The unread entries whose fields contain this key, and this producer if it is given, as received.
pub fn unread_with_key<'a>(
    unread: &'a UnreadEntries,
    producer: Option<&str>,
    key: &str,
) -> Vec<(EntryId, &'a RawFields)> {
    let has = |fields: &RawFields, name: &str, wanted: &str| {
        fields.0.iter().any(|(field, value)| field == name.as_bytes() && value == wanted.as_bytes())
    };
    let matches = |fields: &RawFields| {
        has(fields, "idempotency_key", key)
            && producer.is_none_or(|producer| has(fields, "producer", producer))
    };
    let found = unread.entries.iter().filter(|entry| matches(&entry.fields));
    found.map(|entry| (entry.id, &entry.fields)).collect()
}

/// The fate of the entry in the stream; `None` if the stream does not hold it, or if that is unknown.
fn present_entry(found: &EntryFindings) -> Option<Fate> {
    let entry = found.look.as_ref()?.entry.as_ref()?;
    let content = found.content.as_ref().filter(|_| *entry != FoundEntry::TooLarge);
    let row = found.malformed.iter().find(|row| {
        found.fields_fingerprint.as_ref().is_none_or(|fingerprint| *fingerprint == row.key.fields_fingerprint)
    });
    let intent = content.and_then(|content| content.as_ref().ok());
    let holder = intent.and_then(|intent| holder(&intent.key(), &found.holders));
    if let (Some(intent), Some(holder)) = (intent, holder)
        && holder.fingerprint == intent.fingerprint
    {
        if found.records.iter().any(|record| record.notification_id == holder.notification_id) {
            return Some(Fate::accepted(holder));
        }
        // An entry that was refused is none, if its key was accepted later.
        if !is_unread(found) && row.is_none() {
            return Some(Fate::Duplicate {
                id: found.id,
                of: holder.notification_id.clone(),
                accepted_at: holder.content.accepted_at,
            });
        }
    }
    if let Some(row) = row {
        return Some(malformed(row, &found.holders));
    }
    if is_unread(found) {
        return Some(unread(found.id, &found.progress, expected(content, &found.holders)));
    }
    match holder {
        Some(holder) => {
            let with = Some(holder.notification_id.clone());
            Some(Fate::Conflict { id: found.id.to_string(), with, row: None })
        }
        None => {
            let broken = content.and_then(|content| content.as_ref().err()).cloned();
            Some(Fate::Forgotten { id: found.id, broken })
        }
    }
}

fn is_unread(found: &EntryFindings) -> bool {
    found.progress.checkpoint.is_none_or(|checkpoint| found.id > checkpoint)
}

fn holder<'a>(key: &IdempotencyKey, holders: &'a [Record]) -> Option<&'a Record> {
    holders.iter().find(|record| record.idempotency_key == *key)
}

fn malformed(row: &MalformedSummary, holders: &[Record]) -> Fate {
    if row.failure_code != FailureCode::IdempotencyConflict.as_str() {
        return Fate::Malformed(row.clone());
    }
    let with = holder(&row.idempotency_key(), holders).map(|record| record.notification_id.clone());
    Fate::Conflict { id: row.key.entry_id.clone(), with, row: Some(row.clone()) }
}

fn unread(id: EntryId, progress: &StreamPosition, expected: Expected) -> Fate {
    let term = match (progress.leads, &progress.waiting) {
        (false, _) => TermState::NoLeader,
        (true, Some(waiting)) => TermState::Waits(waiting.clone()),
        (true, None) => TermState::Reads,
    };
    Fate::Unread { id, ahead: ahead(id, progress), term, expected }
}

/// The number of unread entries before the entry `id`.
fn ahead(id: EntryId, progress: &StreamPosition) -> Counted {
    let Some(unread) = &progress.unread else { return Counted { count: 0, capped: true } };
    let count = unread.entries.iter().filter(|entry| entry.id < id).count() as u64;
    let reaches = unread.is_all || unread.entries.last().is_some_and(|last| last.id >= id);
    Counted { count, capped: !reaches }
}

fn expected(content: Option<&Content>, holders: &[Record]) -> Expected {
    match content {
        None => Expected::Undecided,
        Some(Err(rejection)) => Expected::Malformed(rejection.clone()),
        Some(Ok(intent)) => match holder(&intent.key(), holders) {
            None => Expected::Undecided,
            Some(record) if record.fingerprint == intent.fingerprint => {
                Expected::Duplicate(record.notification_id.clone())
            }
            Some(record) => Expected::Conflict(record.notification_id.clone()),
        },
    }
}

/// The reason why nothing exists under the id.
fn absence(found: &EntryFindings) -> Absence {
    let unread = is_unread(found);
    let Some(look) = &found.look else { return Absence::StreamUnavailable { unread } };
    match look.stream {
        None => Absence::NoStream { unread },
        Some(StreamState { last_generated, .. }) if found.id > last_generated => {
            Absence::NotGenerated { last_generated }
        }
        Some(StreamState { first: Some(first), .. }) if found.id >= first => Absence::Deleted { unread },
        Some(StreamState { first, .. }) => Absence::Trimmed { first, unread },
    }
}

#[cfg(test)]
pub(crate) mod tests;
