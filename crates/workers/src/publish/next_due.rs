//! When the next route of each channel is due: one question to PostgreSQL for all publishers of a replica.

use std::collections::HashMap;
use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{RouteStore, StoreError};
use domain::route::Channel;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// How long a publisher waits while another one asks. Then it asks by itself: the other one may have a
/// connection that is dead.
const SHARED_QUESTION_TIMEOUT: Duration = Duration::from_millis(100);

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
    /// The last answer about `channel`, if the store was asked at `since` or later, else a new one. A
    /// publisher that comes while another one asks waits for that answer, but not for long.
    pub(super) async fn of(
        &self,
        channel: Channel,
        since: Instant,
        store: &impl RouteStore,
    ) -> Result<ChannelDue, StoreError> {
        let Ok(mut last) = timeout(SHARED_QUESTION_TIMEOUT, self.last.lock()).await else {
            return Ok(Answer::ask(store).await?.of(channel));
        };
        let answer = match last.take() {
            Some(answer) if answer.asked_at >= since => answer,
            _ => Answer::ask(store).await?,
        };
        Ok(last.insert(answer).of(channel))
    }
}

impl Answer {
    async fn ask(store: &impl RouteStore) -> Result<Self, StoreError> {
        Ok(Self { asked_at: Instant::now(), due: store.next_due().await? })
    }

    fn of(&self, channel: Channel) -> ChannelDue {
        ChannelDue { asked_at: self.asked_at, at: self.due.get(&channel).copied() }
    }
}
