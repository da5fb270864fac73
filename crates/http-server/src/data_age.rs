//! The age of the data behind a response, for data that was read from a replica.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

/// The header of a response whose data was read from a replica: changes of the last so many milliseconds may
/// be missing. Without it, the data is current.
pub const DATA_AGE_MS: HeaderName = HeaderName::from_static("data-age-ms");

/// The age of the data behind a response, as an extension of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataAge(pub Duration);

/// Adds [`DATA_AGE_MS`] and [`DataAge`] to a response whose data was read from a replica.
pub async fn add(request: Request, next: Next) -> Response {
    let (mut response, age) = ambient::data_age::measured(next.run(request)).await;
    if let Some(age) = age {
        let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        response.headers_mut().insert(DATA_AGE_MS, HeaderValue::from(millis));
        response.extensions_mut().insert(DataAge(age));
    }
    response
}
