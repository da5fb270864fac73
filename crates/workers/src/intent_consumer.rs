//! Stream entries → outcomes in PostgreSQL → publishers in memory → the bookmark in Redis.
//!
//! What is left when this dies: after the read, nothing; after the commit, a bookmark that is behind, which costs
//! nothing, because PostgreSQL knows the progress of its own (`intake`) and has the last word. The steps of one batch:
//! look up the recipients → decide → one transaction → hand over → bookmark. Which keys are taken is found out by the
//! transaction itself, and asked beforehand only where it matters (`settle`). A batch that PostgreSQL refuses is halved
//! until the one element is found that cannot be stored.
//!
//! While a batch is settled, the next is read, if the last read says that there is one, and the bookmark of the one before
//! is moved: Redis has both done while PostgreSQL commits.

mod resume;
mod settle;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ambient::Clock;
use domain::accept::{self, Decoded, Policy, Settled, Wait};
use domain::entry::{EntryId, RawEntry};
use domain::malformed::{FailureCode, MalformedIntent, Rejection};
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, Bookmark, Claim, Commit, Election, Fence, IntentStream, Known, Lookup,
    OffsetStore, Progress, StoreError, StreamState, Swap, Term, UserDirectory, error_chain,
};
use futures_util::future::{join, join3};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::handover::Handover;
use crate::metrics::Metrics;
use crate::status::Status;
use crate::worker::{SPANS, Trouble, pause};

/// The most that goes into one transaction, besides the configured number of entries.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
const BATCH_ROUTES: usize = 4_096;
/// How many entries are asked for before their size is known, and the most that are asked for at once: the next ones may be
/// a thousand times as large as the last.
const FIRST_COUNT: usize = 16;
const LARGEST_COUNT: usize = 256;
/// How often an idle intake makes sure that PostgreSQL still knows the progress.
const PROGRESS_LOOK: Duration = Duration::from_secs(10);
/// How often a batch may lose a race for its keys before the loop starts over.
const RACES: usize = 5;

/// What holds intake up that finds its position and loses it at once.
const LOST_AGAIN: &str = "the progress or the stream is another with each look";

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
    /// How the next read goes.
    reads: Reads,
    /// Whether known keys are looked for before the next batch is decided: the one before had some, or the directory objected
    /// to it, and what has just happened is likely to happen again.
    look_first: bool,
    /// The bookmark has yet to be moved here.
    to_bookmark: Option<EntryId>,
    /// A gap up to this id has been reported.
    gap_reported: EntryId,
}

/// How much to read at once, by what came last.
#[derive(Clone, Copy)]
struct Reads {
    /// How many entries the next read asks for.
    count: usize,
    /// The last read got all that it asked for: there is more to read.
    more: bool,
}

/// An entry that was read and has no outcome yet.
struct Ahead {
    decoded: Decoded,
    read_at: Instant,
    span: Span,
}

impl Ahead {
    fn new(entry: RawEntry, policy: &Policy, read_at: Instant) -> Self {
        let span = tracing::info_span!(target: SPANS, "intent", entry_id = %entry.id, outcome = tracing::field::Empty);
        Self { decoded: accept::decode(entry, policy), read_at, span }
    }
}

impl Reads {
    fn new(count: usize) -> Self {
        Self { count, more: false }
    }

    /// Asks for as many next time as will stay within the bytes of a transaction, if they are like these.
    fn got(&mut self, entries: &[Ahead]) {
        let average = (bytes_of(entries) / entries.len().max(1)).max(1);
        self.more = entries.len() == self.count;
        self.count = (BATCH_BYTES / average).min(self.count * 4).clamp(1, LARGEST_COUNT);
    }
}

