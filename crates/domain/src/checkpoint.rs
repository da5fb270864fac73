//! The checkpoints in PostgreSQL and Redis, and what to do if they or the stream itself disagree (ADR 0011,
//! ADR 0022). Functions without I/O.

use std::time::Duration;

use crate::entry::EntryId;
use crate::republish::{OutboundState, ServerId};

/// The fencing token of a leader's term; 0 where there is no election.
pub type Fence = u64;

/// How far a fence in Redis may be above the fence of the current term. Up to this difference, PostgreSQL was
/// restored to an older state and its counter is raised. Beyond it, the value in Redis is garbled and
/// overwritten, because raising the counter to it would use up the fences.
pub const MAX_FENCE_LEAD: Fence = 1_000_000;

/// The last entry of a stream that has been processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The fence of the term that wrote it.
    pub fence: Fence,
    /// Everything up to and including this entry has its outcome.
    pub last_entry_id: EntryId,
}

/// What was found where the checkpoint is cached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CachedCheckpoint {
    /// A checkpoint.
    At(Checkpoint),
    /// Nothing.
    Missing,
    /// Something that is no checkpoint.
    Garbled(String),
}

impl CachedCheckpoint {
    /// The checkpoint as a term with `fence` sees it: one whose fence is too high is garbled, because no term
    /// wrote it.
    #[must_use]
    pub fn judged_by(self, fence: Fence) -> Self {
        match self {
            Self::At(cached) if cached.fence > fence.saturating_add(MAX_FENCE_LEAD) => Self::Garbled(
                format!("the fence {} is more than {MAX_FENCE_LEAD} above {fence}", cached.fence),
            ),
            other => other,
        }
    }

    /// The entry, if there is one: a leader that has processed nothing writes `0-0`.
    pub fn entry(&self) -> Option<EntryId> {
        match self {
            Self::At(cached) => Some(cached.last_entry_id).filter(|id| *id > EntryId::ZERO),
            Self::Missing | Self::Garbled(_) => None,
        }
    }

    /// The fence of another term that wrote this checkpoint. At the start of a term, the term's own `fence`
    /// counts as another's.
    pub fn superseding(&self, fence: Fence, begins: bool) -> Option<Fence> {
        match self {
            Self::At(cached) if cached.fence > fence || (begins && cached.fence == fence) => {
                Some(cached.fence)
            }
            Self::At(_) | Self::Missing | Self::Garbled(_) => None,
        }
    }
}

/// The durable checkpoint as the leader of a new term finds it.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The stream has no checkpoint.
    NoCheckpoint,
    /// The durable checkpoint, which terms with a lower fence cannot move any more.
    At(EntryId),
    /// The checkpoint carries this fence, which is not below the one of this term.
    Superseded(Fence),
}

/// Where a term begins to read, as far as the checkpoints know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The durable checkpoint.
    pub durable: Option<EntryId>,
    /// Read after this entry; `0-0` reads from the beginning.
    pub after: EntryId,
    /// Why the cached checkpoint is ignored, if it is.
    pub ignored: Option<IgnoredCache>,
}

/// Why the cached checkpoint is ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IgnoredCache {
    /// It is after the durable one: PostgreSQL has lost outcomes.
    Ahead(EntryId),
    /// It is missing or garbled, and there is a durable one.
    Lost,
    /// It is garbled, and there is no durable one.
    Garbled,
}

/// Where to resume. The durable checkpoint is authoritative; the cached one is used if there is no durable
/// one. `None` if another term has superseded this one.
pub fn resume(claim: Claim, cached: &CachedCheckpoint) -> Option<Resume> {
    let durable = match claim {
        Claim::NoCheckpoint => None,
        Claim::At(id) => Some(id),
        Claim::Superseded(_) => return None,
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

/// What Redis reports about a stream as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamState {
    /// The first entry that still exists.
    pub first: Option<EntryId>,
    /// The last id that the stream generated; zero if it never had an entry.
    pub last_generated: EntryId,
    /// The highest id of an entry that was deleted; zero if none was, or if Redis does not say.
    pub max_deleted: EntryId,
    /// The bytes of entries that Redis copied to say this.
    pub copied_bytes: u64,
}

impl From<OutboundState> for StreamState {
    fn from(state: OutboundState) -> Self {
        let OutboundState { first, last_generated, max_deleted, copied_bytes, .. } = state;
        Self { first, last_generated, max_deleted, copied_bytes }
    }
}

/// If Redis copies more bytes of entries to describe a stream, it is asked rarely.
pub const MAX_COPIED_BYTES: u64 = 4 * 1024 * 1024;
/// How rarely.
pub const LARGE_COPY_INTERVAL: Duration = Duration::from_secs(30);

/// The result of comparing a stream with the entry up to which it was processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamCheck {
    /// The stream continues after that entry.
    Continues,
    /// As [`Self::Continues`], if that entry is in the stream ([`Witness::shows_no_loss`]). Otherwise the
    /// stream lost its newest entries, that one among them, and received others since.
    ContinuesIfPresent,
    /// The stream begins after the processed entry, with this id (the last generated one if it is empty):
    /// entries in between may have been trimmed unread.
    Gap(EntryId),
    /// The key does not exist although entries were processed.
    Absent,
    /// The stream ends before that entry: it was cut short or recreated.
    EndsBefore,
}

/// Compares a stream with the entry up to which it was processed.
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

/// The last processed entry as PostgreSQL knows it. Trimming keeps that entry in the stream, so it shows
/// whether the stream lost its newest entries (ADR 0045).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Witness {
    /// The server that had the stream when a term last resumed; `None` if none did.
    pub server: Option<ServerId>,
    /// The entry and the fingerprint of its fields; `None` before a batch has written it.
    pub fingerprint: Option<(EntryId, String)>,
}

impl Witness {
    /// Whether the server of the stream is another one than before.
    pub fn is_elsewhere(&self, server: &ServerId) -> bool {
        self.server.as_ref().is_some_and(|former| former != server)
    }

    /// Whether a stream that reaches beyond `processed` still has what it had up to there. `found` is the
    /// fingerprint of its entry with that id: a slow clock may have given the id again. An entry that is
    /// absent was deleted by a consumer if it is the last that was deleted, or if the stream `moved` to no
    /// other server since.
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
            (Claim::At(id(5)), cached(1, 5), id(5), None),
            (Claim::At(id(5)), cached(1, 4), id(5), None),
            (Claim::At(id(5)), cached(1, 6), id(5), Some(IgnoredCache::Ahead(id(6)))),
            (Claim::At(id(5)), CachedCheckpoint::Missing, id(5), Some(IgnoredCache::Lost)),
            (Claim::At(id(5)), garbled.clone(), id(5), Some(IgnoredCache::Lost)),
            (Claim::NoCheckpoint, cached(1, 5), id(5), None),
            (Claim::NoCheckpoint, CachedCheckpoint::Missing, EntryId::ZERO, None),
            (Claim::NoCheckpoint, garbled, EntryId::ZERO, Some(IgnoredCache::Garbled)),
        ] {
            let resume = resume(claim, &found).expect("this term leads");
            assert_eq!((resume.after, resume.ignored), (after, ignored), "{claim:?} {found:?}");
        }
        assert_eq!(resume(Claim::Superseded(9), &CachedCheckpoint::Missing), None);
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
        // A former release has moved the checkpoint from 4 to 5.
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
