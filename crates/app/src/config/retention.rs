//! The retention of rows.

use std::time::Duration;

use super::knobs::{
    NOTIFICATION_CLEANUP_INTERVAL, NOTIFICATION_MALFORMED_INTENT_RETENTION,
    NOTIFICATION_OPERATOR_ACTION_RETENTION, NOTIFICATION_RECORD_RETENTION,
};
use super::reader::Reader;

/// The ages at which rows are removed.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// The age at which a record is removed, with its routes and dead letters.
    pub record: Duration,
    /// The age at which a malformed intent is removed.
    pub malformed_intent: Duration,
    /// The age at which an operator's action is removed.
    pub operator_action: Duration,
    /// The pause between two clean-ups.
    pub cleanup_interval: Duration,
}

impl Retention {
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let record = reader.duration(&NOTIFICATION_RECORD_RETENTION);
        let malformed_intent = reader.duration(&NOTIFICATION_MALFORMED_INTENT_RETENTION);
        let operator_action = reader.duration(&NOTIFICATION_OPERATOR_ACTION_RETENTION);
        let cleanup_interval = reader.duration(&NOTIFICATION_CLEANUP_INTERVAL);
        Some(Self {
            record: record?,
            malformed_intent: malformed_intent?,
            operator_action: operator_action?,
            cleanup_interval: cleanup_interval?,
        })
    }
}
