//! The headers of every response of the console, against scripts, framing and caches.

use axum::extract::{Request, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use http_server::TrustedProxies;

/// The content that the browser may load: only from the service itself, and nothing inline.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The policy that disables every feature of the device.
const PERMISSIONS_POLICY: &str = "accelerometer=(), autoplay=(), camera=(), clipboard-read=(), cross-origin-isolated=(), display-capture=(), \
    encrypted-media=(), fullscreen=(), gamepad=(), geolocation=(), gyroscope=(), hid=(), idle-detection=(), keyboard-map=(), magnetometer=(), \
    microphone=(), midi=(), serial=(), payment=(), picture-in-picture=(), publickey-credentials-get=(), screen-wake-lock=(), sync-xhr=(self), usb=(), \
    xr-spatial-tracking=()";

const HEADERS: [(&str, &str); 9] = [
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("permissions-policy", PERMISSIONS_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("x-permitted-cross-domain-policies", "none"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-embedder-policy", "require-corp"),
];

/// Requires HTTPS for a year. It covers only this host, because the service has no information about its
/// subdomains.
const STRICT_TRANSPORT_SECURITY: HeaderValue = HeaderValue::from_static("max-age=31536000");

pub(crate) async fn add(State(proxies): State<TrustedProxies>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let https = proxies.client(&head).https;
    let mut response = next.run(Request::from_parts(head, body)).await;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if https {
        headers.insert("strict-transport-security", STRICT_TRANSPORT_SECURITY);
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
