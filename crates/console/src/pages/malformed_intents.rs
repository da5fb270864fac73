//! Malformed intents, by code and producer, in a list, and one with its raw fields.

mod fields;
mod resubmit;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::routing::get;
use domain::catalog::Catalog;
use domain::conflict::Conflict;
use domain::malformed_intent::{FailureCode, rule_of};
use domain::personal::{Document, Sight};
use domain::ports::Queries;
use domain::query::{
    Causes, MalformedCause, MalformedFilter, MalformedPlace, MalformedSummary, PageLimit, Place,
    StoredMalformedIntent,
};
use maud::{Markup, html};

use super::parts::{
    facts, filter_form, limit, notification_path, pages, producers, segment, size_field, text_field,
    time_field, withheld,
};
use crate::error::PageError;
use crate::layout::{FIND_PATH, Page, Section};
use crate::operator::Visitor;
use crate::params::{Params, address};
use crate::ports::{Console, Ports};
use crate::widgets::{
    Tone, badge, column, empty, id, notice, number, numbers, table, time, too_many, visible,
};

const PATH: &str = "/console/malformed";
/// The parameter of the list that contains the result of a change, and its proof: a text that another person
/// wrote is not shown.
const DONE: &str = "done";
const PROOF: &str = "proof";
const PARAMS: [&str; 9] = [
    "code",
    "producer",
    "idempotency_key",
    "recorded_after",
    "recorded_before",
    "limit",
    "cursor",
    DONE,
    PROOF,
];

/// The routes of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new()
        .route(PATH, get(list::<P>))
        .route("/console/malformed/{entry_id}", get(show::<P>))
        .merge(resubmit::routes())
}

/// The address of the list of malformed intents with a code and a producer.
fn list_path(code: &str, producer: &str) -> String {
    let pairs = [("code", code), ("producer", producer)];
    address(PATH, pairs.into_iter().filter(|(_, value)| !value.is_empty()))
}

/// The address of the page of an entry.
pub(super) fn entry_path(summary: &MalformedSummary) -> String {
    let path = format!("{PATH}/{}", segment(&summary.key.entry_id));
    address(&path, [("stream", summary.key.stream.as_str())])
}

async fn list<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let filter = MalformedFilter {
        code: params.text("code").map(str::to_owned),
        producer: params.text("producer").map(str::to_owned),
        idempotency_key: params.text("idempotency_key").map(str::to_owned),
        recorded_after: params.time("recorded_after")?,
        recorded_before: params.time("recorded_before")?,
    };
    let limit = limit(&params)?;
    let after = params.cursor::<MalformedPlace>(&filter)?.seen_by(visitor.sight);
    let page = console.queries.list_malformed_intents(&filter, after.as_ref(), limit).await?;
    let causes = console.queries.count_malformed_intents().await?.seen_by(visitor.sight);
    let next = page.next.seen_by(visitor.sight).map(|place| place.to_cursor(&filter));
    let items = page.items.seen_by(visitor.sight);
    let proof = params.text(PROOF).unwrap_or_default();
    let done = params.text(DONE).filter(|done| visitor.form_token.proves(done, proof));
    let content = html! {
        @if let Some(done) = done { (notice(Tone::Good, &html! { p { (visible(done)) } })) }
        (by_cause(&causes))
        (filters(&console.settings.catalog, &params, &filter, limit))
        (listed(&params, &filter, &items, next.as_deref()))
        @if let (false, Some(operator)) = (items.is_empty(), visitor.operator()) { (resubmit::all_form(&operator, &filter)) }
    };
    Ok(Page::new(Section::Malformed, "Malformed intents", content))
}

fn by_cause(causes: &Causes<MalformedCause>) -> Markup {
    let columns = [column("Code"), column("Producer"), numbers("Intents")];
    let row = |(cause, count): &(MalformedCause, u64)| {
        vec![
            html! { a href=(list_path(&cause.code, &cause.producer)) { (visible(&cause.code)) } },
            html! { @if cause.producer.is_empty() { span.soft { "none, or no text" } } @else { (visible(&cause.producer)) } },
            html! { (number(*count)) },
        ]
    };
    let rows: Vec<Vec<Markup>> = causes.counts.iter().map(row).collect();
    html! {
        @if !rows.is_empty() {
            section.card aria-label="Malformed intents by code and producer" {
                (table("By code and producer", &columns, &rows))
                @if causes.is_capped() {
                    p.hint { "The newest " (number(causes.counted)) " were counted; there may be more." }
                }
            }
        }
    }
}

fn filters(catalog: &Catalog, params: &Params, filter: &MalformedFilter, limit: PageLimit) -> Markup {
    let fields = html! {
        (text_field(params, "code", "Code", Some("codes")))
        (text_field(params, "producer", "Producer", Some("producers")))
        (text_field(params, "idempotency_key", "Idempotency key", None))
        (time_field("recorded_after", "Recorded from (UTC)", filter.recorded_after))
        (time_field("recorded_before", "Recorded before (UTC)", filter.recorded_before))
        (size_field(limit))
        datalist #codes { @for code in FailureCode::ALL { option value=(code.as_str()) {} } }
        (producers(catalog))
    };
    filter_form(PATH, "Filter malformed intents", params, &fields)
}

fn listed(
    params: &Params,
    filter: &MalformedFilter,
    items: &[MalformedSummary],
    next: Option<&str>,
) -> Markup {
    let columns = [column("Entry"), column("Code"), column("Producer"), column("Type"), column("Recorded")];
    let rows: Vec<Vec<Markup>> = items.iter().map(row).collect();
    html! {
        @if !rows.is_empty() {
            (table("Newest first", &columns, &rows))
        } @else if next.is_some() {
            (too_many("Nothing on this page.", "None of the malformed intents that it examined match. The next page examines older ones."))
        } @else if *filter != MalformedFilter::default() || params.text("cursor").is_some() {
            (empty("No malformed intent matches.", "Change or clear the filter."))
        } @else {
            (empty("There are no malformed intents.", "Every entry that was read was accepted or a duplicate."))
        }
        (pages(params, PATH, next))
    }
}

