//! Where the user directory is.

use std::time::Duration;

use url::Url;

use super::knobs::{NOTIFICATION_USER_SERVICE_BASE_URL, NOTIFICATION_USER_SERVICE_TIMEOUT};
use super::reader::Reader;

/// The user directory.
#[derive(Debug, Clone)]
pub struct UserDirectory {
    /// What the paths of its endpoints are added to; its own path may be more than `/`.
    pub base_url: Url,
    /// The deadline of one look-up.
    pub timeout: Duration,
}

impl UserDirectory {
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let base_url = reader.read(&NOTIFICATION_USER_SERVICE_BASE_URL, parse_base_url, Url::to_string);
        let timeout = reader.duration(&NOTIFICATION_USER_SERVICE_TIMEOUT);
        Some(Self { base_url: base_url?, timeout: timeout? })
    }
}

fn parse_base_url(text: &str) -> Result<Url, String> {
    let url = parse_http_url(text)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it has a query or a fragment, after which no path can be added".to_owned());
    }
    Ok(url)
}

/// An absolute `http` or `https` URL without credentials.
pub(super) fn parse_http_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("it is no URL ({error})"))?;
    if !matches!(url.scheme(), "http" | "https") || !text.contains("://") {
        return Err("it does not begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it holds credentials, which are not used".to_owned());
    }
    Ok(url)
}
