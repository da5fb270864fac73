//! Erasing a person: the data that names a user of the directory goes, and what only mentions the user is
//! counted for a decision (ADR 0064).
//!
//! A user is named by id: as the recipient of a record, in the ids of routes, in the list of recipients of an
//! entry. Anything else that contains the id, such as a payload, only mentions the user.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::document::{Counted, counted_form};
use crate::entry::RawFields;
use crate::malformed_intent::read_fields;
use crate::operations::PLAN_IDS;
use crate::record::NotificationId;
use crate::route::{Channel, RouteKey};

/// The longest id of a user, in bytes.
pub const MAX_USER_ID_BYTES: usize = 128;
/// The name in `operator_actions.action`.
pub const ACTION: &str = "erase_user";
/// The failure message of a malformed intent whose fields were erased.
pub const ERASED_MESSAGE: &str = "the fields named a user who was erased";
/// The bytes of a block of SHA-256.
const BLOCK: usize = 64;
/// The purpose of the hash of a user, so that no other hash with the same key equals it.
const PURPOSE: &[u8] = b"notification erased user\0";
/// The word in place of the id in the arguments of former actions.
const ERASED: &str = "erased";
/// The field of an entry with the list of its recipients.
const RECIPIENTS: &[u8] = b"recipient_user_ids_json";

/// The user to erase. `Debug` hides the id.
#[derive(Clone, PartialEq, Eq)]
pub struct ErasedUser {
    id: String,
    hash: String,
}

impl fmt::Debug for ErasedUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErasedUser").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// The text cannot be the id of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the id of a user has 1 to 128 bytes without control characters and without white space at its ends")]
pub struct InvalidUserId;

/// Checks the id of a user by the rules of recipients.
pub fn checked_user_id(id: String) -> Result<String, InvalidUserId> {
    let is_id =
        (1..=MAX_USER_ID_BYTES).contains(&id.len()) && id.trim() == id && !id.chars().any(char::is_control);
    if is_id { Ok(id) } else { Err(InvalidUserId) }
}

impl ErasedUser {
    /// The user with this id, in an installation whose key is `key`.
    pub fn new(id: String, key: &[u8]) -> Result<Self, InvalidUserId> {
        let id = checked_user_id(id)?;
        let hash = hex::encode(hmac_sha256(key, &[PURPOSE, id.as_bytes()]));
        Ok(Self { id, hash })
    }

    /// The id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The keyed hash of the id, which is recorded in its place.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The routes to the user that a notification may have.
    pub fn routes(&self, notification_id: &NotificationId) -> [RouteKey; 2] {
        Channel::ALL.map(|channel| RouteKey {
            notification_id: notification_id.clone(),
            route_id: self.route_id(channel),
        })
    }

    fn route_id(&self, channel: Channel) -> String {
        format!("{channel}:user:{}", self.id)
    }

    /// True if the entry of an outbound stream belongs to a route to the user: its first value is the id of
    /// the route.
    pub fn is_recipient_of(&self, entry: &RawFields) -> bool {
        let key = entry.0.first().and_then(|(_, value)| str::from_utf8(value).ok());
        let key = key.and_then(|text| text.parse::<RouteKey>().ok());
        key.is_some_and(|key| Channel::ALL.iter().any(|channel| key.route_id == self.route_id(*channel)))
    }

    /// True if the entry of an intents stream names the user among its recipients.
    pub fn is_named_by(&self, entry: &RawFields) -> bool {
        entry.0.iter().any(|(name, value)| name == RECIPIENTS && self.is_in_list(value))
    }

    /// True if the stored fields of a malformed intent name the user among the recipients. A list that is not
    /// JSON names everyone whose id it contains as a word.
    pub fn is_named_by_stored(&self, raw_fields: &str) -> bool {
        let fields = read_fields(raw_fields).unwrap_or_default();
        fields.iter().any(|(name, value)| name.kept() == RECIPIENTS && self.is_in_list(value.kept()))
    }

    /// True if the stored fields of a malformed intent contain the id as a word, as it is or in JSON.
    pub fn is_mentioned_by_stored(&self, raw_fields: &str) -> bool {
        let fields = read_fields(raw_fields).unwrap_or_default();
        let in_json = json_content(&self.id);
        fields.iter().flat_map(|(name, value)| [name, value]).any(|part| {
            let text = String::from_utf8_lossy(part.kept());
            contains_word(&text, &self.id) || contains_word(&text, &in_json)
        })
    }

