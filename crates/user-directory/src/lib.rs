//! The user directory: existence, e-mail address and language of users.
//!
//! [`HttpUserDirectory`] requests another service. [`StateUserDirectory`] reads documents from a table of
//! documents, which may be in the service's own schema. Both cache a found user for seconds, so that a burst
//! of intents for the same users causes one request; a missing user and a failure are never cached. Nothing
//! here is durable, so a crash during a lookup loses nothing. Addresses never appear in errors or in the log
//! of this crate.

mod cache;
mod documents;
mod http;
mod user;

pub use documents::{StateDirectorySettings, StateUserDirectory, USERS_PREFIX};
pub use http::{HttpUserDirectory, NoTls, UserDirectorySettings};
