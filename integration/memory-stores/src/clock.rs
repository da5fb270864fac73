//! The clock of a server.

use std::fmt;
use std::sync::Arc;

use ambient::{Clock, Timestamp};

/// The clock of a server, which the test chooses. Clones share it.
#[derive(Clone)]
pub(super) struct ServerClock(Arc<dyn Clock>);

impl ServerClock {
    pub(super) fn new(clock: Arc<impl Clock + 'static>) -> Self {
        Self(clock)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl fmt::Debug for ServerClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerClock").field(&self.now()).finish()
    }
}
