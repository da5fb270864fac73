//! The style sheet, the script and the icon, served from memory. Their names contain a hash of their content,
//! so that a browser may cache them forever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

const CSS: &str = include_str!("../assets/console.css");
const JS: &str = include_str!("../assets/console.js");
const ICON: &str = include_str!("../assets/icon.svg");

/// The number of bytes of the hash in a name.
const NAME_BYTES: usize = 10;

/// The path of the style sheet.
pub(crate) static CSS_PATH: LazyLock<String> = LazyLock::new(|| path(CSS, "css"));
/// The path of the script.
pub(crate) static JS_PATH: LazyLock<String> = LazyLock::new(|| path(JS, "js"));
/// The path of the icon.
pub(crate) static ICON_PATH: LazyLock<String> = LazyLock::new(|| path(ICON, "svg"));

fn path(content: &str, extension: &str) -> String {
    let hash = Sha256::digest(content.as_bytes());
    format!("/console/assets/{}.{extension}", hex::encode(&hash[..NAME_BYTES]))
}

pub(crate) async fn show(Path(name): Path<String>) -> Response {
    let path = format!("/console/assets/{name}");
    let (content, media_type) = if path == *CSS_PATH {
        (CSS, "text/css; charset=utf-8")
    } else if path == *JS_PATH {
        (JS, "text/javascript; charset=utf-8")
    } else if path == *ICON_PATH {
        (ICON, "image/svg+xml")
    } else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    ([(CONTENT_TYPE, HeaderValue::from_static(media_type)), (CACHE_CONTROL, forever)], content)
        .into_response()
}
