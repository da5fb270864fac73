//! The user directory.

use std::time::Duration;

use url::Url;

use super::knobs::*;
use super::reader::{Reader, Section};
use super::value::Word;

/// The user directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserDirectory {
    /// Another service, over HTTP.
    Http {
        /// The URL to which the paths of the endpoints are appended. Its own path may be longer than `/`.
        base_url: Url,
        /// The deadline of one lookup.
        timeout: Duration,
    },
    /// Documents in the service's own schema.
    State,
}

impl Section for UserDirectory {
    fn read(reader: &mut Reader) -> Option<Self> {
        let kind = reader.get::<Word>(&NOTIFICATION_USER_DIRECTORY);
        let base_url = reader.get(&NOTIFICATION_USER_SERVICE_BASE_URL);
        let timeout = reader.get(&NOTIFICATION_USER_SERVICE_TIMEOUT);
        let (kind, base_url, timeout) = (kind?, base_url?, timeout?);
        if kind.is("state") {
            return Some(Self::State);
        }
        let base_url = reader.required(&NOTIFICATION_USER_SERVICE_BASE_URL, base_url)?;
        Some(Self::Http { base_url, timeout })
    }
}
