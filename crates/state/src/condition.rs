//! Preconditions of writes, and the outcomes of writes.

use std::sync::Arc;

use crate::Version;

/// The precondition of a write on the row's version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VersionCondition {
    /// No condition.
    #[default]
    Any,
    /// The row must exist: `If-Match: *`.
    Exists,
    /// The row must exist with this version; `None` stands for a quoted value that cannot be a version and
    /// never matches.
    Is(Option<Version>),
    /// The row must not exist: `If-None-Match: *`.
    Absent,
}

/// The precondition of a write on the value's member `status`: the row must exist and the member must be this
/// string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusCondition(pub Arc<str>);

/// All preconditions of a write. If both fail, the one on the version is reported.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WriteConditions {
    /// The condition on the version.
    pub version: VersionCondition,
    /// The condition on the status.
    pub status: Option<StatusCondition>,
}

/// The parts of a row that the preconditions of a write need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CurrentRow {
    pub(crate) version: Version,
    /// The member `status` if it is a string.
    pub(crate) status: Option<String>,
}

impl VersionCondition {
    /// Returns true if the condition holds for a row with this version, or for a missing row.
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
    /// The outcome of a write to this row, or to a missing row, if a condition does not hold; `None` if all
    /// hold.
    pub(crate) fn refusal(&self, row: Option<&CurrentRow>) -> Option<Write> {
        if !self.version.holds(row.map(|row| row.version)) {
            return Some(Write::VersionMismatch);
        }
        let current = row.and_then(|row| row.status.as_deref());
        let wanted = &self.status.as_ref()?.0;
        (current != Some(wanted)).then(|| Write::StatusMismatch { current: current.map(str::to_owned) })
    }
}

/// The outcome of a `put`.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// The value is stored under this version.
    Applied(Version),
    /// The condition on the version does not hold. Nothing was changed.
    VersionMismatch,
    /// The status differs, or the row does not exist. Nothing was changed.
    StatusMismatch {
        /// The member `status` of the row if it is a string.
        current: Option<String>,
    },
}

/// The outcome of a `patch`.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Patch {
    /// The row does not exist, whatever the conditions.
    NotFound,
    /// The outcome of the write, as for a `put`.
    Written(Write),
    /// The merged value would be nested too deeply, or larger than a body may be. Nothing was changed.
    Invalid(String),
}

/// The outcome of a `delete`.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delete {
    /// The document was deleted.
    Applied,
    /// The row does not exist, whatever the condition.
    NotFound,
    /// The condition on the version does not hold. Nothing was changed.
    VersionMismatch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_does_not_match_is_reported_before_a_status_that_does_not() {
        let row = CurrentRow { version: Version(7), status: Some("running".to_owned()) };
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
