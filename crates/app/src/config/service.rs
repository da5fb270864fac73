//! The sections of `serve` that need no rule of their own: PostgreSQL, routes, publishing and retention.

use std::time::Duration;

use domain::backoff::BackoffBounds;
use domain::operations::Budgets;
use pg::Dsn;
use workers::LeaseTimes;

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
        /// The connection strings of read replicas.
        pub replicas: Vec<Dsn> = NOTIFICATION_POSTGRES_REPLICA_DSNS,
        /// The longest time by which a read replica may be behind.
        pub replica_max_lag: Duration = NOTIFICATION_POSTGRES_REPLICA_MAX_LAG,
    }
}

section! {
    /// The retries and leases of routes.
    #[derive(Debug, Clone, Copy)]
    pub struct Routes {
        /// The maximum number of attempts for a route of each channel.
        pub budgets: Budgets,
        /// The delays between attempts.
        pub backoff: BackoffBounds,
        /// The lifetime of a lease.
        pub lease_ttl: Duration = NOTIFICATION_ROUTE_LEASE_TTL,
    }
}

section! {
    impl Budgets {
        push = NOTIFICATION_PUSH_MAX_ATTEMPTS,
        email = NOTIFICATION_EMAIL_MAX_ATTEMPTS,
    }
}

section! {
    impl LeaseTimes {
        lease_ttl = NOTIFICATION_ROUTE_LEASE_TTL,
        dedupe_ttl = NOTIFICATION_PUBLISH_DEDUPE_TTL,
    }
}

section! {
    impl BackoffBounds {
        min = NOTIFICATION_ROUTE_BACKOFF_MIN,
        max = NOTIFICATION_ROUTE_BACKOFF_MAX,
    }
}

section! {
    /// The settings of the publishers.
    #[derive(Debug, Clone, Copy)]
    pub struct Publish {
        /// The maximum number of routes in one append.
        pub batch_size: usize = NOTIFICATION_PUBLISH_BATCH_SIZE,
        /// The pause between two due scans while routes are due.
        pub poll_interval: Duration = NOTIFICATION_PUBLISH_POLL_INTERVAL,
        /// The lifetime of a published marker.
        pub dedupe_ttl: Duration = NOTIFICATION_PUBLISH_DEDUPE_TTL,
        /// The period before a data loss in Redis whose publications are compared with the streams; zero for
        /// never.
        pub republish_window: Duration = NOTIFICATION_REPUBLISH_WINDOW,
    }
}

section! {
    /// The ages at which rows are removed.
    #[derive(Debug, Clone, Copy)]
    pub struct Retention {
        /// The age at which a record is removed, with its routes and dead letters.
        pub record: Duration = NOTIFICATION_RECORD_RETENTION,
        /// The age at which a malformed intent is removed.
        pub malformed_intent: Duration = NOTIFICATION_MALFORMED_INTENT_RETENTION,
        /// The age at which an operator's action is removed.
        pub operator_action: Duration = NOTIFICATION_OPERATOR_ACTION_RETENTION,
        /// The pause between two clean-ups.
        pub cleanup_interval: Duration = NOTIFICATION_CLEANUP_INTERVAL,
    }
}
