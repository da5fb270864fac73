//! The catalogue: the types, their producers and recipients, and an example of each to copy.

mod example;

use std::sync::Arc;

use ambient::Clock;
use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::routing::get;
use domain::catalog::{AudienceKind, NotificationType};
use domain::route::Channel;
use maud::{Markup, html};

use super::parts::{facts, pretty, segment};
use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::params::{Params, address};
use crate::ports::{Console, Ports};
use crate::widgets::{column, table, too_many, visible};

const PATH: &str = "/console/catalogue";
/// The most bytes of a schema that a page shows.
const SCHEMA_SHOWN: usize = 128 * 1024;

/// The routes of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route(PATH, get(list::<P>)).route("/console/catalogue/{name}", get(show::<P>))
}

fn type_path(name: &str) -> String {
    format!("{PATH}/{}", segment(name))
}

async fn list<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    Params::parse(query.as_deref(), &[])?;
    let columns = [column("Type"), column("Producers"), column("To users"), column("To administrators")];
    let rows: Vec<Vec<Markup>> = console.settings.catalog.types().map(row).collect();
    let content = html! {
        p.soft { "Which types there are, who may send them and by which channels they reach their audience. The file of "
            code { "NOTIFICATION_CATALOG_PATH" } ", or the built-in one, says so." }
        (table("Notification types", &columns, &rows))
    };
    Ok(Page::new(Section::Catalogue, "Catalogue", content))
}

fn row(known: &NotificationType) -> Vec<Markup> {
    vec![
        html! { a href=(type_path(known.name())) { (visible(known.name())) } },
        visible(&known.producers().join(", ")),
        channels(known.channels(AudienceKind::User)),
        channels(known.channels(AudienceKind::AdminEmail)),
    ]
}

fn channels(channels: Option<&[Channel]>) -> Markup {
    match channels {
        None => html! { span.soft { "no" } },
        Some(channels) => {
            let names: Vec<&str> = channels.iter().map(|channel| channel.as_str()).collect();
            html! { (names.join(", ")) }
        }
    }
}

async fn show<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    Params::parse(query.as_deref(), &[])?;
    let known = path.ok().and_then(|Path(name)| console.settings.catalog.get(&name));
    let known = known.ok_or_else(|| {
        PageError::NotFound(
            "The catalogue has no type of this name. An older one may have had it.".to_owned(),
        )
    })?;
    let examples = example::of(known, &console.settings.stream, console.clock.now());
    Ok(Page::new(Section::Catalogue, known.name(), render(known, &examples)))
}

fn render(known: &NotificationType, examples: &[example::Example]) -> Markup {
    let notifications = address("/console/notifications", [("notification_type", known.name())]);
    html! {
        section.card aria-label="About this type" {
            (facts(&[
                ("Producers", visible(&known.producers().join(", "))),
                ("To users", channels(known.channels(AudienceKind::User))),
                ("To administrators", html! {
                    (channels(known.channels(AudienceKind::AdminEmail)))
                    @if known.channels(AudienceKind::AdminEmail).is_some() { ", whom " code { (known.admin_emails_variable()) } " names" }
                }),
                ("Notifications", html! { a href=(notifications) { "Notifications of this type" } }),
            ]))
        }
        section.card aria-labelledby="schema" {
            h2 #schema { "Payload (JSON Schema)" }
            pre tabindex="0" aria-labelledby="schema" { (visible(&pretty(&known.payload_schema().to_string(), SCHEMA_SHOWN).0)) }
        }
        @for example in examples { (commands(example)) }
        @if examples.is_empty() {
            (too_many("There is no example.", "None was found that the schema allows. Write a payload by the schema."))
        }
    }
}

fn commands(example: &example::Example) -> Markup {
    let audience = match example.audience {
        AudienceKind::User => "users",
        AudienceKind::AdminEmail => "administrators",
    };
    let kind = example.audience.as_str();
    html! {
        section.card aria-label={ "Examples for " (audience) } {
            h2 { "An intent for " (audience) }
            h3 #{ "curl-" (kind) } { "Over HTTP, with a producer's token" }
            pre tabindex="0" aria-labelledby={ "curl-" (kind) } data-copy=(example.curl) data-copy-label="the command of curl" { (visible(&example.curl)) }
            h3 #{ "redis-" (kind) } { "By the stream" }
            pre tabindex="0" aria-labelledby={ "redis-" (kind) } data-copy=(example.redis) data-copy-label="the command of redis-cli" { (visible(&example.redis)) }
            p.hint { "Another intent needs another idempotency key; the same key with the same content is a duplicate." }
        }
    }
}
