//! Search by any id: one match leads to its page, several are listed.

use std::sync::Arc;

use ambient::Clock;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use domain::find::{FindQuery, Match, Matches};
use domain::personal::Document;
use domain::ports::Finder;
use maud::{Markup, html};

use super::malformed_intents::entry_path;
use super::parts::{notification_path, producers, text_field};
use crate::error::PageError;
use crate::layout::{FIND_PATH, Page, Section};
use crate::operator::Visitor;
use crate::params::{Params, address};
use crate::ports::{Console, Ports};
use crate::widgets::{badge, column, empty, table, visible};

const PARAMS: [&str; 3] = ["id", "producer", "stream"];

const PERSONAL: PageError = PageError::Personal("Your token does not search by what may be an address.");

/// The routes of this page.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route(FIND_PATH, get(find::<P>))
}

/// The page of a notification, or of one of its routes.
fn notification_page(one: &Match) -> Option<String> {
    let path = notification_path(one.notification_id.as_ref()?.as_str());
    Some(address(&path, one.route_id.iter().map(|route| ("route", route.as_str()))))
}

/// The list of the actions of an operator's request.
fn actions_page(one: &Match) -> Option<String> {
    let request_id = one.request_id.as_deref()?;
    Some(address(super::actions::PATH, [("request_id", request_id)]))
}

/// The page of a match; `None` if it has none, as an entry that is not read yet.
fn page_of(one: &Match) -> Option<String> {
    if let Some(page) = actions_page(one) {
        return Some(page);
    }
    match &one.malformed_intent {
        Some(malformed) => Some(entry_path(malformed)),
        None => notification_page(one).filter(|_| one.is_found && one.outcome != "unread"),
    }
}

async fn find<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let text = |name| params.text(name).map(str::to_owned);
    let (producer, stream) = (text("producer"), text("stream"));
    if producer.is_some() && stream.is_some() {
        return Err(PageError::Invalid("An id has a producer or a stream, not both.".to_owned()));
    }
    let mut found = None;
    if let Some(name) = text("id") {
        let query = FindQuery { name, producer, stream }.sought_by(visitor.sight).ok_or(PERSONAL)?;
        let answer = console.finder.find(&query, console.clock.now()).await?;
        found = Some(answer.seen_by(visitor.sight));
    }
    if let Some([only]) = found.as_ref().map(|found| &found.found[..])
        && let Some(path) = page_of(only)
    {
        return Ok(Redirect::to(&path).into_response());
    }
    let is_missing = found.as_ref().is_some_and(|found| !found.is_found());
    let content = html! {
        form.card method="get" action=(FIND_PATH) aria-label="Find what an id refers to" {
            div.fields {
                (text_field(&params, "id", "Any id", None))
                (text_field(&params, "producer", "It is an idempotency key of the producer", Some("producers")))
                (text_field(&params, "stream", "It is an entry of the stream", None))
                div.actions.wide { button.primary type="submit" { "Find" } }
            }
            p.hint { "The id of a stream entry, intents or outbound, of a notification, a route (event_id, delivery_id), an event of an outbox, a request (of an intent or of an operator) or a trace; or an idempotency key." }
            (producers(&console.settings.catalog))
        }
        @if let Some(found) = &found { (answer(found)) }
    };
    let status = if is_missing { StatusCode::NOT_FOUND } else { StatusCode::OK };
    Ok(Page::new(Section::None, "Find an id", content).with_status(status).into_response())
}

fn answer(found: &Matches) -> Markup {
    let row = |one: &Match| {
        let name = one.notification_id.as_ref().map_or("", |id| id.as_str());
        vec![
            badge(one.tone, one.outcome),
            html! { (visible(&one.sentence)) "." },
            html! {
                @if let Some(malformed) = &one.malformed_intent {
                    a href=(entry_path(malformed)) { "entry " (visible(&malformed.key.entry_id)) } br;
                }
                @if let Some(path) = actions_page(one) { a href=(path) { "its actions" } br; }
                @if let Some(path) = notification_page(one) { a.id href=(path) { (visible(name)) } }
            },
        ]
    };
    let rows: Vec<Vec<Markup>> = found.found.iter().map(row).collect();
    let columns = [column("Outcome"), column("What it is"), column("Page")];
    html! {
        @if !found.is_found() {
            (empty("Nothing was found.", "Below is what is known, and where it was looked for."))
        }
        (table("Everything that the id refers to", &columns, &rows))
        section.card aria-labelledby="searched" {
            h2 #searched { "Searched" }
            ul { @for place in &found.searched { li { (visible(place)) } } }
        }
    }
}
