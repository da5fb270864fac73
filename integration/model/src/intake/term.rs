//! The steps of a term: resume, read, decide, commit.

use domain::checkpoint::{self as rules, CachedCheckpoint, FenceWrite, StreamCheck, Witness};
use domain::entry::EntryId;

use super::redis::{Cached, Entries, Entry, entry_id};
use super::{Checkpoint, INTENTS, Intake, Mutation, State};
use crate::Server;

/// The position of a term.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Position {
    /// The fence.
    pub fence: u8,
    /// The durable checkpoint that the next batch expects.
    pub durable: Option<u8>,
    /// The entry after which the next read begins.
    pub processed: u8,
    /// The server on which it was determined where to resume.
    pub server: Server,
}

/// The comparison of the stream with the checkpoint, while it is determined where to resume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Check {
    /// The stream continues.
    Continues,
    /// It continues if the processed entry is there.
    ContinuesIfPresent,
    /// It ends before the processed entry, with this one.
    EndsBefore(u8),
}

/// The work of a term: the step that is next, with what the steps before have returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[expect(missing_docs, reason = "the fields are named after what they are")]
pub enum Work {
    /// The replica does not lead.
    Idle,
    /// PostgreSQL writes the fence and returns the durable checkpoint.
    Claim { fence: u8 },
    /// Redis returns the cached checkpoint.
    LoadCache { fence: u8, durable: Option<u8> },
    /// PostgreSQL returns the fingerprint of the processed entry.
    LoadWitness { fence: u8, durable: Option<u8>, after: u8 },
    /// Redis returns the state of the stream.
    Inspect { fence: u8, durable: Option<u8>, after: u8, witness: Option<Entry> },
    /// Redis returns its identity.
    Identify { fence: u8, durable: Option<u8>, after: u8, witness: Option<Entry>, check: Check },
    /// Redis returns the processed entry.
    FindWitness { at: Position, witness: Option<Entry> },
    /// Redis returns the entries up to this one.
    ListNewest { at: Position, last: u8 },
    /// PostgreSQL returns the last of these entries that has an outcome.
    FindKnown { at: Position, listed: Entries },
    /// Redis writes the cached checkpoint.
    ResetCache { at: Position, known: Option<Entry>, stored: u8 },
    /// PostgreSQL moves the durable checkpoint back.
    MoveBack { at: Position, known: Entry },
    /// Redis returns entries.
    Read(Position),
    /// PostgreSQL returns the known keys.
    LookUp { at: Position, batch: Entries },
    /// PostgreSQL executes the acceptance transaction.
    Commit { at: Position, batch: Entries, known: [bool; INTENTS] },
    /// The protocol that moves the checkpoint first: PostgreSQL writes the outcomes.
    WriteOutcomes { at: Position, batch: Entries },
    /// Redis writes the cached checkpoint.
    SaveCache(Position),
}

/// The fingerprint of an entry.
fn fingerprint(entry: &Entry) -> String {
    entry.intent.to_string()
}

impl Intake {
    /// Executes the next step of a term.
    pub(super) fn work(&self, state: &mut State, replica: u8, only_one: bool) -> Option<()> {
        let work = state.replica(replica).work;
        if only_one && !matches!(work, Work::Read(_)) {
            return None;
        }
        let next = match work {
            Work::Idle => return None,
            Work::Claim { fence } => self.claim(state, fence),
            Work::LoadCache { fence, durable } => load_cache(state, fence, durable),
            Work::LoadWitness { fence, durable, after } => {
                let witness = state.postgres.accepted.checkpoint.map(|checkpoint| checkpoint.entry);
                Work::Inspect { fence, durable, after, witness }
            }
            Work::Inspect { fence, durable, after, witness } => {
                let check = self.inspect(state, after)?;
                Work::Identify { fence, durable, after, witness, check }
            }
            Work::Identify { fence, durable, after, witness, check } => {
                let at = Position { fence, durable, processed: after, server: state.redis.server };
                match check {
                    Check::Continues => Work::ResetCache { at, known: None, stored: after },
                    Check::ContinuesIfPresent => Work::FindWitness { at, witness },
                    Check::EndsBefore(last) => Work::ListNewest { at, last },
                }
            }
            Work::FindWitness { at, witness } => self.find_witness(state, at, witness),
            Work::ListNewest { at, last } => {
                let up_to = state.redis.entries.iter().filter(|entry| entry.id <= last);
                Work::FindKnown { at, listed: up_to.copied().collect() }
            }
            Work::FindKnown { at, listed } => self.find_known(state, at, listed),
            Work::ResetCache { at, known, stored } => self.reset_cache(state, at, known, stored),
            Work::MoveBack { at, known } => self.move_back(state, at, known),
            Work::Read(at) => self.read(state, replica, at, only_one)?,
            Work::LookUp { at, batch } => Work::Commit {
                at,
                batch,
                known: state.postgres.accepted.records.map(|record| record.is_some()),
            },
            Work::Commit { at, batch, known } => self.commit(state, at, batch, known),
            Work::WriteOutcomes { at, batch } => {
                accept(state, &batch);
                Work::SaveCache(at)
            }
            Work::SaveCache(at) => {
                let to = Cached { id: at.processed, fence: at.fence };
                let checks = !self.lacks(Mutation::CacheWithoutFence);
                state.redis.save(to, true, checks, &mut state.was_cached_by_older);
                Work::Read(at)
            }
        };
        match next {
            Work::Idle => state.end_term(replica),
            next => state.replica(replica).work = next,
        }
        Some(())
    }

