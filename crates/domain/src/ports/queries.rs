//! Read access to notifications for operators and producers.

use std::future::Future;
use std::time::Duration;

use ambient::Timestamp;

use super::StoreError;
use crate::catalog::Catalog;
use crate::conflict::Conflict;
use crate::entry::EntryId;
use crate::personal::{Document, Sight};
use crate::query::{
    ActionFilter, ActionPlace, Causes, DeadLetter, DeadLetterCause, DeadLetterFilter, DeadLetterPlace,
    EntryLook, IntentTrace, LeaderTerm, MalformedCause, MalformedFilter, MalformedPlace, MalformedSummary,
    Notification, NotificationFilter, NotificationSummary, Page, PageLimit, RecordedAction, SearchFilter,
    SearchOutcome, StoreStatus, StoredMalformedIntent, StreamBacklog, UnreadEntries,
};
use crate::record::{IdempotencyKey, NotificationId, Record, RecordCursor};
use crate::resubmit::ResubmittedOutcome;

/// Reads the tables. Every call except a search examines a bounded number of rows, however large the tables
/// are. A page may be short or empty and still have a next one.
pub trait Queries: Send + Sync {
    /// Returns a notification with all its routes; `None` if no notification has this id.
    fn get_notification(
        &self,
        id: &NotificationId,
    ) -> impl Future<Output = Result<Option<Notification>, StoreError>> + Send;

    /// Returns the records of the first [`MAX_RECORDS`](crate::query::MAX_RECORDS) of these ids, without
    /// their routes, in any order. Ids without a record are left out.
    fn list_records(
        &self,
        ids: &[NotificationId],
    ) -> impl Future<Output = Result<Vec<Record>, StoreError>> + Send;

    /// Returns the ids of the notifications with this request id or trace id, the newest first, at most
    /// [`MAX_RECORDS`](crate::query::MAX_RECORDS), among the newest
    /// [`TRACED_NOTIFICATIONS`](crate::find::TRACED_NOTIFICATIONS).
    fn list_traced(&self, id: &str) -> impl Future<Output = Result<Vec<NotificationId>, StoreError>> + Send;

