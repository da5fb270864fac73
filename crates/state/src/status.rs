//! A status that only ever rises: of reports that arrive in any order, the highest one stays.

use crate::{
    Key, Patch, StateError, StatusCondition, Store, Value, Version, VersionCondition, Write, WriteConditions,
};

/// How far the work on something has come. The order is that of [`Status::may_follow`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Not begun.
    Pending,
    /// Begun.
    Running,
    /// Begun and halted.
    Paused,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Ended before its time.
    Canceled,
}

/// How often a status that rises meanwhile is tried again: it can rise three times, and then nothing follows
/// it.
const MAX_STATUS_TRIES: u32 = 4;

impl Status {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Running, Self::Paused, Self::Succeeded, Self::Failed, Self::Canceled];

    /// As it is written in a document.
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

    /// By its text; `None` for any other text.
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

    /// Whether it may take the place of `old`: only if it is higher. The ends are equally high.
    #[must_use]
    pub fn may_follow(self, old: Self) -> bool {
        self.rank() > old.rank()
    }
}

/// What became of a report.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Advance {
    /// It is stored under this version.
    Applied(Version),
    /// The document has a status that it may not follow, or none that is known. Nothing was changed.
    Stale {
        /// The member `status` if it is a string.
        current: Option<String>,
    },
    /// There is no such document.
    NotFound,
    /// The merged value would be nested too deeply, or larger than it may be. Nothing was changed.
    Invalid(String),
}

/// Merges `patch`, whose member `status` is a [`Status`], into the document if that status may follow the one
/// it has. Other members of the document stay. Reports that arrive at once and in any order leave the highest
/// status.
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