    /// The statements `begin_term` and `load`. Fences are never given twice, so the term's own fence is there
    /// only if this term wrote it.
    fn claim(&self, state: &mut State, fence: u8) -> Work {
        let Some(checkpoint) = &mut state.postgres.accepted.checkpoint else {
            return Work::LoadCache { fence, durable: None };
        };
        if checkpoint.fence > fence {
            return Work::Idle;
        }
        if !self.lacks(Mutation::FenceNotWritten) && checkpoint.fence < fence {
            checkpoint.fence = fence;
            state.postgres.before = None;
        }
        state.shown_fence = state.shown_fence.max(fence);
        Work::LoadCache { fence, durable: Some(checkpoint.entry.id) }
    }

    /// Compares the stream with the checkpoint; `None` while the stream is absent and is waited for.
    fn inspect(&self, state: &State, after: u8) -> Option<Check> {
        Some(match rules::check_stream(entry_id(after), state.redis.stream()) {
            StreamCheck::Absent => return None,
            StreamCheck::Continues | StreamCheck::Gap(_) => Check::Continues,
            StreamCheck::ContinuesIfPresent if self.lacks(Mutation::WitnessNotLookedFor) => Check::Continues,
            StreamCheck::ContinuesIfPresent => Check::ContinuesIfPresent,
            StreamCheck::EndsBefore if self.lacks(Mutation::CutStreamNotNoticed) => Check::Continues,
            StreamCheck::EndsBefore => Check::EndsBefore(state.redis.last()),
        })
    }

    fn find_witness(&self, state: &State, at: Position, witness: Option<Entry>) -> Work {
        let found = state.redis.entries.iter().find(|entry| entry.id == at.processed);
        let fingerprint = match witness {
            Some(entry) if !self.lacks(Mutation::WitnessWithoutContent) => {
                Some((entry_id(entry.id), fingerprint(&entry)))
            }
            _ => None,
        };
        let witness = Witness { server: None, fingerprint };
        let found = found.map(self::fingerprint);
        match witness.shows_no_loss(entry_id(at.processed), found.as_deref(), false, EntryId::ZERO) {
            true => Work::ResetCache { at, known: None, stored: at.processed },
            false => Work::ListNewest { at, last: at.processed },
        }
    }

    /// The statement `find_last_processed`: an entry has an outcome if its key has a record under its id.
    fn find_known(&self, state: &State, at: Position, listed: Entries) -> Work {
        let has_outcome =
            |entry: &&Entry| state.postgres.accepted.records[usize::from(entry.intent)] == Some(entry.id);
        let known = match self.lacks(Mutation::ResumeAfterEnd) {
            true => listed.last(),
            false => listed.iter().rev().find(has_outcome),
        };
        let processed = known.map_or(0, |entry| entry.id);
        let stored = known.map_or(at.processed, |entry| entry.id);
        Work::ResetCache { at: Position { processed, ..at }, known: known.copied(), stored }
    }

    fn reset_cache(&self, state: &mut State, at: Position, known: Option<Entry>, stored: u8) -> Work {
        let to = Cached { id: stored, fence: at.fence };
        let checks = !self.lacks(Mutation::CacheWithoutFence);
        if !state.redis.save(to, false, checks, &mut state.was_cached_by_older) {
            return Work::Idle;
        }
        match known.filter(|_| at.durable.is_some()) {
            Some(known) => Work::MoveBack { at, known },
            None => Work::Read(at),
        }
    }

    /// True if a transaction of this term may move the durable checkpoint to the entry.
    fn may_move(&self, state: &State, at: &Position, to: Entry) -> bool {
        let (Some(checkpoint), Some(durable)) = (state.postgres.accepted.checkpoint, at.durable) else {
            // The first checkpoint is inserted if there is none.
            return state.postgres.accepted.checkpoint.is_none() && at.durable.is_none();
        };
        let is_newest = checkpoint.fence <= at.fence || self.lacks(Mutation::CheckpointWithoutFence);
        let is_expected = match self.mutation {
            Some(Mutation::CheckpointWithoutEquality) => true,
            Some(Mutation::CheckpointOnlyAdvances) => checkpoint.entry.id < to.id,
            _ => checkpoint.entry.id == durable,
        };
        is_newest && is_expected
    }

