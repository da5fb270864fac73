//! Authentication: tokens, the file that lists them, and the check of a request's token.
//!
//! The file contains the SHA-256 of each token. A presented token is hashed, and its hash is looked up in a
//! map whose hash function has a random key and whose comparison takes constant time. So the duration of a
//! lookup reveals nothing about the hashes in the file, and a hash would not reveal a token, which is 256
//! random bits.

mod file;
mod guard;
mod guesses;
mod issue;
mod rate_limit;

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

pub use guard::{Charge, Rule, TokenGuard};
pub use issue::{Grant, NewToken, check_tokens, new_token};

use crate::problem::{Problem, UNAUTHORIZED};
pub use crate::reload::ReloadError;
use crate::reload::Reloaded;

/// The authenticated caller and its rights. Handlers behind a [`TokenGuard`] extract it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Name of the token: unique in the file, 1 to 128 bytes without control characters.
    pub name: Arc<str>,
    /// Producer as which the caller sends.
    pub producer: Option<Arc<str>>,
    /// Role of the token, if it has one.
    pub role: Option<Role>,
    /// Consumer as which the caller reports receipts.
    pub consumer: Option<Consumer>,
    /// Keys of the state store that the caller may use.
    pub prefixes: Option<Prefixes>,
}

/// A role of people, as opposed to programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Reads what an operator reads, and changes nothing.
    Viewer {
        /// True if the token sees personal data.
        sees_personal: bool,
    },
    /// Reads everything, and may change things.
    Operator,
}

impl Principal {
    /// True if the token has the role `operator`.
    pub fn is_operator(&self) -> bool {
        self.role == Some(Role::Operator)
    }

    /// True if the token may see personal data of all producers.
    pub fn sees_personal(&self) -> bool {
        matches!(self.role, Some(Role::Operator | Role::Viewer { sees_personal: true }))
    }
}

/// A consumer of an outbound stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    /// The mail service, which reads the stream of e-mail commands.
    Mail,
    /// The gateway, which reads the stream of client events.
    Gateway,
}

/// A set of keys, selected by prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefixes {
    /// Prefixes, at least one; the empty prefix stands for every key.
    pub prefixes: Arc<[String]>,
    /// Allowed access to the keys.
    pub access: Access,
}

/// The allowed access to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
}

/// The tokens in force. Clones share them, and use the new ones when the file changes.
#[derive(Debug, Clone)]
pub struct AccessTokens(Arc<Reloaded<TokenSet>>);

/// The tokens of one version of the file.
#[derive(Debug, Default)]
pub(crate) struct TokenSet(HashMap<TokenDigest, Principal>);

/// The SHA-256 of a token. Compared in constant time; never shown.
#[derive(Clone, Copy, Eq)]
struct TokenDigest([u8; 32]);

/// Computes the SHA-256 of a token.
pub fn token_sha256(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

impl PartialEq for TokenDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Hash for TokenDigest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("****")
    }
}

impl AccessTokens {
    /// Reads the file, which must be valid. Errors name the file, the entry and the fix.
    pub fn load(path: &Path) -> Result<Self, ReloadError> {
        Reloaded::load(vec![path.to_owned()], |files| file::parse(&files[0])).map(Arc::new).map(Self)
    }

    /// Tokens that never change, from the text of a file. For tests.
    pub fn from_toml(text: &str) -> Result<Self, ReloadError> {
        let path = Path::new("tokens.toml").to_owned();
        Reloaded::fixed(vec![path], file::parse(text.as_bytes())).map(Arc::new).map(Self)
    }

    /// Follows the file until `stop`: a change is in force within 10 s. An invalid file is logged once and
    /// the previous tokens are kept. After each change, warns about producers that `known` lacks.
    pub async fn follow(&self, known: BTreeSet<String>, stop: CancellationToken) {
        self.0.follow(stop, || self.warn_about_unknown_producers(&known)).await;
    }

    /// The owner of a token.
    pub fn authenticate(&self, token: &str) -> Option<Principal> {
        self.by_sha256(&token_sha256(token))
    }

    /// The owner of the token with this SHA-256: for callers that store the hash of a presented token, not
    /// the token.
    pub fn by_sha256(&self, sha256: &[u8; 32]) -> Option<Principal> {
        self.0.current().0.get(&TokenDigest(*sha256)).cloned()
    }

    /// The tokens whose producer `known` lacks, by name, with the producer.
    pub fn unknown_producers(&self, known: &BTreeSet<String>) -> Vec<(Arc<str>, Arc<str>)> {
        let tokens = self.0.current();
        let pairs =
            tokens.0.values().filter_map(|token| Some((Arc::clone(&token.name), token.producer.clone()?)));
        let mut unknown: Vec<_> = pairs.filter(|(_, producer)| !known.contains(&**producer)).collect();
        unknown.sort();
        unknown
    }

    fn warn_about_unknown_producers(&self, known: &BTreeSet<String>) {
        for (token, producer) in self.unknown_producers(known) {
            tracing::warn!(token_name = %token, producer = %producer, "no type of the catalogue allows the producer of a token");
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Principal {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Problem> {
        head.extensions.get::<Self>().cloned().ok_or_else(|| unauthorized(head))
    }
}

fn unauthorized(head: &Parts) -> Problem {
    let detail = match head.headers.contains_key(AUTHORIZATION) {
        true => "The header Authorization has no known token: Bearer <token>.",
        false => "The request needs a token: Authorization: Bearer <token>.",
    };
    Problem::new(UNAUTHORIZED, detail)
}

#[cfg(test)]
mod tests;
