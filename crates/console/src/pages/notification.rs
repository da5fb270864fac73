//! One notification: its content, and the state of each of its routes.

mod timeline;

use std::sync::Arc;

use ambient::{Clock, Timestamp};
use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::routing::get;
use domain::intent::MAX_PAYLOAD;
use domain::personal::Document;
use domain::ports::Queries;
use domain::query::{Notification, Route, RouteCounts};
use domain::record::NotificationId;
use domain::route::RouteStatus;
use maud::{Markup, html};

use super::dead_letters::list_path;
use super::operations::{Change, change_one_form};
use super::parts::{facts, guarded, notification_path, pretty, segment, status, status_name, withheld};
use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::operator::{Operator, Visitor};
use crate::params::{Params, address};
use crate::ports::{Console, Ports};
use crate::widgets::{Tone, badge, id, number, pager, time, too_many, visible};

/// The most routes that a page shows.
const ROUTES_SHOWN: usize = 50;
/// The most recipients that a page names.
const RECIPIENTS_SHOWN: usize = 20;
/// The most bytes of a payload that a page shows, including the white space of its layout.
const PAYLOAD_SHOWN: usize = 2 * MAX_PAYLOAD;
const PARAMS: [&str; 3] = ["status", "route", "from"];

/// The routes that a page shows.
struct Chosen {
    status: Option<RouteStatus>,
    route_id: Option<String>,
    from: usize,
}

impl Chosen {
    fn contains(&self, route: &Route) -> bool {
        self.status.is_none_or(|status| status == route.status)
            && self.route_id.as_ref().is_none_or(|route_id| **route_id == *route.route_id)
    }
}

pub(super) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route("/console/notifications/{notification_id}", get(show::<P>))
}

async fn show<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let not_found = || {
        PageError::NotFound("There is no notification of this id. Retention may have deleted it.".to_owned())
    };
    let Path(text) = path.map_err(|_| not_found())?;
    if text.contains('\0') {
        return Err(not_found());
    }
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let chosen = Chosen {
        status: params.value("status", "a status of a route")?,
        route_id: params.text("route").map(str::to_owned),
        from: params.value("from", "a number")?.unwrap_or(0),
    };
    let found = console.queries.get_notification(&NotificationId::from(text)).await?;
    let now = console.clock.now();
    let found = found.ok_or_else(not_found)?.seen_by(visitor.sight).explained(now);
    let title = format!("Notification {}", found.notification_id);
    let content = render(visitor.operator().as_ref(), &found, &chosen, now);
    Ok(Page::new(Section::Notifications, title, content))
}

/// The rank of a status: routes that need attention come first.
fn attention(status: RouteStatus) -> u8 {
    match status {
        RouteStatus::DeadLetter => 0,
        RouteStatus::Failed => 1,
        RouteStatus::Pending => 2,
        RouteStatus::Skipped => 3,
        RouteStatus::Published => 4,
    }
}

fn render(operator: Option<&Operator>, found: &Notification, chosen: &Chosen, now: Timestamp) -> Markup {
    let from = chosen.from;
    let mut routes: Vec<&Route> = found.routes.iter().filter(|route| chosen.contains(route)).collect();
    routes.sort_by_key(|route| attention(route.status));
    let shown = routes.iter().skip(from).take(ROUTES_SHOWN);
    let path = notification_path(found.notification_id.as_str());
    let page = |from: Option<usize>| {
        let status = chosen.status.map(|status| ("status", status.as_str().to_owned()));
        let from = from.map(|from| ("from", from.to_string()));
        let pairs: Vec<(&str, String)> = status.into_iter().chain(from).collect();
        address(&path, pairs.iter().map(|(name, value)| (*name, value.as_str())))
    };
    let next = from.saturating_add(ROUTES_SHOWN);
    html! {
        (about(found))
        section.stack aria-labelledby="routes" {
            h2 #routes { "Routes" }
            (choose_status(found, chosen, &path))
            @if let Some(route_id) = &chosen.route_id { p.soft { "Only the route " (visible(route_id)) "." } }
            @for route in shown { (route_card(operator, route, &found.key_of(route).to_string(), (routes.len() == 1, now))) }
            @if routes.len() > ROUTES_SHOWN {
                p.soft { "Routes " (number(from as u64 + 1)) " to " (number(next.min(routes.len()) as u64)) " of " (number(routes.len() as u64)) "." }
            }
            (pager((from > 0).then(|| page(None)).as_deref(), (next < routes.len()).then(|| page(Some(next))).as_deref()))
        }
        section.card aria-labelledby="payload" {
            h2 #payload { "Payload" }
            @if let Some(payload) = found.payload_json.shown() {
                @let (payload, is_whole) = pretty(payload, PAYLOAD_SHOWN);
                pre tabindex="0" aria-labelledby="payload" { (visible(&payload)) }
                @if !is_whole { (too_many("The rest of the payload is not shown.", "GET /v1/notifications/<id> answers all of it.")) }
            } @else {
                (withheld())
            }
        }
    }
}

