//! The bytes that request bodies and answers may occupy, all connections together.
//!
//! Every request in progress has a share of [`SHARE_BYTES`] of its own. What a body needs beyond it is reserved as a whole
//! before the body is read; until then its connection is not read. So a request that waits holds nothing that another one
//! waits for, and there is no deadlock; small requests never wait for large ones. Reservations are granted in the order in
//! which they are asked for. A body that does not come holds its reservation until the request timeout.
//!
//! An answer is in memory before its size is known. What it needs beyond the share is taken at once, if need be below
//! zero; then no further request is begun until enough was written.

use std::sync::Arc;

use tokio::sync::{Mutex, watch};

/// What every request in progress may occupy without asking, in bytes.
pub const SHARE_BYTES: usize = 16 * 1024;

/// The bytes beyond the shares. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    available: Arc<watch::Sender<i64>>,
    /// Held by the reservation that is next.
    turn: Arc<Mutex<()>>,
}

impl Budget {
    /// `bytes` in all, of which `requests` shares are set aside.
    pub(crate) fn new(bytes: usize, requests: usize) -> Self {
        let available = bytes.saturating_sub(requests.saturating_mul(SHARE_BYTES));
        Self { available: Arc::new(watch::Sender::new(signed(available))), turn: Arc::default() }
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
        let _turn = self.turn.lock().await;
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

    /// Waits until the request may occupy `bytes`. To be called once: a request that waits must hold nothing.
    pub(crate) async fn reserve(&self, bytes: usize) {
        let beyond = bytes.saturating_sub(SHARE_BYTES);
        if beyond > 0 {
            self.budget.acquire(beyond).await;
            *self.held() += beyond;
        }
    }

    /// The request occupies `bytes` from now on, more or less than before.
    pub(crate) fn set(&self, bytes: usize) {
        let beyond = bytes.saturating_sub(SHARE_BYTES);
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
