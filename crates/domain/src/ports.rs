//! What the workers ask of the world, in domain types only.
//!
//! A port is shaped by the worker that calls it and takes and gives batches, with an outcome for each element.
//! Expected outcomes are values; `Err` is for what nobody planned. Every implementation puts a deadline on every
//! call; a call that ran into it is [`StoreError::Unavailable`] and may or may not have been carried out.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use ambient::Timestamp;

use crate::accept::Settled;
use crate::entry::{EntryId, RawEntry};
use crate::outbound::OutboundEntry;
use crate::record::{IdempotencyScope, NotificationId};
use crate::route::{Channel, LiveRoute, RouteKey, Version};

/// What went wrong below a port.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The dependency cannot be reached, is too slow, or is in no state to serve. Try again later.
    #[error("could not {operation}")]
    Unavailable {
        /// What was being done.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: BoxError,
    },
    /// The dependency is well and refuses what it was given: trying the same again will not help.
    #[error("{operation} was refused")]
    Refused {
        /// What was being done.
        operation: &'static str,
        /// Why it was refused.
        #[source]
        source: BoxError,
    },
    /// A row or key holds what this service never writes.
    #[error("{place} of {key} is corrupt: {problem}")]
    Corrupt {
        /// `table.column`, or the kind of key.
        place: &'static str,
        /// Which row.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// An error and its causes in one line, each said once.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What became of a conditional write.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swap {
    /// Written, or already exactly as intended.
    Applied,
    /// Someone else was there first; nothing was written.
    Conflict,
}

/// The fencing token of the intake's leader; 0 where nobody elects one.
pub type Fence = u64;

/// The highest fence that an election gives out: a higher one was written by nobody who was elected.
pub const FENCE_MAX: Fence = 900_000_000_000_000;

/// How far intake has got, by PostgreSQL's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The fence of whoever wrote it.
    pub fence: Fence,
    /// Everything up to and including this entry has its outcome.
    pub last_entry_id: EntryId,
}

/// What PostgreSQL knows about the entries of a batch before it is decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// The fingerprints of the keys that are taken.
    pub fingerprints: HashMap<IdempotencyScope, String>,
    /// For entry ids that belong to another intent: the number to put behind them.
    pub taken_ids: HashMap<EntryId, u32>,
}

/// Settled entries on their way into one transaction.
#[derive(Debug)]
pub struct AcceptanceBatch<'a> {
    /// The intents stream.
    pub stream: &'a str,
    /// The fence of this consumer.
    pub fence: Fence,
    /// What the progress must still be: where the batch goes on. `None` if the stream was never read.
    pub after: Option<EntryId>,
    /// The last entry of the batch, beyond `after`: the new progress.
    pub last_entry_id: EntryId,
    /// What was decided, in stream order.
    pub settled: &'a [Settled],
}

/// What became of a batch.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Commit {
    /// Committed whole.
    Done,
    /// Nothing was written: a key or an id was taken since [`AcceptanceStore::find_known`]. Ask again.
    Raced,
    /// Nothing was written: the progress is not what this consumer left it at. Another consumer has been here, with a
    /// higher fence or not, or PostgreSQL was set back to an older state.
    Moved,
}

/// What a consumer finds that begins to lead.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The stream was never read.
    Unread,
    /// It was read up to here, and nobody with a lower fence will move it any more.
    At(EntryId),
    /// Somebody with this higher fence leads.
    Deposed(Fence),
}

/// Where acceptance becomes a fact.
pub trait AcceptanceStore: Send + Sync {
    /// Which of these intents' keys are taken, and for those whose key is not, whether their entry id is.
    fn find_known(
        &self,
        intents: &[(IdempotencyScope, EntryId)],
    ) -> impl Future<Output = Result<Known, StoreError>> + Send;

