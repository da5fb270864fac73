//! Republishing: the outbound streams as a whole, the published routes, and appending lost entries again.

use std::future::Future;
use std::time::Duration;

use ambient::Timestamp;

use super::{Append, Completion, DuePage, StoreError};
use crate::entry::EntryId;
use crate::outbound::OutboundEntry;
use crate::record::RecordCursor;
use crate::republish::{OutboundState, SeenStream, ServerId};
use crate::route::{Channel, Published, RouteKey};

/// The server of the outbound streams, and the streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboundServer {
    /// The server.
    pub server: ServerId,
    /// The key of each channel's stream and its state; `None` if there is no such key.
    pub streams: Vec<(Channel, String, Option<OutboundState>)>,
}

/// The result of looking for entries in a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundEntries {
    /// The server at that moment.
    pub server: ServerId,
    /// The stream at that moment; `None` if there is no such key.
    pub stream: Option<OutboundState>,
    /// For each entry, in the order given, whether it is in the stream and belongs to its route.
    pub present: Vec<bool>,
}

/// The most entries that callers look for with one call of [`OutboundInspection::find_entries`]: the server
/// does nothing else meanwhile.
pub const MAX_FOUND_ENTRIES: usize = 256;

/// Inspects the outbound streams as a whole, and appends the entries that they lost.
pub trait OutboundInspection: Send + Sync {
    /// The server and its streams at one moment. A server that is a replica is [`StoreError::Unavailable`].
    fn observe(&self) -> impl Future<Output = Result<OutboundServer, StoreError>> + Send;

    /// Looks for these entries of these routes in the stream of `channel`.
    fn find_entries(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> impl Future<Output = Result<FoundEntries, StoreError>> + Send;

    /// As [`OutboundInspection::find_entries`], in the stream with this key.
    fn find_entries_in(
        &self,
        stream: &str,
        entries: &[(&RouteKey, EntryId)],
    ) -> impl Future<Output = Result<FoundEntries, StoreError>> + Send;

    /// One atomic step for each entry: append it and write its receipt, which lives for `receipt_ttl`; a
    /// receipt whose entry is in the stream is returned instead, and a lease that a publisher holds is
    /// [`Append::LeaseLost`].
    fn append_again(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        receipt_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Append>, StoreError>> + Send;
}

/// A published route and where its entry was put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedEntry {
    /// Which route.
    pub key: RouteKey,
    /// Its channel.
    pub channel: Channel,
    /// The id of its entry.
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

/// An outbound stream as it was saved last. Times are those of PostgreSQL's clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedStream {
    /// The observation.
    pub seen: SeenStream,
    /// When it was saved.
    pub seen_at: Timestamp,
    /// A comparison is to be repeated, for entries published from shortly before this time on.
    pub compare_again_since: Option<Timestamp>,
}

/// The published entries that PostgreSQL knows, and the streams that had them.
pub trait RepublishStore: Send + Sync {
    /// The streams as they were last saved; those never saved are left out.
    fn load_outbound_streams(
        &self,
        streams: &[&str],
    ) -> impl Future<Output = Result<Vec<SavedStream>, StoreError>> + Send;

    /// Saves the observation of each stream, and since when it is to be compared again.
    fn save_outbound_streams(
        &self,
        seen: &[(SeenStream, Option<Timestamp>)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records that a replica publishes the routes of each channel to this stream now.
    fn touch_outbound_names(
        &self,
        streams: &[(Channel, &str)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The streams to which replicas published at `since` or later, by PostgreSQL's clock.
    fn list_outbound_names(
        &self,
        since: Timestamp,
    ) -> impl Future<Output = Result<Vec<(Channel, String)>, StoreError>> + Send;

    /// Published routes of at most `records` records before `before` that were accepted at `since` or later,
    /// the newest record first.
    fn list_published_entries(
        &self,
        before: &RecordCursor,
        since: Timestamp,
        records: usize,
    ) -> impl Future<Output = Result<PublishedPage, StoreError>> + Send;

    /// These routes as their publisher saw them, in any order; those that are not published are left out.
    fn get_published_routes(
        &self,
        keys: &[&RouteKey],
    ) -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// Replaces the entry ids of published routes and changes nothing else but the version, with an outcome
    /// for each in the order given. It does not wait for rows that another transaction has locked.
    fn replace_published_entries(
        &self,
        routes: &[Published],
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Completion>, StoreError>> + Send;
}
