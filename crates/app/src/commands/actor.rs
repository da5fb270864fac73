//! Who runs a command that changes something, for `operator_actions`, and the time by the clock of the database.

use ambient::{Clock, RandomTokens, Timestamp, Tokens};
use tokio::time::Instant;
use uuid::Uuid;

use crate::config::host_name;

/// The most characters of the name of a user or host.
const MAX_NAME_CHARS: usize = 64;

/// `$USER@host`.
pub(crate) fn actor(vars: &[(String, String)]) -> String {
    // Without a readable host name the user remains.
    actor_on(vars, &host_name())
}

fn actor_on(vars: &[(String, String)], host: &str) -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| {
        let value = vars.iter().find(|(other, _)| other == name).map(|(_, value)| name_of(value));
        value.filter(|value| !value.is_empty())
    });
    let host = name_of(host);
    let host = if host.is_empty() { "unknown" } else { &host };
    format!("{}@{host}", user.as_deref().unwrap_or("unknown"))
}

fn name_of(text: &str) -> String {
    text.trim().chars().filter(|c| !c.is_control()).take(MAX_NAME_CHARS).collect()
}

/// A name for all that one command does.
pub(crate) fn request_id() -> String {
    Uuid::from_bytes(RandomTokens.next()).simple().to_string()
}

/// The clock of the database as it was read once, continued by that of this process: the machine of an operator may have any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreClock {
    read: Timestamp,
    at: Instant,
}

impl StoreClock {
    /// The database has just said that it is `read`.
    pub(crate) fn new(read: Timestamp) -> Self {
        Self { read, at: Instant::now() }
    }

    /// When it was read.
    pub(crate) fn begun(&self) -> Timestamp {
        self.read
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.read + self.at.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_a_user_and_a_host_whatever_the_environment_lacks() {
        let vars = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert_eq!(actor_on(&vars("USER", "ada"), "ops-1\n"), "ada@ops-1");
        assert_eq!(actor_on(&vars("LOGNAME", "ada"), "ops-1"), "ada@ops-1");
        assert_eq!(actor_on(&vars("USER", ""), ""), "unknown@unknown");
        assert_eq!(actor_on(&vars("USER", "a\u{1b}[31mb"), "h"), "a[31mb@h");
        assert_eq!(actor_on(&vars("USER", &"x".repeat(300)), "h").len(), MAX_NAME_CHARS + 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_continues_from_what_the_database_said() {
        let read: Timestamp = "2026-04-02T09:00:00Z".parse().expect("a time");
        let clock = StoreClock::new(read);
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        assert_eq!(clock.now(), "2026-04-02T09:00:05Z".parse().expect("a time"));
        assert_eq!(clock.begun(), read);
    }
}
