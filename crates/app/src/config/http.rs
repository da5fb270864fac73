//! The internal HTTP listener.

use http_server::Timeouts;

use super::http_addr::HttpAddr;
use super::section::section;

section! {
    /// The listener of the probes, and the timeouts of a connection.
    #[derive(Debug, Clone)]
    pub struct Http {
        /// The address of the listener.
        pub addr: HttpAddr = NOTIFICATION_INTERNAL_HTTP_ADDR,
        /// The timeouts of a request and of an idle connection.
        pub timeouts: Timeouts,
    }
}

section! {
    impl Timeouts {
        read_header = NOTIFICATION_INTERNAL_HTTP_READ_HEADER_TIMEOUT,
        request = NOTIFICATION_INTERNAL_HTTP_READ_TIMEOUT,
        idle = NOTIFICATION_INTERNAL_HTTP_IDLE_TIMEOUT,
    }
}
