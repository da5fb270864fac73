//! The checkpoint keeper determines where to resume: at the start of a term, after a failure, and whenever
//! the stores or the stream disagree (ADR 0011, ADR 0022). It also moves the cached checkpoint to the durable
//! one, and trims processed entries.
//!
//! Crash recovery: resuming writes the fence of the term to both checkpoints. If the stream was cut short, it
//! moves back the cached checkpoint, then the durable one; until both are moved, the next leader detects the
//! loss again. A recreated stream is detected again until its first batch moves the checkpoint. The next
//! leader repeats a trim.

mod loss;

use std::time::Duration;

use ambient::Clock;
use domain::checkpoint::{
    self, CachedCheckpoint, Checkpoint, IgnoredCache, LARGE_COPY_INTERVAL, MAX_COPIED_BYTES, Resume,
    StreamCheck,
};
use domain::entry::EntryId;
use domain::ports::{
    CheckpointCache, CheckpointStore, Fence, IntentStream, ServerId, StoreError, Swap, error_chain,
};
use tokio::time::Instant;

use self::loss::{AfterLoss, CheckpointLoss};
use super::reader::EntryReader;
use super::{Intake, IntakeSettings};
use crate::ports::Ports;

/// The interval at which an idle intake checks that PostgreSQL still has the checkpoint.
const CHECKPOINT_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The interval at which processed entries are removed from the stream, if that is configured.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);

/// Keeps the checkpoint during a term.
pub(super) struct CheckpointKeeper<'a, P: Ports> {
    intents: &'a P::Intents,
    store: &'a P::Store,
    cache: &'a P::Cache,
    clock: &'a P::Clock,
    settings: &'a IntakeSettings,
    fence: Fence,
    /// True once this term has written its fence to the durable or the cached checkpoint, so that finding it
    /// there is expected.
    claimed: bool,
    cache_claimed: bool,
    /// The position; `None` until it is determined where to resume.
    position: Option<TermPosition>,
    /// The entry up to which a gap has been reported.
    reported_gap: EntryId,
    /// The loss that has been reported, until a batch is committed.
    reported_loss: Option<CheckpointLoss>,
    /// The time before which an idle stream is not inspected, because an inspection makes Redis copy large
    /// entries.
    inspect_again_at: Option<Instant>,
    /// The server of the stream, until it is saved with the checkpoint.
    unsaved_server: Option<ServerId>,
    trimmed_at: Option<Instant>,
}

/// The position of the term in the stream.
#[derive(Debug)]
struct TermPosition {
    /// The durable checkpoint, which the next batch expects.
    durable: Option<EntryId>,
    /// The entry up to which everything in the stream has its outcome. It is not the durable checkpoint if
    /// the stream was recreated and no batch of it is committed yet.
    processed: EntryId,
    /// The time at which PostgreSQL was last seen to have the checkpoint.
    checked_at: Instant,
    /// The cached checkpoint.
    cached: EntryId,
}

/// The result of resuming.
#[derive(Debug)]
pub(super) enum Resumed {
    /// Intake reads after this entry.
    After(EntryId),
    /// There is a checkpoint but no stream; contains the cause to report.
    Absent(String),
    /// Another term has this fence.
    Superseded(Fence),
    /// The durable checkpoint changed in the meantime.
    Moved,
}

/// The result of a check of an idle stream.
#[derive(Debug)]
pub(super) struct Idle {
    /// The last processed entry.
    pub(super) processed: EntryId,
    /// The result of comparing the stream with `processed`.
    pub(super) stream: StreamCheck,
    /// True if the stream is not empty and had entries after `processed`.
    pub(super) has_more: bool,
}

/// The cause that is reported while the stream is absent.
pub(super) fn absent(processed: EntryId) -> String {
    format!(
        "the intents stream is absent; intake keeps its checkpoint {processed} and waits until the stream is back"
    )
}

impl<'a, P: Ports> CheckpointKeeper<'a, P> {
    pub(super) fn new(intake: &'a Intake<P>, fence: Fence) -> Self {
        Self {
            intents: &intake.intents,
            store: &intake.store,
            cache: &intake.cache,
            clock: &intake.clock,
            settings: &intake.settings,
            fence,
            claimed: false,
            cache_claimed: false,
            position: None,
            reported_gap: EntryId::ZERO,
            reported_loss: None,
            inspect_again_at: None,
            unsaved_server: None,
            trimmed_at: None,
        }
    }

    pub(super) fn fence(&self) -> Fence {
        self.fence
    }

    /// Returns the entry up to which the stream has been processed; `None` if that is not determined.
    pub(super) fn processed(&self) -> Option<EntryId> {
        self.position.as_ref().map(|position| position.processed)
    }

    /// Returns the durable checkpoint, which the next batch expects.
    pub(super) fn durable(&self) -> Option<EntryId> {
        self.position.as_ref().and_then(|position| position.durable)
    }

    /// Records that a batch up to this entry is committed.
    pub(super) fn committed(&mut self, last: EntryId) {
        self.reported_loss = None;
        if let Some(position) = &mut self.position {
            position.durable = Some(last);
            position.processed = last;
            position.checked_at = Instant::now();
        }
    }