    /// The arguments of a former action with the id replaced in all texts; `None` if no text contains it as a
    /// word.
    pub fn without_user(&self, mut arguments: Value) -> Option<Value> {
        self.replace_in(&mut arguments).then_some(arguments)
    }

    fn replace_in(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => {
                let replaced = replace_word(text, &self.id);
                let changes = replaced != *text;
                *text = replaced;
                changes
            }
            Value::Array(items) => {
                items.iter_mut().filter_map(|item| self.replace_in(item).then_some(())).count() > 0
            }
            Value::Object(members) => {
                members.values_mut().filter_map(|member| self.replace_in(member).then_some(())).count() > 0
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn is_in_list(&self, list: &[u8]) -> bool {
        match serde_json::from_slice::<Value>(list) {
            Ok(Value::Array(ids)) => ids.iter().any(|id| id.as_str() == Some(&self.id)),
            Ok(other) => other.as_str() == Some(&self.id),
            Err(_) => contains_word(&String::from_utf8_lossy(list), &self.id),
        }
    }

    /// A regular expression of PostgreSQL for JSON text that contains the id as a word, in a string or in the
    /// JSON of a string.
    pub fn pattern(&self) -> String {
        let once = json_content(&self.id);
        let (once, twice) = (escaped(&once), escaped(&json_content(&once)));
        let id = if once == twice { once } else { format!("({once}|{twice})") };
        format!("(^|[^[:alnum:]_-]){id}($|[^[:alnum:]_-])")
    }
}

/// The content of a text as a JSON string.
fn json_content(text: &str) -> String {
    let json = Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// A regular expression that matches this text alone.
fn escaped(text: &str) -> String {
    let is_special = |c: char| c.is_ascii() && !c.is_ascii_alphanumeric();
    text.chars().flat_map(|c| is_special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// The places of `word` in `text` between characters that no id continues with.
fn word_places<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let ends = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '-');
    text.match_indices(word).map(|(start, _)| start).filter(move |start| {
        ends(text[..*start].chars().next_back()) && ends(text[start + word.len()..].chars().next())
    })
}

fn contains_word(text: &str, word: &str) -> bool {
    word_places(text, word).next().is_some()
}

fn replace_word(text: &str, word: &str) -> String {
    let (mut replaced, mut rest) = (String::new(), 0);
    for start in word_places(text, word) {
        replaced.push_str(&text[rest..start]);
        replaced.push_str(ERASED);
        rest = start + word.len();
    }
    replaced + &text[rest..]
}

/// HMAC-SHA-256 (RFC 2104) of the parts one after the other.
fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    match key.len() > BLOCK {
        true => block[..32].copy_from_slice(&Sha256::digest(key)),
        false => block[..key.len()].copy_from_slice(key),
    }
    let mut inner = Sha256::new_with_prefix(block.map(|byte| byte ^ 0x36));
    parts.iter().for_each(|part| inner.update(part));
    let outer = Sha256::new_with_prefix(block.map(|byte| byte ^ 0x5c));
    outer.chain_update(inner.finalize()).finalize().into()
}

/// The rows that one transaction erased.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ErasedRows")]
pub struct ErasedRows {
    /// Records that named no one else, and are deleted.
    pub records_deleted: u64,
    /// Records that name others, and no longer name the user.
    pub records_changed: u64,
    /// Deleted routes.
    pub routes: u64,
    /// Deleted dead letters, which are among the routes.
    pub dead_letters: u64,
    /// Deleted receipts.
    pub receipts: u64,
    /// Deleted stored responses to requests.
    pub responses: u64,
    /// Malformed intents whose fields are deleted.
    pub malformed_intents: u64,
    /// Former actions of operators whose arguments named the user, and no longer do.
    pub actions: u64,
    /// Deleted documents of the user directory.
    pub directory_documents: u64,
}

impl ErasedRows {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            records_deleted: self.records_deleted + other.records_deleted,
            records_changed: self.records_changed + other.records_changed,
            routes: self.routes + other.routes,
            dead_letters: self.dead_letters + other.dead_letters,
            receipts: self.receipts + other.receipts,
            responses: self.responses + other.responses,
            malformed_intents: self.malformed_intents + other.malformed_intents,
            actions: self.actions + other.actions,
            directory_documents: self.directory_documents + other.directory_documents,
        }
    }

    /// The number of all rows, without those that are counted among others.
    pub fn total(self) -> u64 {
        self.records_deleted
            + self.records_changed
            + self.routes
            + self.receipts
            + self.responses
            + self.malformed_intents
            + self.actions
            + self.directory_documents
    }
}

