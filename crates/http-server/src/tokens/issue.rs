//! Creation of tokens.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use toml::Value;

use super::{Access, Consumer, Role, file, token_sha256};

/// The right that a new token grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// Sending as this producer.
    Producer(String),
    /// A role.
    Role(Role),
    /// Reporting receipts as this consumer.
    Consumer(Consumer),
    /// Access to keys with these prefixes.
    Prefixes(Vec<String>, Access),
}

/// A token and its entry in the tokens file. `Debug` hides the token.
pub struct NewToken {
    /// The token, for the client: 43 characters of base64url, 256 random bits.
    pub token: String,
    /// The entry to add to the file, with a line break at its end.
    pub entry: String,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").finish_non_exhaustive()
    }
}

/// Checks the text of a tokens file. `Err` has everything that is wrong with it.
pub fn check_tokens(text: &str) -> Result<(), String> {
    file::parse(text.as_bytes()).map(drop).map_err(|problems| problems.join("; "))
}

/// Creates a token from two draws of `random`. `Err` is the reason for which the file would be invalid.
pub fn new_token(name: &str, grant: &Grant, random: &impl ambient::Tokens) -> Result<NewToken, String> {
    let token = URL_SAFE_NO_PAD.encode([random.next(), random.next()].concat());
    let mut members = vec![("name", Value::from(name)), ("sha256", hex::encode(token_sha256(&token)).into())];
    match grant {
        Grant::Producer(producer) => members.push(("producer", producer.as_str().into())),
        Grant::Role(Role::Operator) => members.push(("role", "operator".into())),
        Grant::Role(Role::Viewer { sees_personal }) => {
            members.push(("role", "viewer".into()));
            members.extend(sees_personal.then(|| ("see", vec!["personal"].into())));
        }
        Grant::Consumer(Consumer::Mail) => members.push(("consumer", "mail".into())),
        Grant::Consumer(Consumer::Gateway) => members.push(("consumer", "gateway".into())),
        Grant::Prefixes(prefixes, access) => {
            let access = if *access == Access::Write { "write" } else { "read" };
            members.push(("prefixes", prefixes.clone().into()));
            members.push(("access", access.into()));
        }
    }
    let lines = members.iter().map(|(member, value)| format!("{member} = {value}\n"));
    let entry = ["[[token]]\n".to_owned()].into_iter().chain(lines).collect::<String>();
    check_tokens(&entry)?;
    Ok(NewToken { token, entry })
}
