//! The bytes that request bodies and responses of all connections together may occupy.
//!
//! Every request in progress has its own share, of [`MAX_SHARE_BYTES`] or less. If a body needs more, the
//! rest is reserved at once when the share has arrived; until then reading from its connection pauses. A
//! waiting request therefore holds nothing that another one waits for, and there is no deadlock; small
//! requests never wait for large ones. Reservations are granted in the order of their requests, and one
//! client holds at most a quarter of the budget ([`OWNER_DIVISOR`]): bodies that are announced but not sent
//! do not block other clients' bodies.
//!
//! A response is in memory before its size is known. Its bytes are taken from the budget at once, which may
//! make the budget negative; then no further request begins until enough bytes are written.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};

/// The most bytes that every request in progress may occupy without a reservation.
const MAX_SHARE_BYTES: usize = 16 * 1024;

/// Divisor of the budget: all shares together have at most this fraction of it.
const SHARES_DIVISOR: usize = 4;

/// Divisor of the budget: one client may reserve at most this fraction of it, beyond the shares. A larger
/// body is the client's only reservation.
const OWNER_DIVISOR: usize = 4;

/// The bytes beyond the shares. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct ByteBudget {
    share: usize,
    available: Arc<watch::Sender<i64>>,
    /// Held by the reservation that is next.
    next: Arc<Mutex<()>>,
    owners: Arc<Owners>,
}

/// The reservations of each client.
#[derive(Debug)]
struct Owners {
    bytes: u32,
    left: std::sync::Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

impl Owners {
    /// Waits until `owner` may reserve `bytes`, or its whole limit if `bytes` exceeds that.
    async fn acquire(&self, owner: &Arc<str>, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let left = {
            let mut owners = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            if !owners.contains_key(owner) {
                owners.retain(|_, left| Arc::strong_count(left) > 1);
            }
            let full = || Arc::new(Semaphore::new(self.bytes as usize));
            Arc::clone(owners.entry(Arc::clone(owner)).or_insert_with(full))
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes);
        // Cannot fail: the semaphore is never closed.
        left.acquire_many_owned(bytes).await.ok()
    }
}

impl ByteBudget {
    /// Creates a budget of `bytes` in total, of which `requests` shares are set aside.
    pub(crate) fn new(bytes: usize, requests: usize) -> Self {
        let share = MAX_SHARE_BYTES.min(bytes / SHARES_DIVISOR / requests.max(1));
        Self::with_share(share, bytes - requests * share)
    }

    fn with_share(share: usize, available: usize) -> Self {
        let bytes = u32::try_from(available / OWNER_DIVISOR).unwrap_or(u32::MAX).max(1);
        Self {
            share,
            available: Arc::new(watch::Sender::new(signed(available))),
            next: Arc::default(),
            owners: Arc::new(Owners { bytes, left: std::sync::Mutex::default() }),
        }
    }

    /// Waits until responses leave room for a further request.
    pub(crate) async fn admit(&self) {
        if *self.available.borrow() < 0 {
            self.wait_for(0).await;
        }
    }

    /// Waits for `bytes`, after all earlier reservations.
    async fn acquire(&self, bytes: usize) {
        let bytes = signed(bytes);
        let _next = self.next.lock().await;
        while !self.try_take(bytes) {
            self.wait_for(bytes).await;
        }
    }

    async fn wait_for(&self, bytes: i64) {
        // Cannot fail: this sender is alive.
        let _ = self.available.subscribe().wait_for(|available| *available >= bytes).await;
    }

    fn try_take(&self, bytes: i64) -> bool {
        self.available.send_if_modified(|available| {
            let enough = *available >= bytes;
            *available -= if enough { bytes } else { 0 };
            enough
        })
    }

    /// Takes `bytes` even if they are not available.
    fn take(&self, bytes: usize) {
        self.available.send_modify(|available| *available -= signed(bytes));
    }

    fn release(&self, bytes: usize) {
        self.available.send_modify(|available| *available += signed(bytes));
    }

    /// The available bytes; negative if responses took more than there was.
    #[cfg(test)]
    pub(crate) fn available(&self) -> i64 {
        *self.available.borrow()
    }
}

/// The bytes that one request occupies; released on drop.
#[derive(Debug)]
pub(crate) struct Reservation(std::sync::Mutex<HeldBytes>);

#[derive(Debug)]
struct HeldBytes {
    budget: ByteBudget,
    /// Bytes beyond the share.
    beyond: usize,
    /// Bytes that meanwhile count against the client's limit.
    owned: Option<OwnedSemaphorePermit>,
}

impl Reservation {
    pub(crate) fn new(budget: ByteBudget) -> Self {
        Self(std::sync::Mutex::new(HeldBytes { budget, beyond: 0, owned: None }))
    }

    /// The bytes that the request may occupy without a reservation.
    pub(crate) fn share(&self) -> usize {
        self.held().budget.share
    }

    /// Waits until the request of `owner` may occupy `bytes`. Must be called once: a waiting request must
    /// hold nothing that others wait for.
    pub(crate) async fn reserve(&self, bytes: usize, owner: Option<&Arc<str>>) {
        let budget = self.held().budget.clone();
        let beyond = bytes.saturating_sub(budget.share);
        if beyond == 0 {
            return;
        }
        let owned = match owner {
            Some(owner) => budget.owners.acquire(owner, beyond).await,
            None => None,
        };
        budget.acquire(beyond).await;
        let mut held = self.held();
        held.beyond += beyond;
        held.owned = owned;
    }

    /// Sets the occupied bytes to `bytes`, more or fewer than before.
    pub(crate) fn set(&self, bytes: usize) {
        let share = self.share();
        self.set_beyond(bytes.saturating_sub(share));
    }

