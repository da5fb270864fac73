//! The settings of publishing.

use std::time::Duration;

use super::knobs::{
    NOTIFICATION_PUBLISH_BATCH_SIZE, NOTIFICATION_PUBLISH_DEDUPE_TTL, NOTIFICATION_PUBLISH_POLL_INTERVAL,
    NOTIFICATION_REPUBLISH_WINDOW,
};
use super::reader::Reader;

/// The settings of the publishers.
#[derive(Debug, Clone, Copy)]
pub struct Publish {
    /// The maximum number of routes in one append.
    pub batch_size: usize,
    /// The pause between two due scans while routes are due.
    pub poll_interval: Duration,
    /// The lifetime of a published marker.
    pub dedupe_ttl: Duration,
    /// The period before a data loss in Redis whose publications are compared with the streams; zero for
    /// never.
    pub republish_window: Duration,
}

impl Publish {
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let batch_size = reader.number(&NOTIFICATION_PUBLISH_BATCH_SIZE);
        let poll_interval = reader.duration(&NOTIFICATION_PUBLISH_POLL_INTERVAL);
        let dedupe_ttl = reader.duration(&NOTIFICATION_PUBLISH_DEDUPE_TTL);
        let republish_window = reader.duration(&NOTIFICATION_REPUBLISH_WINDOW);
        Some(Self {
            batch_size: batch_size?,
            poll_interval: poll_interval?,
            dedupe_ttl: dedupe_ttl?,
            republish_window: republish_window?,
        })
    }
}
