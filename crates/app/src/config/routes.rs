//! The retries of routes, and the TTL of their leases.

use std::time::Duration;

use domain::backoff::BackoffBounds;
use domain::operations::Budgets;

use super::knobs::{
    NOTIFICATION_EMAIL_MAX_ATTEMPTS, NOTIFICATION_PUSH_MAX_ATTEMPTS, NOTIFICATION_ROUTE_BACKOFF_MAX,
    NOTIFICATION_ROUTE_BACKOFF_MIN,
};
use super::reader::Reader;
use super::section::{Section, section};

section! {
    /// The retries and leases of routes.
    #[derive(Debug, Clone, Copy)]
    pub struct Routes {
        /// The maximum number of attempts for a route of each channel.
        pub budgets: Budgets,
        /// The delays between attempts.
        pub backoff: BackoffBounds,
        /// The lifetime of a lease.
        pub lease_ttl: Duration = NOTIFICATION_ROUTE_LEASE_TTL,
    }
}

impl Section for Budgets {
    fn read(reader: &mut Reader) -> Option<Self> {
        let push = reader.get(&NOTIFICATION_PUSH_MAX_ATTEMPTS);
        let email = reader.get(&NOTIFICATION_EMAIL_MAX_ATTEMPTS);
        Some(Self { push: push?, email: email? })
    }
}

impl Section for BackoffBounds {
    fn read(reader: &mut Reader) -> Option<Self> {
        let min = reader.get(&NOTIFICATION_ROUTE_BACKOFF_MIN);
        let max = reader.get(&NOTIFICATION_ROUTE_BACKOFF_MAX);
        Some(Self { min: min?, max: max? })
    }
}
