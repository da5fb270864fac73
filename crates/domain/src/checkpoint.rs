//! The checkpoints in PostgreSQL and Redis, and the rules for a disagreement between them or with the stream
//! itself (ADR 0011, ADR 0022). No I/O.

use std::time::Duration;

use crate::entry::EntryId;
use crate::republish::{OutboundState, ServerId};

/// The fencing token of a leader's term; 0 if there is no election.
pub type Fence = u64;

/// The most by which a fence in Redis may exceed the fence of the current term. Within this difference,
/// PostgreSQL was restored to an older state, and its counter is raised. Beyond it, the value in Redis is
/// garbled and is overwritten, because raising the counter that far would use up the fences.
pub const MAX_FENCE_LEAD: Fence = 1_000_000;

/// The last entry of a stream that has been processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The fence of the term that wrote the checkpoint.
    pub fence: Fence,
    /// The last entry that has an outcome. Every entry before it has one, too.
    pub last_entry_id: EntryId,
}

/// The cached checkpoint as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CachedCheckpoint {
    /// A checkpoint.
    At(Checkpoint),
    /// Nothing.
    Missing,
    /// A value that is not a checkpoint.
    Garbled(String),
}

impl CachedCheckpoint {
    /// Returns the checkpoint as seen by a term with `fence`. A checkpoint with a fence that is too high is
    /// garbled, because no term wrote it.
    #[must_use]
    pub fn judged_by(self, fence: Fence) -> Self {
        match self {
            Self::At(cached) if cached.fence > fence.saturating_add(MAX_FENCE_LEAD) => Self::Garbled(
                format!("the fence {} is more than {MAX_FENCE_LEAD} above {fence}", cached.fence),
            ),
            other => other,
        }
    }

    /// Returns the entry id, if there is one. A leader that has processed nothing writes `0-0`.
    pub fn entry(&self) -> Option<EntryId> {
        match self {
            Self::At(cached) => Some(cached.last_entry_id).filter(|id| *id > EntryId::ZERO),
            Self::Missing | Self::Garbled(_) => None,
        }
    }

    /// Returns the fence of another term that wrote this checkpoint. At the start of a term, an equal `fence`
    /// belongs to another term.
    pub fn superseding(&self, fence: Fence, begins: bool) -> Option<Fence> {
        match self {
            Self::At(cached) if cached.fence > fence || (begins && cached.fence == fence) => {
                Some(cached.fence)
            }
            Self::At(_) | Self::Missing | Self::Garbled(_) => None,
        }
    }
}

/// The durable checkpoint as found by the leader of a new term.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceWrite {
    /// The stream has no checkpoint.
    NoCheckpoint,
    /// The durable checkpoint. Terms with a lower fence can no longer move it.
    At(EntryId),
    /// The checkpoint has this fence, which is not below the fence of this term.
    Superseded(Fence),
}

/// The point where a term resumes reading, according to the checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The durable checkpoint.
    pub durable: Option<EntryId>,
    /// The entry after which to read; `0-0` reads from the beginning.
    pub after: EntryId,
    /// The reason why the cached checkpoint is ignored, if it is.
    pub ignored: Option<IgnoredCache>,
}

/// The reason why the cached checkpoint is ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IgnoredCache {
    /// The cached checkpoint is after the durable one: PostgreSQL has lost outcomes.
    Ahead(EntryId),
    /// The cached checkpoint is missing or garbled, and there is a durable one.
    Lost,
    /// The cached checkpoint is garbled, and there is no durable one.
    Garbled,
}

/// Determines where to resume. The durable checkpoint is authoritative; the cached one is used if there is no
/// durable one. `None` if another term has superseded this one.
pub fn resume(claim: FenceWrite, cached: &CachedCheckpoint) -> Option<Resume> {
    let durable = match claim {
        FenceWrite::NoCheckpoint => None,
        FenceWrite::At(id) => Some(id),
        FenceWrite::Superseded(_) => return None,
    };
    let ignored = match (durable, cached) {
        (Some(durable), CachedCheckpoint::At(cached)) if cached.last_entry_id > durable => {
            Some(IgnoredCache::Ahead(cached.last_entry_id))
        }
        (Some(_), CachedCheckpoint::Missing | CachedCheckpoint::Garbled(_)) => Some(IgnoredCache::Lost),
        (None, CachedCheckpoint::Garbled(_)) => Some(IgnoredCache::Garbled),
        _ => None,
    };
    let after = durable.or(cached.entry()).unwrap_or(EntryId::ZERO);
    Some(Resume { durable, after, ignored })
}