/// Texts that mention the user and name others or no one: an operator decides about them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
pub struct Mentions {
    /// Number of notifications and malformed intents.
    #[serde(flatten, serialize_with = "MentionCount::serialize")]
    #[schemars(with = "MentionCount")]
    pub count: Counted,
    /// The ids of the first notifications.
    #[serde(rename = "mentioned_by_notifications")]
    #[schemars(length(max = PLAN_IDS))]
    pub notifications: Vec<NotificationId>,
    /// The entry ids of the first malformed intents.
    #[serde(rename = "mentioned_by_malformed_intents")]
    #[schemars(length(max = PLAN_IDS))]
    pub malformed_intents: Vec<String>,
}

counted_form!(
    MentionCount,
    "How many notifications and malformed intents mention the user without naming the user as a recipient.",
    mentions,
    mentions_capped,
    "Not all were looked at: there may be more than `mentions`."
);

impl Mentions {
    /// Adds a notification.
    pub fn add_notification(&mut self, id: NotificationId) {
        self.count.count += 1;
        if self.notifications.len() < PLAN_IDS {
            self.notifications.push(id);
        }
    }

    /// Adds a malformed intent.
    pub fn add_malformed(&mut self, entry_id: String) {
        self.count.count += 1;
        if self.malformed_intents.len() < PLAN_IDS {
            self.malformed_intents.push(entry_id);
        }
    }
}

/// The data that an erasure would concern.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "PlannedErasure")]
pub struct ErasurePlan {
    /// The keyed hash of the user's id.
    pub user_hash: String,
    /// Number of notifications to the user.
    #[serde(flatten, serialize_with = "NotificationCount::serialize")]
    #[schemars(with = "NotificationCount")]
    pub notifications: Counted,
    /// The ids of the first of them.
    #[schemars(length(max = PLAN_IDS))]
    pub first: Vec<NotificationId>,
    /// Number of malformed intents that name the user, among those that were looked at.
    pub malformed_intents: u64,
    /// Number of entries of streams that name the user.
    #[serde(flatten, serialize_with = "StreamEntryCount::serialize")]
    #[schemars(with = "StreamEntryCount")]
    pub stream_entries: Counted,
    /// The user directory of the service has a document of the user.
    pub directory_document: bool,
    /// Texts that only mention the user, and stay.
    #[serde(flatten)]
    pub mentions: Mentions,
}

counted_form!(
    NotificationCount,
    "How many notifications name the user as a recipient.",
    notifications,
    notifications_capped,
    "There may be more than `notifications`."
);

counted_form!(
    StreamEntryCount,
    "How many entries of the streams name the user, without those of the intents stream that are not processed yet.",
    stream_entries,
    stream_entries_capped,
    "There may be more than `stream_entries`: only the first entries of each stream were read, or some cannot be deleted yet."
);

/// The receipt of an erasure: counts and times, without the id of the user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Erasure")]
pub struct ErasureReport {
    /// The keyed hash of the user's id, as in `operator_actions`.
    pub user_hash: String,
    /// The request id of its rows in `operator_actions`.
    pub request_id: String,
    /// Time of its beginning.
    pub started_at: ambient::Timestamp,
    /// Time of its end.
    pub ended_at: ambient::Timestamp,
    /// The rows that were erased.
    #[serde(flatten)]
    pub rows: ErasedRows,
    /// Deleted entries of streams.
    pub stream_entries: u64,
    /// Entries of the intents stream that name the user and are not processed yet, and entries of streams
    /// whose fields could not be read. They stay.
    pub unread_entries: u64,
    /// False if something is left, because another transaction or a publisher had it, an intent came
    /// meanwhile, or the time did not suffice: the same request with another idempotency key continues.
    pub complete: bool,
    /// Texts that only mention the user, and stay.
    #[serde(flatten)]
    pub mentions: Mentions,
}

/// `operator_actions.arguments` of an erasure that erased this: rows of a transaction, or entries of streams.
pub fn arguments(user: &ErasedUser, erased: &Value, idempotency_key: Option<&str>) -> Value {
    let mut arguments = json!({ "user_hash": user.hash(), "erased": erased });
    // A key is chosen by the client, and may contain the id.
    if let Some(key) = idempotency_key.filter(|key| !key.contains(user.id())) {
        arguments["idempotency_key"] = json!(key);
    }
    arguments
}

#[cfg(test)]
mod tests;
