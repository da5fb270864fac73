//! The list of operators' actions.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use domain::operations::ACTIONS;
use domain::personal::Document;
use domain::ports::Queries;
use domain::query::{ActionFilter, ActionPlace, PageLimit, RecordedAction};
use maud::{Markup, html};

use super::parts::{filter_form, limit, pages, size_field, text_field, time_field};
use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::operator::Visitor;
use crate::params::Params;
use crate::ports::{Console, Ports};
use crate::widgets::{column, empty, number, numbers, table, time, too_many, visible};

/// The address of the list.
pub(super) const PATH: &str = "/console/actions";
const PARAMS: [&str; 7] = ["actor", "action", "request_id", "after", "before", "limit", "cursor"];

/// The route of this page.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route(PATH, get(list::<P>))
}

async fn list<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let text = |name| params.text(name).map(str::to_owned);
    let filter = ActionFilter {
        actor: text("actor"),
        action: text("action"),
        request_id: text("request_id"),
        after: params.time("after")?,
        before: params.time("before")?,
    };
    let (limit, after): (PageLimit, Option<ActionPlace>) = (limit(&params)?, params.cursor(&filter)?);
    let page = console.queries.list_actions(&filter, after.as_ref(), limit).await?;
    let (items, next) = page.into_parts(&filter);
    let content = html! {
        (filters(&params, &filter, limit))
        @if visitor.operates { p { a.button href=(super::erase::PATH) { "Erase a person…" } } }
        (listed(&params, &filter, &items.seen_by(visitor.sight), next.as_deref()))
    };
    Ok(Page::new(Section::Actions, "Actions", content))
}

fn filters(params: &Params, filter: &ActionFilter, limit: PageLimit) -> Markup {
    let fields = html! {
        (text_field(params, "actor", "Operator", None))
        (text_field(params, "action", "Action", Some("actions")))
        (text_field(params, "request_id", "Request", None))
        (time_field("after", "From (UTC)", filter.after))
        (time_field("before", "Before (UTC)", filter.before))
        (size_field(limit))
        datalist #actions { @for action in ACTIONS { option value=(action) {} } }
    };
    filter_form(PATH, "Filter actions", params, &fields)
}

fn listed(params: &Params, filter: &ActionFilter, items: &[RecordedAction], next: Option<&str>) -> Markup {
    let columns = [
        column("Time"),
        column("Operator"),
        column("Action"),
        numbers("Changed"),
        column("Arguments"),
        column("Request"),
    ];
    let rows: Vec<Vec<Markup>> = items.iter().map(row).collect();
    html! {
        @if !rows.is_empty() {
            (table("Newest first", &columns, &rows))
        } @else if next.is_some() {
            (too_many("Nothing on this page.", "None of the actions that it examined match. The next page examines older ones."))
        } @else if *filter != ActionFilter::default() || params.text("cursor").is_some() {
            (empty("No action matches.", "Change or clear the filter."))
        } @else {
            (empty("No operator has changed anything.", "Replays, discards, holds, releases and handovers are listed here."))
        }
        (pages(params, PATH, next))
    }
}

fn row(action: &RecordedAction) -> Vec<Markup> {
    vec![
        time(action.at),
        visible(&action.actor),
        visible(&action.action),
        html! { (number(action.affected)) },
        html! { code { (visible(&action.arguments.to_string())) } },
        html! { code { (visible(&action.request_id)) } },
    ]
}
