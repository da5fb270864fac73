//! On what a write depends, and what became of it.

use std::sync::Arc;

use crate::Version;

/// What must hold of the row's version for a write to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VersionCondition {
    /// Nothing.
    #[default]
    Any,
    /// The row must be there: `If-Match: *`.
    Exists,
    /// The row must be there with this version; `None` stands for a quoted value that can be no version and
    /// never matches.
    Is(Option<Version>),
    /// There must be no row: `If-None-Match: *`.
    Absent,
}

/// What must hold of the value's member `status`: it must be this string, and the row must be there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusCondition(pub Arc<str>);

/// All conditions of a write. If both fail, the one on the version is reported.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WriteConditions {
    /// That on the version.
    pub version: VersionCondition,
    /// That on the status.
    pub status: Option<StatusCondition>,
}

/// What of a row decides about a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) version: Version,
    /// The member `status` if it is a string.
    pub(crate) status: Option<String>,
}

impl VersionCondition {
    /// Whether it holds of a row with this version, or of no row.
    pub(crate) fn holds(self, row: Option<Version>) -> bool {
        match self {
            Self::Any => true,
            Self::Exists => row.is_some(),
            Self::Is(wanted) => wanted.is_some() && row == wanted,
            Self::Absent => row.is_none(),
        }
    }
}

impl WriteConditions {
    /// What a write of this row, or of none, answers if the conditions do not hold of it; `None` if they do.
    pub(crate) fn refusal(&self, row: Option<&Seen>) -> Option<Write> {
        if !self.version.holds(row.map(|row| row.version)) {
            return Some(Write::VersionMismatch);
        }
        let current = row.and_then(|row| row.status.as_deref());
        let wanted = &self.status.as_ref()?.0;
        (current != Some(wanted)).then(|| Write::StatusMismatch { current: current.map(str::to_owned) })
    }
}

/// What became of a `put`.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// It is stored under this version.
    Applied(Version),
    /// The condition on the version does not hold. Nothing was changed.
    VersionMismatch,
    /// The status is another one, or there is no row. Nothing was changed.
    StatusMismatch {
        /// The member `status` of the row if it is a string.
        current: Option<String>,
    },
}

/// What became of a `patch`.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Patch {
    /// There is no row, whatever the conditions.
    NotFound,
    /// As of a `put`.
    Written(Write),
    /// The merged value would be nested too deeply, or larger than a body may be. Nothing was changed.
    Invalid(String),
}

/// What became of a `delete`.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delete {
    /// It is gone.
    Applied,
    /// There is no row, whatever the condition.
    NotFound,
    /// The condition on the version does not hold. Nothing was changed.
    VersionMismatch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_does_not_match_is_reported_before_a_status_that_does_not() {
        let row = Seen { version: Version(7), status: Some("running".to_owned()) };
        let status = |status: &str| Some(StatusCondition(status.into()));
        let current = Some("running".to_owned());
        for (version, wanted, seen, expected) in [
            (VersionCondition::Any, None, None, None),
            (VersionCondition::Any, status("running"), Some(&row), None),
            (VersionCondition::Any, status("paused"), Some(&row), Some(Write::StatusMismatch { current })),
            (VersionCondition::Any, status("running"), None, Some(Write::StatusMismatch { current: None })),
            (VersionCondition::Exists, None, None, Some(Write::VersionMismatch)),
            (VersionCondition::Exists, status("running"), Some(&row), None),
            (VersionCondition::Is(Some(Version(7))), status("running"), Some(&row), None),
            (
                VersionCondition::Is(Some(Version(6))),
                status("paused"),
                Some(&row),
                Some(Write::VersionMismatch),
            ),
            (VersionCondition::Is(None), None, Some(&row), Some(Write::VersionMismatch)),
            (VersionCondition::Is(None), None, None, Some(Write::VersionMismatch)),
            (VersionCondition::Absent, None, Some(&row), Some(Write::VersionMismatch)),
            (VersionCondition::Absent, None, None, None),
            (VersionCondition::Absent, status("a"), None, Some(Write::StatusMismatch { current: None })),
        ] {
            let conditions = WriteConditions { version, status: wanted };
            assert_eq!(conditions.refusal(seen), expected, "{conditions:?} of {seen:?}");
        }
    }
}
