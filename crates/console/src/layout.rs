//! The frame of a page: head, navigation, operator, content.
//!
//! A handler returns a [`Page`], which does not contain the session. [`render`] turns it into HTML once the
//! session is known: in `session.rs` for pages with a session, in [`frame`] for pages without one.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::query::ServiceState;
use http_server::data_age::DataAge;
use maud::{DOCTYPE, Markup, html};

use crate::assets::{CSS_PATH, JS_PATH, icon_path};
use crate::operator::{FORM_TOKEN, Visitor};
use crate::widgets::{plain, visible};

/// The entry of the navigation that a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Section {
    Overview,
    Notifications,
    DeadLetters,
    Malformed,
    Holds,
    Actions,
    Catalogue,
    Runbook,
    /// No entry, for errors and the sign-in.
    None,
}

/// The page of the search by any id.
pub(crate) const FIND_PATH: &str = "/console/find";
/// The path of the sign-out, the only form of a viewer.
pub(crate) const SIGN_OUT_PATH: &str = "/console/sign-out";

/// The navigation: section, path, label.
const NAVIGATION: [(Section, &str, &str); 8] = [
    (Section::Overview, "/console/", "Overview"),
    (Section::Notifications, "/console/notifications", "Notifications"),
    (Section::DeadLetters, "/console/dead-letters", "Dead letters"),
    (Section::Malformed, "/console/malformed", "Malformed"),
    (Section::Holds, "/console/holds", "Holds"),
    (Section::Actions, "/console/actions", "Actions"),
    (Section::Catalogue, "/console/catalogue", "Catalogue"),
    (Section::Runbook, "/console/runbook", "Runbook"),
];

/// A page without its frame. As a response it does not have a body yet.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    section: Section,
    title: String,
    content: Markup,
    status: StatusCode,
    is_live: bool,
    state: ServiceState,
}

impl Page {
    /// Creates a page. `title` is the heading as well; `content` follows it.
    pub(crate) fn new(section: Section, title: impl Into<String>, content: Markup) -> Self {
        Self {
            section,
            title: title.into(),
            content,
            status: StatusCode::OK,
            is_live: false,
            state: ServiceState::Well,
        }
    }

    /// Sets a status other than 200.
    #[must_use]
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Shows the state of the service in the title and the icon of the tab.
    #[must_use]
    pub(crate) fn with_state(mut self, state: ServiceState) -> Self {
        self.state = state;
        self
    }

    /// Adds a link that reloads the page. The script reloads by itself every few seconds, part by part: it
    /// replaces an element with `data-live` and an id by the one with the same id.
    #[must_use]
    pub(crate) fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    /// The document; `age` is that of its data, if it was read from a replica.
    fn html(&self, visitor: Option<&Visitor>, age: Option<DataAge>) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="robots" content="noindex";
                    title {
                        @if self.state != ServiceState::Well { (self.state.as_str()) " · " }
                        (plain(&self.title)) " · Notification console"
                    }
                    link rel="stylesheet" href=(CSS_PATH.as_str());
                    link rel="icon" type="image/svg+xml" href=(icon_path(self.state));
                    script src=(JS_PATH.as_str()) defer {}
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    (self.header(visitor))
                    main #main tabindex="-1" data-refresh[self.is_live] {
                        div.heading {
                            h1 { (visible(&self.title)) }
                            @if self.is_live { (refresh()) }
                        }
                        @if let Some(DataAge(age)) = age {
                            p.hint { "Read from a replica: changes of the last " (format!("{:.1}", age.as_secs_f64())) " s may be missing." }
                        }
                        (self.content)
                    }
                }
            }
        }
    }

    fn header(&self, visitor: Option<&Visitor>) -> Markup {
        html! {
            header.top {
                a.brand href="/console/" { "Notification" }
                @if let Some(visitor) = visitor {
                    nav aria-label="Pages" {
                        ul {
                            @for (section, path, label) in NAVIGATION {
                                li { a href=(path) aria-current=[(section == self.section).then_some("page")] { (label) } }
                            }
                        }
                    }
                    form.find method="get" action=(FIND_PATH) role="search" {
                        input type="search" name="id" required maxlength="1024" aria-label="Find any id" placeholder="Find any id" autocomplete="off" spellcheck="false";
                        button.quiet type="submit" { "Find" }
                    }
                    form.who method="post" action=(SIGN_OUT_PATH) {
                        input type="hidden" name=(FORM_TOKEN) value=(visitor.form_token.0);
                        span { span.visually-hidden { "Signed in as " } strong { (visible(&visitor.name)) } @if !visitor.operates { ", a viewer" } }
                        button.quiet type="submit" { "Sign out" }
                    }
                }
            }
        }
    }
}

/// The link that reloads the page, and the place for the script's status.
fn refresh() -> Markup {
    html! {
        p.refresh {
            span #refresh-state role="status" {}
            " "
            a href="" data-refresh-now { "Refresh" }
        }
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Turns a response with a page into HTML; other responses stay unchanged.
pub(crate) fn render(mut response: Response, visitor: Option<&Visitor>) -> Response {
    if let Some(page) = response.extensions_mut().remove::<Page>() {
        let age = response.extensions().get::<DataAge>().copied();
        let html = page.html(visitor, age).into_string();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        *response.body_mut() = Body::from(html);
    }
    response
}

/// Renders pages that do not have a session.
pub(crate) async fn frame(request: Request, next: Next) -> Response {
    render(next.run(request).await, None)
}
