//! The bytes that request bodies and answers may occupy, all connections together.
//!
//! Every request in progress has a share of its own, [`MAX_SHARE_BYTES`] or less. What a body needs beyond it is reserved as a whole
//! before the body is read; until then its connection is not read. So a request that waits holds nothing that another one
//! waits for, and there is no deadlock; small requests never wait for large ones. Reservations are granted in the order in
//! which they are asked for. A body that does not come holds its reservation until the request timeout.
//!
//! An answer is in memory before its size is known. What it needs beyond the share is taken at once, if need be below
//! zero; then no further request is begun until enough was written.

use std::sync::Arc;

use tokio::sync::{Mutex, watch};

/// The most that every request in progress may occupy without asking, in bytes.
const MAX_SHARE_BYTES: usize = 16 * 1024;

/// The part of the budget that all shares together have at most: one in so many.
const SHARES_DIVISOR: usize = 4;

/// The bytes beyond the shares. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    share: usize,
    available: Arc<watch::Sender<i64>>,
    /// Held by the reservation that is next.
    next: Arc<Mutex<()>>,
}

impl Budget {
    /// `bytes` in all, of which `requests` shares are set aside.
    pub(crate) fn new(bytes: usize, requests: usize) -> Self {
        let share = MAX_SHARE_BYTES.min(bytes / SHARES_DIVISOR / requests.max(1));
        Self::with_share(share, bytes - requests * share)
    }

    fn with_share(share: usize, available: usize) -> Self {
        Self { share, available: Arc::new(watch::Sender::new(signed(available))), next: Arc::default() }
    }

    /// Waits until answers have left something for a further request.
    pub(crate) async fn admit(&self) {
        if *self.available.borrow() < 0 {
            self.wait_for(0).await;
        }
    }

    /// Waits for `bytes`, after those that asked before.
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

    /// Takes `bytes` even if they are not there.
    fn take(&self, bytes: usize) {
        self.available.send_modify(|available| *available -= signed(bytes));
    }

    fn release(&self, bytes: usize) {
        self.available.send_modify(|available| *available += signed(bytes));
    }

    /// What is left; below zero if answers took more than there was.
    #[cfg(test)]
    pub(crate) fn available(&self) -> i64 {
        *self.available.borrow()
    }
}

/// What one request occupies; released when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Budget,
    /// Beyond the share.
    held: std::sync::Mutex<usize>,
}

impl Reservation {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, held: std::sync::Mutex::default() }
    }

    /// What the request may occupy without asking, in bytes.
    pub(crate) fn share(&self) -> usize {
        self.budget.share
    }

    /// Waits until the request may occupy `bytes`. To be called once: a request that waits must hold nothing.
    pub(crate) async fn reserve(&self, bytes: usize) {
        let beyond = bytes.saturating_sub(self.budget.share);
        if beyond > 0 {
            self.budget.acquire(beyond).await;
            *self.held() += beyond;
        }
    }

    /// The request occupies `bytes` from now on, more or less than before.
    pub(crate) fn set(&self, bytes: usize) {
        let beyond = bytes.saturating_sub(self.budget.share);
        let mut held = self.held();
        if beyond > *held {
            self.budget.take(beyond - *held);
        } else if beyond < *held {
            self.budget.release(*held - beyond);
        }
        *held = beyond;
    }

    fn held(&self) -> std::sync::MutexGuard<'_, usize> {
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
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

    /// Room for `bytes` beyond the shares.
    fn budget(bytes: usize) -> Budget {
        Budget::with_share(SHARE, bytes)
    }

    async fn waits(reservation: &Reservation, bytes: usize) -> bool {
        timeout(Duration::from_secs(60), reservation.reserve(bytes)).await.is_err()
    }

    #[test]
    fn shares_are_a_quarter_of_the_budget_at_most() {
        for (bytes, requests, share) in
            [(64 << 20, 1024, SHARE), (1 << 20, 1024, 256), (1 << 20, 0, SHARE), (0, 7, 0), (100, 1000, 0)]
        {
            let budget = Budget::new(bytes, requests);
            assert_eq!((budget.share, budget.available()), (share, signed(bytes - share * requests)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_is_there_even_if_nothing_else_is() {
        let budget = budget(1 << 20);
        let (large, small) = (Reservation::new(budget.clone()), Reservation::new(budget.clone()));
        large.reserve(SHARE + (1 << 20)).await;
        assert!(!waits(&small, SHARE).await);
        assert!(waits(&small, SHARE + 1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn reservations_are_granted_in_the_order_in_which_they_are_asked_for() {
        let budget = budget(100);
        let first = Reservation::new(budget.clone());
        first.reserve(SHARE + 60).await;
        let (large, small) = (Reservation::new(budget.clone()), Reservation::new(budget.clone()));
        let large = tokio::spawn(async move {
            large.reserve(SHARE + 100).await;
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
        first.reserve(SHARE + 60).await;
        assert!(waits(&Reservation::new(budget.clone()), SHARE + 41).await);
        assert!(!waits(&Reservation::new(budget.clone()), SHARE + 40).await);
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
        /// Whatever clients do, reservations never exceed the budget, every one that is not given up is granted, and all
        /// is free at the end.
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
                        let granted = timeout(Duration::from_secs(patience), reservation.reserve(bytes)).await;
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
