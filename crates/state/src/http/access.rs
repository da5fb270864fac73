//! Access rules: tokens with prefixes, or everyone.

use axum::http::HeaderMap;
use http_server::tokens::{self, AccessTokens};

use super::error::ApiError;
use super::target::HttpOperation;
use crate::{Key, Prefix};

/// The clients that may use a listener.
#[derive(Clone, Debug)]
pub enum AllowedClients {
    /// Every client that can connect: a Unix socket is protected by its mode, loopback by the machine.
    Everyone,
    /// Clients with one of these tokens, if its entry has `prefixes`; other tokens are ignored.
    Tokens(AccessTokens),
}

/// The keys that a request may use.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    Everything,
    Prefixes(tokens::Prefixes),
}

impl AllowedClients {
    /// 401 without a valid token, 403 for a write with a read-only token.
    pub(super) fn admit(&self, headers: &HeaderMap, operation: HttpOperation) -> Result<Scope, ApiError> {
        let Self::Tokens(tokens) = self else { return Ok(Scope::Everything) };
        if operation.is_probe() {
            return Ok(Scope::Everything);
        }
        let principal = tokens.principal(headers);
        let prefixes =
            principal.and_then(|principal| principal.prefixes).ok_or_else(ApiError::unauthorized)?;
        if operation.writes() && prefixes.access < tokens::Access::Write {
            return Err(ApiError::forbidden("the token may read and not write"));
        }
        Ok(Scope::Prefixes(prefixes))
    }
}

impl Scope {
    /// 403 unless the token covers this key.
    pub(super) fn check_key(&self, key: &Key) -> Result<(), ApiError> {
        self.check(key.as_str(), "the token does not have this key")
    }

    /// 403 unless the token covers every key with this prefix.
    pub(super) fn check_prefix(&self, prefix: &Prefix) -> Result<(), ApiError> {
        self.check(prefix.as_str(), "the token does not have every key with this prefix: narrow the prefix")
    }

    fn check(&self, text: &str, message: &'static str) -> Result<(), ApiError> {
        match self {
            Self::Prefixes(allowed) if !allowed.prefixes.iter().any(|prefix| text.starts_with(prefix)) => {
                Err(ApiError::forbidden(message))
            }
            Self::Everything | Self::Prefixes(_) => Ok(()),
        }
    }
}
