//! The two classes of clients: those with a known token, and the others.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::budget::ByteBudget;

/// A class of clients: places of requests in progress, and the bytes that their bodies and responses may
/// occupy.
#[derive(Debug)]
pub(crate) struct Class {
    places: Arc<Semaphore>,
    pub(crate) budget: ByteBudget,
}

impl Class {
    /// A class with this many places and bytes.
    pub(crate) fn new(places: usize, bytes: usize) -> Arc<Self> {
        Arc::new(Self { places: Arc::new(Semaphore::new(places)), budget: ByteBudget::new(bytes, places) })
    }

    /// Waits for a place, and, unless the request is a probe, until responses leave room.
    pub(crate) async fn enter(&self, is_probe: bool) -> Result<OwnedSemaphorePermit, AcquireError> {
        if !is_probe {
            self.budget.admit().await;
        }
        Arc::clone(&self.places).acquire_owned().await
    }
}
