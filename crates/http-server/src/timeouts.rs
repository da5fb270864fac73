//! Time limits for clients, on every connection of a listener.

use std::time::Duration;

/// The longest time in which a client may read nothing of a response that is ready, or with HTTP/2 less than
/// 16 KiB of it. A response that is not read takes room from other requests. After this time the connection
/// is closed, with HTTP/2 the stream.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limits for each step of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Limit for the head of a request; for the first one, counted from the start of the connection.
    pub read_header: Duration,
    /// Limit for a request, from its first byte to its response. With HTTP/2 from the end of its head.
    pub request: Duration,
    /// Limit between two requests, and for reading a response. A client that reads nothing has ten seconds.
    pub idle: Duration,
}

impl Timeouts {
    /// The shortest limit that can apply to a request or a pause that begins now.
    pub(crate) fn shortest(&self) -> Duration {
        self.read_header.min(self.request).min(self.idle).min(STALL_TIMEOUT)
    }
}
