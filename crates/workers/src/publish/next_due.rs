//! The time at which the next route of each channel is due: one query to PostgreSQL for all publishers of a
//! replica.

use std::collections::HashMap;
use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{RouteStore, StoreError};
use domain::route::Channel;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// The longest time that a publisher waits while another one queries. Then it queries by itself, because the
/// other one may have a dead connection.
const SHARED_QUESTION_TIMEOUT: Duration = Duration::from_millis(100);

/// The last result of the query, which the publishers of a replica share.
#[derive(Debug, Default)]
pub struct NextDue {
    last: Mutex<Option<NextDueTimes>>,
}

#[derive(Debug)]
struct NextDueTimes {
    asked_at: Instant,
    due: HashMap<Channel, Timestamp>,
}

/// The result for one channel.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct ChannelDue {
    /// The time of the query. Routes that became due after it may be missing.
    pub(super) asked_at: Instant,
    /// The time at which the channel's first live route is due, or was; `None` if there is none.
    pub(super) at: Option<Timestamp>,
}

impl NextDue {
    /// Returns the last result for `channel` if it was queried at `since` or later, else a new one. If
    /// another publisher is querying, waits for its result, but not for long.
    pub(super) async fn of(
        &self,
        channel: Channel,
        since: Instant,
        store: &impl RouteStore,
    ) -> Result<ChannelDue, StoreError> {
        let Ok(mut last) = timeout(SHARED_QUESTION_TIMEOUT, self.last.lock()).await else {
            return Ok(NextDueTimes::ask(store).await?.of(channel));
        };
        let answer = match last.take() {
            Some(answer) if answer.asked_at >= since => answer,
            _ => NextDueTimes::ask(store).await?,
        };
        Ok(last.insert(answer).of(channel))
    }
}

impl NextDueTimes {
    async fn ask(store: &impl RouteStore) -> Result<Self, StoreError> {
        Ok(Self { asked_at: Instant::now(), due: store.next_due().await? })
    }

    fn of(&self, channel: Channel) -> ChannelDue {
        ChannelDue { asked_at: self.asked_at, at: self.due.get(&channel).copied() }
    }
}