fn about(found: &Notification) -> Markup {
    html! {
        section.card aria-label="About this notification" {
            (facts(&[
                ("Type", html! { a href={ "/console/catalogue/" (segment(&found.notification_type)) } { (visible(&found.notification_type)) } }),
                ("Producer", html! { a href=(address("/console/notifications", [("producer", found.producer.as_str())])) { (visible(&found.producer)) } }),
                ("Notification id", id(found.notification_id.as_str())),
                ("Idempotency key", id(&found.idempotency_key)),
                ("Accepted", time(found.accepted_at)),
                ("Occurred", time(found.occurred_at)),
                ("Last change", time(found.updated_at)),
                ("Key reserved until", time(found.idempotency_expires_at)),
                ("Recipients", recipients(&found.recipient_user_ids)),
                ("Request id", or_none(&found.request_id, id)),
                ("Trace id", or_none(&found.trace_id, id)),
                ("Fingerprint", guarded(&found.request_fingerprint, id)),
            ]))
        }
    }
}

/// A text that may be absent, which the tables store as an empty one.
fn or_none(text: &str, show: fn(&str) -> Markup) -> Markup {
    if text.is_empty() {
        html! { span.soft { "none" } }
    } else {
        show(text)
    }
}

fn recipients(users: &[String]) -> Markup {
    html! {
        @if users.is_empty() {
            "administrators"
        } @else {
            (number(users.len() as u64)) @if users.len() == 1 { " user: " } @else { " users: " }
            @for (index, user) in users.iter().take(RECIPIENTS_SHOWN).enumerate() {
                @if index > 0 { ", " }
                a href=(address("/console/notifications", [("recipient", user.as_str())])) { (visible(user)) }
            }
            @if users.len() > RECIPIENTS_SHOWN { ", …" }
        }
    }
}

/// Links to the routes of each status, with their number.
fn choose_status(found: &Notification, chosen: &Chosen, path: &str) -> Markup {
    let mut counts = RouteCounts::default();
    for route in &found.routes {
        counts.add(route.status, 1);
    }
    let all = found.routes.len() as u64;
    html! {
        nav.choices aria-label="Routes by status" {
            ul {
                li { a href=(path) aria-current=[(chosen.status.is_none() && chosen.route_id.is_none()).then_some("true")] { "all " (number(all)) } }
                @for (status, routes) in counts.iter() {
                    li {
                        a href=(address(path, [("status", status.as_str())])) aria-current=[(chosen.status == Some(status)).then_some("true")] {
                            (status_name(status)) " " (number(routes))
                        }
                    }
                }
            }
        }
    }
}

/// The changes that an operator can make to a route.
fn changes_of(route: &Route) -> &'static [Change] {
    match route.status {
        RouteStatus::DeadLetter if route.discarded.is_some() => &[Change::Replay],
        RouteStatus::DeadLetter => &[Change::Replay, Change::Discard],
        RouteStatus::Pending | RouteStatus::Failed => &[Change::Cancel],
        RouteStatus::Published => &[Change::Resend],
        RouteStatus::Skipped => &[],
    }
}

/// A route, in one line if it is published and not the only one; its details are folded then.
fn route_card(
    operator: Option<&Operator>,
    route: &Route,
    key: &str,
    (is_only, now): (bool, Timestamp),
) -> Markup {
    let list = list_path(Some(route.channel), Some(&route.last_error_classification));
    let is_published = route.status == RouteStatus::Published;
    html! {
        details.card.route open[is_only || !is_published] {
            summary {
                h3 { (visible(&route.recipient_ref)) }
                span.badges {
                    (badge(Tone::Neutral, route.channel.as_str())) " " (status(route.status))
                    @if let Some(receipt) = &route.receipt {
                        @let reported = receipt.highest.status;
                        " " (badge(timeline::tone_of(reported), reported.as_str()))
                    }
                }
                @if let Some(at) = route.published_at.filter(|_| is_published) { span.soft { (time(at)) } }
            }
            @if !is_published { p { (visible(&route.explanation)) "." } }
            (timeline::of(route, now))
            (facts(&[
                ("Route id", id(key)),
                ("Outbound entry", or_none(&route.published_entry_id, id)),
                ("Address", guarded(&route.resolved_email, |address| or_none(address, visible))),
                ("Language", visible(&route.resolved_locale)),
                ("Failed attempts", html! { (route.failures()) }),
            ]))
            div.actions {
                @if let Some(operator) = operator { (change_one_form(operator, key, changes_of(route))) }
                @if route.status == RouteStatus::DeadLetter {
                    a href=(list) { "All dead letters with this cause" }
                }
            }
        }
    }
}
