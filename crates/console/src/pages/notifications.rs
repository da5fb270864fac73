//! The list of notifications, with the filters of the API's list and a search in the filter language; the
//! address contains both.

mod search;

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::get;
use domain::catalog::Catalog;
use domain::personal::{Document, Sight};
use domain::ports::Queries;
use domain::query::{NotificationFilter, NotificationSummary, PageLimit, Place, SearchOutcome, SearchPlace};
use domain::receipt::ReceiptStatus;
use domain::record::RecordCursor;
use domain::route::RouteStatus;
use maud::{Markup, html};

use super::operations::FORM_PATH;
use super::parts::{
    choice_field, filter_form, limit, notification_path, pages, producers, size_field, status_name,
    text_field, time_field,
};
use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::operator::Visitor;
use crate::params::Params;
use crate::ports::{Console, Ports};
use crate::widgets::{self, badge, column, empty, failed, number, table, too_many, visible};

const PATH: &str = "/console/notifications";
const PARAMS: [&str; 11] = [
    "producer",
    "notification_type",
    "status",
    "receipt",
    "recipient",
    "idempotency_key",
    "accepted_after",
    "accepted_before",
    "filter",
    "limit",
    "cursor",
];

/// The error of a search by data that the viewer may not see: its result would tell it.
const PERSONAL: PageError = PageError::Personal(
    "Your token does not search by addresses, nor in the filter by recipients and payloads.",
);

/// The routes of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route(PATH, get(list::<P>)).merge(super::notification::routes())
}

/// The result of a search.
enum Found {
    /// A page of the list, and the cursor of the next page.
    Page(Vec<NotificationSummary>, Option<String>),
    /// The search filter is invalid; contains the reason and the place.
    Invalid(String),
    /// The search took too long.
    TooExpensive,
}

async fn list<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let filter = NotificationFilter {
        producer: params.text("producer").map(str::to_owned),
        notification_type: params.text("notification_type").map(str::to_owned),
        status: params.value("status", "a status of a route")?,
        receipt: params.value("receipt", "a status of a receipt")?,
        recipient: params.text("recipient").map(str::to_owned),
        users_only: false,
        idempotency_key: params.text("idempotency_key").map(str::to_owned),
        accepted_after: params.time("accepted_after")?,
        accepted_before: params.time("accepted_before")?,
    };
    let filter = filter.sought_by(visitor.sight).ok_or(PERSONAL)?;
    let limit = limit(&params)?;
    let found = find(visitor.sight, &console, &params, &filter, limit).await?;
    let status = match found {
        Found::Page(..) => StatusCode::OK,
        Found::Invalid(_) => StatusCode::BAD_REQUEST,
        Found::TooExpensive => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let can_change = visitor.operator().is_some();
    let content = render(&console.settings.catalog, &params, &filter, limit, &found, can_change);
    Ok(Page::new(Section::Notifications, "Notifications", content).with_status(status))
}

async fn find<P: Ports>(
    sight: Sight,
    console: &Console<P>,
    params: &Params,
    filter: &NotificationFilter,
    limit: PageLimit,
) -> Result<Found, PageError> {
    let Some(text) = params.text("filter") else {
        let after: Option<RecordCursor> = params.cursor(filter)?;
        let page = console.queries.list_notifications(filter, after.as_ref(), limit).await?;
        return Ok(Found::Page(page.items.seen_by(sight), page.next.map(|place| place.to_cursor(filter))));
    };
    let search = match search::combined(filter, text, sight) {
        Ok(search) => search,
        Err(problem) => return Ok(Found::Invalid(problem)),
    };
    let after: Option<SearchPlace> = params.cursor(&search)?;
    let outcome =
        console.queries.search_notifications(&search, after.as_ref().map(|place| &place.0), limit).await?;
    Ok(match outcome {
        SearchOutcome::Found(page) => Found::Page(
            page.items.seen_by(sight),
            page.next.map(|place| SearchPlace(place).to_cursor(&search)),
        ),
        SearchOutcome::Invalid(fault) => Found::Invalid(search::explained(&fault, text)),
        SearchOutcome::Personal => return Err(PERSONAL),
        SearchOutcome::TooExpensive => Found::TooExpensive,
    })
}

