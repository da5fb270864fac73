//! The connection to PostgreSQL.

use std::time::Duration;

use pg::Dsn;

use super::section::section;

section! {
    /// The database that is the source of truth.
    #[derive(Debug, Clone)]
    pub struct Postgres {
        /// The connection string.
        pub dsn: Dsn = NOTIFICATION_POSTGRES_PRIMARY_DSN,
        /// The maximum number of connections.
        pub max_open_conns: usize = NOTIFICATION_POSTGRES_MAX_OPEN_CONNS,
        /// The deadline of a statement or a transaction.
        pub operation_timeout: Duration = NOTIFICATION_POSTGRES_OPERATION_TIMEOUT,
        /// Replicas, of which only the form is checked.
        pub replicas: Vec<Dsn> = NOTIFICATION_POSTGRES_REPLICA_DSNS,
    }
}
