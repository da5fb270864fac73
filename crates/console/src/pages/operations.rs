//! Changes of routes: the plan, the confirmed change, and its result. The list of dead letters, the page of a
//! notification and the form below send requests here.

mod asked;
mod change;
mod kind;
mod plan;
mod result;
mod unfinished;

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::{get, post};
use domain::catalog::Catalog;
use maud::{Markup, html};

use super::parts::{choice_field, producers, text_field, time_field};
use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::operator::Operator;
use crate::params::Params;
use crate::ports::{Console, Ports};
use crate::widgets::form_token;

pub(super) use asked::condition_fields;
pub(super) use kind::{Change, DEAD_LETTERS, ROUTES};

/// The address of the form that changes routes by a filter.
pub(super) const FORM_PATH: &str = "/console/routes";

/// The routes of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    let mut router = Router::new().route(FORM_PATH, get(form::<P>));
    for pages in [&DEAD_LETTERS, &ROUTES] {
        let start_over = || async { pages.start_over() };
        router = router
            .route(pages.plan, post(plan::show::<P>).get(start_over))
            .route(pages.change, post(change::change::<P>).get(start_over))
            .route(pages.result, get(result::show::<P>));
    }
    router
}

async fn form<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    operator: Operator,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let params = Params::parse(query.as_deref(), &[])?;
    let content = render(&operator, &console.settings.catalog, &params);
    Ok(Page::new(Section::Notifications, "Cancel or send again", content))
}

fn render(operator: &Operator, catalog: &Catalog, params: &Params) -> Markup {
    let channels = [("", "any"), ("push", "push"), ("email", "email")];
    html! {
        form.card method="post" action=(ROUTES.plan) aria-label="Choose routes" {
            (form_token(operator))
            div.fields {
                (text_field(params, "notification_id", "Notification id", None))
                (choice_field(params, "channel", "Channel", &channels))
                (text_field(params, "notification_type", "Type", Some("types")))
                (text_field(params, "producer", "Producer", Some("producers")))
                (text_field(params, "recipient", "Recipient", None))
                (time_field("since", "From (UTC)", None))
                (time_field("until", "Before (UTC)", None))
            }
            div.actions {
                button.danger type="submit" name="do" value=(Change::Cancel.all()) { "Cancel all that match…" }
                button.primary type="submit" name="do" value=(Change::Resend.all()) { "Send all that match again…" }
            }
            p.hint { "Each button shows the plan first. Pending and failed routes, held or not, are cancelled, by the time of acceptance; published ones are sent again, by the time of publication." }
            datalist #types { @for known in catalog.types() { option value=(known.name()) {} } }
            (producers(catalog))
        }
    }
}

/// The button that shows the plan of a change for one route.
pub(super) fn change_one_form(operator: &Operator, id: &str, changes: &[Change]) -> Markup {
    html! {
        @if let Some(first) = changes.first() {
            form.actions method="post" action=(first.pages().plan) aria-label={ "Change " (id) } {
                (form_token(operator))
                input type="hidden" name="id" value=(id);
                @for change in changes {
                    button class=(change.class()) type="submit" name="do" value=(change.chosen()) { (change.label()) "…" }
                }
            }
        }
    }
}
