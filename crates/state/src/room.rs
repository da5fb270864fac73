//! The bytes that documents being read may occupy, for all operations of a store together.
//!
//! Small documents are not counted: the number of connections bounds how many are read at a time. To read
//! more, an operation reserves room first, and its documents keep the room until their last copy is dropped;
//! for a response, that is when it has been written. An operation that waits for room holds neither room nor
//! a connection, so that there is no deadlock.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::StateError;

/// The largest document that is read without being counted, in bytes.
pub(crate) const MAX_UNCOUNTED_DOCUMENT: usize = 256 * 1024;
/// The most bytes that one operation reads without counting them.
pub(crate) const MAX_UNCOUNTED_BYTES: usize = 1024 * 1024;
/// The unit in which bytes are counted.
const UNIT: usize = 1024;

/// The room. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    free: Arc<Semaphore>,
    units: u32,
}

/// A reserved part of the room, or nothing; released when its last clone is dropped.
#[derive(Clone, Default, Debug)]
pub(crate) struct ReservedRoom {
    _units: Option<Arc<OwnedSemaphorePermit>>,
}

/// All are equal: reserved room is not a part of a document's value.
impl PartialEq for ReservedRoom {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ReservedRoom {}

impl Room {
    pub(crate) fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        Self { free: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// Waits for room for `bytes`, at most for the whole room. [`StateError::NoRoom`] after the deadline.
    pub(crate) async fn take(
        &self,
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Result<ReservedRoom, StateError> {
        let taken = Arc::clone(&self.free).acquire_many_owned(self.units_of(bytes));
        let taken = match deadline {
            None => taken.await,
            Some(deadline) => timeout_at(deadline, taken).await.map_err(|_| StateError::NoRoom)?,
        };
        // Cannot fail: the semaphore is never closed.
        taken.map(|units| ReservedRoom { _units: Some(Arc::new(units)) }).map_err(|_| StateError::NoRoom)
    }

    /// Reserves room only if it is free now.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<ReservedRoom> {
        let taken = Arc::clone(&self.free).try_acquire_many_owned(self.units_of(bytes));
        taken.ok().map(|units| ReservedRoom { _units: Some(Arc::new(units)) })
    }

    fn units_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_is_taken_comes_back_when_its_last_holder_is_gone() {
        let room = Room::new(100 * UNIT);
        let all = room.take(1000 * UNIT, None).await.expect("more than there is takes all that there is");
        assert!(room.try_take(1).is_none());
        let deadline = Some(Instant::now() + Duration::from_millis(10));
        assert!(matches!(room.take(1, deadline).await, Err(StateError::NoRoom)));
        let shared = all.clone();
        drop(all);
        assert!(room.try_take(1).is_none());
        drop(shared);
        assert!(room.try_take(100 * UNIT).is_some());
    }
}
