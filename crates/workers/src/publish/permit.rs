//! Permits: a publisher appends routes that its replica has just accepted without leasing each of them (ADR
//! 0074).
//!
//! Such routes become due one lease TTL after their acceptance; until then no other replica takes them. A
//! permit is a key in Redis that expires before that, and the append checks it: a call that is delayed, in
//! the network or because this process stood still, appends nothing any more. The append still respects
//! leases (of an operator's cancellation, or of a replica whose clock is ahead) and finds markers.
//!
//! What is left if the process dies after a step:
//!
//! | step | after a crash |
//! |---|---|
//! | permit | the permit, until it expires; the routes are due one lease TTL after their acceptance |
//! | append | the markers, which complete the routes then |
//! | completion | nothing to do |
//!
//! A permit is never extended, so that the end which the publisher computes is later than that in Redis. An
//! attempt to get one that received no response is repeated with another token, for the same reason.

use domain::ports::{LeaseStore, LeaseToken, StoreError};
use tokio::time::Instant;

use super::RoutePublisher;
use super::chunk::Encoded;
use super::state::PublisherState;
use crate::health::Stopped;
use crate::ports::Ports;

/// The lifetime of a permit, as a part of the lease TTL.
const PERMITS_PER_LEASE: u32 = 5;

/// A permit that Redis has confirmed.
#[derive(Clone, Debug)]
pub(super) struct Permit {
    token: LeaseToken,
    /// The time after which another one is requested: half of its lifetime, counted from the request.
    renew_at: Instant,
    /// A time at which it has expired in Redis: its lifetime, counted from the response.
    over_by: Instant,
}

impl<P: Ports> RoutePublisher<P> {
    /// Returns the token of a permit that expires before `due_at`. Returns `None` if that is too soon, or if
    /// an operator holds one of the routes: then they need leases.
    pub(super) async fn permit_for(
        &self,
        routes: &[Encoded<'_>],
        due_at: Instant,
        shared: &PublisherState,
    ) -> Result<Option<LeaseToken>, Stopped> {
        let ttl = self.settings.lease_ttl / PERMITS_PER_LEASE;
        if routes.is_empty() || due_at < Instant::now() + ttl || self.has_held(routes, shared).await? {
            return Ok(None);
        }
        let mut last = shared.permit.lock().await;
        let permit = match last.take().filter(|permit| Instant::now() < permit.renew_at) {
            Some(permit) => permit,
            None => shared.until_answered(|| self.request_permit()).await?,
        };
        let token = (permit.over_by <= due_at).then(|| permit.token.clone());
        *last = Some(permit);
        Ok(token)
    }

    async fn request_permit(&self) -> Result<Permit, StoreError> {
        let (token, ttl) = (self.token(), self.settings.lease_ttl / PERMITS_PER_LEASE);
        let renew_at = Instant::now() + ttl / 2;
        self.leases.grant_permit(self.channel, &token, ttl).await?;
        Ok(Permit { token, renew_at, over_by: Instant::now() + ttl })
    }
}
