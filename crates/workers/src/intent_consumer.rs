//! Stream entries → outcomes in PostgreSQL → publishers in memory → the bookmark in Redis.
//!
//! What is left when this dies: after the read, nothing; after the commit, a bookmark that is behind, which costs
//! nothing, because PostgreSQL knows the progress of its own (`intake`) and has the last word. The steps of one batch:
//! ask which keys are known → look up the recipients of the others → decide → one transaction → hand over → bookmark.
//! A batch that PostgreSQL refuses is halved until the one element is found that cannot be stored.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ambient::Clock;
use domain::accept::{self, Decoded, Policy, Settled, Wait};
use domain::entry::EntryId;
use domain::malformed::{FailureCode, MalformedIntent, Rejection};
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, Bookmark, Claim, Commit, Election, Fence, IntentStream, Known, Lookup,
    OffsetStore, Progress, StoreError, StreamState, Swap, Term, UserDirectory,
};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::handover::Handover;
use crate::metrics::Metrics;
use crate::status::Status;
use crate::worker::{SPANS, Trouble, error_chain, pause};

/// The most that goes into one transaction, besides the configured number of entries.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
const BATCH_ROUTES: usize = 4_096;
/// How many entries are asked for before their size is known.
const FIRST_COUNT: usize = 16;
/// How often an idle intake makes sure that PostgreSQL still knows the progress.
const PROGRESS_LOOK: Duration = Duration::from_secs(10);
/// How often a batch may lose a race for its keys before the loop starts over.
const RACES: usize = 5;

/// What intake is told by configuration.
#[derive(Clone, Debug)]
pub struct IntakeSettings {
    /// The intents stream.
    pub stream: String,
    /// The most entries in one transaction.
    pub batch_size: usize,
    /// How long a read waits for the first entry.
    pub block: Duration,
}

/// The one loop that reads the intents stream.
#[derive(Debug)]
pub struct IntentConsumer<E, I, A, O, D, C> {
    /// Who of the replicas reads.
    pub election: E,
    /// The stream.
    pub intents: I,
    /// Where acceptance becomes a fact.
    pub store: A,
    /// The bookmark.
    pub offsets: O,
    /// Who the recipients are.
    pub directory: D,
    /// The time.
    pub clock: C,
    /// Which type may go to whom, and how.
    pub policy: Arc<Policy>,
    /// To the publishers of this replica.
    pub handover: Handover,
    /// Bounds.
    pub settings: IntakeSettings,
    /// What is counted.
    pub metrics: Metrics,
    /// How the loop stands.
    pub status: Status,
}

/// Where the loop is in the stream. Lost with the loop, and found again from the stores.
struct Position {
    /// The fence of this term.
    fence: Fence,
    /// Everything up to here has its outcome.
    settled: EntryId,
    /// The progress as PostgreSQL knows it; `None` if it knows none.
    progress: Option<EntryId>,
    /// When PostgreSQL was last asked for it, or told.
    progress_seen: Instant,
    /// Entries behind it that were read already.
    ahead: VecDeque<Ahead>,
    /// How many entries the next read asks for.
    count: usize,
    /// A gap up to this id has been reported.
    gap_reported: EntryId,
}

/// An entry that was read and has no outcome yet.
struct Ahead {
    decoded: Decoded,
    read_at: Instant,
    span: Span,
}

impl Position {
    fn read_to(&self) -> EntryId {
        self.ahead.back().map_or(self.settled, |last| last.decoded.entry.id)
    }
}

/// How a pass ended.
enum Pass {
    /// Go on at once.
    Onward,
    /// The first entry must wait.
    Waiting(Wait),
    /// The position is no longer known, because another consumer has been here or the stream was made anew.
    Lost,
}

