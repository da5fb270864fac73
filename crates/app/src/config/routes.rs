//! The retries of routes, and the TTL of their leases.

use std::time::Duration;

use domain::backoff::BackoffBounds;
use domain::operations::Budgets;

use super::knobs::{
    NOTIFICATION_EMAIL_MAX_ATTEMPTS, NOTIFICATION_PUSH_MAX_ATTEMPTS, NOTIFICATION_ROUTE_BACKOFF_MAX,
    NOTIFICATION_ROUTE_BACKOFF_MIN, NOTIFICATION_ROUTE_LEASE_TTL,
};
use super::reader::Reader;

/// The retries and leases of routes.
#[derive(Debug, Clone, Copy)]
pub struct Routes {
    /// The maximum number of attempts for a push route.
    pub push_max_attempts: u32,
    /// The maximum number of attempts for an e-mail route.
    pub email_max_attempts: u32,
    /// The delays between attempts.
    pub backoff: BackoffBounds,
    /// The lifetime of a lease.
    pub lease_ttl: Duration,
}

/// Reads only the retry budgets.
pub(super) fn read_budgets(reader: &mut Reader) -> Option<Budgets> {
    let push = reader.number(&NOTIFICATION_PUSH_MAX_ATTEMPTS);
    let email = reader.number(&NOTIFICATION_EMAIL_MAX_ATTEMPTS);
    Some(Budgets { push: push?, email: email? })
}

impl Routes {
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let budgets = read_budgets(reader);
        let min = reader.duration(&NOTIFICATION_ROUTE_BACKOFF_MIN);
        let max = reader.duration(&NOTIFICATION_ROUTE_BACKOFF_MAX);
        let lease_ttl = reader.duration(&NOTIFICATION_ROUTE_LEASE_TTL);
        let budgets = budgets?;
        Some(Self {
            push_max_attempts: budgets.push,
            email_max_attempts: budgets.email,
            backoff: BackoffBounds { min: min?, max: max? },
            lease_ttl: lease_ttl?,
        })
    }
}
