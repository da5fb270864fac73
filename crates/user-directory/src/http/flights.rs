//! The requests in flight, by user: concurrent calls for one user share one request.
//!
//! Many submissions may name the same users, each in its own call. Without sharing, all of them would send a
//! request when a cached user expires. A request is cancelled when no call waits for it any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use super::schedule::RequestOutcome;

type SharedRequest = BoxFuture<'static, RequestOutcome>;

/// The requests in flight. Clones share them. An entry exists only while a call waits, so the map is as
/// bounded as the calls are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flights(Arc<Mutex<HashMap<String, WeakShared<SharedRequest>>>>);

/// A call that waits for a request.
pub(crate) struct Flight {
    flights: Flights,
    user_id: String,
    /// The shared request, present until this is dropped.
    request: Option<Shared<SharedRequest>>,
    /// True if this call sends the request; other calls receive its outcome.
    pub(crate) is_own: bool,
}

impl Flights {
    /// Joins the request for this user, or starts the one that `request` creates.
    pub(crate) fn join(&self, user_id: &str, request: impl FnOnce() -> SharedRequest) -> Flight {
        let mut flights = self.lock();
        let found = flights.get(user_id).and_then(WeakShared::upgrade);
        let is_own = found.is_none();
        let shared = found.unwrap_or_else(|| request().shared());
        if let Some(weak) = shared.downgrade().filter(|_| is_own) {
            flights.insert(user_id.to_owned(), weak);
        }
        Flight { flights: self.clone(), user_id: user_id.to_owned(), request: Some(shared), is_own }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, WeakShared<SharedRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// Waits for the outcome.
    pub(crate) async fn outcome(&self) -> RequestOutcome {
        match &self.request {
            Some(request) => request.clone().await,
            // Cannot happen: the request is taken only when this is dropped.
            None => RequestOutcome::Unusable { cause: "the request was given up".to_owned() },
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        drop(self.request.take());
        if flights.get(&self.user_id).is_some_and(|request| request.upgrade().is_none()) {
            flights.remove(&self.user_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn never() -> SharedRequest {
        pending().boxed()
    }

    #[test]
    fn a_request_is_shared_until_no_call_waits_for_it() {
        let flights = Flights::default();
        let (first, second) = (flights.join("u", never), flights.join("u", never));
        assert_eq!((first.is_own, second.is_own), (true, false));
        assert!(flights.join("other", never).is_own);
        drop(first);
        assert!(!flights.join("u", never).is_own, "the second call still waits");
        drop(second);
        assert!(flights.lock().is_empty());
        assert!(flights.join("u", never).is_own);
    }
}
