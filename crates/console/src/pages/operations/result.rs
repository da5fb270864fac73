//! The result of a change: the page to which its form redirects.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use domain::operations::ChangeReport;
use domain::query::Counted;
use maud::{Markup, html};

use super::asked::{Asked, condition_fields};
use super::kind::Change;
use crate::error::PageError;
use crate::layout::Page;
use crate::operator::{FormToken, Operator};
use crate::params::{Params, address};
use crate::ports::{Console, Ports};
use crate::widgets::{Tone, form_token, id, notice, number};

/// The separator between the figures and their proof in the address of a result.
const PROOF: &str = "&proof=";
const FIGURES: [&str; 8] =
    ["change", "changed", "published", "remaining", "capped", "unchanged", "unknown", "request_id"];
/// The conditions of filters.
const CONDITIONS: [&str; 10] = [
    "channel",
    "classification",
    "notification_type",
    "created_after",
    "created_before",
    "notification_id",
    "producer",
    "recipient",
    "since",
    "until",
];

/// The address to which the browser is redirected afterwards. It contains everything that the page of the
/// result shows, so that the page can be reloaded. The proof at its end belongs to the session: an address
/// that another person made shows nothing.
pub(super) struct ResultPath {
    pub(super) asked: Asked,
    pub(super) request_id: String,
    pub(super) form_token: FormToken,
}

impl ResultPath {
    pub(super) fn after(&self, report: &ChangeReport) -> String {
        let mut pairs = vec![
            ("change", self.asked.change.as_str().to_owned()),
            ("changed", report.changed.to_string()),
            ("published", report.published.to_string()),
            ("remaining", report.remaining.count.to_string()),
            ("capped", report.remaining.capped.to_string()),
            ("unchanged", report.unchanged.to_string()),
            ("unknown", report.unknown.len().to_string()),
            ("request_id", self.request_id.clone()),
        ];
        pairs.extend(self.asked.selection.named_conditions().into_iter().flatten());
        let path = address(
            self.asked.change.pages().result,
            pairs.iter().map(|(name, value)| (*name, value.as_str())),
        );
        let proof = self.form_token.proof(&path);
        format!("{path}{PROOF}{proof}")
    }
}

/// The result of a change.
struct Done {
    change: Change,
    changed: u64,
    remaining: Counted,
    unchanged: u64,
    published: u64,
    unknown: u64,
    request_id: String,
    /// The conditions of the filter, if the selection was one: a filter always has an end.
    conditions: Vec<(&'static str, String)>,
}

pub(super) async fn show<P: Ports>(
    State(_): State<Arc<Console<P>>>,
    operator: Operator,
    uri: Uri,
) -> Result<Page, PageError> {
    let missing = || {
        PageError::NotFound(
            "There is no result of this session at this address. What was changed is recorded in operator_actions.".to_owned(),
        )
    };
    let (figures, proof) = uri.query().and_then(|query| query.rsplit_once(PROOF)).ok_or_else(missing)?;
    if !operator.form_token.proves(&format!("{}?{figures}", uri.path()), proof) {
        return Err(missing());
    }
    let params = Params::parse(Some(figures), &[&FIGURES[..], &CONDITIONS].concat())?;
    let count = |name| Ok::<u64, PageError>(params.value(name, "a number")?.unwrap_or(0));
    let conditions = CONDITIONS.iter().filter_map(|name| Some((*name, params.text(name)?.to_owned())));
    let done = Done {
        change: params.text("change").and_then(Change::parse).ok_or_else(missing)?,
        changed: params.value("changed", "a number")?.ok_or_else(missing)?,
        remaining: Counted {
            count: count("remaining")?,
            capped: params.value("capped", "true or false")?.unwrap_or(false),
        },
        unchanged: count("unchanged")?,
        published: count("published")?,
        unknown: count("unknown")?,
        request_id: params.text("request_id").unwrap_or_default().to_owned(),
        conditions: conditions.collect(),
    };
    let [_, title] = done.change.titles();
    Ok(Page::new(done.change.pages().section, title, render(&operator, &done)))
}

fn render(operator: &Operator, done: &Done) -> Markup {
    let pages = done.change.pages();
    let were = if done.changed == 1 { "was" } else { "were" };
    let tone = if done.changed > 0 { Tone::Good } else { Tone::Neutral };
    html! {
        (notice(tone, &html! { p { strong { (number(done.changed)) " " (pages.noun(done.changed)) " " (were) " " (done.change.done()) } } }))
        @if done.published > 0 {
            p { (number(done.published)) (if done.published == 1 { " is" } else { " are" }) " published: the entry was in the outbound stream." }
        }
        @if done.unchanged > 0 {
            p {
                (number(done.unchanged)) (if done.unchanged == 1 { " was" } else { " were" })
                " left as found: changed since the plan was shown, by another operator, by an attempt that failed again, or by an earlier run of this form."
            }
        }
        @if done.changed == 0 && done.remaining.count == 0 {
            p {
                "Nothing was left to change. If an earlier run of this form was interrupted, what it did is recorded in " code { "operator_actions" }
                " under the request id " (id(&done.request_id)) "."
            }
        }
        @if done.unknown > 0 { p { (number(done.unknown)) " ids named no route; retention may have deleted it." } }
        @if done.remaining.count > 0 { (remaining(operator, done)) }
        @if done.changed > 0 {
            p { "Recorded in " code { "operator_actions" } " under the request id " (id(&done.request_id)) "." }
        }
        p { a.button href=(pages.list) { (pages.back) } }
    }
}

/// The remaining routes, and how to continue.
fn remaining(operator: &Operator, done: &Done) -> Markup {
    html! {
        (notice(Tone::Warning, &html! {
            p { strong { "Not changed yet: " (format!("{:#}", done.remaining)) "." } }
            p { "What is left is beyond the bound of one request, or another transaction or a publisher holds it." }
            @if done.conditions.is_empty() { p { "Choose it again in the list in a moment." } }
        }))
        @if !done.conditions.is_empty() {
            form.actions method="post" action=(done.change.pages().plan) {
                (form_token(operator))
                input type="hidden" name="do" value=(done.change.all());
                (condition_fields(&done.conditions))
                button.primary type="submit" { "Continue with the rest…" }
            }
        }
    }
}
