//! One call of a script.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Script, ServerErrorKind, ToRedisArgs, Value};

/// One call of a script. The library's own type allocates every argument separately, and a chunk of routes
/// has ten thousand.
pub(crate) struct ScriptCall<'a> {
    script: &'a Script,
    command: Cmd,
}

impl<'a> ScriptCall<'a> {
    pub(crate) fn new(script: &'a Script, keys: impl ExactSizeIterator<Item = impl ToRedisArgs>) -> Self {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.get_hash()).arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        Self { script, command }
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    pub(crate) async fn send(&self, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        match self.command.query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.script.load_async(connection).await?;
                self.command.query_async(connection).await
            }
            answer => answer,
        }
    }
}

/// A time in milliseconds, at least 1: Redis accepts only whole milliseconds above zero.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