    /// Adds `bytes` to the occupied bytes, even if they are not available.
    pub(crate) fn add(&self, bytes: usize) {
        let beyond = self.held().beyond + bytes;
        self.set_beyond(beyond);
    }

    /// Sets the occupied bytes beyond the share to `beyond`, for a request without a share.
    pub(crate) fn set_beyond(&self, beyond: usize) {
        let mut held = self.held();
        if beyond > held.beyond {
            held.budget.take(beyond - held.beyond);
        } else if beyond < held.beyond {
            held.budget.release(held.beyond - beyond);
            let surplus = held.owned.as_ref().map_or(0, |owned| owned.num_permits().saturating_sub(beyond));
            drop(held.owned.as_mut().and_then(|owned| owned.split(surplus)));
        }
        held.beyond = beyond;
    }

    /// Moves the reservation to another budget. It must hold nothing beyond its share.
    pub(crate) fn move_to(&self, budget: ByteBudget) {
        self.held().budget = budget;
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HeldBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set_beyond(0);
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::{sleep, timeout};

    use super::*;

    const SHARE: usize = MAX_SHARE_BYTES;

    /// A budget of `bytes` beyond the shares.
    fn budget(bytes: usize) -> ByteBudget {
        ByteBudget::with_share(SHARE, bytes)
    }

    async fn waits(reservation: &Reservation, bytes: usize) -> bool {
        timeout(Duration::from_secs(60), reservation.reserve(bytes, None)).await.is_err()
    }

    #[test]
    fn shares_are_a_quarter_of_the_budget_at_most() {
        for (bytes, requests, share) in
            [(64 << 20, 1024, SHARE), (1 << 20, 1024, 256), (1 << 20, 0, SHARE), (0, 7, 0), (100, 1000, 0)]
        {
            let budget = ByteBudget::new(bytes, requests);
            assert_eq!((budget.share, budget.available()), (share, signed(bytes - share * requests)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_is_there_even_if_nothing_else_is() {
        let budget = budget(1 << 20);
        let (large, small) = (Reservation::new(budget.clone()), Reservation::new(budget.clone()));
        large.reserve(SHARE + (1 << 20), None).await;
        assert!(!waits(&small, SHARE).await);
        assert!(waits(&small, SHARE + 1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn reservations_are_granted_in_the_order_in_which_they_are_asked_for() {
        let budget = budget(100);
        let first = Reservation::new(budget.clone());
        first.reserve(SHARE + 60, None).await;
        let (large, small) = (Reservation::new(budget.clone()), Reservation::new(budget.clone()));
        let large = tokio::spawn(async move {
            large.reserve(SHARE + 100, None).await;
            large
        });
        sleep(Duration::from_secs(1)).await;
        assert!(waits(&small, SHARE + 40).await, "a small reservation went ahead of a large one");
        drop(first);
        drop(large.await.expect("is granted"));
        assert_eq!(budget.available(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_that_is_given_up_lets_the_next_one_pass() {
        let budget = budget(100);
        let first = Reservation::new(budget.clone());
        first.reserve(SHARE + 60, None).await;
        assert!(waits(&Reservation::new(budget.clone()), SHARE + 41).await);
        assert!(!waits(&Reservation::new(budget.clone()), SHARE + 40).await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_reserves_a_quarter_and_keeps_no_other_from_its_own() {
        let budget = budget(400);
        let (greedy, other) = ("greedy".into(), "other".into());
        let reserve = async |bytes: usize, owner: &Arc<str>| {
            let reservation = Reservation::new(budget.clone());
            let granted =
                timeout(Duration::from_secs(60), reservation.reserve(SHARE + bytes, Some(owner))).await;
            granted.is_ok().then_some(reservation)
        };
        let first = reserve(60, &greedy).await.expect("there is room");
        assert!(reserve(60, &greedy).await.is_none(), "more than a quarter");
        assert!(reserve(100, &other).await.is_some(), "another client waited");
        first.set(SHARE + 20);
        let second = reserve(80, &greedy).await.expect("what is not used is given back");
        drop((first, second));
        assert!(reserve(400, &greedy).await.is_some(), "a body above the quarter is never granted");
        assert_eq!(budget.available(), 400);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_begun_while_answers_occupy_too_much() {
        let budget = budget(100);
        let answer = Reservation::new(budget.clone());
        answer.set(SHARE + 150);
        assert_eq!(budget.available(), -50);
        assert!(timeout(Duration::from_secs(60), budget.admit()).await.is_err());
        answer.set(SHARE + 100);
        budget.admit().await;
    }

    proptest! {
        /// For any behaviour of clients, reservations never exceed the budget, every reservation that is not
        /// abandoned is granted, and everything is free at the end.
        #[test]
        fn no_mix_of_bodies_exceeds_the_budget_or_blocks_for_ever(
            bodies in prop::collection::vec((0_usize..=SHARE + 1000, 0_u64..20, 1_u64..20, 1_u64..40), 1..60)
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
            runtime.block_on(async {
                let budget = budget(1000);
                let requests = bodies.into_iter().map(|(bytes, start, hold, patience)| {
                    let budget = budget.clone();
                    tokio::spawn(async move {
                        sleep(Duration::from_secs(start)).await;
                        let reservation = Reservation::new(budget.clone());
                        let granted = timeout(Duration::from_secs(patience), reservation.reserve(bytes, None)).await;
                        assert!(budget.available() >= 0);
                        if granted.is_ok() {
                            sleep(Duration::from_secs(hold)).await;
                        }
                    })
                });
                for request in requests.collect::<Vec<_>>() {
                    request.await.expect("ends");
                }
                assert_eq!(budget.available(), 1000);
            });
        }
    }
}
