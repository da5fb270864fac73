//! When the next route of each channel is due: one question to PostgreSQL for all publishers of a replica.

use std::collections::HashMap;

use ambient::Timestamp;
use domain::ports::{RouteStore, StoreError};
use domain::route::Channel;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last answer, which the publishers of a replica share.
#[derive(Debug, Default)]
pub struct NextDue {
    last: Mutex<Option<Answer>>,
}

#[derive(Debug)]
struct Answer {
    asked_at: Instant,
    due: HashMap<Channel, Timestamp>,
}

/// What is known of one channel.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct ChannelDue {
    /// When the store was asked. What has become due since may be missing.
    pub(super) asked_at: Instant,
    /// When the channel's first live route is due, or was; `None` if there is none.
    pub(super) at: Option<Timestamp>,
}

impl NextDue {
    /// The last answer about `channel`, if the store was asked at `since` or later, else a new one. Whoever comes while the
    /// store is being asked waits for that answer.
    pub(super) async fn of(
        &self,
        channel: Channel,
        since: Instant,
        store: &impl RouteStore,
    ) -> Result<ChannelDue, StoreError> {
        let mut last = self.last.lock().await;
        let answer = match last.take() {
            Some(answer) if answer.asked_at >= since => answer,
            _ => Answer { asked_at: Instant::now(), due: store.next_due().await? },
        };
        let found = ChannelDue { asked_at: answer.asked_at, at: answer.due.get(&channel).copied() };
        *last = Some(answer);
        Ok(found)
    }
}
