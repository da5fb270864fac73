//! Receiving the notifications of `NOTIFY`, on a connection of its own.
//!
//! A notification is a hint: several that arrive together count as one, and those that are sent while no
//! connection listens are lost. So the caller also checks for changes when it starts to listen, and from time
//! to time. Keepalives detect a server that is gone. [`Listener::check`] detects one behind a middlebox that
//! keeps the connection open, and a pooler that exchanged the session.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::connect::{Connector, Opened};
use crate::server_error::DeadlinePassed;
use crate::session_settings::session_config;
use crate::{Dsn, PgError, SessionSettings};

/// The longest name of a channel that the server accepts.
pub const MAX_CHANNEL_BYTES: usize = 63;
/// The time limit of the server's response to a listener.
const LISTENER_TIMEOUT: Duration = Duration::from_secs(5);
const OPERATION: &str = "listen for announcements of PostgreSQL";
const LISTENS: &str =
    "SELECT FROM pg_catalog.pg_listening_channels() AS listening (channel) WHERE listening.channel = $1";

/// A connection that listens to one channel. It ends when it is dropped.
#[derive(Debug)]
pub struct Listener {
    client: Client,
    connection: JoinHandle<()>,
    announced: Arc<Notify>,
    channel: String,
}

/// Listens to `channel`; its name is used as given, case included.
pub async fn listen(dsn: &Dsn, channel: &str, session: SessionSettings) -> Result<Listener, PgError> {
    let announced = Arc::new(Notify::new());
    let config = session_config(dsn, session, Some(LISTENER_TIMEOUT));
    let connector = Connector::new(dsn, &config).map_err(|error| PgError::unavailable(OPERATION, error))?;
    let Opened { client, connection, .. } = connector
        .announcing_to(announced.clone())
        .open()
        .await
        .map_err(|error| PgError::unavailable(OPERATION, error))?;
    let listener = Listener { client, connection, announced, channel: channel.to_owned() };
    let listen = format!("LISTEN \"{}\"", channel.replace('"', "\"\""));
    answer(listener.client.batch_execute(&listen)).await?;
    Ok(listener)
}

impl Listener {
    /// Waits for a notification. Returns an error if the connection has ended.
    pub async fn heard(&self) -> Result<(), PgError> {
        self.announced.notified().await;
        if self.connection.is_finished() || self.client.is_closed() {
            Err(PgError::unavailable(OPERATION, "the connection has ended"))
        } else {
            Ok(())
        }
    }

    /// Checks that the server responds, and that the session that serves the connection listens to the
    /// channel: a pooler may have exchanged the session.
    pub async fn check(&self) -> Result<(), PgError> {
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&self.channel, Type::TEXT)];
        let listening = answer(self.client.query_typed(LISTENS, &parameters)).await?;
        if listening.is_empty() {
            Err(PgError::unavailable(OPERATION, "the session of PostgreSQL no longer listens to the channel"))
        } else {
            Ok(())
        }
    }
}

/// Awaits the server's response, for at most [`LISTENER_TIMEOUT`].
async fn answer<T>(asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, PgError> {
    match timeout(LISTENER_TIMEOUT, asked).await {
        Ok(done) => done.map_err(|error| PgError::from_driver(OPERATION, "", error)),
        Err(_) => Err(PgError::unavailable(OPERATION, DeadlinePassed::new(LISTENER_TIMEOUT))),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Otherwise the task would wait for a peer that is silent.
        self.connection.abort();
    }
}

#[cfg(test)]
mod tests {
    use local_servers::{Postgres, PostgresOptions};

    use super::*;

    const BOUND: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn an_announcement_on_the_channel_is_heard_whatever_its_name_and_the_end_of_the_connection_too() {
        let server = Postgres::start(PostgresOptions::default()).await.expect("PostgreSQL starts");
        let dsn = Dsn::parse(&server.superuser_dsn("postgres")).expect("a connection string");
        let listener = listen(&dsn, r#"New "Events""#, SessionSettings::default()).await.expect("it listens");
        server.execute("postgres", r#"NOTIFY "new ""events""""#).await.expect("announced elsewhere");
        server.execute("postgres", r#"NOTIFY "New ""Events""""#).await.expect("announced");
        timeout(BOUND, listener.heard()).await.expect("in time").expect("it is connected");
        listener.check().await.expect("it is there");
        let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_listening_channels%' AND pid <> pg_backend_pid()";
        server.execute("postgres", ended).await.expect("ended");
        timeout(BOUND, listener.heard()).await.expect("in time").expect_err("the connection has ended");
    }
}