fn render(
    catalog: &Catalog,
    params: &Params,
    filter: &NotificationFilter,
    limit: PageLimit,
    found: &Found,
    can_change: bool,
) -> Markup {
    let problem = match found {
        Found::Invalid(problem) => Some(problem.as_str()),
        _ => None,
    };
    html! {
        (filters(catalog, params, filter, limit, problem))
        @match found {
            Found::Page(items, next) => (listed(params, filter, items, next.as_deref(), can_change)),
            Found::Invalid(_) => {}
            Found::TooExpensive => (failed(
                "The search took longer than NOTIFICATION_API_QUERY_TIMEOUT allows.",
                "Narrow it: give a time range, or a condition that an index serves: an id, an idempotency key, a recipient, or a \
                    status other than published.",
            )),
        }
    }
}

fn filters(
    catalog: &Catalog,
    params: &Params,
    filter: &NotificationFilter,
    limit: PageLimit,
    problem: Option<&str>,
) -> Markup {
    let mut statuses = vec![("", "any")];
    statuses.extend(RouteStatus::ALL.map(|status| (status.as_str(), status_name(status))));
    let mut receipts = vec![("", "anything or nothing")];
    receipts.extend(ReceiptStatus::ALL.map(|status| (status.as_str(), status.as_str())));
    let fields = html! {
        (text_field(params, "notification_type", "Type", Some("types")))
        (text_field(params, "producer", "Producer", Some("producers")))
        (text_field(params, "recipient", "Recipient (user id or address)", None))
        (choice_field(params, "status", "With a route that is", &statuses))
        (choice_field(params, "receipt", "With a receipt that says", &receipts))
        (text_field(params, "idempotency_key", "Idempotency key", None))
        (time_field("accepted_after", "Accepted from (UTC)", filter.accepted_after))
        (time_field("accepted_before", "Accepted before (UTC)", filter.accepted_before))
        (size_field(limit))
        (search::field(params.text("filter"), problem))
        datalist #types { @for known in catalog.types() { option value=(known.name()) {} } }
        (producers(catalog))
    };
    filter_form(PATH, "Filter notifications", params, &fields)
}

fn listed(
    params: &Params,
    filter: &NotificationFilter,
    items: &[NotificationSummary],
    next: Option<&str>,
    can_change: bool,
) -> Markup {
    let is_filtered = *filter != NotificationFilter::default() || params.text("filter").is_some();
    let columns = [
        column("Notification"),
        column("Type"),
        column("Producer"),
        column("Key"),
        column("Recipients"),
        column("Accepted"),
        column("Routes"),
    ];
    let rows: Vec<Vec<Markup>> = items.iter().map(row).collect();
    html! {
        @if !rows.is_empty() {
            (table("Newest first", &columns, &rows))
            @if next.is_some() && is_filtered {
                (too_many("There may be more.", "Older notifications are on the next page; a page may be short, because each examines a bounded number."))
            }
        } @else if next.is_some() {
            (too_many("Nothing on this page.", "None of the notifications that it examined match. The next page examines older ones."))
        } @else if is_filtered || params.text("cursor").is_some() {
            (empty("No notification matches.", "Change or clear the filter. A notification that retention has deleted is not found."))
        } @else {
            (empty("There are no notifications yet.", "The catalogue shows how to send one."))
        }
        (pages(params, PATH, next))
        @if can_change { p { a href=(FORM_PATH) { "Cancel or send again by filter…" } } }
    }
}

fn row(summary: &NotificationSummary) -> Vec<Markup> {
    let id = summary.notification_id.as_str();
    vec![
        html! { a.id href=(notification_path(id)) { (visible(id)) } },
        html! { (visible(&summary.notification_type)) },
        html! { (visible(&summary.producer)) },
        html! { (visible(&summary.idempotency_key)) },
        html! { (visible(&summary.recipients_text())) },
        widgets::time(summary.accepted_at),
        html! {
            span.badges {
                @for (status, routes) in summary.routes.iter() {
                    (badge(status.tone(), &format!("{} {}", number(routes), status_name(status)))) " "
                }
            }
        },
    ]
}
