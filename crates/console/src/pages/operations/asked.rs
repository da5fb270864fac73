//! The operator's request: a change and a selection of routes, as fields of a form.
//!
//! The form that confirms a plan contains the version of each chosen route, as shown by the plan. One with
//! another version by then is not the one that the operator saw, and stays unchanged, unless it is live.

use std::collections::BTreeMap;

use ambient::Timestamp;
use domain::operations::{MAX_ROUTES_PER_REQUEST, RouteFilter, Selection, Targets};
use domain::query::DeadLetterFilter;
use domain::record::NotificationId;
use domain::route::Version;
use maud::{Markup, html};

use super::kind::Change;
use crate::error::PageError;
use crate::forms::Form;
use crate::params::parse_time;

/// The longest id of a request in a form, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 64;
/// The longest value of a condition, in bytes; the same as in the address.
const MAX_CONDITION_BYTES: usize = 4_096;

/// A change and the selected routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) change: Change,
    pub(super) selection: Selection,
    /// The version of each chosen route in the plan, by its id. `None` for a filter, and before there
    /// is a plan.
    pub(super) planned: Option<BTreeMap<String, Version>>,
}

impl Asked {
    /// Ends a selection by a filter at `end` at the latest: the operator did not see later routes, and one
    /// that fails again must not be replayed by the same request.
    #[must_use]
    pub(super) fn until(mut self, end: Timestamp) -> Self {
        let until = match &mut self.selection {
            Selection::Ids(_) => return self,
            Selection::DeadLetters(filter) => &mut filter.created_before,
            Selection::Routes(filter) => &mut filter.until,
        };
        *until = Some(until.map_or(end, |before| before.min(end)));
        self
    }

    /// Reads the fields of a confirmed plan: the same each time the form is sent.
    pub(super) fn confirmed(form: &Form) -> Result<Self, PageError> {
        let mut asked = Self::of(form)?;
        if let Selection::Ids(ids) = &asked.selection {
            let versions: Result<Vec<Version>, _> = form.all("version").map(str::parse).collect();
            let versions = versions.ok().filter(|versions| versions.len() == ids.len()).ok_or_else(|| {
                PageError::Invalid(
                    "The form does not say which routes its plan showed. Start again from the list."
                        .to_owned(),
                )
            })?;
            asked.planned = Some(ids.iter().cloned().zip(versions).collect());
        }
        Ok(asked)
    }

    /// Reads the fields for a plan.
    pub(super) fn of(form: &Form) -> Result<Self, PageError> {
        let action = form.text("do").unwrap_or_default();
        let asked = |change, selection| Ok(Self { change, selection, planned: None });
        if let Some(change) = Change::ALL.into_iter().find(|change| change.chosen() == action) {
            let ids: Vec<String> = form.all("id").map(str::to_owned).collect();
            let [noun, nouns] = [1, 2].map(|count| change.pages().noun(count));
            if ids.iter().any(|id| id.contains('\0')) {
                return Err(PageError::Invalid(format!(
                    "An id in the form has the character NUL: no {noun} has it."
                )));
            }
            return match ids.len() {
                0 => Err(PageError::Invalid(format!(
                    "No {noun} is chosen: tick at least one, or take all that match."
                ))),
                1..=MAX_ROUTES_PER_REQUEST => asked(change, Selection::Ids(ids)),
                _ => Err(PageError::Invalid(format!(
                    "At most {MAX_ROUTES_PER_REQUEST} {nouns} can be chosen."
                ))),
            };
        }
        let change = Change::ALL.into_iter().find(|change| change.all() == action);
        let change =
            change.ok_or_else(|| PageError::Invalid("The form does not say what to do.".to_owned()))?;
        asked(change, read_filter(change, form)?)
    }

    /// Returns the request that a plan shows: the routes found, with their present versions. A filter
    /// stays a filter.
    pub(super) fn planned(&self, targets: &Targets) -> Self {
        let Selection::Ids(_) = &self.selection else { return self.clone() };
        let versions = targets.targets.iter().map(|target| (target.key.to_string(), target.version));
        let planned: BTreeMap<_, _> = versions.collect();
        let ids = planned.keys().cloned().collect();
        Self { change: self.change, selection: Selection::Ids(ids), planned: Some(planned) }
    }

    /// Removes the targets that have changed since the plan was shown.
    pub(super) fn keep_planned(&self, targets: &mut Targets) {
        if let Some(planned) = self.planned.as_ref().filter(|_| self.change.keeps_versions()) {
            targets.keep_planned(planned);
        }
    }

    /// The hidden fields that contain this request.
    pub(super) fn fields(&self) -> Markup {
        let version = |id| self.planned.as_ref().and_then(|planned| planned.get(id));
        html! {
            @match (&self.selection, self.selection.named_conditions()) {
                (Selection::Ids(ids), _) => {
                    input type="hidden" name="do" value=(self.change.chosen());
                    @for id in ids {
                        input type="hidden" name="id" value=(id);
                        @if let Some(version) = version(id) { input type="hidden" name="version" value=(version); }
                    }
                }
                (_, conditions) => {
                    input type="hidden" name="do" value=(self.change.all());
                    (condition_fields(&conditions.unwrap_or_default()))
                }
            }
        }
    }
}

/// The hidden fields that contain the conditions of a filter.
pub(in crate::pages) fn condition_fields(conditions: &[(&'static str, String)]) -> Markup {
    html! {
        @for (name, value) in conditions { input type="hidden" name=(name) value=(value); }
    }
}

fn read_filter(change: Change, form: &Form) -> Result<Selection, PageError> {
    let invalid =
        |name: &str| PageError::Invalid(format!("The field {name} has a value that it does not take."));
    let text = |name: &str| match form.text(name).map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) if text.contains('\0') || text.len() > MAX_CONDITION_BYTES => Err(invalid(name)),
        text => Ok(text.map(str::to_owned)),
    };
    let time = |name: &str| match text(name)? {
        Some(text) => parse_time(&text).map(Some).ok_or_else(|| invalid(name)),
        None => Ok(None),
    };
    let channel = text("channel")?.map(|name| name.parse()).transpose().map_err(|_| invalid("channel"))?;
    let notification_type = text("notification_type")?;
    if matches!(change, Change::Replay | Change::Discard) {
        return Ok(Selection::DeadLetters(DeadLetterFilter {
            channel,
            classification: text("classification")?,
            notification_type,
            created_after: time("created_after")?,
            created_before: time("created_before")?,
            discarded: false,
        }));
    }
    let filter = RouteFilter {
        notification_id: text("notification_id")?.map(NotificationId::from),
        channel,
        notification_type,
        producer: text("producer")?,
        recipient: text("recipient")?,
        since: time("since")?,
        until: time("until")?,
    };
    if filter.is_empty() {
        let problem = "The form chooses no route: give at least one condition.";
        return Err(PageError::Invalid(problem.to_owned()));
    }
    Ok(Selection::Routes(filter))
}

/// The id of the request, which the plan generated: requests with the same id are carried out once.
pub(super) fn request_id(form: &Form) -> Result<&str, PageError> {
    let is_id =
        |id: &&str| id.len() <= MAX_REQUEST_ID_BYTES && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let id = form.text("request_id").filter(is_id);
    id.ok_or_else(|| PageError::Invalid("The form has no id of its request.".to_owned()))
}

/// The reason as the operator typed it. A browser sends two characters for the end of a line, of which one is
/// kept.
pub(super) fn reason(form: &Form) -> String {
    form.text("reason").unwrap_or_default().replace("\r\n", "\n").trim().to_owned()
}