impl<E, I, A, O, D, C> IntentConsumer<E, I, A, O, D, C>
where
    E: Election,
    I: IntentStream,
    A: AcceptanceStore,
    O: OffsetStore,
    D: UserDirectory,
    C: Clock,
{
    /// Runs until `stop`: waits to be elected, leads, and gives the office up. A transaction that has begun is finished.
    pub async fn run(self, stop: CancellationToken) {
        let mut trouble = Trouble::new("election");
        while !stop.is_cancelled() {
            let wait = match stop.run_until_cancelled(self.election.stand()).await {
                None => break,
                Some(Ok(Some(term))) => {
                    trouble.clear();
                    self.lead(term, &stop).await;
                    continue;
                }
                Some(Ok(None)) => {
                    trouble.clear();
                    self.status.passed();
                    stop.run_until_cancelled(self.election.vacancy()).await;
                    continue;
                }
                Some(Err(error)) => {
                    self.status.fails(&error_chain(&error));
                    trouble.note(&error)
                }
            };
            pause(&stop, wait).await;
        }
    }

    /// Reads until the service stops or the term is lost. The fence shuts out whoever led before, wherever they write.
    async fn lead<T: Term>(&self, term: T, stop: &CancellationToken) {
        let fence = term.fence();
        tracing::info!(stream = self.settings.stream, fence, "this replica leads the intake");
        self.status.leads(true);
        self.metrics.leads(true);
        let over = stop.child_token();
        let lost = async {
            tokio::select! {
                () = term.lost() => tracing::warn!(fence, "the lead of the intake is lost"),
                () = over.cancelled() => {}
            }
            over.cancel();
        };
        let reading = async {
            self.consume(fence, &over).await;
            over.cancel();
        };
        tokio::join!(lost, reading);
        self.status.leads(false);
        self.metrics.leads(false);
        term.resign().await;
    }

    /// Reads and settles until `over`, or until it finds that somebody with a higher fence leads.
    async fn consume(&self, fence: Fence, over: &CancellationToken) {
        let mut trouble = Trouble::new("intake");
        let mut position: Option<Position> = None;
        while !over.is_cancelled() {
            let result = match &mut position {
                None => match over.run_until_cancelled(self.resume(fence)).await {
                    None => break,
                    Some(Ok(Some(found))) => {
                        position = Some(found);
                        Ok(Pass::Onward)
                    }
                    Some(Ok(None)) => break,
                    Some(Err(error)) => Err(error),
                },
                Some(position) => self.run_once(position, over).await,
            };
            let wait = match result {
                Ok(Pass::Onward) => {
                    trouble.clear();
                    self.status.passed();
                    continue;
                }
                Ok(Pass::Lost) => {
                    position = None;
                    continue;
                }
                Ok(Pass::Waiting(wait)) => {
                    self.status.waits(&wait);
                    trouble.note_text(format!("entry {} must wait: {}", wait.entry_id, wait.cause))
                }
                Err(error) => {
                    self.status.fails(&error_chain(&error));
                    // The stream may have changed while it could not be reached: look again before reading on.
                    position = None;
                    trouble.note(&error)
                }
            };
            pause(over, wait).await;
        }
    }

    /// Finds out where to read on, and shuts out whoever led before. PostgreSQL has the last word; the bookmark counts
    /// where it has none. `None` if somebody with a higher fence leads.
    async fn resume(&self, fence: Fence) -> Result<Option<Position>, StoreError> {
        let stream = self.settings.stream.as_str();
        let progress = match self.store.claim_progress(stream, fence).await? {
            Claim::Unread => None,
            Claim::At(id) => Some(id),
            Claim::Deposed(higher) => return self.give_way(higher).await.map(|()| None),
        };
        let bookmark = self.offsets.load(stream).await?;
        let state = self.intents.inspect().await?;
        let mut position = Position {
            fence,
            settled: self.resume_after(progress, &bookmark),
            progress,
            progress_seen: Instant::now(),
            ahead: VecDeque::new(),
            count: FIRST_COUNT,
            gap_reported: EntryId::ZERO,
        };
        if state.last_generated < position.settled {
            self.start_over(&mut position, state).await?;
        } else {
            self.report_gap(&mut position, state);
        }
        let here = Progress { fence, last_entry_id: position.settled };
        if self.offsets.reset(stream, here).await? == Swap::Conflict
            && let Bookmark::At(mark) = self.offsets.load(stream).await?
        {
            return self.give_way(mark.fence).await.map(|()| None);
        }
        self.status.moved_to(position.settled);
        tracing::info!(stream, resume_after = %position.settled, fence, "intake reads the stream");
        Ok(Some(position))
    }

    fn resume_after(&self, progress: Option<EntryId>, bookmark: &Bookmark) -> EntryId {
        let stream = self.settings.stream.as_str();
        match (progress, bookmark) {
            (Some(progress), Bookmark::At(mark)) if mark.last_entry_id > progress => {
                tracing::warn!(
                    stream,
                    offset = %mark.last_entry_id,
                    resume_after = %progress,
                    "PostgreSQL is behind the offset in Redis: intake resumes from PostgreSQL"
                );
                progress
            }
            (Some(progress), Bookmark::At(_)) => progress,
            (Some(progress), Bookmark::Missing | Bookmark::Garbled(_)) => {
                tracing::warn!(
                    stream,
                    resume_after = %progress,
                    "the offset in Redis is lost or garbled: intake resumes from PostgreSQL"
                );
                progress
            }
            (None, Bookmark::At(mark)) => mark.last_entry_id,
            (None, Bookmark::Missing) => EntryId::ZERO,
            (None, Bookmark::Garbled(_)) => {
                tracing::warn!(
                    stream,
                    "the offset in Redis is garbled and PostgreSQL knows none: intake reads from the beginning"
                );
                EntryId::ZERO
            }
        }
    }

    /// A fence above our own, although we were elected: the database that gives fences out was set back, or the term is
    /// over and we have not noticed. The next term, whoever has it, will be above that fence.
    async fn give_way(&self, higher: Fence) -> Result<(), StoreError> {
        tracing::warn!(
            stream = self.settings.stream,
            fence = higher,
            "a higher fence is there: this replica gives way"
        );
        self.election.raise_above(higher).await
    }

    /// The stream was deleted and made anew: its ids begin again below what was read.
    async fn start_over(&self, position: &mut Position, state: StreamState) -> Result<(), StoreError> {
        let stream = self.settings.stream.as_str();
        tracing::warn!(stream, offset = %position.settled, last_generated = %state.last_generated,
            "the stream was made anew: intake reads it from the beginning");
        if self.store.restart_progress(stream, position.fence).await? == Swap::Conflict
            && self.store.load_progress(stream).await?.is_some()
        {
            let problem = "a consumer with a higher fence is at work".into();
            return Err(StoreError::Unavailable { operation: "start the intake over", source: problem });
        }
        position.settled = EntryId::ZERO;
        position.progress = position.progress.map(|_| EntryId::ZERO);
        position.ahead.clear();
        Ok(())
    }

    /// Entries that were trimmed before they were read are lost to the service; all it can do is say so.
    fn report_gap(&self, position: &mut Position, state: StreamState) {
        let after = position.settled;
        let gone_to = match state.first {
            Some(first) if first > after && after > EntryId::ZERO => first,
            None if state.last_generated > after && after > EntryId::ZERO => state.last_generated,
            _ => return,
        };
        if gone_to > position.gap_reported {
            position.gap_reported = gone_to;
            tracing::warn!(stream = self.settings.stream, after = %after, before = %gone_to,
                "the stream was trimmed past the offset: entries between these ids, if there were any, are lost");
        }
    }

    async fn run_once(&self, position: &mut Position, stop: &CancellationToken) -> Result<Pass, StoreError> {
        if position.ahead.is_empty() {
            let reading = self.intents.read(position.read_to(), position.count, self.settings.block);
            let Some(entries) = stop.run_until_cancelled(reading).await else { return Ok(Pass::Onward) };
            let entries = entries?;
            if entries.is_empty() {
                return self.look_around(position).await;
            }
            let read_at = Instant::now();
            let (read, bytes) =
                (entries.len(), entries.iter().map(|entry| entry.fields.size()).sum::<usize>());
            position.count = next_count(position.count, read, bytes, self.settings.batch_size);
            position.ahead.extend(entries.into_iter().map(|entry| {
                let span = tracing::info_span!(target: SPANS, "intent", entry_id = %entry.id, outcome = tracing::field::Empty);
                Ahead { decoded: accept::decode(entry, &self.policy), read_at, span }
            }));
        }
        let length = batch_length(&position.ahead, self.settings.batch_size);
        let batch: Vec<Ahead> = position.ahead.drain(..length).collect();
        self.settle(position, batch).await
    }

    /// Nothing came: is it still the stream that was read, and is nothing missing in it?
    async fn look_around(&self, position: &mut Position) -> Result<Pass, StoreError> {
        let state = self.intents.inspect().await?;
        if state.last_generated < position.settled {
            return Ok(Pass::Lost);
        }
        // While nothing comes, no transaction would notice that PostgreSQL was set back.
        if position.progress_seen.elapsed() > PROGRESS_LOOK {
            let progress = self.store.load_progress(&self.settings.stream).await?;
            if progress.map(|progress| progress.last_entry_id) != position.progress {
                return Ok(Pass::Lost);
            }
            position.progress_seen = Instant::now();
        }
        // An entry that came since the read shows as the first one, too: only a stream that is empty tells of a loss.
        if state.first.is_none() {
            self.report_gap(position, state);
        }
        Ok(Pass::Onward)
    }

    /// Brings a batch to its outcomes. What could not be settled goes back in front of what was read.
    async fn settle(&self, position: &mut Position, batch: Vec<Ahead>) -> Result<Pass, StoreError> {
        let mut batch = VecDeque::from(batch);
        let mut races = 0;
        let pass = loop {
            let decoded: Vec<&Decoded> = batch.iter().map(|ahead| &ahead.decoded).collect();
            if decoded.is_empty() {
                break Ok(Pass::Onward);
            }
            let known = self.find_known(&decoded).await;
            let mut decision = match known {
                Ok(known) => self.decide(&decoded, &known).await,
                Err(error) => break Err(error),
            };
            let mut done = 0;
            let written = self.write(position, &decoded, &mut decision.settled, &mut done).await;
            let rest = batch.split_off(done);
            self.finish(&batch, &decision.settled);
            batch = rest;
            match written {
                Ok(Commit::Done) => match decision.wait {
                    Some(wait) => break Ok(Pass::Waiting(wait)),
                    None => continue,
                },
                Ok(Commit::Raced) if races < RACES => races += 1,
                Ok(Commit::Raced | Commit::Moved) => break Ok(Pass::Lost),
                Err(error) => break Err(error),
            }
        };
        while let Some(ahead) = batch.pop_back() {
            position.ahead.push_front(ahead);
        }
        pass
    }

    async fn find_known(&self, batch: &[&Decoded]) -> Result<Known, StoreError> {
        let asked: Vec<_> = batch
            .iter()
            .filter_map(|decoded| {
                decoded.intent.as_ref().ok().map(|intent| (intent.scope(), decoded.entry.id))
            })
            .collect();
        self.store.find_known(&asked).await
    }

    async fn decide(&self, batch: &[&Decoded], known: &Known) -> accept::Decision {
        let ids = accept::users_needed(batch, known);
        let answers = if ids.is_empty() { Vec::new() } else { self.directory.look_up(&ids).await };
        let users: HashMap<&str, Lookup> = ids.into_iter().zip(answers).collect();
        // Read only now: looking up may have taken a while, and acceptance begins here.
        accept::decide(&self.settings.stream, batch, known, &users, &self.policy, self.clock.now())
    }

    /// Commits what was decided, in one transaction if PostgreSQL lets it, else in halves from left to right. `done`
    /// counts the entries that are committed, also when it fails in the middle.
    async fn write(
        &self,
        position: &mut Position,
        batch: &[&Decoded],
        settled: &mut [Settled],
        done: &mut usize,
    ) -> Result<Commit, StoreError> {
        let mut length = settled.len();
        while *done < settled.len() {
            let end = (*done + length).min(settled.len());
            let last_entry_id = batch[end - 1].entry.id;
            let chunk = AcceptanceBatch {
                stream: &self.settings.stream,
                fence: position.fence,
                after: position.progress,
                last_entry_id,
                settled: &settled[*done..end],
            };
            match self.store.accept(chunk).await {
                Ok(Commit::Done) => {
                    self.committed(position, &batch[*done..end], &settled[*done..end], last_entry_id).await;
                    *done = end;
                    // Behind the poison, whole batches again.
                    length = settled.len();
                }
                Ok(Commit::Moved) => {
                    tracing::warn!(
                        stream = self.settings.stream,
                        "the progress in PostgreSQL is not where this intake left it: it looks where to resume"
                    );
                    return Ok(Commit::Moved);
                }
                Ok(Commit::Raced) => return Ok(Commit::Raced),
                Err(StoreError::Refused { .. }) if end - *done > 1 => length = (end - *done) / 2,
                Err(error @ StoreError::Refused { .. }) => {
                    settled[*done] = self.not_storable(batch[*done], &settled[*done], &error)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Commit::Done)
    }

    /// What PostgreSQL refuses for one element alone is malformed, and if it refuses even that, its raw fields are cut.
    fn not_storable(
        &self,
        decoded: &Decoded,
        settled: &Settled,
        error: &StoreError,
    ) -> Result<Settled, StoreError> {
        let message = error_chain(error);
        match settled {
            Settled::Malformed(row) if row.rejection.code == FailureCode::NotStorable => {
                let reduced = row.reduced();
                if reduced == *row {
                    let source =
                        format!("entry {} cannot be written down at all: {message}", decoded.entry.id);
                    return Err(StoreError::Unavailable {
                        operation: "quarantine an entry",
                        source: source.into(),
                    });
                }
                Ok(Settled::Malformed(reduced))
            }
            _ => {
                let rejection = Rejection { code: FailureCode::NotStorable, message };
                let now = self.clock.now();
                Ok(Settled::Malformed(MalformedIntent::new(
                    &self.settings.stream,
                    &decoded.entry,
                    rejection,
                    now,
                )))
            }
        }
    }

    /// After the commit: publishers first, because they are what somebody waits for.
    async fn committed(
        &self,
        position: &mut Position,
        batch: &[&Decoded],
        settled: &[Settled],
        last: EntryId,
    ) {
        let acceptances = settled.iter().filter_map(|outcome| match outcome {
            Settled::Accepted(acceptance) => Some(acceptance),
            Settled::Duplicate | Settled::Malformed(_) => None,
        });
        let left = self.handover.offer(acceptances, Instant::now()).await;
        self.metrics.overflowed(left);
        self.report(batch, settled);
        position.settled = last;
        position.progress = Some(last);
        position.progress_seen = Instant::now();
        self.status.moved_to(last);
        let progress = Progress { fence: position.fence, last_entry_id: last };
        match self.offsets.save(&self.settings.stream, progress).await {
            Ok(swap) => self.bookmark(swap, last),
            // A hint only: PostgreSQL knows the progress, and the next batch writes a later one.
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "the offset in Redis could not be moved")
            }
        }
    }

    fn bookmark(&self, swap: Swap, offset: EntryId) {
        if swap == Swap::Conflict {
            tracing::warn!(stream = self.settings.stream, %offset, "the offset in Redis is another consumer's: left alone");
        }
    }

    fn report(&self, batch: &[&Decoded], settled: &[Settled]) {
        let mut counts: BTreeMap<(&'static str, &str, &str), u64> = BTreeMap::new();
        for (decoded, outcome) in batch.iter().zip(settled) {
            let intent = decoded.intent.as_ref().ok();
            let label = intent.map_or(("", ""), |intent| (&*intent.notification_type, &*intent.producer));
            *counts.entry((outcome.outcome(), label.0, label.1)).or_default() += 1;
            if let Settled::Malformed(row) = outcome {
                tracing::warn!(stream = row.stream, entry_id = %row.entry_id, failure_code = row.rejection.code.as_str(),
                    reason = row.rejection.message, "an entry was not accepted");
            }
        }
        self.metrics.settled(&counts);
    }

    fn finish(&self, batch: &VecDeque<Ahead>, settled: &[Settled]) {
        if let Some(first) = batch.front() {
            self.metrics.accepted_within(first.read_at.elapsed());
        }
        for (ahead, outcome) in batch.iter().zip(settled) {
            ahead.span.record("outcome", outcome.outcome());
        }
    }
}

/// How many of the entries that were read fit into one transaction; at least one.
fn batch_length(ahead: &VecDeque<Ahead>, batch_size: usize) -> usize {
    let (mut bytes, mut routes) = (0, 0);
    let fits = ahead.iter().take(batch_size).take_while(|entry| {
        bytes += entry.decoded.entry.fields.size();
        routes += entry.decoded.routes;
        bytes <= BATCH_BYTES && routes <= BATCH_ROUTES
    });
    fits.count().max(1)
}

/// How many entries to ask for so that a read stays within the bytes of a transaction, going by what has just come.
fn next_count(asked: usize, read: usize, bytes: usize, batch_size: usize) -> usize {
    let average = (bytes / read.max(1)).max(1);
    (BATCH_BYTES / average).min(asked.saturating_mul(4)).clamp(1, batch_size)
}

#[cfg(test)]
mod tests;