    /// One transaction: progress, records, routes, malformed rows. All of it or nothing.
    fn accept(&self, batch: AcceptanceBatch<'_>) -> impl Future<Output = Result<Commit, StoreError>> + Send;

    /// Writes `fence` over the fence of whoever moved the progress last, so that they can move it no more, and says
    /// where it stands.
    fn claim_progress(
        &self,
        stream: &str,
        fence: Fence,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// How far intake of `stream` has got; `None` if it never began.
    fn load_progress(
        &self,
        stream: &str,
    ) -> impl Future<Output = Result<Option<Progress>, StoreError>> + Send;

    /// Starts `stream` over, because it was made anew. A conflict if a higher fence has been there.
    fn restart_progress(
        &self,
        stream: &str,
        fence: Fence,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;
}

/// A position in the list of due routes: the listing goes on behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueCursor {
    /// When the last listed route was due.
    pub next_attempt_at: Timestamp,
    /// Which one it was.
    pub key: RouteKey,
}

/// One page of due routes.
#[derive(Debug, Default)]
pub struct DuePage {
    /// The routes that could be read.
    pub routes: Vec<LiveRoute>,
    /// The rows that could not; each harms only itself.
    pub corrupt: Vec<StoreError>,
    /// Where the next page begins; `None` when this was the last.
    pub next: Option<DueCursor>,
}

/// A route whose entry is in its outbound stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published<'a> {
    /// Which route.
    pub key: &'a RouteKey,
    /// The version that was published.
    pub version: Version,
    /// The id of its entry.
    pub entry_id: String,
}

/// A route whose attempt failed, and what was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Which route.
    pub key: RouteKey,
    /// The version that was tried.
    pub version: Version,
    /// Its channel.
    pub channel: Channel,
    /// Failed attempts including this one.
    pub attempt_count: u32,
    /// When to try again; `None` makes it a dead letter.
    pub retry_at: Option<Timestamp>,
    /// `payload_encoding_failed`, `gateway_stream_publish_failed` or `mail_stream_publish_failed`.
    pub classification: &'static str,
    /// What happened, for a person; never a payload or an address.
    pub message: String,
}

