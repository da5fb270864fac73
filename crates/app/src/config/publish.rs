//! The settings of publishing.

use std::time::Duration;

use super::section::section;

section! {
    /// The settings of the publishers.
    #[derive(Debug, Clone, Copy)]
    pub struct Publish {
        /// The maximum number of routes in one append.
        pub batch_size: usize = NOTIFICATION_PUBLISH_BATCH_SIZE,
        /// The pause between two due scans while routes are due.
        pub poll_interval: Duration = NOTIFICATION_PUBLISH_POLL_INTERVAL,
        /// The lifetime of a published marker.
        pub dedupe_ttl: Duration = NOTIFICATION_PUBLISH_DEDUPE_TTL,
        /// The period before a data loss in Redis whose publications are compared with the streams; zero for
        /// never.
        pub republish_window: Duration = NOTIFICATION_REPUBLISH_WINDOW,
    }
}
