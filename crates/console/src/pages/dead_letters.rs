//! Dead letters: by cause, replay and discard.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::layout::{Page, Section};
use crate::ports::{Console, Ports};
use crate::widgets::empty;

/// The paths of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route("/console/dead-letters", get(show))
}

async fn show() -> Page {
    Page::new(Section::DeadLetters, "Dead letters", empty("Nothing here yet.", "This page is not built yet."))
}