fn row(summary: &MalformedSummary) -> Vec<Markup> {
    vec![
        html! { a.id href=(entry_path(summary)) { (visible(&summary.key.entry_id)) } },
        html! { (badge(Tone::Bad, &summary.failure_code)) @if summary.resubmitted_at.is_some() { " " (badge(Tone::Neutral, "resubmitted")) } br; (visible(&summary.failure_message)) },
        visible(&summary.producer),
        visible(&summary.notification_type),
        time(summary.recorded_at),
    ]
}

async fn show<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let not_found = || {
        PageError::NotFound(
            "There is no malformed intent of this entry. Retention may have deleted it.".to_owned(),
        )
    };
    let Path(entry_id) = path.map_err(|_| not_found())?;
    if entry_id.contains('\0') {
        return Err(not_found());
    }
    let params = Params::parse(query.as_deref(), &["stream"])?;
    let stream = params.text("stream").unwrap_or(&console.settings.stream);
    let catalog = &console.settings.catalog;
    let found = console.queries.get_malformed_details(stream, &entry_id, catalog).await?;
    let found = found.seen_by(visitor.sight);
    if found.is_empty() {
        return Err(not_found());
    }
    let mut budget = fields::Budget::default();
    let content = html! {
        @if found.len() > 1 {
            (notice(Tone::Neutral, &html! { p { "The stream was recreated: " (number(found.len() as u64)) " entries had this id. The newest comes first." } }))
        }
        @for intent in &found { (one(intent, visitor.sight, &mut budget)) }
        @let is_left = stream == console.settings.stream && found.iter().any(|intent| intent.summary.resubmitted_at.is_none());
        @if let (true, Some(operator)) = (is_left, visitor.operator()) { (resubmit::one_form(&operator, &entry_id)) }
    };
    Ok(Page::new(Section::Malformed, format!("Malformed intent {entry_id}"), content))
}

/// Links to the entry as which the intent was resubmitted, and to the one that this is a resubmission of.
fn links(intent: &StoredMalformedIntent) -> Markup {
    let find = |id: &str| address(FIND_PATH, [("id", id)]);
    html! {
        @if let (Some(at), Some(new)) = (intent.summary.resubmitted_at, &intent.summary.resubmitted_entry_id) {
            p {
                "Resubmitted at " (time(at)) " as the entry " a.id href=(find(new)) { (visible(new)) } "."
                @if let Some(outcome) = &intent.resubmitted_outcome { " It is " (visible(&outcome.text())) "." }
            }
        }
        @if let Some(from) = &intent.resubmitted_from {
            p { "This is a resubmission of the entry " a.id href=(find(from)) { (visible(from)) } "." }
        }
    }
}

/// The notification that has the key, and what differs.
fn other_intent(conflict: &Conflict, budget: &mut fields::Budget) -> Markup {
    html! {
        section.card aria-label="The intent that has the key" {
            h2 { "The intent that has the key" }
            @match &conflict.notification_id {
                Some(id) => p { "It is the notification " a.id href=(notification_path(id.as_str())) { (visible(id.as_str())) } "." },
                None => p { "Retention has deleted its notification." },
            }
            @match conflict.differs.as_deref() {
                Some([]) => p { "The two do not differ any more." },
                Some(differs) => {
                    (fields::differences(differs, budget))
                    p.hint { "A producer that sends an intent again has to send the same content, with the same occurred_at_ms. Another intent needs another key." }
                }
                None => p.soft { "The two cannot be compared." },
            }
        }
    }
}

fn one(intent: &StoredMalformedIntent, sight: Sight, budget: &mut fields::Budget) -> Markup {
    let summary = &intent.summary;
    let text = |text: &str| match text {
        "" => html! { span.soft { "none, or no text of at most 255 bytes" } },
        text => visible(text),
    };
    html! {
        article.stack {
            section.card aria-label="The broken rule" {
                div.heading { h2 { "The broken rule" } (badge(Tone::Bad, &summary.failure_code)) }
                @if let Some(rule) = rule_of(&summary.failure_code) { p { "Rule: " (rule) "." } }
                p { strong { (visible(&summary.failure_message)) } }
                p.hint { "Rules are tried in a fixed order; this is the first that is broken, and there may be others. The entry is not tried again by itself: the producer sends a corrected intent, or an operator resubmits it once the cause is fixed." }
            }
            @if let Some(conflict) = &intent.conflict { (other_intent(conflict, budget)) }
            section.card aria-label="About this entry" {
                (facts(&[
                    ("Stream", visible(&summary.key.stream)),
                    ("Entry id", id(&summary.key.entry_id)),
                    ("Recorded", time(summary.recorded_at)),
                    ("Producer", text(&summary.producer)),
                    ("Type", text(&summary.notification_type)),
                    ("Idempotency key", text(&summary.idempotency_key)),
                    ("Fingerprint of the fields", id(&summary.key.fields_fingerprint)),
                ]))
            }
            (links(intent))
            section.card aria-label="Raw fields" {
                h2 { "Fields as received" }
                @match &intent.raw_fields {
                    Some(json) => (fields::show(json, &summary.failure_code, &summary.failure_message, budget)),
                    None if sight != Sight::Whole => p { (withheld()) },
                    None => (too_many("Too large to be shown with the others.", "notification malformed show prints it.")),
                }
            }
        }
    }
}
