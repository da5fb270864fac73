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
    /// The row must be there with this version; `None` stands for a quoted value that can be no version and never matches.
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