/// The state of a stream as reported by Redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamState {
    /// The first entry that still exists.
    pub first: Option<EntryId>,
    /// The last id that the stream generated; zero if it never had an entry.
    pub last_generated: EntryId,
    /// The highest id of a deleted entry; zero if none was deleted or Redis does not report it.
    pub max_deleted: EntryId,
    /// The bytes of entries that Redis copied to report this state.
    pub copied_bytes: u64,
}

impl From<OutboundState> for StreamState {
    fn from(state: OutboundState) -> Self {
        let OutboundState { first, last_generated, max_deleted, copied_bytes, .. } = state;
        Self { first, last_generated, max_deleted, copied_bytes }
    }
}

/// The limit on the bytes of entries that Redis copies to describe a stream. Beyond it, the stream is
/// inspected less often.
pub const MAX_COPIED_BYTES: u64 = 4 * 1024 * 1024;
/// The interval between inspections beyond [`MAX_COPIED_BYTES`].
pub const LARGE_COPY_INTERVAL: Duration = Duration::from_secs(30);

/// The result of comparing a stream with the last processed entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamCheck {
    /// The stream continues after the processed entry.
    Continues,
    /// As [`Self::Continues`] if the processed entry is in the stream ([`Witness::shows_no_loss`]). Otherwise
    /// the stream lost its newest entries, including the processed one, and received others since.
    ContinuesIfPresent,
    /// The stream begins after the processed entry, with this id (the last generated one if it is empty):
    /// entries in between may have been trimmed unread.
    Gap(EntryId),
    /// The key does not exist, although entries were processed.
    Absent,
    /// The stream ends before the processed entry: it was truncated or recreated.
    EndsBefore,
}

/// Compares a stream with the last processed entry.
// MODEL-11
pub fn check_stream(processed: EntryId, state: Option<StreamState>) -> StreamCheck {
    let Some(state) = state else {
        return if processed > EntryId::ZERO { StreamCheck::Absent } else { StreamCheck::Continues };
    };
    if state.last_generated < processed {
        return StreamCheck::EndsBefore;
    }
    match state.first.unwrap_or(state.last_generated) {
        first if first > processed && processed > EntryId::ZERO => StreamCheck::Gap(first),
        _ if state.first.is_some() && processed > EntryId::ZERO => StreamCheck::ContinuesIfPresent,
        _ => StreamCheck::Continues,
    }
}

/// The last processed entry as recorded in PostgreSQL. Trimming keeps that entry in the stream, so its
/// presence shows whether the stream lost its newest entries (ADR 0045).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Witness {
    /// The server that had the stream when a term last resumed; `None` if no term did.
    pub server: Option<ServerId>,
    /// The entry and the fingerprint of its fields; `None` until a batch writes it.
    pub fingerprint: Option<(EntryId, String)>,
}

impl Witness {
    /// True if the stream is now on a different server.
    pub fn is_elsewhere(&self, server: &ServerId) -> bool {
        self.server.as_ref().is_some_and(|former| former != server)
    }

