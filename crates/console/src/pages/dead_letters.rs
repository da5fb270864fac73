//! Dead letters, by cause and in a list, to be replayed or discarded.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use domain::catalog::Catalog;
use domain::dead_letter::PAYLOAD_ENCODING_FAILED;
use domain::ports::Queries;
use domain::query::{
    Causes, DeadLetter, DeadLetterCause, DeadLetterFilter, DeadLetterPlace, PageLimit, Place,
};
use domain::route::Channel;
use maud::{Markup, html};

use super::operations::{Change, DEAD_LETTERS, condition_fields};
use super::parts::{
    choice_field, filter_form, limit, notification_path, pages, size_field, text_field, time_field,
};
use crate::error::PageError;
use crate::layout::{Page, Section};
use crate::operator::{Operator, Visitor};
use crate::params::{Params, address, wrong_cursor};
use crate::ports::{Console, Ports};
use crate::widgets::{
    Tone, badge, column, empty, form_token, number, numbers, plain, table, time, too_many, visible,
};

const LIST_PATH: &str = DEAD_LETTERS.list;

const PARAMS: [&str; 8] = [
    "channel",
    "classification",
    "notification_type",
    "created_after",
    "created_before",
    "discarded",
    "limit",
    "cursor",
];

/// The routes of these pages.
pub(crate) fn routes<P: Ports>() -> Router<Arc<Console<P>>> {
    Router::new().route(LIST_PATH, get(list::<P>))
}

/// The address of the list of dead letters with a cause.
pub(super) fn list_path(channel: Option<Channel>, classification: Option<&str>) -> String {
    let channel = channel.map(|channel| ("channel", channel.as_str()));
    address(LIST_PATH, channel.into_iter().chain(classification.map(|cause| ("classification", cause))))
}

async fn list<P: Ports>(
    State(console): State<Arc<Console<P>>>,
    visitor: Visitor,
    RawQuery(query): RawQuery,
) -> Result<Page, PageError> {
    let params = Params::parse(query.as_deref(), &PARAMS)?;
    let filter = filter_of(&params)?;
    let limit = limit(&params)?;
    let after: Option<DeadLetterPlace> = params.cursor(&filter)?;
    let page = console.queries.list_dead_letters_seen(visitor.sight, &filter, after, limit).await?;
    let page = page.ok_or_else(wrong_cursor)?;
    let causes = console.queries.count_dead_letters().await?;
    let listed = Listed {
        next: page.next.map(|place| place.to_cursor(&filter)),
        items: page.items,
        params,
        filter,
        limit,
    };
    let content = html! {
        (by_cause(&causes))
        (filters(&console.settings.catalog, &listed))
        (letters(visitor.operator().as_ref(), &listed))
    };
    Ok(Page::new(Section::DeadLetters, "Dead letters", content))
}

fn filter_of(params: &Params) -> Result<DeadLetterFilter, PageError> {
    Ok(DeadLetterFilter {
        channel: params.value("channel", "push or email")?,
        classification: params.text("classification").map(str::to_owned),
        notification_type: params.text("notification_type").map(str::to_owned),
        created_after: params.time("created_after")?,
        created_before: params.time("created_before")?,
        discarded: params.value("discarded", "true or false")?.unwrap_or(false),
    })
}

/// A page of the list.
struct Listed {
    params: Params,
    filter: DeadLetterFilter,
    limit: PageLimit,
    items: Vec<DeadLetter>,
    next: Option<String>,
}

fn by_cause(causes: &Causes<DeadLetterCause>) -> Markup {
    let columns = [column("Cause"), column("Channel"), numbers("Dead letters")];
    let row = |(cause, count): &(DeadLetterCause, u64)| {
        let path = list_path(Some(cause.channel), Some(&cause.classification));
        vec![
            html! { a href=(path) { (visible(&cause.classification)) } },
            html! { (cause.channel.as_str()) },
            html! { (number(*count)) },
        ]
    };
    let rows: Vec<Vec<Markup>> = causes.counts.iter().map(row).collect();
    html! {
        @if !rows.is_empty() {
            section.card aria-label="Dead letters by cause" {
                (table("By cause", &columns, &rows))
                @if causes.is_capped() {
                    p.hint { "The newest " (number(causes.counted)) " were counted; there may be more." }
                }
            }
        }
    }
}

fn filters(catalog: &Catalog, listed: &Listed) -> Markup {
    let Listed { params, filter, .. } = listed;
    let channels = [("", "any"), ("push", "push"), ("email", "email")];
    let discarded = [("", "open"), ("true", "discarded")];
    let fields = html! {
        (choice_field(params, "channel", "Channel", &channels))
        (text_field(params, "classification", "Cause", Some("causes")))
        (text_field(params, "notification_type", "Type", Some("types")))
        (time_field("created_after", "Failed from (UTC)", filter.created_after))
        (time_field("created_before", "Failed before (UTC)", filter.created_before))
        (choice_field(params, "discarded", "Show", &discarded))
        (size_field(listed.limit))
        datalist #types { @for known in catalog.types() { option value=(known.name()) {} } }
        datalist #causes { @for cause in Channel::ALL.map(Channel::publish_failed).into_iter().chain([PAYLOAD_ENCODING_FAILED]) { option value=(cause) {} } }
    };
    filter_form(LIST_PATH, "Filter dead letters", params, &fields)
}

