//! The retention of rows.

use std::time::Duration;

use super::section::section;

section! {
    /// The ages at which rows are removed.
    #[derive(Debug, Clone, Copy)]
    pub struct Retention {
        /// The age at which a record is removed, with its routes and dead letters.
        pub record: Duration = NOTIFICATION_RECORD_RETENTION,
        /// The age at which a malformed intent is removed.
        pub malformed_intent: Duration = NOTIFICATION_MALFORMED_INTENT_RETENTION,
        /// The age at which an operator's action is removed.
        pub operator_action: Duration = NOTIFICATION_OPERATOR_ACTION_RETENTION,
        /// The pause between two clean-ups.
        pub cleanup_interval: Duration = NOTIFICATION_CLEANUP_INTERVAL,
    }
}
