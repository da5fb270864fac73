//! The style sheet, the script and the icons, served from memory. Their names contain a hash of their
//! content, so that a browser may cache them forever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::query::ServiceState;
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
/// The icons, in the order of the states, each with its path.
static ICONS: LazyLock<[(String, String); 3]> = LazyLock::new(|| {
    ServiceState::ALL.map(|state| {
        let icon = icon(state);
        (path(&icon, "svg"), icon)
    })
});

/// The icon, with a dot if the service is failing or stuck.
fn icon(state: ServiceState) -> String {
    let colour = match state {
        ServiceState::Well => return ICON.to_owned(),
        ServiceState::Failing => "#f59e0b",
        ServiceState::Stuck => "#dc2626",
    };
    let dot =
        format!(r##"<circle cx="23" cy="9" r="8" fill="{colour}" stroke="#fff" stroke-width="2"/></svg>"##);
    ICON.replace("</svg>", &dot)
}

/// The path of the icon for a state.
pub(crate) fn icon_path(state: ServiceState) -> &'static str {
    &ICONS[state as usize].0
}

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
    } else if let Some((_, icon)) = ICONS.iter().find(|(known, _)| path == *known) {
        (icon.as_str(), "image/svg+xml")
    } else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    ([(CONTENT_TYPE, HeaderValue::from_static(media_type)), (CACHE_CONTROL, forever)], content)
        .into_response()
}
