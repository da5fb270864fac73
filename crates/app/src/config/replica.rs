//! The name of this replica.

use std::fmt;

use ambient::Tokens;

/// The maximum length of a name, in bytes.
const MAX_REPLICA_ID_BYTES: usize = 64;
/// The file in which Linux shows the host name.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// The name of this host; empty if it cannot be read.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default().trim().to_owned()
}

/// The name of a replica for operators: letters, digits, `.`, `_` and `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaId(String);

impl ReplicaId {
    /// The host name and four hex digits, which distinguish replicas on one host with high probability.
    pub fn of_this_host(tokens: &impl Tokens) -> Self {
        // Without a readable host name the digits still distinguish replicas.
        Self::of_host(&host_name(), tokens)
    }

    fn of_host(host: &str, tokens: &impl Tokens) -> Self {
        let mut name: String =
            host.chars().filter(|c| is_allowed(*c)).take(MAX_REPLICA_ID_BYTES - 5).collect();
        if name.is_empty() {
            name.push_str("replica");
        }
        let [.., high, low] = tokens.next();
        Self(format!("{name}-{high:02x}{low:02x}"))
    }

    /// Parses a configured name.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "" => Err("it is empty"),
            _ if text.len() > MAX_REPLICA_ID_BYTES => Err("it is too long"),
            _ if !text.chars().all(is_allowed) => Err("it holds another character"),
            _ => Ok(Self(text.to_owned())),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-".contains(c)
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use ambient::{RandomTokens, SeededTokens};

    use super::*;

    #[test]
    fn a_name_by_default_is_the_host_and_four_hex_digits_and_could_be_configured() {
        let tokens = SeededTokens::new(0xab_cd);
        assert_eq!(ReplicaId::of_host("web-1.example", &tokens).as_str(), "web-1.example-abcd");
        assert_eq!(ReplicaId::of_host("ü", &tokens).as_str(), "replica-abce");
        assert_eq!(ReplicaId::of_host(&"x".repeat(300), &tokens).as_str().len(), MAX_REPLICA_ID_BYTES);
        let here = ReplicaId::of_this_host(&RandomTokens);
        assert_eq!(ReplicaId::parse(here.as_str()), Ok(here.clone()));
    }
}
