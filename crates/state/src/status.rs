//! A status that only rises: of reports that arrive in any order, the highest one remains.

use crate::{
    Key, Patch, StateError, StatusCondition, Store, Value, Version, VersionCondition, Write, WriteConditions,
};

/// The progress of some work. The order is that of [`Status::may_follow`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Not started.
    Pending,
    /// Started.
    Running,
    /// Started and halted.
    Paused,
    /// Finished successfully.
    Succeeded,
    /// Finished with a failure.
    Failed,
    /// Ended early.
    Canceled,
}

/// The number of tries if the status rises meanwhile: it can rise three times, and then nothing follows.
const MAX_STATUS_TRIES: u32 = 4;

impl Status {
    /// All statuses.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Running, Self::Paused, Self::Succeeded, Self::Failed, Self::Canceled];

    /// The text in a document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// Parses a status; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    fn rank(self) -> u8 {
        match self {
            Self::Pending => 0,
            Self::Running => 1,
            Self::Paused => 2,
            Self::Succeeded | Self::Failed | Self::Canceled => 3,
        }
    }

    /// Returns true if this status may replace `old`: only if it is higher. The final statuses are equally
    /// high.
    #[must_use]
    pub fn may_follow(self, old: Self) -> bool {
        self.rank() > old.rank()
    }
}

/// The outcome of a report.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Advance {
    /// The report is stored under this version.
    Applied(Version),
    /// The document's status may not be followed by this one, or is unknown. Nothing was changed.
    Stale {
        /// The member `status` if it is a string.
        current: Option<String>,
    },
    /// The document does not exist.
    NotFound,
    /// The merged value would be nested too deeply, or larger than it may be. Nothing was changed.
    Invalid(String),
}

/// Merges `patch`, whose member `status` is a [`Status`], into the document if that status may follow the
/// current one. Other members of the document stay. Concurrent reports in any order leave the highest status.
///
/// [`StateError::InvalidValue`] if `patch` has no such member.
pub async fn advance_status<S: Store>(store: &S, key: &Key, patch: &Value) -> Result<Advance, StateError> {
    let json = patch.to_json()?;
    let Some(new) = json.get("status").and_then(|status| Status::parse(status.as_str()?)) else {
        let all = Status::ALL.map(Status::as_str).join(", ");
        return Err(StateError::InvalidValue(format!("its member status must be one of {all}")));
    };
    let Some(document) = store.get(key).await? else { return Ok(Advance::NotFound) };
    let mut current: Option<String> =
        document.value.to_json()?.get("status").and_then(|status| status.as_str().map(str::to_owned));
    for _ in 0..MAX_STATUS_TRIES {
        let is_lower = |old: &&String| Status::parse(old).is_some_and(|old| new.may_follow(old));
        let Some(old) = current.as_ref().filter(is_lower) else { break };
        let status = Some(StatusCondition(old.as_str().into()));
        let conditions = WriteConditions { version: VersionCondition::Any, status };
        current = match store.patch(key, patch, &conditions).await? {
            Patch::NotFound => return Ok(Advance::NotFound),
            Patch::Invalid(reason) => return Ok(Advance::Invalid(reason)),
            Patch::Written(Write::Applied(version)) => return Ok(Advance::Applied(version)),
            Patch::Written(Write::StatusMismatch { current }) => current,
            // No condition on the version was given.
            Patch::Written(Write::VersionMismatch) => None,
        };
    }
    Ok(Advance::Stale { current })
}

#[cfg(test)]
mod tests {
    use super::*;

    // K-15
    #[test]
    fn a_status_follows_every_lower_one_and_no_other() {
        let rows = Status::ALL.map(|old| Status::ALL.map(|new| new.may_follow(old)));
        let (yes, no) = (true, false);
        // Columns: the new status.
        let expected = [
            /* pending   */ [no, yes, yes, yes, yes, yes],
            /* running   */ [no, no, yes, yes, yes, yes],
            /* paused    */ [no, no, no, yes, yes, yes],
            /* succeeded */ [no; 6],
            /* failed    */ [no; 6],
            /* canceled  */ [no; 6],
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_status_is_read_as_it_is_written() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.as_str()), Some(status));
        }
        assert_eq!(Status::parse("Pending"), None);
    }
}