    pub(super) fn forget(&mut self) {
        self.position = None;
    }

    /// Determines where to resume, and stops every earlier term from writing. The durable checkpoint is
    /// authoritative; the cached one is used if there is no durable one.
    // MODEL-08
    pub(super) async fn resume(&mut self, reader: &EntryReader<'_, P>) -> Result<Resumed, StoreError> {
        let stream = self.settings.stream.as_str();
        let claim = self.store.write_fence(stream, self.fence, !self.claimed).await?;
        if let domain::ports::FenceWrite::Superseded(fence) = claim {
            return Ok(Resumed::Superseded(fence));
        }
        self.claimed = true;
        let cached = self.cache.load(stream).await?.judged_by(self.fence);
        if let Some(fence) = cached.superseding(self.fence, !self.cache_claimed) {
            return Ok(Resumed::Superseded(fence));
        }
        let Some(resume) = checkpoint::resume(claim, &cached) else {
            return Ok(Resumed::Superseded(self.fence));
        };
        let witness = self.store.load_witness(stream).await?;
        let state = self.intents.inspect().await?;
        let server = self.intents.server().await?;
        let has_moved = witness.is_elsewhere(&server);
        let unchanged = AfterLoss { resume_after: resume.after, witness: None };
        let after_loss = match checkpoint::check_stream(resume.after, state) {
            StreamCheck::Absent => return Ok(Resumed::Absent(absent(resume.after))),
            StreamCheck::Continues => unchanged,
            StreamCheck::Gap(first) => {
                self.report_gap(resume.after, first);
                unchanged
            }
            StreamCheck::ContinuesIfPresent => {
                let found = self.fingerprint_of(resume.after, reader).await?;
                let max_deleted = state.unwrap_or_default().max_deleted;
                match witness.shows_no_loss(resume.after, found.as_deref(), has_moved, max_deleted) {
                    true => unchanged,
                    false => self.after_loss(resume.after, resume.after, reader).await?,
                }
            }
            StreamCheck::EndsBefore => {
                let last = state.unwrap_or_default().last_generated;
                self.after_loss(resume.after, last, reader).await?
            }
        };
        self.report_ignored(&resume, &cached);
        let AfterLoss { resume_after: processed, witness: known } = after_loss;
        if has_moved && processed == resume.after {
            tracing::warn!(stream, checkpoint = %processed,
                "the intents stream is on another server than before, and shows no loss; entries that were not read yet may be missing");
        }
        // Without a loss, only the fence is replaced. After a loss, the cached checkpoint moves back first,
        // so that it is never after the durable one.
        let stored = known.as_ref().map_or(resume.after, |(id, _)| *id);
        let checkpoint = Checkpoint { fence: self.fence, last_entry_id: stored };
        if self.cache.reset(stream, checkpoint).await? == Swap::Conflict
            && let CachedCheckpoint::At(other) = self.cache.load(stream).await?
        {
            return Ok(Resumed::Superseded(other.fence));
        }
        self.cache_claimed = true;
        let durable = match (resume.durable, &known) {
            (Some(durable), Some(known)) => {
                if self.move_back(durable, known, &server).await? == Swap::Conflict {
                    return Ok(Resumed::Moved);
                }
                self.unsaved_server = None;
                Some(stored)
            }
            (durable, _) => {
                self.unsaved_server = (witness.server.as_ref() != Some(&server)).then_some(server);
                durable
            }
        };
        tracing::info!(stream, resume_after = %processed, fence = self.fence, "resuming after the checkpoint");
        self.position = Some(TermPosition { durable, processed, checked_at: Instant::now(), cached: stored });
        Ok(Resumed::After(processed))
    }

    fn report_ignored(&self, resume: &Resume, cached: &CachedCheckpoint) {
        let (stream, resume_after) = (self.settings.stream.as_str(), resume.after);
        let reason = match cached {
            CachedCheckpoint::Garbled(reason) => reason.as_str(),
            CachedCheckpoint::At(_) | CachedCheckpoint::Missing => "there is none",
        };
        match resume.ignored {
            None => {}
            Some(IgnoredCache::Ahead(cached)) => tracing::warn!(
                stream,
                checkpoint = %cached,
                %resume_after,
                "the checkpoint in PostgreSQL is before the one cached in Redis; resuming after the one in PostgreSQL"
            ),
            Some(IgnoredCache::Lost) => tracing::warn!(
                stream,
                reason,
                %resume_after,
                "the checkpoint cached in Redis is lost or garbled; resuming after the one in PostgreSQL"
            ),
            Some(IgnoredCache::Garbled) => tracing::warn!(
                stream,
                reason,
                "the checkpoint cached in Redis is garbled and PostgreSQL has none; reading from the beginning"
            ),
        }
    }

