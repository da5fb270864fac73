//! The connection to PostgreSQL.

use std::time::Duration;

use pg::{Dsn, DsnError};

use super::knobs::{
    NOTIFICATION_POSTGRES_MAX_OPEN_CONNS, NOTIFICATION_POSTGRES_OPERATION_TIMEOUT,
    NOTIFICATION_POSTGRES_PRIMARY_DSN, NOTIFICATION_POSTGRES_REPLICA_DSNS,
};
use super::reader::Reader;

/// The database that is the source of truth.
#[derive(Debug, Clone)]
pub struct Postgres {
    /// The connection string.
    pub dsn: Dsn,
    /// The maximum number of connections.
    pub max_open_conns: usize,
    /// The deadline of a statement or a transaction.
    pub operation_timeout: Duration,
}

impl Postgres {
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let dsn = reader.read(&NOTIFICATION_POSTGRES_PRIMARY_DSN, parse_dsn, Dsn::to_string);
        let max_open_conns = reader.number(&NOTIFICATION_POSTGRES_MAX_OPEN_CONNS);
        let operation_timeout = reader.duration(&NOTIFICATION_POSTGRES_OPERATION_TIMEOUT);
        let replicas = reader.read(&NOTIFICATION_POSTGRES_REPLICA_DSNS, parse_replicas, |text| text.clone());
        replicas?;
        Some(Self { dsn: dsn?, max_open_conns: max_open_conns?, operation_timeout: operation_timeout? })
    }
}

pub(super) fn parse_dsn(text: &str) -> Result<Dsn, String> {
    Dsn::parse(text).map_err(|error| match error {
        // The source of the error may contain a part of the connection string.
        DsnError::Syntax(_) => "not a connection string".to_owned(),
        other => domain::ports::error_chain(&other),
    })
}

/// The connection strings without their passwords. Fails if one of them is invalid.
fn parse_replicas(text: &str) -> Result<String, String> {
    let mut shown = Vec::new();
    for (index, dsn) in split_dsns(text).into_iter().enumerate() {
        let dsn =
            parse_dsn(dsn).map_err(|reason| format!("number {} cannot be used: {reason}", index + 1))?;
        shown.push(dsn.to_string());
    }
    Ok(shown.join(","))
}

/// Splits at commas that precede another `postgres://`. Other commas separate the hosts of one connection
/// string.
fn split_dsns(text: &str) -> Vec<&str> {
    let begins = |rest: &str| rest.starts_with("postgres://") || rest.starts_with("postgresql://");
    let mut dsns = Vec::new();
    let mut start = 0;
    for (comma, _) in text.match_indices(',') {
        if begins(text[comma + 1..].trim_start()) {
            dsns.push(text[start..comma].trim());
            start = comma + 1;
        }
    }
    dsns.push(text[start..].trim());
    dsns.retain(|dsn| !dsn.is_empty());
    dsns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_between_hosts_does_not_end_a_connection_string() {
        assert_eq!(
            split_dsns("postgres://a,b/x, postgresql://c/x"),
            ["postgres://a,b/x", "postgresql://c/x"]
        );
        assert_eq!(split_dsns("host=a,b dbname=x"), ["host=a,b dbname=x"]);
        assert_eq!(split_dsns(""), Vec::<&str>::new());
    }

    #[test]
    fn replicas_are_shown_without_passwords() {
        let shown =
            parse_replicas("postgres://me:s3cret@a/x,postgres://me@b/x").expect("two connection strings");
        assert_eq!(shown, "postgres://me:****@a:5432/x,postgres://me@b:5432/x");
        let error =
            parse_replicas("postgres://me:s3cret@a/x,postgres://me:s3cret@b:port/x").expect_err("a bad port");
        assert!(error.starts_with("number 2") && !error.contains("s3cret"), "{error}");
    }
}
