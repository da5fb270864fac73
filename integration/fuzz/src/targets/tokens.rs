//! Files of API tokens.

use ambient::error_chain;
use http_server::tokens::{AccessTokens, token_sha256};
use toml::{Table, Value};

use crate::Target;

pub(super) const TARGET: Target = Target { name: "tokens", max_bytes: 2 * 1024, check };

/// Digits of which seeds make hashes, so that a mutation puts them in wrong places.
const SECRET: &str = "f00dfacef00dface";
/// A token that seeds have with its hash.
const KNOWN: &str = "secret";

fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match AccessTokens::from_toml(text) {
        Ok(tokens) => {
            for hash in hashes(text) {
                assert!(!format!("{tokens:?}").contains(&hash) || is_shown(text, &hash), "a hash is shown");
            }
            let known = hex::encode(token_sha256(KNOWN));
            assert!(tokens.authenticate(KNOWN).is_none() || text.to_ascii_lowercase().contains(&known));
            assert_eq!(tokens.authenticate(""), None);
            assert_eq!(tokens.authenticate(KNOWN), tokens.by_sha256(&token_sha256(KNOWN)));
        }
        Err(error) => {
            let shown = format!("{} {error:?}", error_chain(&error));
            assert!(shown.starts_with("tokens.toml: "), "{shown}");
            assert!(!shown.contains(SECRET) || is_shown(text, SECRET), "a hash is shown: {shown}");
        }
    }
}

/// The values of `sha256`, in lower case.
fn hashes(text: &str) -> Vec<String> {
    let of_entry = |entry: &Value| Some(entry.get("sha256")?.as_str()?.to_ascii_lowercase());
    entries(text).iter().filter_map(of_entry).collect()
}

fn entries(text: &str) -> Vec<Value> {
    let table: Table = text.parse().unwrap_or_default();
    table.get("token").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Returns true if an entry has the text in a member that may be shown.
fn is_shown(text: &str, secret: &str) -> bool {
    let holds = |entry: &Value, member: &str| {
        entry.get(member).is_some_and(|value| value.to_string().to_ascii_lowercase().contains(secret))
    };
    entries(text).iter().any(|entry| ["name", "producer", "prefixes"].iter().any(|name| holds(entry, name)))
}