    /// Returns notifications that `filter` selects, the newest first, starting after `after`. Pages stay
    /// stable while rows arrive, because a page begins after a position and not at a number.
    fn list_notifications(
        &self,
        filter: &NotificationFilter,
        after: Option<&RecordCursor>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<Page<NotificationSummary, RecordCursor>, StoreError>> + Send;

    /// Returns notifications that the filter of a search selects, the newest first, starting after `after`.
    /// Unlike the other calls it may examine every row. The query timeout bounds it.
    fn search_notifications(
        &self,
        filter: &SearchFilter,
        after: Option<&RecordCursor>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<SearchOutcome, StoreError>> + Send;

    /// Returns operators' actions that `filter` selects, the newest first, starting after `after`.
    fn list_actions(
        &self,
        filter: &ActionFilter,
        after: Option<&ActionPlace>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<Page<RecordedAction, ActionPlace>, StoreError>> + Send;

    /// Returns dead letters that `filter` selects, the newest first, starting after `after`.
    fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterPlace>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<Page<DeadLetter, DeadLetterPlace>, StoreError>> + Send;

    /// Returns the same as `list_dead_letters` to a reader with this sight; `None` if `after` was not made
    /// for such a reader.
    fn list_dead_letters_seen(
        &self,
        sight: Sight,
        filter: &DeadLetterFilter,
        mut after: Option<DeadLetterPlace>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<Option<Page<DeadLetter, DeadLetterPlace>>, StoreError>> + Send {
        async move {
            if sight == Sight::Whole {
                return self.list_dead_letters(filter, after.as_ref(), limit).await.map(Some);
            }
            if let Some(numbered) = after.take() {
                let found = self.get_notification(&numbered.key.notification_id).await?;
                after = numbered.resolved(found.as_ref());
                if after.is_none() {
                    return Ok(None);
                }
            }
            let Page { items, next } = self.list_dead_letters(filter, after.as_ref(), limit).await?;
            let next = match next {
                None => None,
                Some(place) => {
                    let found = self.get_notification(&place.key.notification_id).await?;
                    Some(place.numbered(found.as_ref()))
                }
            };
            Ok(Some(Page { items: items.seen_by(sight), next }))
        }
    }

    /// Returns the end of a selection that contains every existing dead letter and none that follows: just
    /// after the newest, or `now` if there is none. Replicas write the times of dead letters by their own
    /// clocks, so `now` of another clock cannot be the end.
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

    /// Returns the end of a selection that contains every existing notification: just after the newest, or
    /// `now` if there is none.
    fn end_of_notifications(
        &self,
        now: Timestamp,
    ) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        async move {
            let limit = PageLimit::new(1).unwrap_or_default();
            let newest = self.list_notifications(&NotificationFilter::default(), None, limit).await?;
            let newest = newest.items.first();
            Ok(newest.map_or(now, |newest| newest.accepted_at + Duration::from_micros(1)))
        }
    }

    /// Returns malformed intents that `filter` selects, the newest first, starting after `after`.
    fn list_malformed_intents(
        &self,
        filter: &MalformedFilter,
        after: Option<&MalformedPlace>,
        limit: PageLimit,
    ) -> impl Future<Output = Result<Page<MalformedSummary, MalformedPlace>, StoreError>> + Send;

    /// Returns the malformed intents of the entry `entry_id` of `stream`: more than one if the stream was
    /// recreated. The newest first, at most 100; empty if there is none.
    fn get_malformed_intents(
        &self,
        stream: &str,
        entry_id: &str,
    ) -> impl Future<Output = Result<Vec<StoredMalformedIntent>, StoreError>> + Send;

    /// Returns the record that holds the key.
    fn get_key_holder(
        &self,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send {
        async move {
            let filter = NotificationFilter {
                producer: Some(key.producer.clone()),
                idempotency_key: Some(key.key.clone()),
                ..NotificationFilter::default()
            };
            let limit = PageLimit::new(1).unwrap_or_default();
            let page = self.list_notifications(&filter, None, limit).await?;
            let ids: Vec<_> = page.items.into_iter().map(|item| item.notification_id).collect();
            Ok(if ids.is_empty() { None } else { self.list_records(&ids).await?.pop() })
        }
    }

    /// The same as [`Queries::get_malformed_intents`], with the conflicts of those that are one, and the
    /// outcomes of those that were resubmitted.
    fn get_malformed_details(
        &self,
        stream: &str,
        entry_id: &str,
        catalog: &Catalog,
    ) -> impl Future<Output = Result<Vec<StoredMalformedIntent>, StoreError>> + Send {
        async move {
            let mut found = self.get_malformed_intents(stream, entry_id).await?;
            for row in &mut found {
                if let Some(key) = Conflict::key(&row.summary) {
                    let holder = self.get_key_holder(&key).await?;
                    row.conflict = Some(Conflict::of(row, holder.as_ref(), catalog));
                }
                if let Some(new_id) = row.summary.resubmitted_entry_id.clone() {
                    let again = self.get_malformed_intents(stream, &new_id).await?;
                    let key = row.summary.idempotency_key();
                    let holder = self.get_key_holder(&key).await?;
                    row.resubmitted_outcome = ResubmittedOutcome::of(row, &again, holder.as_ref(), catalog);
                }
            }
            Ok(found)
        }
    }

    /// Returns the trace of the intents with a key, and the checkpoint of `stream`.
    fn get_intent_trace(
        &self,
        stream: &str,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<IntentTrace, StoreError>> + Send;

    /// Counts the newest dead letters that no operator has discarded, by cause.
    fn count_dead_letters(&self) -> impl Future<Output = Result<Causes<DeadLetterCause>, StoreError>> + Send;

    /// Counts the newest malformed intents, by cause.
    fn count_malformed_intents(
        &self,
    ) -> impl Future<Output = Result<Causes<MalformedCause>, StoreError>> + Send;

    /// Returns the state of the service at `now` according to the tables, and the checkpoint of `stream`.
    fn status(
        &self,
        stream: &str,
        now: Timestamp,
    ) -> impl Future<Output = Result<StoreStatus, StoreError>> + Send;
}

/// Reads the intents stream.
pub trait StreamQueries: Send + Sync {
    /// Returns the backlog after the entry `after`. At most 1,000 entries and 4 MiB are read; the rest is not
    /// counted.
    fn backlog(&self, after: EntryId) -> impl Future<Output = Result<StreamBacklog, StoreError>> + Send;

    /// Returns true if the stream has entries after the entry `after`. If it ends before `after`, it was
    /// recreated, and all of its entries count.
    fn has_unread(&self, after: EntryId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns the entry `id`, and the state of the whole stream.
    fn find_entry(&self, id: EntryId) -> impl Future<Output = Result<EntryLook, StoreError>> + Send;

    /// Returns the first entries after `after`, within
    /// [`MAX_UNREAD_ENTRIES`](crate::query::MAX_UNREAD_ENTRIES) and
    /// [`MAX_UNREAD_BYTES`](crate::query::MAX_UNREAD_BYTES).
    fn list_unread(&self, after: EntryId) -> impl Future<Output = Result<UnreadEntries, StoreError>> + Send;
}

/// Reads who leads intake, and when the last term ended.
pub trait LeaderLookup: Send + Sync {
    /// Returns the present term of the leader of intake; `None` if no replica leads. The term may be over
    /// when the caller receives it.
    fn leader(&self) -> impl Future<Output = Result<Option<LeaderTerm>, StoreError>> + Send;

    /// Returns the time at which the last term ended by itself, as after a crash or a hang. `None` if it is
    /// not over, if its leader ended it, as in a stop, or if there was none. Then the time since which no
    /// replica leads is unknown.
    fn last_term_end(&self) -> impl Future<Output = Result<Option<Timestamp>, StoreError>> + Send;
}
