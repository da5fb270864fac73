//! A word to whoever waits that an office is vacant, so that a hand-over takes no longer than a message.
//!
//! A hint only: a word that is lost costs the wait until somebody looks for themselves.

use std::sync::Arc;
use std::time::Duration;

use domain::ports::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{Script, Value, cmd};
use tokio::sync::Mutex;

use crate::connect::{RedisClient, ScriptCall, TimedOut, redis_error, unavailable};
use crate::keyspace::vacancy;

/// One word for one listener; unheard, it is gone after five seconds.
const ANNOUNCE: &str = r"
redis.call('DEL', KEYS[1])
redis.call('RPUSH', KEYS[1], '1')
redis.call('EXPIRE', KEYS[1], 5)
return redis.status_reply('OK')";

/// The words about one office. Listening blocks on a connection of its own.
#[derive(Clone)]
pub struct RedisHints {
    client: RedisClient,
    key: String,
    announce: Script,
    listener: Arc<Mutex<Option<MultiplexedConnection>>>,
}

impl std::fmt::Debug for RedisHints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisHints").field("key", &self.key).finish_non_exhaustive()
    }
}

impl RedisHints {
    /// Words about `office`.
    pub fn new(client: &RedisClient, office: &str) -> Self {
        Self {
            client: client.clone(),
            key: vacancy(office),
            announce: Script::new(ANNOUNCE),
            listener: Arc::default(),
        }
    }

    /// Says that the office is vacant.
    pub async fn announce(&self) -> Result<(), StoreError> {
        let call = ScriptCall::new(&self.announce, [&self.key].into_iter());
        self.client.script("announce a vacancy", &call).await.map(drop)
    }

    /// Returns when the office is said to be vacant, or after `at_most`.
    pub async fn wait(&self, at_most: Duration) -> Result<(), StoreError> {
        const OPERATION: &str = "listen for a vacancy";
        let mut listener = self.listener.lock().await;
        let mut connection = match listener.take() {
            Some(connection) => connection,
            None => self.client.dedicated(OPERATION).await?,
        };
        let mut command = cmd("BLPOP");
        command.arg(&self.key).arg(at_most.as_secs_f64().max(0.01));
        let bound = at_most + self.client.operation_timeout();
        let answer = tokio::time::timeout(bound, command.query_async::<Value>(&mut connection)).await;
        answer
            .map_err(|_| unavailable(OPERATION, TimedOut(bound)))?
            .map_err(|error| redis_error(OPERATION, error))?;
        *listener = Some(connection);
        Ok(())
    }
}