fn bytes_of(entries: &[Ahead]) -> usize {
    entries.iter().map(|ahead| ahead.decoded.entry.fields.size()).sum()
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
        // Said from the start, so that "nobody leads" is a sum of 0 and not the want of any figure.
        self.metrics.leads(false);
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
        let mut first_count = FIRST_COUNT;
        let mut lost = false;
        while !over.is_cancelled() {
            let result = match &mut position {
                None => match over.run_until_cancelled(self.resume(fence, first_count)).await {
                    None => break,
                    // Whether that helps, the next pass tells.
                    Some(Ok(Some(found))) => {
                        position = Some(found);
                        continue;
                    }
                    Some(Ok(None)) => break,
                    Some(Err(error)) => Err(error),
                },
                Some(position) => self.run_once(position, over).await,
            };
            let wait = match result {
                Ok(Pass::Onward) => {
                    lost = false;
                    trouble.clear();
                    self.status.passed();
                    continue;
                }
                Ok(Pass::Lost) => {
                    position = None;
                    // Once is how another consumer or stream is found out; again, with nothing settled in between, is trouble.
                    if !std::mem::replace(&mut lost, true) {
                        continue;
                    }
                    self.status.fails(LOST_AGAIN);
                    trouble.note_text(LOST_AGAIN.to_owned())
                }
                Ok(Pass::Waiting(wait)) => {
                    self.status.waits(&wait);
                    trouble.note_wait(&wait)
                }
                Err(error) => {
                    self.status.fails(&error_chain(&error));
                    // The stream may have changed while it could not be reached: look again before reading on. And what
                    // could not be read was perhaps too much.
                    let count = position.take().map_or(first_count, |position| position.reads.count);
                    first_count = (count / 2).clamp(1, FIRST_COUNT);
                    trouble.note(&error)
                }
            };
            pause(over, wait).await;
        }
        if let Some(position) = &mut position {
            self.move_bookmark(fence, position.to_bookmark.take()).await;
        }
    }

    async fn run_once(&self, position: &mut Position, stop: &CancellationToken) -> Result<Pass, StoreError> {
        if position.ahead.is_empty() {
            let bookmark = position.to_bookmark.take();
            let reading = self.read(position.read_to(), position.reads.count, self.settings.block);
            let reading = stop.run_until_cancelled(reading);
            let (entries, ()) = join(reading, self.move_bookmark(position.fence, bookmark)).await;
            let Some(entries) = entries else { return Ok(Pass::Onward) };
            let entries = entries?;
            position.reads.got(&entries);
            if entries.is_empty() {
                return self.look_around(position).await;
            }
            position.ahead.extend(entries);
        }
        let bookmark = position.to_bookmark.take();
        let length = batch_length(&position.ahead, self.settings.batch_size);
        let (fence, reads) = (position.fence, position.reads);
        let read_on = (position.ahead.len() == length).then(|| position.read_to());
        let batch: Vec<Ahead> = position.ahead.drain(..length).collect();
        let (pass, read, ()) = join3(
            self.settle(position, batch, stop),
            self.read_on(read_on, reads),
            self.move_bookmark(fence, bookmark),
        )
        .await;
        let pass = pass?;
        let (entries, reads) = read?;
        position.ahead.extend(entries);
        position.reads = reads;
        Ok(pass)
    }

    /// What is there already behind `after`, up to a full transaction and in reads of which none is large; nothing if the last
    /// read says that there is no more.
    async fn read_on(
        &self,
        after: Option<EntryId>,
        mut reads: Reads,
    ) -> Result<(Vec<Ahead>, Reads), StoreError> {
        let mut read = Vec::new();
        let Some(mut after) = after else { return Ok((read, reads)) };
        while reads.more && read.len() < self.settings.batch_size && bytes_of(&read) < BATCH_BYTES {
            let entries = self.read(after, reads.count, Duration::ZERO).await?;
            reads.got(&entries);
            after = entries.last().map_or(after, |last| last.decoded.entry.id);
            read.extend(entries);
        }
        Ok((read, reads))
    }

    async fn read(&self, after: EntryId, count: usize, block: Duration) -> Result<Vec<Ahead>, StoreError> {
        let entries = self.intents.read(after, count, block).await?;
        let read_at = Instant::now();
        Ok(entries.into_iter().map(|entry| Ahead::new(entry, &self.policy, read_at)).collect())
    }

    /// A hint only: PostgreSQL knows the progress, and the next batch writes a later one.
    async fn move_bookmark(&self, fence: Fence, to: Option<EntryId>) {
        let Some(offset) = to else { return };
        let stream = self.settings.stream.as_str();
        match self.offsets.save(stream, Progress { fence, last_entry_id: offset }).await {
            Ok(Swap::Applied) => {}
            Ok(Swap::Conflict) => {
                tracing::warn!(stream, %offset, "the offset in Redis is another consumer's: left alone");
            }
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "the offset in Redis could not be moved");
            }
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

#[cfg(test)]
mod tests;
