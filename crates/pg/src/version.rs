//! The version of a server, before a session with settings of its own is opened.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::SimpleQueryMessage;

use crate::connect::{Connector, Opened};
use crate::server_error::DeadlinePassed;
use crate::{Dsn, PgError};

/// The time limit of the server's response once the connection is open.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// The server's `server_version_num`, such as 150018 for 15.18. It is queried on a connection with the
/// settings of the connection string alone: a server that is too old refuses sessions with settings that it
/// does not support.
pub async fn server_version(dsn: &Dsn) -> Result<u32, PgError> {
    const OPERATION: &str = "reach PostgreSQL";
    let connector =
        Connector::new(dsn, dsn.config()).map_err(|error| PgError::unavailable(OPERATION, error))?;
    let opened = connector.plain().open().await;
    let Opened { client, connection, .. } = opened.map_err(|error| PgError::unavailable(OPERATION, error))?;
    let answer = timeout(VERSION_TIMEOUT, client.simple_query("SHOW server_version_num")).await;
    drop(client);
    connection.abort();
    let messages = answer
        .map_err(|_| PgError::unavailable(OPERATION, DeadlinePassed::new(VERSION_TIMEOUT)))?
        .map_err(|error| PgError::from_driver(OPERATION, "", error))?;
    let version = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    });
    version.ok_or_else(|| PgError::unavailable(OPERATION, "the server does not disclose its version"))
}

#[cfg(test)]
mod tests {
    use local_servers::{Postgres, PostgresOptions};

    use super::*;
    use crate::connect::connect;

    #[tokio::test]
    async fn the_version_is_that_of_the_server() {
        let postgres = Postgres::start(PostgresOptions::default()).await.expect("a private server");
        let dsn = Dsn::parse(&postgres.superuser_dsn("postgres")).expect("a connection string");
        let version = server_version(&dsn).await.expect("it answers");
        let Opened { client, .. } = connect(&dsn, dsn.config(), "test").await.expect("it is there");
        let row = client.query_one("SHOW server_version", &[]).await.expect("one row");
        let shown: &str = row.get(0);
        let expected = format!("{}.{}", version / 10_000, version % 10_000);
        assert!(shown.split(' ').next() == Some(&expected), "{shown} is not {expected}");
    }
}