    /// True if a stream that continues after `processed` still has the entries up to there. `found` is the
    /// fingerprint of its entry with that id, which may be another entry: a slow clock can generate the same
    /// id again. If the entry is absent, a consumer deleted it if it is the last deleted entry. If the stream
    /// has not `moved` to another server, a later deleted entry is enough.
    // MODEL-07
    pub fn shows_no_loss(
        &self,
        processed: EntryId,
        found: Option<&str>,
        moved: bool,
        max_deleted: EntryId,
    ) -> bool {
        match (found, &self.fingerprint) {
            (Some(found), Some((id, fingerprint))) if *id == processed => found == fingerprint,
            (Some(_), _) => true,
            (None, _) if moved => max_deleted == processed,
            (None, _) => max_deleted >= processed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> EntryId {
        EntryId::new(number, 0)
    }

    fn cached(fence: Fence, number: u64) -> CachedCheckpoint {
        CachedCheckpoint::At(Checkpoint { fence, last_entry_id: id(number) })
    }

    #[test]
    fn a_fence_is_garbled_only_beyond_a_million_above_the_terms_own() {
        assert_eq!(cached(1_000_007, 5).judged_by(7), cached(1_000_007, 5));
        assert!(matches!(cached(1_000_008, 5).judged_by(7), CachedCheckpoint::Garbled(_)));
        assert_eq!(cached(u64::MAX, 5).judged_by(u64::MAX), cached(u64::MAX, 5));
    }

    #[test]
    fn a_terms_own_fence_supersedes_it_at_its_begin_and_not_later() {
        for (fence, begins, expected) in
            [(6, true, None), (7, true, Some(7)), (7, false, None), (8, true, Some(8)), (8, false, Some(8))]
        {
            assert_eq!(cached(fence, 1).superseding(7, begins), expected, "{fence} {begins}");
        }
    }

    #[test]
    fn the_durable_checkpoint_counts_and_the_cached_one_where_there_is_none() {
        let garbled = CachedCheckpoint::Garbled("x".into());
        for (claim, found, after, ignored) in [
            (FenceWrite::At(id(5)), cached(1, 5), id(5), None),
            (FenceWrite::At(id(5)), cached(1, 4), id(5), None),
            (FenceWrite::At(id(5)), cached(1, 6), id(5), Some(IgnoredCache::Ahead(id(6)))),
            (FenceWrite::At(id(5)), CachedCheckpoint::Missing, id(5), Some(IgnoredCache::Lost)),
            (FenceWrite::At(id(5)), garbled.clone(), id(5), Some(IgnoredCache::Lost)),
            (FenceWrite::NoCheckpoint, cached(1, 5), id(5), None),
            (FenceWrite::NoCheckpoint, CachedCheckpoint::Missing, EntryId::ZERO, None),
            (FenceWrite::NoCheckpoint, garbled, EntryId::ZERO, Some(IgnoredCache::Garbled)),
        ] {
            let resume = resume(claim, &found).expect("this term leads");
            assert_eq!((resume.after, resume.ignored), (after, ignored), "{claim:?} {found:?}");
        }
        assert_eq!(resume(FenceWrite::Superseded(9), &CachedCheckpoint::Missing), None);
    }

    #[test]
    fn a_stream_is_compared_with_what_was_processed() {
        let state = |first: Option<u64>, last| {
            Some(StreamState {
                first: first.map(id),
                last_generated: id(last),
                max_deleted: id(2),
                copied_bytes: 0,
            })
        };
        for (processed, state, expected) in [
            (0, None, StreamCheck::Continues),
            (5, None, StreamCheck::Absent),
            (0, state(Some(9), 9), StreamCheck::Continues),
            (2, state(Some(1), 5), StreamCheck::ContinuesIfPresent),
            (3, state(Some(1), 5), StreamCheck::ContinuesIfPresent),
            (5, state(Some(1), 5), StreamCheck::ContinuesIfPresent),
            (5, state(Some(5), 9), StreamCheck::ContinuesIfPresent),
            (5, state(Some(6), 9), StreamCheck::Gap(id(6))),
            (5, state(None, 5), StreamCheck::Continues),
            (5, state(None, 9), StreamCheck::Gap(id(9))),
            (5, state(Some(1), 4), StreamCheck::EndsBefore),
            (5, state(None, 0), StreamCheck::EndsBefore),
        ] {
            assert_eq!(check_stream(id(processed), state), expected, "{processed} {state:?}");
        }
    }

    #[test]
    fn a_witness_shows_no_loss_with_its_content_or_if_it_was_deleted() {
        let known = Witness { server: None, fingerprint: Some((id(5), "five".to_owned())) };
        // A former release moved the checkpoint from 4 to 5.
        let former = Witness { server: None, fingerprint: Some((id(4), "four".to_owned())) };
        for (witness, found, moved, max_deleted, expected) in [
            (&known, Some("five"), true, 0, true),
            (&known, Some("other"), true, 9, false),
            (&former, Some("other"), true, 0, true),
            (&known, None, false, 4, false),
            (&known, None, false, 5, true),
            (&known, None, false, 9, true),
            (&known, None, true, 5, true),
            (&known, None, true, 9, false),
        ] {
            let shows_no_loss = witness.shows_no_loss(id(5), found, moved, id(max_deleted));
            assert_eq!(shows_no_loss, expected, "{found:?} {moved} {max_deleted}");
        }
    }
}
