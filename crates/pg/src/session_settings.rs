//! The settings of every session: the caller's own, and the deadlines with which the server and the kernels
//! of both ends detect a peer that is gone.

use std::time::Duration;

use tokio_postgres::Config;

use crate::Dsn;

/// The idle time before the first keepalive probe, the interval of the next ones, and the number that may
/// remain unanswered before the connection is closed: 15 s in all, which is less than another process waits
/// for a migration ([`crate::MIGRATION_LOCK_TIMEOUT`]).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 2;
/// The longest that a statement waits for a row or key that another transaction has locked. Transactions of a
/// service take milliseconds, so a lock that is held longer belongs to an open transaction of another client,
/// and the caller decides how to continue without that row.
const LOCK_TIMEOUT_MAX: Duration = Duration::from_millis(500);
/// The time that the server waits for an acknowledgement, and for the next statement of a transaction, in
/// sessions without a statement timeout, as in a migration.
const MIGRATION_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The caller's own settings for its sessions, besides the deadlines that every session has.
#[derive(Clone, Copy, Default, Debug)]
pub struct SessionSettings {
    /// The name in `pg_stat_activity`, unless the connection string has another; empty for none.
    pub application_name: &'static str,
    /// Server parameters by name, such as the planner's that the caller's statements need.
    pub parameters: &'static [(&'static str, &'static str)],
}

/// The settings of every session: the caller's own, and the deadlines of [`crate::PgPool`]. Dates are ISO
/// dates in UTC.
///
/// The DSN's own `options` come first, so the settings here take precedence. What the DSN sets for the socket
/// of this end (`keepalives…`, `tcp_user_timeout`) counts.
pub(crate) fn session_config(
    dsn: &Dsn,
    settings: SessionSettings,
    operation_timeout: Option<Duration>,
) -> Config {
    let mut config = dsn.config().clone();
    let mut options = config.get_options().map(|given| format!("{given} ")).unwrap_or_default();
    options.push_str("-c timezone=UTC -c datestyle=ISO");
    for (name, value) in settings.parameters {
        options.push_str(&format!(" -c {name}={value}"));
    }
    if let Some(limit) = operation_timeout {
        let (statement, lock) = (limit.as_millis(), (limit / 4).min(LOCK_TIMEOUT_MAX).as_millis());
        options.push_str(&format!(" -c statement_timeout={statement} -c lock_timeout={lock}"));
    }
    let idle_timeout = operation_timeout.unwrap_or(MIGRATION_IDLE_TIMEOUT);
    options.push_str(&format!(
        " -c idle_in_transaction_session_timeout={millis} -c tcp_user_timeout={millis} \
         -c tcp_keepalives_idle={} -c tcp_keepalives_interval={} -c tcp_keepalives_count={KEEPALIVE_COUNT}",
        KEEPALIVE_IDLE.as_secs(),
        KEEPALIVE_INTERVAL.as_secs(),
        millis = idle_timeout.as_millis(),
    ));
    if !dsn.sets("tcp_user_timeout") {
        config.tcp_user_timeout(idle_timeout);
    }
    config.options(options);
    if config.get_application_name().is_none() && !settings.application_name.is_empty() {
        config.application_name(settings.application_name);
    }
    if !dsn.sets("keepalives") {
        config.keepalives(true);
    }
    if !dsn.sets("keepalives_idle") {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if !dsn.sets("keepalives_interval") {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if !dsn.sets("keepalives_count") {
        config.keepalives_retries(KEEPALIVE_COUNT);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_has_the_guards_against_an_unreachable_peer() {
        let dsn = Dsn::parse("postgres://me@db/x").expect("a connection string");
        for operation_timeout in [None, Some(Duration::from_secs(4))] {
            let config = session_config(&dsn, SessionSettings::default(), operation_timeout);
            let options = config.get_options().unwrap_or_default();
            for guard in [
                "idle_in_transaction_session_timeout",
                "tcp_user_timeout",
                "tcp_keepalives_idle",
                "tcp_keepalives_interval",
                "tcp_keepalives_count",
            ] {
                assert!(options.contains(&format!("-c {guard}=")), "{guard}: {options}");
            }
            assert_eq!(options.contains("statement_timeout"), operation_timeout.is_some(), "{options}");
            assert!(config.get_tcp_user_timeout().is_some());
        }
    }

    #[test]
    fn what_the_string_sets_for_its_socket_counts() {
        let dsn =
            Dsn::parse("postgres://me@db/x?keepalives_idle=60&keepalives_count=9&tcp_user_timeout=7000");
        let config = session_config(&dsn.expect("a connection string"), SessionSettings::default(), None);
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(60));
        assert_eq!(config.get_keepalives_interval(), Some(KEEPALIVE_INTERVAL));
        assert_eq!(config.get_keepalives_retries(), Some(9));
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(7)));
    }

    #[test]
    fn a_session_has_the_name_and_the_parameters_of_its_caller_unless_the_string_has_a_name() {
        let settings = SessionSettings { application_name: "mine", parameters: &[("jit", "off")] };
        let dsn = Dsn::parse("postgres://me@db/x").expect("a connection string");
        let config = session_config(&dsn, settings, None);
        assert_eq!(config.get_application_name(), Some("mine"));
        assert!(config.get_options().unwrap_or_default().contains("-c jit=off"), "{config:?}");
        let dsn = Dsn::parse("postgres://me@db/x?application_name=other").expect("a connection string");
        assert_eq!(session_config(&dsn, settings, None).get_application_name(), Some("other"));
    }
}
