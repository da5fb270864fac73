//! Appending to the outbound streams.

use std::future::Future;
use std::time::Duration;

use super::{LeaseToken, StoreError};
use crate::outbound::OutboundEntry;
use crate::republish::{Acknowledged, ServerId};
use crate::route::{Channel, RouteKey};

/// The result of one append.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Append {
    /// The entry is in the stream, appended now or by an earlier call.
    Done(Acknowledged),
    /// The lease or the permit has expired, another token holds the lease, or the server is not the expected
    /// one. Nothing was appended.
    LeaseLost,
    /// The stream itself returned an error. This counts as a failed attempt.
    Refused(String),
    /// Redis cannot append at present (memory, read-only, loading). This does not count as an attempt.
    Outage(String),
}

/// The results of a call that appends.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Appends {
    /// The server that carried it out.
    pub server: ServerId,
    /// The result of each entry, in order.
    pub entries: Vec<Append>,
}

/// Appends to the outbound streams.
pub trait Outbound: Send + Sync {
    /// For each of one or more entries, atomically: if `token` still holds the lease, appends the entry and
    /// replaces the lease with the published marker, which expires no earlier than after `dedupe_ttl`. If
    /// `token` is a permit of the channel ([`super::LeaseStore::grant_permit`]), a lease that nobody holds
    /// counts as held.
    ///
    /// If `server` is given, only that server appends: another one may lack leases that were taken on it
    /// since the routes were read. Entries that earlier calls appended are found on every server.
    fn append(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        dedupe_ttl: Duration,
        server: Option<&ServerId>,
    ) -> impl Future<Output = Result<Appends, StoreError>> + Send;
}
