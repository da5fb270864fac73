//! The operator's request: a change and a selection of dead letters, as fields of a form.
//!
//! The form that confirms a plan contains the version of each chosen dead letter, as shown by the plan. A
//! dead letter with another version by then is not the one that the operator saw, and stays unchanged.

use std::collections::BTreeMap;

use ambient::Timestamp;
use domain::operations::{
    Budgets, DeadLetterChange, MAX_REASON_BYTES, MAX_ROUTES_PER_REQUEST, Selection, Targets,
};
use domain::query::DeadLetterFilter;
use domain::route::Version;
use maud::{Markup, html};

use crate::error::PageError;
use crate::forms::Form;

/// The address of the list.
pub(super) const LIST_PATH: &str = "/console/dead-letters";
/// The address of the plan of a change.
pub(super) const PLAN_PATH: &str = "/console/dead-letters/plan";
/// The address that makes a change.
pub(super) const CHANGE_PATH: &str = "/console/dead-letters/change";
/// The address of the result of a change.
pub(super) const RESULT_PATH: &str = "/console/dead-letters/result";
/// The longest id of a request in a form, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 64;
/// The longest value of a condition, in bytes; the same as in the address.
const MAX_CONDITION_BYTES: usize = 4_096;

/// The changes that an operator can make to dead letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Replay,
    Discard,
}

impl Change {
    /// The value of the button that changes the chosen dead letters.
    pub(super) fn chosen(self) -> &'static str {
        match self {
            Self::Replay => "replay_chosen",
            Self::Discard => "discard_chosen",
        }
    }

    /// The value of the button that changes all matching dead letters.
    pub(super) fn all(self) -> &'static str {
        match self {
            Self::Replay => "replay_all",
            Self::Discard => "discard_all",
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Discard => "discard",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Replay, Self::Discard].into_iter().find(|change| change.as_str() == text)
    }

    /// The change for a plan, without a reason.
    pub(super) fn planned(self, budgets: Budgets) -> DeadLetterChange {
        match self {
            Self::Replay => DeadLetterChange::Replay(budgets),
            Self::Discard => DeadLetterChange::Discard { reason: String::new() },
        }
    }

    /// The change for a confirmed form; the error describes the violation of an invalid reason for a discard.
    pub(super) fn confirmed(self, budgets: Budgets, reason: &str) -> Result<DeadLetterChange, String> {
        match self {
            Self::Replay => Ok(DeadLetterChange::Replay(budgets)),
            Self::Discard => DeadLetterChange::discard(reason.to_owned()).ok_or_else(|| {
                let given = reason.len();
                format!("A discard takes a reason of 1 to {MAX_REASON_BYTES} bytes without NUL; this one has {given}.")
            }),
        }
    }
}

/// A change and the selected dead letters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) change: Change,
    pub(super) selection: Selection,
    /// The version of each chosen dead letter in the plan, by its id. `None` for a filter, and before there
    /// is a plan.
    pub(super) planned: Option<BTreeMap<String, Version>>,
}

impl Asked {
    /// Reads the fields for a plan. A selection by a filter ends at `end` at the latest: the operator did not
    /// see later dead letters, and a route that fails again must not be replayed by the same request.
    pub(super) fn read(form: &Form, end: Timestamp) -> Result<Self, PageError> {
        let mut asked = Self::of(form)?;
        if let Selection::Filter(filter) = &mut asked.selection {
            filter.created_before = Some(filter.created_before.map_or(end, |before| before.min(end)));
        }
        Ok(asked)
    }

    /// Reads the fields of a confirmed plan: the same each time the form is sent.
    pub(super) fn confirmed(form: &Form) -> Result<Self, PageError> {
        let mut asked = Self::of(form)?;
        if let Selection::Ids(ids) = &asked.selection {
            let versions: Result<Vec<Version>, _> = form.all("version").map(str::parse).collect();
            let versions = versions.ok().filter(|versions| versions.len() == ids.len()).ok_or_else(|| {
                PageError::Invalid(
                    "The form does not say which dead letters its plan showed. Start again from the list."
                        .to_owned(),
                )
            })?;
            asked.planned = Some(ids.iter().cloned().zip(versions).collect());
        }
        Ok(asked)
    }

    fn of(form: &Form) -> Result<Self, PageError> {
        let action = form.text("do").unwrap_or_default();
        let changes = [Change::Replay, Change::Discard];
        let asked = |change, selection| Ok(Self { change, selection, planned: None });
        if let Some(change) = changes.into_iter().find(|change| change.chosen() == action) {
            let ids: Vec<String> = form.all("id").map(str::to_owned).collect();
            if ids.iter().any(|id| id.contains('\0')) {
                return Err(PageError::Invalid(
                    "An id in the form has the character NUL: no dead letter has it.".to_owned(),
                ));
            }
            return match ids.len() {
                0 => Err(PageError::Invalid(
                    "No dead letter is chosen: tick at least one, or take all that match.".to_owned(),
                )),
                1..=MAX_ROUTES_PER_REQUEST => asked(change, Selection::Ids(ids)),
                _ => Err(PageError::Invalid(format!(
                    "At most {MAX_ROUTES_PER_REQUEST} dead letters can be chosen."
                ))),
            };
        }
        let change = changes.into_iter().find(|change| change.all() == action);
        let change =
            change.ok_or_else(|| PageError::Invalid("The form does not say what to do.".to_owned()))?;
        asked(change, Selection::Filter(read_filter(form)?))
    }

    /// Returns the request that a plan shows: the dead letters found, with their present versions. A filter
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
        if let Some(planned) = &self.planned {
            targets.keep_planned(planned);
        }
    }

    /// The hidden fields that contain this request.
    pub(super) fn fields(&self) -> Markup {
        let version = |id| self.planned.as_ref().and_then(|planned| planned.get(id));
        html! {
            @match &self.selection {
                Selection::Ids(ids) => {
                    input type="hidden" name="do" value=(self.change.chosen());
                    @for id in ids {
                        input type="hidden" name="id" value=(id);
                        @if let Some(version) = version(id) { input type="hidden" name="version" value=(version); }
                    }
                }
                Selection::Filter(filter) => {
                    input type="hidden" name="do" value=(self.change.all());
                    (filter_fields(filter))
                }
            }
        }
    }
}

/// The hidden fields that contain a filter.
pub(super) fn filter_fields(filter: &DeadLetterFilter) -> Markup {
    html! {
        @for (name, value) in filter.named_conditions() { input type="hidden" name=(name) value=(value); }
    }
}

fn read_filter(form: &Form) -> Result<DeadLetterFilter, PageError> {
    let invalid =
        |name: &str| PageError::Invalid(format!("The field {name} has a value that it does not take."));
    let text = |name: &str| match form.text(name) {
        Some(text) if text.contains('\0') || text.len() > MAX_CONDITION_BYTES => Err(invalid(name)),
        text => Ok(text.map(str::to_owned)),
    };
    let time = |name: &str| form.text(name).map(str::parse).transpose().map_err(|_| invalid(name));
    Ok(DeadLetterFilter {
        channel: form.text("channel").map(str::parse).transpose().map_err(|_| invalid("channel"))?,
        classification: text("classification")?,
        notification_type: text("notification_type")?,
        created_after: time("created_after")?,
        created_before: time("created_before")?,
        discarded: false,
    })
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