/// The state of routes. Every change names the version it was decided on.
pub trait RouteStore: Send + Sync {
    /// Routes of `channel` that are due at `now`, the longest due first, from behind `after` on.
    fn list_due_routes(
        &self,
        channel: Channel,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// For each channel, when its first live route is or was due.
    fn next_due(&self) -> impl Future<Output = Result<HashMap<Channel, Timestamp>, StoreError>> + Send;

    /// How many routes are due at `now`, counted no further than `cap`.
    fn count_due_routes(
        &self,
        now: Timestamp,
        cap: usize,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// These routes as they are now, in any order; those no longer live are left out.
    fn get_live_routes(&self, keys: &[&RouteKey])
    -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// Marks routes published, a swap for each in the order given.
    fn complete_routes_published(
        &self,
        routes: &[Published<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Swap>, StoreError>> + Send;

    /// Schedules the retry of routes or makes them dead letters, a swap for each in the order given.
    fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Swap>, StoreError>> + Send;
}

/// A record that retention may remove.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expired {
    /// Which record.
    pub notification_id: NotificationId,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// How many routes go with it.
    pub routes: u64,
    /// How many of them are pending or failed: if any, the record stays.
    pub live_routes: u64,
}

/// What retention removes.
pub trait RetentionStore: Send + Sync {
    /// Records accepted before `cutoff`, oldest first, from behind `after` on.
    fn list_expired_records(
        &self,
        cutoff: Timestamp,
        after: Option<&Expired>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Expired>, StoreError>> + Send;

    /// Removes those of the records that were accepted before `cutoff` and have no live route.
    fn delete_records(
        &self,
        ids: &[NotificationId],
        cutoff: Timestamp,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Removes up to `limit` malformed intents recorded before `cutoff`, oldest first.
    fn delete_malformed_intents(
        &self,
        cutoff: Timestamp,
        limit: usize,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// The token by which a publisher knows its own leases: one for each chunk.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaseToken(pub String);

/// What was found where a lease was wanted.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lease {
    /// This token holds it.
    Won,
    /// Someone else is at work on the route.
    Held,
    /// The route's entry is in the stream already, under this id.
    Published(String),
}

/// What became of one append.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Append {
    /// The entry is in the stream under this id, now or from an earlier call.
    Done(String),
    /// The lease had run out; nothing was appended.
    LeaseLost,
    /// The stream itself answered with an error: a failed attempt.
    Refused(String),
    /// Redis is in no state to append (memory, read-only, loading): not an attempt.
    Outage(String),
}

/// The exclusivity of publishing, and its receipts.
pub trait LeaseStore: Send + Sync {
    /// Takes the leases for `token`, or finds them already its own (and renews them).
    fn acquire_leases(
        &self,
        keys: &[&RouteKey],
        token: &LeaseToken,
        ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Lease>, StoreError>> + Send;

    /// Gives up those of the leases that `token` still holds.
    fn release_leases(
        &self,
        keys: &[&RouteKey],
        token: &LeaseToken,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes the turn at the due routes of `channel`, for at most `ttl`; false if another replica has it. A hint: it keeps
    /// replicas from reading the same page and asking for the same leases.
    fn take_turn(
        &self,
        channel: Channel,
        token: &LeaseToken,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Gives the turn up if `token` still has it.
    fn end_turn(
        &self,
        channel: Channel,
        token: &LeaseToken,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps receipts alive while their completion cannot be committed, writing anew those that are gone.
    fn extend_receipts(
        &self,
        receipts: &[(&RouteKey, &str)],
        ttl: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The outbound streams.
pub trait Outbound: Send + Sync {
    /// One atomic step for each entry: the lease is still `token`'s → append → the lease becomes the receipt, which
    /// lives for `dedupe_ttl`. Outcomes are in the order given.
    fn append(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        dedupe_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Append>, StoreError>> + Send;
}

/// What Redis says about a stream as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamState {
    /// The first entry that is still there.
    pub first: Option<EntryId>,
    /// The last id that the stream ever gave; zero if there is no stream.
    pub last_generated: EntryId,
}

/// The intents stream.
pub trait IntentStream: Send + Sync {
    /// Entries after `after`, at most `count`; waits up to `block` for the first, which may be no time at all. Empty if
    /// none came.
    fn read(
        &self,
        after: EntryId,
        count: usize,
        block: Duration,
    ) -> impl Future<Output = Result<Vec<RawEntry>, StoreError>> + Send;

    /// The id of the first entry behind `after`, without waiting for one.
    fn first_after(&self, after: EntryId)
    -> impl Future<Output = Result<Option<EntryId>, StoreError>> + Send;

    /// The stream as a whole.
    fn inspect(&self) -> impl Future<Output = Result<StreamState, StoreError>> + Send;
}

/// A term of office: for as long as it lasts, no other process has one with a higher fence.
pub trait Term: Send + Sync {
    /// Higher than that of every term before it.
    fn fence(&self) -> Fence;

    /// Resolves when the term can no longer be relied on: before it ends for the others, by this process's own clock.
    fn lost(&self) -> impl Future<Output = ()> + Send;

    /// Ends the term, so that another process need not wait for that.
    fn resign(self) -> impl Future<Output = ()> + Send;
}

/// Who does what only one process may do at a time.
pub trait Election: Send + Sync {
    /// What the winner has.
    type Term: Term;

    /// Stands for office once. `None` if somebody holds it.
    fn stand(&self) -> impl Future<Output = Result<Option<Self::Term>, StoreError>> + Send;

    /// Returns when it may be worth standing again: soon after a resignation or the end of a term, else now and then.
    fn vacancy(&self) -> impl Future<Output = ()> + Send;

    /// Makes the fences of all terms to come higher than `floor`: for a database that was set back.
    fn raise_above(&self, floor: Fence) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// What was found where the bookmark is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bookmark {
    /// An offset and the fence it was written under.
    At(Progress),
    /// Nothing.
    Missing,
    /// Something that is no offset.
    Garbled(String),
}

/// The bookmark in Redis: a hint, PostgreSQL has the last word.
pub trait OffsetStore: Send + Sync {
    /// Reads the bookmark.
    fn load(&self, stream: &str) -> impl Future<Output = Result<Bookmark, StoreError>> + Send;

    /// Moves the bookmark on. A conflict if a higher fence is there, or if, under the same fence, it would not advance.
    fn save(&self, stream: &str, progress: Progress)
    -> impl Future<Output = Result<Swap, StoreError>> + Send;

    /// Puts the bookmark anywhere, back too, unless a higher fence is there: for a stream that was made anew, and for
    /// a new leader that writes its fence over the current offset.
    fn reset(
        &self,
        stream: &str,
        progress: Progress,
    ) -> impl Future<Output = Result<Swap, StoreError>> + Send;
}

/// A user as the directory knows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct User {
    /// May be empty.
    pub email: String,
    /// A language tag; may be empty.
    pub preferred_language: String,
}

/// What the directory said about one user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// There is such a user.
    Found(User),
    /// There is no such user.
    Missing,
    /// The directory gave no answer that can be used; this is why.
    Unavailable(String),
}

/// The user directory.
pub trait UserDirectory: Send + Sync {
    /// Looks up each user, concurrently within a bound; the answers are in the order asked.
    fn look_up(&self, user_ids: &[&str]) -> impl Future<Output = Vec<Lookup>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failure {
        text: &'static str,
        source: Option<Box<Failure>>,
    }

    #[test]
    fn a_chain_says_each_cause_once() {
        let cause = Failure { text: "connection refused", source: None };
        let middle = Failure { text: "error connecting: connection refused", source: Some(Box::new(cause)) };
        let error = Failure { text: "could not accept", source: Some(Box::new(middle)) };
        assert_eq!(error_chain(&error), "could not accept: error connecting: connection refused");
    }
}
