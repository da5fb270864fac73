//! The checkpoints, the stream and the leader's term.

use super::{Discrepancy, DiscrepancyKind as Kind, Subject};
use crate::checkpoint::{CachedCheckpoint, Checkpoint, Fence, StreamCheck, StreamState, check_stream};
use crate::entry::EntryId;

/// Checkpoints, stream state and leader, read in the order of the fields: a checkpoint that advances
/// meanwhile is then never ahead of one read after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoints {
    /// The cached checkpoint, in Redis.
    pub cached: CachedCheckpoint,
    /// The durable checkpoint, in PostgreSQL; `None` if nothing was ever processed.
    pub durable: Option<Checkpoint>,
    /// State of the stream; `None` if the key does not exist.
    pub stream: Option<StreamState>,
    /// The fence of the present leader; `None` if there is none.
    pub leader: Option<Fence>,
}

impl Checkpoints {
    /// The last entry whose outcome is durable.
    pub fn processed(&self) -> EntryId {
        self.durable.map_or(EntryId::ZERO, |durable| durable.last_entry_id)
    }

    /// True if the stream ends before the checkpoint: its ids then do not show which entries were processed.
    pub fn is_stream_behind(&self) -> bool {
        check_stream(self.processed(), self.stream) == StreamCheck::EndsBefore
    }
}

/// The discrepancies of the checkpoints of `stream`. A cached checkpoint that is missing or lags is not a
/// discrepancy: the next batch updates it.
pub fn judge_checkpoints(stream: &str, found: &Checkpoints) -> Vec<Discrepancy> {
    let mut wrong = Vec::new();
    let mut report = |kind, detail| {
        wrong.push(Discrepancy::new(kind, Subject::Stream(stream.to_owned()), detail));
    };
    let processed = found.processed();
    match check_stream(processed, found.stream) {
        StreamCheck::Absent => report(
            Kind::IntentsStreamAbsent,
            format!("there is no such key, and the checkpoint is {processed}"),
        ),
        StreamCheck::EndsBefore => {
            let last = found.stream.map_or(EntryId::ZERO, |stream| stream.last_generated);
            report(
                Kind::CheckpointAfterStream,
                format!("the checkpoint is {processed}, and the last id of the stream is {last}"),
            );
        }
        StreamCheck::Gap(first) => report(
            Kind::StreamTrimmedPastCheckpoint,
            format!(
                "the checkpoint is {processed}, and the stream begins at {first}: what was between them may be lost unread"
            ),
        ),
        StreamCheck::Continues | StreamCheck::ContinuesIfPresent => {}
    }
    let fence = found.durable.map_or(0, |durable| durable.fence);
    match &found.cached {
        CachedCheckpoint::Garbled(text) => {
            report(Kind::CachedCheckpointGarbled, format!("Redis holds {text:?}"));
        }
        CachedCheckpoint::At(cached) if found.durable.is_some() => {
            if cached.last_entry_id > processed {
                let detail = format!("Redis has {}, PostgreSQL has {processed}", cached.last_entry_id);
                report(Kind::CachedCheckpointAhead, detail);
            }
            if cached.fence > fence {
                let detail = format!("Redis has the fence {}, PostgreSQL has {fence}", cached.fence);
                report(Kind::CachedFenceAhead, detail);
            }
        }
        CachedCheckpoint::At(_) | CachedCheckpoint::Missing => {}
    }
    if let Some(leader) = found.leader.filter(|leader| *leader < fence) {
        let detail = format!("the leader has the fence {leader}, the checkpoint has {fence}");
        report(Kind::LeaderFenceBelowCheckpoint, detail);
    }
    wrong
}
