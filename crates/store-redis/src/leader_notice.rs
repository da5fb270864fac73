//! The leader-change notice: a leader that steps down notifies one waiting candidate, so that failover takes
//! no longer than a message.
//!
//! Delivery is best effort: if a notice is lost, candidates campaign at their own interval.

use std::time::Duration;

use domain::ports::StoreError;
use redis::{Script, cmd};

use crate::blocking::{BlockingConnection, MAX_KEPT_BUFFER_BYTES};
use crate::connect::RedisClient;
use crate::keyspace::leader_change;
use crate::script_call::{ScriptCall, millis};

const ANNOUNCE: &str = include_str!("scripts/announce_leader_change.lua");

/// The longest that a notice waits for a candidate.
const NOTICE_TTL: Duration = Duration::from_secs(5);
/// The shortest wait for a notice: to Redis, zero means no timeout.
const MIN_NOTICE_WAIT: Duration = Duration::from_millis(10);

/// The notices of one leadership. Waiting blocks on a connection of its own.
#[derive(Clone)]
pub struct LeaderNotice {
    client: RedisClient,
    key: String,
    announce: Script,
    waiting: BlockingConnection,
}

impl std::fmt::Debug for LeaderNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaderNotice").field("key", &self.key).finish_non_exhaustive()
    }
}

impl LeaderNotice {
    /// The notices of `leadership`, whose leader reads `stream`.
    pub fn new(client: &RedisClient, stream: &str, leadership: &str) -> Self {
        let client = client.for_key(stream);
        Self {
            key: leader_change(stream, leadership),
            announce: Script::new(ANNOUNCE),
            waiting: BlockingConnection::new(&client),
            client,
        }
    }

    /// Notifies one waiting candidate that the leader has stepped down.
    pub async fn announce(&self) -> Result<(), StoreError> {
        let mut call = ScriptCall::new(&self.announce, [&self.key].into_iter());
        call.arg(millis(NOTICE_TTL));
        self.client.script("send the leader-change notice", &call).await.map(drop)
    }

    /// Returns when a notice arrives, or after `at_most`.
    pub async fn wait(&self, at_most: Duration) -> Result<(), StoreError> {
        let wait = at_most.max(MIN_NOTICE_WAIT);
        let mut command = cmd("BLPOP");
        command.arg(&self.key).arg(wait.as_secs_f64());
        // Every element of the list is a notice, whatever its content.
        self.waiting
            .ask("wait for the leader-change notice", &command, wait, MAX_KEPT_BUFFER_BYTES)
            .await
            .map(drop)
    }
}
