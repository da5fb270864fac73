//! Pages of lists.

use domain::query::{
    DeadLetter, MalformedSummary, NotificationSummary, RecordedAction, StoredMalformedIntent,
};
use schemars::JsonSchema;
use serde::Serialize;

/// A page of notifications, newest first.
#[derive(Serialize, JsonSchema)]
pub struct Notifications {
    /// At most `limit`; a page may be short or empty and still have a next one.
    pub notifications: Vec<NotificationSummary>,
    /// The parameter `cursor` of the next page; `null` if the end of the list is reached.
    pub next_cursor: Option<String>,
}

/// A page of dead letters, newest first.
#[derive(Serialize, JsonSchema)]
pub struct DeadLetters {
    /// At most `limit`; a page may be short or empty and still have a next one.
    pub dead_letters: Vec<DeadLetter>,
    /// The parameter `cursor` of the next page; `null` if the end of the list is reached.
    pub next_cursor: Option<String>,
}

/// A page of operators' actions, newest first.
#[derive(Serialize, JsonSchema)]
pub struct Actions {
    /// At most `limit`; a page may be short or empty and still have a next one.
    pub actions: Vec<RecordedAction>,
    /// The parameter `cursor` of the next page; `null` if the end of the list is reached.
    pub next_cursor: Option<String>,
}

/// A page of malformed intents, newest first.
#[derive(Serialize, JsonSchema)]
pub struct MalformedIntentsPage {
    /// At most `limit`; a page may be short or empty and still have a next one.
    pub malformed_intents: Vec<MalformedSummary>,
    /// The parameter `cursor` of the next page; `null` if the end of the list is reached.
    pub next_cursor: Option<String>,
}

/// The malformed intents of one stream entry id.
#[derive(Serialize, JsonSchema)]
pub struct MalformedIntents {
    /// The newest first.
    pub malformed_intents: Vec<StoredMalformedIntent>,
}