fn letters(operator: Option<&Operator>, listed: &Listed) -> Markup {
    let Listed { params, filter, items, next, .. } = listed;
    let is_filtered = DeadLetterFilter { discarded: false, ..filter.clone() } != DeadLetterFilter::default();
    html! {
        @if !items.is_empty() {
            @if let Some(operator) = operator {
                form.stack method="post" action=(DEAD_LETTERS.plan) aria-label="Choose dead letters" {
                    (form_token(operator))
                    (condition_fields(&filter.named_conditions()))
                    (buttons(filter.discarded))
                    // Without a script the checkbox would do nothing.
                    label.check-all hidden { input type="checkbox" data-check-all="id"; "Choose all on this page" }
                    (groups(items, true))
                }
            } @else {
                (groups(items, false))
            }
        } @else if next.is_some() {
            (too_many("Nothing on this page.", "None of the dead letters that it examined match. The next page examines older ones."))
        } @else if filter.discarded {
            (empty("No dead letter is discarded.", "Those that an operator discards are listed here until retention deletes their notification."))
        } @else if is_filtered || params.text("cursor").is_some() {
            (empty("No dead letter matches.", "Change or clear the filter."))
        } @else {
            (empty("There are no dead letters.", "Every route was published, skipped, or still has attempts left."))
        }
        (pages(params, LIST_PATH, next.as_deref()))
    }
}

/// The buttons for changes of the listed dead letters. Nothing changes before the plan is confirmed.
fn buttons(discarded: bool) -> Markup {
    html! {
        div.actions {
            button.primary type="submit" name="do" value=(Change::Replay.chosen()) { "Replay chosen…" }
            @if !discarded {
                button.danger type="submit" name="do" value=(Change::Discard.chosen()) { "Discard chosen…" }
                button type="submit" name="do" value=(Change::Replay.all()) { "Replay all that match…" }
                button.danger type="submit" name="do" value=(Change::Discard.all()) { "Discard all that match…" }
            }
            p.hint { "Each button shows the plan first." }
        }
    }
}

/// The dead letters of a page by channel, cause and hint; the group of the newest one is the first.
fn groups(items: &[DeadLetter], can_choose: bool) -> Markup {
    let is_same = |a: &DeadLetter, b: &DeadLetter| {
        (a.channel, &a.failure_classification, &a.recovery_hint)
            == (b.channel, &b.failure_classification, &b.recovery_hint)
    };
    let mut groups: Vec<Vec<&DeadLetter>> = Vec::new();
    for letter in items {
        match groups.iter_mut().find(|letters| is_same(letters[0], letter)) {
            Some(letters) => letters.push(letter),
            None => groups.push(vec![letter]),
        }
    }
    html! { @for letters in &groups { (group(letters, can_choose)) } }
}

/// The dead letters of one cause, with its hint, and with the message of all of them if it is the same.
fn group(letters: &[&DeadLetter], can_choose: bool) -> Markup {
    let first = letters[0];
    let is_same = letters.iter().all(|letter| letter.failure_message == first.failure_message);
    let mut columns = vec![column("Recipient"), column("Notification"), column("Type"), column("Failed")];
    if !is_same {
        columns.push(column("Message"));
    }
    let rows: Vec<Vec<Markup>> = letters.iter().map(|letter| row(letter, can_choose, !is_same)).collect();
    html! {
        section.stack aria-label={ (first.channel.as_str()) ": " (plain(&first.failure_classification)) } {
            h2 {
                a href=(list_path(Some(first.channel), Some(&first.failure_classification))) { (visible(&first.failure_classification)) }
                " " (badge(Tone::Neutral, first.channel.as_str()))
            }
            @if is_same { p { (visible(&first.failure_message)) } }
            @if !first.recovery_hint.is_empty() { p.hint { (visible(&first.recovery_hint)) } }
            (table("Newest first", &columns, &rows))
        }
    }
}

/// A row, with a box to choose it for an operator, and with its own message.
fn row(letter: &DeadLetter, can_choose: bool, with_message: bool) -> Vec<Markup> {
    let key = letter.key.to_string();
    let notification = letter.key.notification_id.as_str();
    let mut cells = vec![
        html! {
            div.choose {
                @if can_choose { input type="checkbox" name="id" value=(key) aria-label={ "Choose " (key) }; }
                span { (visible(&letter.recipient_ref)) }
            }
        },
        html! { a.id href=(notification_path(notification)) { (visible(notification)) } },
        html! { (visible(&letter.notification_type)) },
        html! {
            (time(letter.created_at))
            @if let Some(discarded) = &letter.discarded {
                br; span { "Discarded by " (visible(&discarded.by)) " at " (time(discarded.at)) ": " (visible(&discarded.reason)) }
            }
        },
    ];
    if with_message {
        cells.push(visible(&letter.failure_message));
    }
    cells
}
