//! The console's queries and sessions, behind a link.

use std::time::Duration;

use domain::entry::EntryId;
use domain::ports::{ActivityQueries, SessionHash, SessionStore, StoreError, StreamQueries, TokenHash};
use domain::query::{ActivityHistory, ActivityPeriod, EntryLook, StreamBacklog, UnreadEntries};

use super::{Link, Remote, texts};

impl<S: StreamQueries, L: Link> StreamQueries for Remote<S, L> {
    async fn backlog(&self, after: EntryId) -> Result<StreamBacklog, StoreError> {
        self.call("backlog", texts([after]), self.store.backlog(after)).await
    }

    async fn has_unread(&self, after: EntryId) -> Result<bool, StoreError> {
        self.call("has_unread", texts([after]), self.store.has_unread(after)).await
    }

    async fn find_entry(&self, id: EntryId) -> Result<EntryLook, StoreError> {
        self.call("find_entry", texts([id]), self.store.find_entry(id)).await
    }

    async fn list_unread(&self, after: EntryId) -> Result<UnreadEntries, StoreError> {
        self.call("list_unread", texts([after]), self.store.list_unread(after)).await
    }
}

impl<S: ActivityQueries, L: Link> ActivityQueries for Remote<S, L> {
    async fn activity(&self, period: ActivityPeriod) -> Result<ActivityHistory, StoreError> {
        self.call("activity", texts([period.as_str()]), self.store.activity(period)).await
    }
}

impl<S: SessionStore, L: Link> SessionStore for Remote<S, L> {
    async fn insert_session(
        &self,
        id: &SessionHash,
        token: &TokenHash,
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        self.call("insert_session", Vec::new(), self.store.insert_session(id, token, lifetime)).await
    }

    async fn get_session(&self, id: &SessionHash) -> Result<Option<TokenHash>, StoreError> {
        self.call("get_session", Vec::new(), self.store.get_session(id)).await
    }

    async fn delete_session(&self, id: &SessionHash) -> Result<u64, StoreError> {
        self.call("delete_session", Vec::new(), self.store.delete_session(id)).await
    }
}
