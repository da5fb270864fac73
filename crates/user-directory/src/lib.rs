//! The user directory: whether a user exists, with e-mail address and language.
//!
//! [`HttpUserDirectory`] asks another service. [`StateUserDirectory`] reads documents from a table of
//! documents, which may be in the service's own schema. Both keep a user that was found for seconds, so that
//! a burst of intents for the same users asks once; a missing user and a failure are never cached. Nothing
//! here is durable, so a crash during a look-up loses nothing. Addresses never appear in errors and in the
//! log of this crate.

mod cache;
mod documents;
mod http;
mod user;

pub use documents::{StateDirectorySettings, StateUserDirectory, USERS_PREFIX};
pub use http::{HttpUserDirectory, NoTls, UserDirectorySettings};
