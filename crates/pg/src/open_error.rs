//! The error of a connection that could not be opened, with each host that was tried and its cause.

use std::error::Error;
use std::fmt;

use crate::ServerError;
use crate::server_error::DeadlinePassed;

/// None of the hosts of a connection string accepted a connection. Contains each host with its cause.
#[derive(Debug)]
pub(crate) struct OpenError(pub(crate) Vec<OpenFailure>);

/// One host that was tried, and the cause of its failure.
#[derive(Debug)]
pub(crate) struct OpenFailure {
    pub(crate) host: String,
    pub(crate) cause: OpenFailureCause,
}

/// The reason why no connection to a host could be opened.
#[derive(Debug)]
pub(crate) enum OpenFailureCause {
    /// The server responded and refused.
    Server(ServerError),
    /// The network failed, or the server does not meet `target_session_attrs`.
    Driver(tokio_postgres::Error),
    /// The name lookup of the host failed.
    NameLookup(std::io::Error),
    /// The name of the host has no address.
    NoAddress,
    /// The attempt exceeded its time limit.
    Late(DeadlinePassed),
    /// The attempt exceeded its time limit after the connection was accepted.
    NoSession(DeadlinePassed),
    /// A pooler lets several clients share one session of the server.
    SharedSession,
    /// The pooler gave no second connection, which would have shown that it does not share sessions. Contains
    /// the reason of its refusal.
    NotShown(Option<Box<OpenFailureCause>>),
    /// The server is a standby, and the connection string asks for a primary.
    IsStandby,
    /// The server is a primary, and the connection string asks for a standby.
    IsPrimary,
    /// A pooler drops the options of the connection string, which contain more than settings.
    Options,
}

impl OpenFailureCause {
    pub(crate) fn driver(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(said) => Self::Server(ServerError::new(said)),
            None => Self::Driver(error),
        }
    }

    pub(crate) fn late(allowed: std::time::Duration) -> Self {
        Self::Late(DeadlinePassed::new(allowed))
    }

    /// True if a retry fails in the same way until an operator changes the pooler or the connection string.
    pub(crate) fn needs_a_person(&self) -> bool {
        matches!(self, Self::SharedSession | Self::Options)
    }
}

impl OpenError {
    /// The error of the last server that responded.
    pub(crate) fn server(&self) -> Option<&ServerError> {
        self.0.iter().rev().find_map(|failure| match &failure.cause {
            OpenFailureCause::Server(error) => Some(error),
            _ => None,
        })
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no host could be connected to")?;
        for (index, OpenFailure { host, cause }) in self.0.iter().enumerate() {
            write!(f, "{} {host}: {cause}", if index == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl Error for OpenError {}

impl fmt::Display for OpenFailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(error) => error.fmt(f),
            Self::Driver(error) => {
                write!(f, "{error}")?;
                let mut cause = error.source();
                while let Some(error) = cause {
                    write!(f, ": {error}")?;
                    cause = error.source();
                }
                Ok(())
            }
            Self::NameLookup(error) => write!(f, "its name could not be looked up: {error}"),
            Self::NoAddress => f.write_str("its name has no address"),
            Self::Late(error) => error.fmt(f),
            Self::SharedSession => f.write_str(
                "a pooler in transaction or statement mode lets several clients share one session of PostgreSQL, so that \
                 settings, locks and notifications of the session are lost: set pool_mode = session for this database in the \
                 pooler, or name PostgreSQL itself in the connection string",
            ),
            Self::NoSession(error) => write!(
                f,
                "the connection was accepted, but the first statement got {error}: if a pooler is between, all its connections to \
                 PostgreSQL may be in use; let it open more of them (PgBouncer: default_pool_size), or name PostgreSQL itself in \
                 the connection string"
            ),
            Self::NotShown(cause) => {
                f.write_str(
                    "it could not be shown that the pooler keeps a session of PostgreSQL for each client, because that takes a second \
                     connection, ",
                )?;
                match cause {
                    Some(cause) => write!(f, "which failed ({cause})")?,
                    None => f.write_str("which was not served in time")?,
                }
                f.write_str(
                    ": set pool_mode = session for this database in the pooler and leave room for one more connection there \
                     (PgBouncer: default_pool_size, max_client_conn; connect_timeout in the connection string if the network is \
                     slow), or name PostgreSQL itself in the connection string",
                )
            }
            Self::IsStandby => f.write_str("it is a standby"),
            Self::IsPrimary => f.write_str("it is a primary"),
            Self::Options => f.write_str(
                "a pooler does not pass on the options of the connection string, and they hold more than settings \
                 (-c name=value): leave the others out, or name PostgreSQL itself in the connection string",
            ),
        }
    }
}
