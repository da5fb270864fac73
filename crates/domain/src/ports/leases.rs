//! Leases and permits, the markers of what was appended, and the scan lock.

use std::future::Future;
use std::time::Duration;

use super::StoreError;
use crate::operations::Target;
use crate::republish::{Acknowledged, ServerId};
use crate::route::{Channel, LiveRoute, RouteKey};

/// The token that identifies a publisher's own leases, one for each chunk, or its permit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaseToken(pub String);

/// A route that can be leased.
pub trait Leasable: Sync {
    /// The key of the route.
    fn key(&self) -> &RouteKey;

    /// The id of the entry that the next one replaces, if there is one.
    fn replaces(&self) -> Option<&str>;
}

/// A route that was never published.
impl Leasable for RouteKey {
    fn key(&self) -> &RouteKey {
        self
    }

    fn replaces(&self) -> Option<&str> {
        None
    }
}

impl Leasable for LiveRoute {
    fn key(&self) -> &RouteKey {
        &self.key
    }

    fn replaces(&self) -> Option<&str> {
        self.replaces.as_deref()
    }
}

impl Leasable for Target {
    fn key(&self) -> &RouteKey {
        &self.key
    }

    fn replaces(&self) -> Option<&str> {
        self.replaces.as_deref()
    }
}

/// The result of acquiring a lease.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseOutcome {
    /// This token holds the lease.
    Won,
    /// Another publisher holds the lease.
    Held,
    /// The route's entry is already in the stream.
    Published(Acknowledged),
}

/// Leases, which make publishing exclusive, permits, and published markers.
pub trait LeaseStore: Send + Sync {
    /// Permits appends to the stream of `channel` under `token`, which is new, until `ttl` is over
    /// ([`super::Outbound::append`]). A permit is never extended.
    fn grant_permit(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Acquires the leases for `token`. A lease that the token already holds is renewed. A marker of the
    /// entry that a route replaces gives way to the lease; any other marker means that the entry is in the
    /// stream.
    fn acquire_leases<R: Leasable>(
        &self,
        routes: &[&R],
        token: &LeaseToken,
        ttl: Duration,
    ) -> impl Future<Output = Result<Vec<LeaseOutcome>, StoreError>> + Send;

    /// Releases those of the leases that `token` still holds.
    fn release_leases(
        &self,
        keys: &[&RouteKey],
        token: &LeaseToken,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Acquires the scan lock of `channel` for at most `ttl`; returns false if another replica holds it. The
    /// lock is a hint that prevents replicas from reading the same page of due routes and requesting the same
    /// leases.
    fn acquire_scan_lock(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Releases the scan lock if `token` still holds it.
    fn release_scan_lock(
        &self,
        channel: Channel,
        token: &LeaseToken,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Extends published markers while their completion cannot be committed, and writes those that have
    /// expired again; each comes with the id of its entry. A marker of a later entry stays. If `server`,
    /// which acknowledged the entries, was replaced, the entries may not exist on the present server. Then
    /// existing markers are extended, none is written, and `false` is returned.
    fn extend_markers(
        &self,
        server: &ServerId,
        markers: &[(&RouteKey, &str)],
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
