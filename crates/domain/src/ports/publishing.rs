//! Publishing: leases that become receipts, the scan lock, and the outbound streams.

use std::future::Future;
use std::time::Duration;

use super::StoreError;
use crate::outbound::OutboundEntry;
use crate::republish::{Acknowledged, ServerId};
use crate::route::{Channel, RouteKey};

/// The token by which a publisher recognises its own leases: one for each chunk.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaseToken(pub String);

/// The result of acquiring a lease.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lease {
    /// This token holds it.
    Won,
    /// Another publisher holds it.
    Held,
    /// The route's entry is in the stream already.
    Published(Acknowledged),
}

/// The result of one append.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Append {
    /// The entry is in the stream, now or from an earlier call.
    Done(Acknowledged),
    /// The lease has expired or another publisher holds it; nothing was appended.
    LeaseLost,
    /// The stream itself returned an error: a failed attempt.
    Refused(String),
    /// Redis cannot append at present (memory, read-only, loading): not an attempt.
    Outage(String),
}

/// The exclusivity of publishing, and its receipts.
pub trait LeaseStore: Send + Sync {
    /// Acquires the leases for `token`; a lease that it already holds is renewed.
    fn acquire_leases(
        &self,
        keys: &[&RouteKey],
        token: &LeaseToken,
        ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Releases those of the leases that `token` still holds.
    fn release_leases(
        &self,
        keys: &[&RouteKey],
        token: &LeaseToken,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Acquires the scan lock of `channel` for at most `ttl`; false if another replica holds it. A hint: it
    /// avoids that replicas read the same page of due routes and request the same leases.
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

    /// Extends receipts while their completion cannot be committed, and writes those that have expired again;
    /// each comes with the id of its entry. If `server`, which acknowledged the entries, has been replaced,
    /// they may not exist on the present one: then receipts that exist are extended, none is written, and
    /// `false` is returned.
    fn extend_receipts(
        &self,
        server: &ServerId,
        receipts: &[(&RouteKey, &str)],
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// The outbound streams.
pub trait Outbound: Send + Sync {
    /// For each entry, atomically: if `token` still holds the lease, append, then replace the lease with the
    /// receipt, which expires after `dedupe_ttl`. Outcomes have the order of the entries.
    fn append(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        dedupe_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Append>, StoreError>> + Send;
}
