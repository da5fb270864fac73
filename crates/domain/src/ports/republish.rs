//! Republishing: the outbound streams as a whole, the published routes, and appending lost entries again.

use std::future::Future;
use std::time::Duration;

use ambient::Timestamp;

use super::{Append, DuePage, StoreError, Swap};
use crate::entry::EntryId;
use crate::outbound::OutboundEntry;
use crate::record::NotificationId;
use crate::republish::{OutboundState, SeenStream};
use crate::route::{Channel, Published, RouteKey};

/// The server of the outbound streams, and the streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutboundServer {
    /// Another one after each start of the server.
    pub run_id: String,
    /// Another one after a failover.
    pub replication_id: String,
    /// The key of each channel's stream and what it is; `None` if there is no such key.
    pub streams: Vec<(Channel, String, Option<OutboundState>)>,
}

/// Inspects the outbound streams as a whole, and appends the entries that they lost.
pub trait OutboundInspection: Send + Sync {
    /// The server and its streams at one moment. A server that is a replica is [`StoreError::Unavailable`].
    fn observe(&self) -> impl Future<Output = Result<OutboundServer, StoreError>> + Send;

    /// Which of these entries are in the stream of `channel` and are of these routes, in the order given, and the
    /// stream at that moment.
    fn find_entries(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, EntryId)],
    ) -> impl Future<Output = Result<(Option<OutboundState>, Vec<bool>), StoreError>> + Send;

    /// One atomic step for each entry: append it and write its receipt, which lives for `receipt_ttl`; a receipt whose
    /// entry is in the stream is returned instead, and a lease that a publisher holds is [`Append::LeaseLost`].
    fn append_again(
        &self,
        channel: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        receipt_ttl: Duration,
    ) -> impl Future<Output = Result<Vec<Append>, StoreError>> + Send;
}

/// A record's place in the order of acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordCursor {
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// Which one it is.
    pub notification_id: NotificationId,
}

impl RecordCursor {
    /// Before every record that was accepted at `accepted_at` or later.
    pub fn before(accepted_at: Timestamp) -> Self {
        Self { accepted_at, notification_id: NotificationId::from(String::new()) }
    }
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
    /// The last record of the page; `None` when this was the last page.
    pub next: Option<RecordCursor>,
}

/// What PostgreSQL knows of published entries and of the streams that had them.
pub trait RepublishStore: Send + Sync {
    /// The streams as they were last saved; those never saved are left out.
    fn load_outbound_streams(
        &self,
        streams: &[&str],
    ) -> impl Future<Output = Result<Vec<SeenStream>, StoreError>> + Send;

    /// Saves how the streams are seen now.
    fn save_outbound_streams(
        &self,
        seen: &[SeenStream],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Routes that were published at `since` or later, of at most `records` records that were accepted after `after` and
    /// no later than `until`, in the order of acceptance.
    fn list_published_entries(
        &self,
        since: Timestamp,
        after: &RecordCursor,
        until: Timestamp,
        records: usize,
    ) -> impl Future<Output = Result<PublishedPage, StoreError>> + Send;

    /// These routes as their publisher saw them, in any order; those that are not published are left out.
    fn get_published_routes(
        &self,
        keys: &[&RouteKey],
    ) -> impl Future<Output = Result<DuePage, StoreError>> + Send;

    /// Replaces the entry ids of published routes and changes nothing else but the version, a swap for each in the order
    /// given.
    fn replace_published_entries(
        &self,
        routes: &[Published],
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Swap>, StoreError>> + Send;
}