    fn move_checkpoint(&self, state: &mut State, at: &Position, to: Entry) {
        let is_first = state.postgres.accepted.checkpoint.is_none();
        state.was_moved_by_older |= !is_first && at.fence < state.shown_fence;
        state.postgres.accepted.checkpoint = Some(Checkpoint { entry: to, fence: at.fence });
    }

    /// The statement `move_back`.
    fn move_back(&self, state: &mut State, at: Position, known: Entry) -> Work {
        if !self.may_move(state, &at, known) {
            return Work::Claim { fence: at.fence };
        }
        self.move_checkpoint(state, &at, known);
        state.postgres.before = None;
        Work::Read(Position { durable: Some(known.id), ..at })
    }

    /// Reads on the connection of the reader, which is refused once if its server is another one than before.
    fn read(&self, state: &mut State, replica: u8, at: Position, only_one: bool) -> Option<Work> {
        let server = state.redis.server;
        let former = state.replica(replica).reader.replace(server);
        let is_other = former.is_some_and(|former| former != server);
        let has_moved = server != at.server && !self.lacks(Mutation::FirstConnectionTrusted);
        if (is_other || has_moved) && !self.lacks(Mutation::ServerNotCompared) {
            return Some(Work::Claim { fence: at.fence });
        }
        let unread = state.redis.entries.iter().filter(|entry| entry.id > at.processed);
        let count = unread.clone().count();
        match (count, only_one) {
            // The read shows nothing but the identity.
            (0, false) => Some(Work::Read(at)),
            (0 | 1, true) => None,
            _ => {
                let batch = unread.take(if only_one { 1 } else { count }).copied().collect();
                Some(Work::LookUp { at, batch })
            }
        }
    }

    /// The check after a read that returned nothing.
    pub(super) fn check_idle(&self, state: &mut State, replica: u8) -> Option<()> {
        let Work::Read(at) = state.replica(replica).work else { return None };
        if state.redis.last() > at.processed {
            return None;
        }
        let ends_before = match rules::check_stream(entry_id(at.processed), state.redis.stream()) {
            StreamCheck::EndsBefore => !self.lacks(Mutation::CutStreamNotNoticed),
            _ => false,
        };
        let durable = state.postgres.accepted.checkpoint.map(|checkpoint| checkpoint.entry.id);
        let is_other = durable != at.durable;
        (ends_before || is_other).then(|| state.replica(replica).work = Work::Claim { fence: at.fence })
    }

    /// The acceptance transaction: the checkpoint and the outcomes.
    fn commit(&self, state: &mut State, at: Position, batch: Entries, known: [bool; INTENTS]) -> Work {
        let Some(last) = batch.last().copied() else { return Work::Read(at) };
        if !self.may_move(state, &at, last) {
            return Work::Claim { fence: at.fence };
        }
        let is_new = |entry: &&Entry| !known[usize::from(entry.intent)];
        let is_taken = |entry: &Entry| state.postgres.accepted.records[usize::from(entry.intent)].is_some();
        if batch.iter().filter(is_new).any(is_taken) {
            if !self.lacks(Mutation::KeyNotUnique) {
                return Work::LookUp { at, batch };
            }
            state.was_accepted_twice = true;
        }
        let before = state.postgres.accepted;
        let committed = Position { durable: Some(last.id), processed: last.id, ..at };
        self.move_checkpoint(state, &at, last);
        if self.lacks(Mutation::CheckpointBeforeOutcomes) {
            return Work::WriteOutcomes { at: committed, batch };
        }
        accept(state, &batch);
        state.postgres.before = Some(before);
        Work::SaveCache(committed)
    }
}

/// Writes the records of new intents.
fn accept(state: &mut State, batch: &Entries) {
    for entry in batch.iter() {
        state.postgres.accepted.records[usize::from(entry.intent)].get_or_insert(entry.id);
    }
}

/// Reads the cached checkpoint, and determines after which entry to resume by both.
fn load_cache(state: &State, fence: u8, durable: Option<u8>) -> Work {
    let claim = durable.map_or(FenceWrite::NoCheckpoint, |id| FenceWrite::At(entry_id(id)));
    let cached = match state.redis.cached {
        Some(Cached { id, fence }) => {
            CachedCheckpoint::At(rules::Checkpoint { fence: fence.into(), last_entry_id: entry_id(id) })
        }
        None => CachedCheckpoint::Missing,
    };
    // A term that resumes again finds its own fence there.
    if cached.superseding(fence.into(), false).is_some() {
        return Work::Idle;
    }
    match rules::resume(claim, &cached) {
        Some(resume) => Work::LoadWitness { fence, durable, after: resume.after.millis as u8 },
        None => Work::Idle,
    }
}
