//! Checks of texts beyond their type.

use std::path::Path;

use http_server::check_socket_path;
use store_redis::OWN_KEYS;

/// The maximum length of a stream name, in bytes.
const MAX_STREAM_NAME_BYTES: usize = 255;

/// Fails if `text` cannot be the name of a stream.
pub(super) fn check_stream_name(text: &str) -> Result<(), String> {
    if text.len() > MAX_STREAM_NAME_BYTES {
        return Err("it is too long".to_owned());
    }
    if text.contains(char::is_whitespace) {
        return Err("it holds white space".to_owned());
    }
    match OWN_KEYS.iter().find(|prefix| text.starts_with(*prefix)) {
        Some(prefix) => Err(format!("the service's own keys begin with {prefix}")),
        None => Ok(()),
    }
}

/// Fails if no path can be appended to the URL.
pub(super) fn check_base_url(text: &str) -> Result<(), String> {
    if text.contains(['?', '#']) {
        return Err("it has a query or a fragment, after which no path can be added".to_owned());
    }
    Ok(())
}

/// Fails if `text` cannot be the path of a socket.
pub(super) fn check_socket(text: &str) -> Result<(), String> {
    check_socket_path(Path::new(text)).map_err(|_| format!("it has {} bytes", text.len()))
}
