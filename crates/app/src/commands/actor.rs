//! The actor of a command that changes something, for `operator_actions`.

use ambient::{RandomTokens, Tokens};
use uuid::Uuid;

use crate::config::host_name;

/// The most characters kept of a user or host name.
const MAX_NAME_CHARS: usize = 64;

/// The actor in the form `$USER@host`; `unknown` replaces a missing part.
pub(crate) fn actor(vars: &[(String, String)]) -> String {
    // If the host name cannot be read, the user is still recorded.
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

/// Returns a new id that all changes of one command share.
pub(crate) fn request_id() -> String {
    Uuid::from_bytes(RandomTokens.next()).simple().to_string()
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
}
