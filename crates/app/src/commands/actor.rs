//! The actor of a command that changes something, for `operator_actions`.

use ambient::{RandomTokens, Tokens};
use clap::Args;
use uuid::Uuid;

use super::operators::parse_text;
use crate::config::host_name;

/// The most characters kept of a user or host name.
const MAX_NAME_CHARS: usize = 64;

/// The name under which a change is recorded.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct ActorArgs {
    /// Record the change under this name, in place of the user's
    #[arg(long = "as", value_name = "NAME", value_parser = parse_text)]
    name: Option<String>,
}

impl ActorArgs {
    /// The name that was given.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The actor in the form `user@host`: the name that was given, the user who called `sudo`, the user of
    /// the environment, or the number of the process's user.
    pub(crate) fn actor(&self, vars: &[(String, String)]) -> String {
        // If the host name cannot be read, the user is still recorded.
        self.on(vars, &host_name(), rustix::process::getuid().as_raw())
    }

    fn on(&self, vars: &[(String, String)], host: &str, uid: u32) -> String {
        let of_variable = |name: &str| {
            let value = vars.iter().find(|(other, _)| other == name);
            value.map(|(_, value)| name_of(value)).filter(|value| !value.is_empty())
        };
        let given = self.name.as_deref().map(name_of).filter(|name| !name.is_empty());
        let user = given.or_else(|| ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(of_variable));
        let host = name_of(host);
        let host = if host.is_empty() { "localhost" } else { &host };
        format!("{}@{host}", user.unwrap_or_else(|| format!("uid-{uid}")))
    }
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
        let actor = |vars: &[(String, String)], host| ActorArgs::default().on(vars, host, 999);
        assert_eq!(actor(&vars("USER", "ada"), "ops-1\n"), "ada@ops-1");
        assert_eq!(actor(&vars("LOGNAME", "ada"), "ops-1"), "ada@ops-1");
        assert_eq!(actor(&vars("USER", ""), ""), "uid-999@localhost");
        assert_eq!(actor(&vars("USER", "a\u{1b}[31mb"), "h"), "a[31mb@h");
        assert_eq!(actor(&vars("USER", &"x".repeat(300)), "h").len(), MAX_NAME_CHARS + 2);
        let sudo = [vars("USER", "root"), vars("SUDO_USER", "ada")].concat();
        assert_eq!(actor(&sudo, "h"), "ada@h", "who called sudo, and not root");
        let named = ActorArgs { name: Some("grace".to_owned()) };
        assert_eq!(named.on(&sudo, "h", 0), "grace@h");
    }
}
