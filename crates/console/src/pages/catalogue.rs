//! The catalogue: types, who may send them, examples.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::layout::{Page, Section};
use crate::ports::{Console, Ports};
use crate::widgets::empty;

/// The paths of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route("/console/catalogue", get(show))
}

async fn show() -> Page {
    Page::new(Section::Catalogue, "Catalogue", empty("Nothing here yet.", "This page is not built yet."))
}
