//! Malformed intents: by code and producer, and one with its raw fields.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::layout::{Page, Section};
use crate::ports::{Console, Ports};
use crate::widgets::empty;

/// The paths of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route("/console/malformed", get(show))
}

async fn show() -> Page {
    Page::new(
        Section::Malformed,
        "Malformed intents",
        empty("Nothing here yet.", "This page is not built yet."),
    )
}
