//! Converts Redis' errors into errors of the ports: which of them are an outage of Redis or of the
//! connection, and which reject the command.

use std::time::Duration;

use domain::ports::StoreError;
use redis::{ErrorKind, RedisError, Value};

/// A deadline passed.
#[derive(Debug, thiserror::Error)]
#[error("no response within {0:?}")]
pub(crate) struct TimedOut(pub(crate) Duration);

/// The error codes with which Redis reports that it cannot serve any command at present.
const OUTAGES: [&str; 15] = [
    "OOM",
    "READONLY",
    "LOADING",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "BUSY",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "CLUSTERDOWN",
    "NOAUTH",
    "WRONGPASS",
    "UNKILLABLE",
    "NOTBUSY",
];

/// Parts of the error texts with which Redis reports that this connection may not use a command or a key: a
/// permission that the user lacks, or a command that was renamed. Every command of the kind fails, whatever
/// its arguments.
const MISSING_PERMISSIONS: [&str; 8] = [
    "NOPERM",
    "has no permissions to",
    "can't run this command",
    "can't access at least one of the keys",
    "ACL failure in script",
    "unknown command",
    "Unknown Redis command called from script",
    // A long command on a connection that was opened before a password was set.
    "Protocol error: unauthenticated",
];

/// The beginning of the error texts with which a node of a Cluster reports inside a script that it may not
/// use a key at present.
const NOT_OF_THIS_NODE: &str = "Script attempted to ";

/// True if an error text of Redis is about its own state or the connection's permissions, and not about the
/// command.
pub(crate) fn is_outage(text: &str) -> bool {
    codes(text).any(|code| OUTAGES.contains(&code))
        || text.contains(NOT_OF_THIS_NODE)
        || is_missing_permission(text)
}

/// True if an error text of Redis reports that this connection may not use a command or a key.
pub(crate) fn is_missing_permission(text: &str) -> bool {
    MISSING_PERMISSIONS.iter().any(|part| text.contains(part))
}

/// The possible codes of an error text: at its beginning. Before Redis 7, the code of an error inside a
/// script comes later and begins with a minus: `@user_script: 11: -OOM command not allowed`.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    let first = text.split([' ', ':']).next();
    first.into_iter().chain(text.split(' ').filter_map(|word| word.strip_prefix('-')))
}

/// The error text of the server, its code first; `None` if the server returned no error.
fn said(error: &RedisError) -> Option<String> {
    error.code().map(|code| format!("{code} {}", error.detail().unwrap_or_default()))
}

/// An error that the server returned.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Answered(String);

/// An error text of Redis without the places in scripts that it names: before Redis 7 they come first, and
/// since then last.
pub(crate) fn without_script(text: &str) -> String {
    let text = text.find(" script: ").map_or(text, |end| &text[..end]);
    let begin = match (text.contains("@user_script:"), text.rfind(": -")) {
        (true, Some(place)) => place + 3,
        _ => 0,
    };
    text[begin..].trim().to_owned()
}

/// True if the connection is usable after this error: any error that the server returned except those after
/// which the server may no longer be the primary, or not that of these keys.
pub(crate) fn leaves_connection_usable(error: &RedisError) -> bool {
    said(error).is_some_and(|text| !is_demotion(&text))
}

pub(crate) fn is_demotion(text: &str) -> bool {
    codes(text).any(|code| ["READONLY", "MOVED", "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN"].contains(&code))
}

/// True if the server rejected the command, so that nothing was carried out: it is full, for example.
pub fn is_rejected(error: &StoreError) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Answered>())
}

pub(crate) fn redis_error(operation: &'static str, error: RedisError) -> StoreError {
    let answered = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
    let Some(text) = said(&error) else { return unavailable(operation, error) };
    let is_moving = codes(&text).any(|code| ["ASK", "TRYAGAIN"].contains(&code));
    let source = match is_moving {
        true => Answered(format!("the slot of these keys is being moved to another node: {text}")),
        false => Answered(without_script(&text)),
    };
    if answered && !is_outage(&text) {
        return StoreError::Refused { operation, source: source.into() };
    }
    unavailable(operation, source)
}

pub(crate) fn unavailable(
    operation: &'static str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StoreError {
    StoreError::Unavailable { operation, source: source.into() }
}

/// Redis returned a value of a type that the command never returns.
pub(crate) fn unexpected(operation: &'static str, value: &Value) -> StoreError {
    let kind = match value {
        Value::Nil => "nil",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "a string",
        Value::Array(_) => "an array of another shape",
        _ => "another type",
    };
    unavailable(operation, format!("Redis returned {kind}, which this command never returns"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_known_by_its_code_wherever_redis_puts_it() {
        for text in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica. script: 1f, on @user_script:5.",
            "@user_script: 11: -OOM command not allowed when used memory > 'maxmemory'.\r\n",
            "ERR Error running script (call to f_1f): @user_script:23: @user_script: 23: -READONLY You can't.",
            "NOPERM this user has no permissions to access one of the keys",
            "ERR The user executing the script can't run this command or subcommand script: 1f, on @user_script:5.",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "ERR unknown command 'EVALSHA', with args beginning with: ",
            "ERR Unknown Redis command called from script script: 1f, on @user_script:5.",
            "ERR Protocol error: unauthenticated multibulk length",
            "ERR Protocol error: unauthenticated bulk length",
        ] {
            assert!(is_outage(text), "{text}");
        }
    }

    #[test]
    fn an_error_text_names_no_place_in_a_script() {
        let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
        let full = "OOM command not allowed when used memory > 'maxmemory'.";
        for (text, expected) in [
            (format!("{wrong} script: 6399c2ab, on @user_script:7."), wrong),
            (wrong.to_owned(), wrong),
            (format!("{full} script: 1f, on @user_script:5."), full),
            (format!("@user_script: 11: -{full}\r\n"), full),
            (
                format!(
                    "ERR Error running script (call to f_1f): @user_script:23: @user_script: 23: -{full}"
                ),
                full,
            ),
        ] {
            assert_eq!(without_script(&text), expected);
        }
    }

    #[test]
    fn a_refusal_is_no_outage_whatever_else_it_mentions() {
        for text in [
            "",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR Error running script (call to f_1f): @user_script:1: Wrong type",
            "ERR value of OOM - BUSY is no number",
        ] {
            assert!(!is_outage(text), "{text}");
        }
    }

    #[test]
    fn a_server_that_may_no_longer_be_the_primary_is_not_called_again_on_this_connection() {
        for text in [
            "READONLY You can't write against a read only replica. script: 1f, on @user_script:5.",
            "NOREPLICAS Not enough good replicas to write.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ] {
            assert!(is_demotion(text) && is_outage(text), "{text}");
        }
        assert!(!is_demotion("OOM command not allowed when used memory > 'maxmemory'."));
    }
}
