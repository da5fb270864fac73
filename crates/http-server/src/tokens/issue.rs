//! New tokens.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use toml::Value;

use super::{Access, Consumer, file, token_sha256};

/// What a new token is to allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// To send as this producer.
    Producer(String),
    /// The role `operator`.
    Operator,
    /// To report as this consumer.
    Consumer(Consumer),
    /// To use keys that begin like these.
    Prefixes(Vec<String>, Access),
}

/// A token and its entry in the tokens file. `Debug` hides the token.
pub struct NewToken {
    /// To be given to the client: 43 characters of base64url, 256 random bits.
    pub token: String,
    /// To be added to the file, with a line break at its end.
    pub entry: String,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").finish_non_exhaustive()
    }
}

/// A token of two draws from `random`. `Err` says what the file would not take.
pub fn new_token(name: &str, grant: &Grant, random: &impl ambient::Tokens) -> Result<NewToken, String> {
    let token = URL_SAFE_NO_PAD.encode([random.next(), random.next()].concat());
    let mut members = vec![("name", Value::from(name)), ("sha256", hex::encode(token_sha256(&token)).into())];
    match grant {
        Grant::Producer(producer) => members.push(("producer", producer.as_str().into())),
        Grant::Operator => members.push(("role", "operator".into())),
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
    file::parse(entry.as_bytes()).map_err(|problems| problems.join("; "))?;
    Ok(NewToken { token, entry })
}