    /// Reports a gap: entries that were trimmed before they were read are lost, and the service can only
    /// report that.
    fn report_gap(&mut self, after: EntryId, first: EntryId) {
        if first > self.reported_gap {
            self.reported_gap = first;
            tracing::warn!(stream = self.settings.stream, %after, before = %first,
                "the stream was trimmed past the checkpoint; entries between these ids, if there were any, are lost");
        }
    }

    /// Checks the stream after a read without entries. Compares the stream with the processed entries, and at
    /// an interval the durable checkpoint with the committed one. Returns `None` if PostgreSQL has another
    /// checkpoint, or if there is no position.
    // MODEL-12
    pub(super) async fn check_idle(&mut self) -> Result<Option<Idle>, StoreError> {
        let Some(position) = &mut self.position else { return Ok(None) };
        let processed = position.processed;
        if self.inspect_again_at.is_some_and(|at| Instant::now() < at) {
            return Ok(Some(Idle { processed, stream: StreamCheck::Continues, has_more: false }));
        }
        let state = self.intents.inspect().await?;
        let is_large = state.is_some_and(|state| state.copied_bytes > MAX_COPIED_BYTES);
        self.inspect_again_at = is_large.then(|| Instant::now() + LARGE_COPY_INTERVAL);
        // While no entries arrive, no transaction detects that PostgreSQL was restored to an older state.
        if position.checked_at.elapsed() > CHECKPOINT_CHECK_INTERVAL {
            let durable = self.store.load_checkpoint(&self.settings.stream).await?;
            if durable.map(|checkpoint| checkpoint.last_entry_id) != position.durable {
                return Ok(None);
            }
            position.checked_at = Instant::now();
        }
        let stream = checkpoint::check_stream(processed, state);
        // An entry that arrived since the read is also the first one, so only an empty stream shows a loss.
        if let (StreamCheck::Gap(first), true) = (stream, state.is_some_and(|state| state.first.is_none())) {
            self.report_gap(processed, first);
        }
        let has_more = state.is_some_and(|state| state.first.is_some() && state.last_generated > processed);
        Ok(Some(Idle { processed, stream, has_more }))
    }

    /// Runs maintenance concurrently with all other work. Correctness does not depend on it.
    pub(super) async fn maintain(&mut self) {
        self.save_server().await;
        self.move_cache().await;
        self.trim().await;
    }

    /// Saves the server of the stream, once the checkpoint belongs to that server. Until a batch moves the
    /// checkpoint of a recreated stream, the next term must also detect the recreation.
    async fn save_server(&mut self) {
        let is_settled =
            self.position.as_ref().is_some_and(|position| position.durable == Some(position.processed));
        let Some(server) = self.unsaved_server.take_if(|_| is_settled) else { return };
        if let Err(error) = self.store.save_intents_server(&self.settings.stream, &server).await {
            tracing::debug!(
                error = error_chain(&error),
                "the server of the intents stream was not saved; trying again"
            );
            self.unsaved_server = Some(server);
        }
    }

    /// Moves the cached checkpoint to the durable one, which may be before it. The durable one is
    /// authoritative, and the next batch writes a later one, so a failure is only reported.
    pub(super) async fn move_cache(&mut self) {
        let Some(position) = &mut self.position else { return };
        let Some(last_entry_id) = position.durable.filter(|durable| *durable != position.cached) else {
            return;
        };
        let goes_back = last_entry_id < position.cached;
        position.cached = last_entry_id;
        let stream = self.settings.stream.as_str();
        let checkpoint = Checkpoint { fence: self.fence, last_entry_id };
        let moved = match goes_back {
            true => self.cache.reset(stream, checkpoint).await,
            false => self.cache.save(stream, checkpoint).await,
        };
        match moved {
            Ok(Swap::Applied) => {}
            Ok(Swap::Conflict) => tracing::warn!(
                stream,
                checkpoint = %last_entry_id,
                "the checkpoint cached in Redis is another leader's; it is not changed"
            ),
            Err(error) => {
                tracing::warn!(
                    error = error_chain(&error),
                    "the checkpoint cached in Redis could not be moved"
                );
            }
        }
    }

    /// Removes processed entries that are past their retention. The last processed entry is kept, regardless
    /// of its age, because the stream is compared with it.
    async fn trim(&mut self) {
        let (Some(retention), Some(position)) = (self.settings.stream_retention, &self.position) else {
            return;
        };
        let is_due = self.trimmed_at.is_none_or(|at| at.elapsed() >= TRIM_INTERVAL);
        if !is_due || position.durable != Some(position.processed) {
            return;
        }
        self.trimmed_at = Some(Instant::now());
        let oldest = (self.clock.now() - retention).as_millis();
        let oldest = EntryId::new(u64::try_from(oldest).unwrap_or(0), 0);
        let before = oldest.min(position.processed);
        let stream = self.settings.stream.as_str();
        match self.intents.trim(before).await {
            Ok(0) => {}
            Ok(entries) => {
                tracing::info!(stream, entries, %before, "processed entries past their retention were removed");
            }
            Err(error) => {
                tracing::warn!(stream, error = error_chain(&error), "the stream could not be trimmed");
            }
        }
    }
}
