//! The changes that an operator can make, with their words and addresses.

use axum::response::Redirect;
use domain::operations::{Budgets, MAX_REASON_BYTES, RouteChange};

use crate::layout::Section;

/// The addresses of the changes of one kind of routes.
#[derive(Debug)]
pub(in crate::pages) struct ChangePages {
    /// The list or form from which a change begins.
    pub(in crate::pages) list: &'static str,
    /// The plan of a change.
    pub(in crate::pages) plan: &'static str,
    /// The address that makes a change.
    pub(in crate::pages) change: &'static str,
    /// The result of a change.
    pub(in crate::pages) result: &'static str,
    /// The label of the link back.
    pub(super) back: &'static str,
    pub(super) section: Section,
    /// One route of the kind, and several.
    nouns: [&'static str; 2],
}

/// Changes of dead letters.
pub(in crate::pages) const DEAD_LETTERS: ChangePages = ChangePages {
    list: "/console/dead-letters",
    plan: "/console/dead-letters/plan",
    change: "/console/dead-letters/change",
    result: "/console/dead-letters/result",
    back: "Back to the dead letters",
    section: Section::DeadLetters,
    nouns: ["dead letter", "dead letters"],
};

/// Changes of routes that are not dead letters.
pub(in crate::pages) const ROUTES: ChangePages = ChangePages {
    list: super::FORM_PATH,
    plan: "/console/routes/plan",
    change: "/console/routes/change",
    result: "/console/routes/result",
    back: "Back to the form",
    section: Section::Notifications,
    nouns: ["route", "routes"],
};

impl ChangePages {
    /// Redirects to the list: a plan belongs to a form, so its address alone, reloaded or bookmarked, cannot
    /// show it.
    pub(super) fn start_over(&self) -> Redirect {
        Redirect::to(self.list)
    }

    /// The noun for so many routes.
    pub(super) fn noun(&self, count: u64) -> &'static str {
        self.nouns[usize::from(count != 1)]
    }
}

/// The changes that an operator can make to routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pages) enum Change {
    Replay,
    Discard,
    Cancel,
    Resend,
}

impl Change {
    pub(super) const ALL: [Self; 4] = [Self::Replay, Self::Discard, Self::Cancel, Self::Resend];

    /// The value of the button that changes the chosen routes.
    pub(in crate::pages) fn chosen(self) -> &'static str {
        match self {
            Self::Replay => "replay_chosen",
            Self::Discard => "discard_chosen",
            Self::Cancel => "cancel_chosen",
            Self::Resend => "resend_chosen",
        }
    }

    /// The value of the button that changes all matching routes.
    pub(in crate::pages) fn all(self) -> &'static str {
        match self {
            Self::Replay => "replay_all",
            Self::Discard => "discard_all",
            Self::Cancel => "cancel_all",
            Self::Resend => "resend_all",
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Discard => "discard",
            Self::Cancel => "cancel",
            Self::Resend => "resend",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|change| change.as_str() == text)
    }

    pub(in crate::pages) fn pages(self) -> &'static ChangePages {
        match self {
            Self::Replay | Self::Discard => &DEAD_LETTERS,
            Self::Cancel | Self::Resend => &ROUTES,
        }
    }

    /// The label of its button.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Replay => "Replay",
            Self::Discard => "Discard",
            Self::Cancel => "Cancel",
            Self::Resend => "Send again",
        }
    }

    /// The class of its button.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Replay => "primary",
            Self::Resend => "plain",
            Self::Discard | Self::Cancel => "danger",
        }
    }

    /// The titles of its plan and of its result.
    pub(super) fn titles(self) -> [&'static str; 2] {
        match self {
            Self::Replay => ["Replay dead letters?", "Dead letters replayed"],
            Self::Discard => ["Discard dead letters?", "Dead letters discarded"],
            Self::Cancel => ["Cancel routes?", "Routes cancelled"],
            Self::Resend => ["Send routes again?", "Routes sent again"],
        }
    }

    /// Its effect, in the plan.
    pub(super) fn consequence(self) -> &'static str {
        match self {
            Self::Replay => {
                "Each route becomes pending again with a new budget of attempts, under the ids it always had, and its dead letter is deleted."
            }
            Self::Discard => {
                "Each dead letter is marked with your name and the reason and leaves the list of those that need attention. It can still be replayed."
            }
            Self::Resend => {
                "Each route becomes pending again with a new budget of attempts, and is appended to its outbound stream again under the ids it always had. Consumers that have processed it drop it."
            }
            Self::Cancel => {
                "Each route is skipped for good, with your name and the reason. One that a publisher has taken is waited for, and then counted as published or cancelled."
            }
        }
    }

    /// The end of the sentence about what was done.
    pub(super) fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed. Publishers take the routes as they are due.",
            Self::Discard => "discarded.",
            Self::Cancel => "cancelled.",
            Self::Resend => "made pending again. Publishers take the routes as they are due.",
        }
    }

    /// Whether the change takes a reason, and if so, whether it needs one.
    pub(super) fn reason(self) -> Option<bool> {
        match self {
            Self::Replay => None,
            Self::Discard | Self::Cancel => Some(true),
            Self::Resend => Some(false),
        }
    }

    /// True if a route that changed since its plan was shown is not the one that the operator saw. A live
    /// route changes with each attempt.
    pub(super) fn keeps_versions(self) -> bool {
        self != Self::Cancel
    }

    /// The change for a plan, without a reason.
    pub(super) fn planned(self, budgets: Budgets) -> RouteChange {
        match self {
            Self::Replay => RouteChange::Replay(budgets),
            Self::Discard => RouteChange::Discard { reason: String::new() },
            Self::Cancel => RouteChange::Cancel { reason: String::new() },
            Self::Resend => RouteChange::Resend { budgets, reason: String::new() },
        }
    }

    /// The change for a confirmed form; the error describes the violation of an invalid reason.
    pub(super) fn confirmed(self, budgets: Budgets, reason: &str) -> Result<RouteChange, String> {
        let (given, reason) = (reason.len(), reason.to_owned());
        let change = match self {
            Self::Replay => return Ok(RouteChange::Replay(budgets)),
            Self::Discard => RouteChange::discard(reason),
            Self::Cancel => RouteChange::cancel(reason),
            Self::Resend => RouteChange::resend(budgets, reason),
        };
        let (name, least) = match self {
            Self::Discard => ("A discard", 1),
            Self::Cancel => ("A cancellation", 1),
            Self::Replay | Self::Resend => ("A resend", 0),
        };
        change.ok_or_else(|| {
            format!(
                "{name} takes a reason of {least} to {MAX_REASON_BYTES} bytes without NUL; this one has {given}."
            )
        })
    }
}
