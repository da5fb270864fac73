//! The configuration of the user directory.

use std::time::Duration;

use url::Url;

use super::knobs::{
    NOTIFICATION_USER_DIRECTORY, NOTIFICATION_USER_SERVICE_BASE_URL, NOTIFICATION_USER_SERVICE_TIMEOUT,
};
use super::reader::Reader;

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

impl UserDirectory {
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let kind = reader.word(&NOTIFICATION_USER_DIRECTORY);
        let base_url = reader.read(&NOTIFICATION_USER_SERVICE_BASE_URL, parse_base_url, show);
        let timeout = reader.duration(&NOTIFICATION_USER_SERVICE_TIMEOUT);
        let (kind, base_url, timeout) = (kind?, base_url?, timeout?);
        match (kind, base_url) {
            (Some("state"), _) => Some(Self::State),
            (_, Some(base_url)) => Some(Self::Http { base_url, timeout }),
            (_, None) => {
                reader.missing(&NOTIFICATION_USER_SERVICE_BASE_URL);
                None
            }
        }
    }
}

fn show(url: &Option<Url>) -> String {
    url.as_ref().map(Url::to_string).unwrap_or_default()
}

fn parse_base_url(text: &str) -> Result<Option<Url>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let url = parse_http_url(text)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it has a query or a fragment, after which no path can be added".to_owned());
    }
    Ok(Some(url))
}

/// Parses an absolute `http` or `https` URL without credentials.
pub(super) fn parse_http_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("not a URL ({error})"))?;
    if !matches!(url.scheme(), "http" | "https") || !text.contains("://") {
        return Err("it does not begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it holds credentials, which are not used".to_owned());
    }
    Ok(url)
}
