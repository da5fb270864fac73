//! Republishing: the outbound streams as a whole, the published routes, and appending lost entries again.

use std::future::Future;
use std::time::Duration;

use ambient::Timestamp;

use super::{Append, Completion, DuePage, Leasable, StoreError};
use crate::entry::EntryId;
use crate::outbound::OutboundEntry;
use crate::record::RecordCursor;
use crate::republish::{EntryState, OutboundState, SeenStream, ServerId, entry_state};
use crate::route::{Channel, Published, RouteKey};

/// An outbound stream and its server at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedStream {
    /// The channel of the stream.
    pub channel: Channel,
    /// The key of the stream.
    pub stream: String,
    /// The server that has the stream.
    pub server: ServerId,
    /// The state of the stream; `None` if the key does not exist.
    pub state: Option<OutboundState>,
}

/// The result of looking for entries in a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundEntries {
    /// The server at the time of the search.
    pub server: ServerId,
    /// The stream at the time of the search; `None` if the key does not exist.
    pub stream: Option<OutboundState>,
    /// The fate of each entry, in the given order.
    pub states: Vec<EntryState>,
}

impl FoundEntries {
    /// Creates the result. `present` has one flag for each of `entries`: true if it is in the stream and
    /// belongs to its route.
    pub fn new(
        server: ServerId,
        stream: Option<OutboundState>,
        entries: &[(&RouteKey, EntryId)],
        present: impl IntoIterator<Item = bool>,
    ) -> Self {
        let state = |((_, id), present): (&(_, EntryId), bool)| entry_state(*id, present, stream.as_ref());
        let states = entries.iter().zip(present).map(state).collect();
        Self { server, stream, states }
    }
}

/// The most entries that callers search for with one call of [`OutboundInspection::find_entries`]. The call
/// blocks the server.
pub const MAX_FOUND_ENTRIES: usize = 256;

/// Inspects the outbound streams as a whole, and appends the entries that they lost.
pub trait OutboundInspection: Send + Sync {
    /// Returns the stream of `channel` and its server at one moment. [`StoreError::Unavailable`] if the
    /// server is a replica.
    fn observe(&self, channel: Channel) -> impl Future<Output = Result<ObservedStream, StoreError>> + Send;

    /// Searches for these entries of these routes in the stream of `channel`.
    fn find_entries(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> impl Future<Output = Result<FoundEntries, StoreError>> + Send;

    /// Searches like [`OutboundInspection::find_entries`], in the stream with this key.
    fn find_entries_in(
        &self,
        stream: &str,
        entries: &[(&RouteKey, EntryId)],
    ) -> impl Future<Output = Result<FoundEntries, StoreError>> + Send;

    /// For each entry, in one atomic step: appends it and writes its published marker, which expires after
    /// `marker_ttl`. If a marker exists whose entry is in the stream, that entry is returned instead,
    /// unless it is the entry that the lost one replaced. If a publisher holds a lease, the outcome is
    /// [`Append::LeaseLost`].
    fn append_again<R: Leasable>(
        &self,
        channel: Channel,
        entries: &[(&R, &OutboundEntry<'_>)],
        marker_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Append>, StoreError>> + Send;
}

/// A published route and its entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedEntry {
    /// The key of the route.
    pub key: RouteKey,
    /// The channel of the route.
    pub channel: Channel,
    /// The id of the entry.
    pub entry_id: EntryId,
}

/// One page of published routes.
#[derive(Debug, Default)]
pub struct PublishedPage {
    /// The routes that could be read.
    pub entries: Vec<PublishedEntry>,
    /// The rows that could not be read; the others are not affected.
    pub corrupt: Vec<StoreError>,
    /// The last record of the page, before which the next page begins; `None` when this was the last page.
    pub next: Option<RecordCursor>,
}

/// An outbound stream as last saved. Times are by PostgreSQL's clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedStream {
    /// The observed stream.
    pub seen: SeenStream,
    /// The time at which it was saved.
    pub seen_at: Timestamp,
    /// The start of a comparison that is to be repeated. It covers entries published from shortly before this
    /// time on.
    pub compare_again_since: Option<Timestamp>,
}

/// The published entries recorded in PostgreSQL, and the streams that had them.
pub trait RepublishStore: Send + Sync {
    /// Returns the streams as last saved. Streams never saved are left out.
    fn load_outbound_streams(
        &self,
        streams: &[&str],
    ) -> impl Future<Output = Result<Vec<SavedStream>, StoreError>> + Send;

    /// Saves the observation of each stream, and the time since which it is to be compared again.
    fn save_outbound_streams(
        &self,
        seen: &[(SeenStream, Option<Timestamp>)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records that a replica now publishes the routes of each channel to this stream.
    fn touch_outbound_names(
        &self,
        streams: &[(Channel, &str)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the streams to which replicas published at `since` or later, by PostgreSQL's clock.
    fn list_outbound_names(
        &self,
        since: Timestamp,
    ) -> impl Future<Output = Result<Vec<(Channel, String)>, StoreError>> + Send;

    /// Returns published routes of at most `records` records that come before `before` and were accepted at
    /// `since` or later, the newest record first.
    fn list_published_entries(
        &self,
        before: &RecordCursor,
        since: Timestamp,
        records: usize,
    ) -> impl Future<Output = Result<PublishedPage, StoreError>> + Send;

    /// Returns these routes as their publisher saw them, in any order. Routes that are not published are left
    /// out.
    fn get_published_routes(
        &self,
        keys: &[&RouteKey],
    ) -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// Replaces the entry ids of published routes and changes nothing else except the version. Returns an
    /// outcome for each, in the given order. Does not wait for rows that another transaction has locked.
    fn replace_published_entries(
        &self,
        routes: &[Published],
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;
}
