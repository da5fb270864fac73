//! Reading what became of notifications, for operators and producers.

use std::future::Future;
use std::time::Duration;

use ambient::Timestamp;

use super::StoreError;
use crate::entry::EntryId;
use crate::query::{
    Causes, DeadLetter, DeadLetterCause, DeadLetterFilter, DeadLetterPlace, EntryLook, IntentTrace,
    LeaderTerm, MalformedCause, MalformedFilter, MalformedPlace, MalformedSummary, NotificationDetail,
    NotificationFilter, NotificationSummary, Page, PageLimit, SearchFilter, SearchOutcome, StoreStatus,
    StoredMalformedIntent, StreamBacklog, UnreadEntries,
};
use crate::record::{IdempotencyScope, NotificationId, Record, RecordCursor};

/// What the tables have. Every call but a search examines a bounded number of rows, however large the tables
/// are: a page may be short or empty and still have a next one.
pub trait Queries: Send + Sync {
    /// A notification with all its routes; `None` if there is none of this id.
    fn get_notification(
        &self,
        id: &NotificationId,
    ) -> impl Future<Output = Result<Option<NotificationDetail>, StoreError>> + Send;

    /// The records of the first [`MAX_RECORDS`](crate::query::MAX_RECORDS) of these ids, without their
    /// routes, in any order; an id without a record has none here.
    fn list_records(
        &self,
        ids: &[NotificationId],
    ) -> impl Future<Output = Result<Vec<Record>, StoreError>> + Send;

    /// Notifications that `filter` selects, the newest first, from after the place `after`. Stable while rows
    /// arrive: a page begins after a place, not at a number.
    fn list_notifications(
        &self,
        filter: &NotificationFilter,
        after: Option<&RecordCursor>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<Page<NotificationSummary, RecordCursor>, StoreError>> + Send;

    /// Notifications that the filter of a search selects, the newest first, from after the place `after`.
    /// Unlike the other calls it may examine every row: it is bounded by the time that a query may take.
    fn search_notifications(
        &self,
        filter: &SearchFilter,
        after: Option<&RecordCursor>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<SearchOutcome, StoreError>> + Send;

    /// Dead letters that `filter` selects, the newest first, from after the place `after`.
    fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterPlace>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<Page<DeadLetter, DeadLetterPlace>, StoreError>> + Send;

    /// The end of a selection of dead letters that has each one that exists, and none that follows: just
    /// after the newest, or `now` if there is none. Replicas write the times of dead letters by their own
    /// clocks, so that `now` by another clock is no end.
    fn end_of_dead_letters(
        &self,
        now: Timestamp,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        async move {
            let limit = PageLimit::new(1).unwrap_or_default();
            let newest = self.list_dead_letters(&DeadLetterFilter::default(), None, limit).await?;
            let newest = newest.items.first();
            Ok(newest.map_or(now, |newest| newest.created_at + Duration::from_micros(1)))
        }
    }

    /// Malformed intents that `filter` selects, the newest first, from after the place `after`.
    fn list_malformed_intents(
        &self,
        filter: &MalformedFilter,
        after: Option<&MalformedPlace>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<Page<MalformedSummary, MalformedPlace>, StoreError>> + Send;

    /// The malformed intents that came as the entry `entry_id` of `stream`: more than one if the stream was
    /// recreated. The newest first, at most 100; empty if there is none.
    fn get_malformed_intents(
        &self,
        stream: &str,
        entry_id: &str,
    ) -> impl Future<Output = Result<Vec<StoredMalformedIntent>, StoreError>> + Send;

    /// The trace of the intents with a key; the checkpoint is that of `stream`.
    fn get_intent_trace(
        &self,
        stream: &str,
        scope: &IdempotencyScope,
    ) -> impl Future<Output = Result<IntentTrace, StoreError>> + Send;

    /// The causes of the newest dead letters that no operator has discarded.
    fn count_dead_letters(&self) -> impl Future<Output = Result<Causes<DeadLetterCause>, StoreError>> + Send;

    /// The causes of the newest malformed intents.
    fn count_malformed_intents(
        &self,
    ) -> impl Future<Output = Result<Causes<MalformedCause>, StoreError>> + Send;

    /// What the tables know of the state of the service at `now`; the checkpoint is that of `stream`.
    fn status(
        &self,
        stream: &str,
        now: Timestamp,
    ) -> impl Future<Output = Result<StoreStatus, StoreError>> + Send;
}

/// What the intents stream has.
pub trait StreamQueries: Send + Sync {
    /// The stream after the entry `after`. At most 1,000 entries and 4 MiB are read; what is beyond is not
    /// counted.
    fn backlog(&self, after: EntryId) -> impl Future<Output = Result<StreamBacklog, StoreError>> + Send;

    /// Whether the stream has entries after the entry `after`. If it ends before `after`, it was recreated,
    /// and all of its entries count.
    fn has_unread(&self, after: EntryId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The entry `id`, and the stream as a whole.
    fn find_entry(&self, id: EntryId) -> impl Future<Output = Result<EntryLook, StoreError>> + Send;

    /// The first entries after `after`, within [`MAX_UNREAD_ENTRIES`](crate::query::MAX_UNREAD_ENTRIES) and
    /// [`MAX_UNREAD_BYTES`](crate::query::MAX_UNREAD_BYTES).
    fn list_unread(&self, after: EntryId) -> impl Future<Output = Result<UnreadEntries, StoreError>> + Send;
}

/// Who leads.
pub trait LeaderLookup: Send + Sync {
    /// The present term of the leader of intake; `None` if no replica leads. It may be over when the answer
    /// arrives.
    fn leader(&self) -> impl Future<Output = Result<Option<LeaderTerm>, StoreError>> + Send;

    /// When the last term ended if its leader did not end it, as after a crash or a hang. `None` if it is not
    /// over, if its leader ended it, as in a stop, or if there was none: then it is not known since when no
    /// replica leads.
    fn last_term_end(&self) -> impl Future<Output = Result<Option<Timestamp>, StoreError>> + Send;
}
