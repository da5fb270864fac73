//! Finds the traces of an intent. The domain interprets them.

use std::collections::BTreeSet;

use ambient::Timestamp;
use domain::entry::{EntryId, RawFields};
use domain::explanation::intent::{
    Content, EntryFindings, Fate, KeyFindings, MAX_ID_NUMBERS, Reading, StreamPosition, entry_fates,
    key_fates, read_until, unread_with_key,
};
use domain::find::{FindQuery, TRACED_NOTIFICATIONS};
use domain::intent::decode;
use domain::outbound::route_of;
use domain::ports::{IntentStream, LeaderLookup, Queries, StoreError, StreamQueries, error_chain};
use domain::query::{
    ActionFilter, Counted, EntryLook, FoundEntry, MalformedFilter, MalformedPlace, MalformedSummary,
    NotificationFilter, PageLimit, Status, UnreadEntries,
};
use domain::record::{IdempotencyKey, NotificationId, Record};
use domain::route::RouteKey;

use super::{NamedStream, Search};

/// The most pages of malformed intents that are searched for a key.
const MAX_KEY_PAGES: usize = 10;
/// The most keys whose notifications are looked up for one entry.
const MAX_HOLDERS: usize = 20;

/// The places where an intent may have left a trace.
pub(super) struct Trail<'a, Q, S, L> {
    search: &'a Search<Q, S, L>,
    progress: StreamPosition,
    stream_error: Option<String>,
    searched: Vec<String>,
}

impl<'a, Q, S, L> Trail<'a, Q, S, L>
where
    Q: Queries,
    S: StreamQueries + IntentStream,
    L: LeaderLookup,
{
    /// Reads the position of the stream before anything is searched. An intent decided during the search is
    /// then found where it is stored.
    pub(super) async fn begin(search: &'a Search<Q, S, L>, now: Timestamp) -> Result<Self, StoreError> {
        let NamedStream { name, stream } = &search.intents;
        let store = search.queries.status(name, now).await?;
        let term = search.leader.leader().await?;
        let status = Status::new(store, term, None, None);
        let checkpoint = status.intake.checkpoint;
        let unread = async {
            let checkpoint = read_until(checkpoint, stream.inspect().await?);
            let unread = stream.list_unread(checkpoint.unwrap_or(EntryId::ZERO)).await?;
            Ok::<_, StoreError>((checkpoint, unread))
        };
        let (checkpoint, unread, stream_error) = match unread.await {
            Ok((checkpoint, unread)) => (checkpoint, Some(unread), None),
            Err(error) => (checkpoint, None, Some(error_chain(&error))),
        };
        let progress =
            StreamPosition { checkpoint, unread, leads: term.is_some(), waiting: status.intake.waiting };
        Ok(Self { search, progress, stream_error, searched: Vec::new() })
    }

    /// The places that were searched, and the error of Redis, if it is unavailable.
    pub(super) fn end(self) -> (Vec<String>, Option<String>) {
        (self.searched, self.stream_error)
    }

    /// Returns the fates of the intents that `reading` refers to.
    pub(super) async fn follow(
        &mut self,
        reading: &Reading,
        query: &FindQuery,
    ) -> Result<Vec<Fate>, StoreError> {
        let is_of = |name: &str| query.stream.as_deref().is_none_or(|stream| stream == name);
        match reading {
            Reading::Entry(id) if is_of(&self.search.intents.name) => self.entry(*id).await,
            Reading::Entry(_) => Ok(Vec::new()),
            Reading::Outbound(id) => {
                let mut fates = Vec::new();
                for stream in self.search.outbound.iter().filter(|stream| is_of(&stream.name)) {
                    fates.extend(self.outbound(stream, *id).await?);
                }
                Ok(fates)
            }
            Reading::Notification(id) => {
                self.searched.push(format!("notifications with the id {id}"));
                self.accepted(std::slice::from_ref(id)).await
            }
            Reading::Route(key) => self.route(key).await,
            Reading::Key(key) => self.key(key, query.producer.as_deref()).await,
            Reading::Trace(id) => {
                let newest = self.search.queries.list_traced(id).await?;
                self.searched.push(format!(
                    "request ids and trace ids of the newest {TRACED_NOTIFICATIONS} notifications"
                ));
                let mut fates = self.accepted(&newest).await?;
                fates.extend(self.change(id).await?);
                Ok(fates)
            }
        }
    }

    /// The change that an operator requested under this id.
    async fn change(&mut self, request_id: &str) -> Result<Option<Fate>, StoreError> {
        let filter = ActionFilter { request_id: Some(request_id.to_owned()), ..ActionFilter::default() };
        let page = self.search.queries.list_actions(&filter, None, PageLimit::default()).await?;
        self.searched.push("request ids of the newest actions of operators".to_owned());
        let count = page.items.iter().map(|action| action.affected).sum();
        let affected = Counted { count, capped: page.next.is_some() };
        let newest = page.items.into_iter().next();
        Ok(newest.map(|newest| Fate::Change { request_id: request_id.to_owned(), newest, affected }))
    }

    async fn accepted(&self, ids: &[NotificationId]) -> Result<Vec<Fate>, StoreError> {
        Ok(self.search.queries.list_records(ids).await?.iter().map(Fate::accepted).collect())
    }

    async fn route(&mut self, key: &RouteKey) -> Result<Vec<Fate>, StoreError> {
        let id = &key.notification_id;
        self.searched.push(format!("the routes of the notification {id}"));
        let found = self.search.queries.get_notification(id).await?;
        let Some(found) = found else { return Ok(Vec::new()) };
        Ok(vec![match found.route(key) {
            Some(_) => Fate::Accepted {
                notification_id: id.clone(),
                accepted_at: found.accepted_at,
                route_id: Some(key.route_id.clone()),
            },
            None => Fate::NoRoute(key.clone()),
        }])
    }

    /// The route of an entry of an outbound stream. The entry names it; the tables do not have its id in an
    /// index.
    async fn outbound(&mut self, stream: &NamedStream<S>, id: EntryId) -> Result<Option<Fate>, StoreError> {
        let Some(look) = self.look(stream, id).await else { return Ok(None) };
        let Some(key) = fields(&look).and_then(route_of) else { return Ok(None) };
        let found = self.search.queries.get_notification(&key.notification_id).await?;
        let exists = found.is_some_and(|found| found.route(&key).is_some());
        Ok(Some(Fate::Published { stream: stream.name.clone(), id, key, exists }))
    }

    /// Looks up an entry; `None` if Redis is unavailable, or refuses to read the stream.
    async fn look(&mut self, stream: &NamedStream<S>, id: EntryId) -> Option<EntryLook> {
        let name = &stream.name;
        match stream.stream.find_entry(id).await {
            Ok(look) => {
                let range = look.stream.map_or_else(
                    || "which does not exist".to_owned(),
                    |state| match state.first {
                        Some(first) => format!("from {first} to {}", state.last_generated),
                        None => format!("which is empty; its last id was {}", state.last_generated),
                    },
                );
                self.searched.push(format!("the entry {id} of the stream {name}, {range}"));
                Some(look)
            }
            // Such a key has no entries.
            Err(StoreError::Refused { source, .. }) => {
                self.searched.push(format!("not the stream {name}: {source}"));
                None
            }
            Err(error) => {
                self.searched.push(format!("not the stream {name}: Redis could not be asked"));
                self.stream_error = Some(error_chain(&error));
                None
            }
        }
    }

    async fn entry(&mut self, id: EntryId) -> Result<Vec<Fate>, StoreError> {
        let search = self.search;
        let look = self.look(&search.intents, id).await;
        let numbers = (0..=MAX_ID_NUMBERS).map(|number| NotificationId::of(id, number));
        let records = self.records(&numbers.collect::<Vec<_>>()).await?;
        let rows = search.queries.get_malformed_intents(&search.intents.name, &id.to_string()).await?;
        self.searched.push(format!("notifications and malformed intents with the id {id}"));
        let malformed: Vec<MalformedSummary> = rows.into_iter().map(|row| row.summary).collect();
        let fields = look.as_ref().and_then(fields);
        let content: Option<Content> = fields.map(|fields| decode(fields, &search.catalog));
        let fields_fingerprint = fields.map(|fields| fields.fingerprint());
        let own = content.iter().flatten().map(|intent| intent.key());
        let stored = malformed.iter().map(|row| IdempotencyKey {
            producer: row.producer.clone(),
            key: row.idempotency_key.to_string(),
        });
        let holders = self.holders(own.chain(stored).collect()).await?;
        Ok(entry_fates(&EntryFindings {
            id,
            progress: self.progress.clone(),
            look,
            content,
            fields_fingerprint,
            records,
            malformed,
            holders,
        }))
    }

    async fn key(&mut self, key: &str, producer: Option<&str>) -> Result<Vec<Fate>, StoreError> {
        let of = producer.map_or_else(String::new, |producer| format!(" of the producer {producer}"));
        let records = self.records_with_key(producer, key).await?;
        self.searched.push(format!("notifications with the idempotency key {key}{of}"));
        let (malformed, is_all) = self.malformed_with_key(producer, key).await?;
        let newest = if is_all { "" } else { "the newest " };
        self.searched.push(format!("{newest}malformed intents with this key{of}"));
        let stream = &self.search.intents.name;
        self.searched.push(match &self.progress.unread {
            Some(UnreadEntries { entries, is_all }) => {
                let cut = if *is_all { "" } else { ", the first of more" };
                format!("the unread entries of the stream {stream} ({}{cut})", entries.len())
            }
            None => format!("not the stream {stream}: Redis could not be asked"),
        });
        let unread = self.progress.unread.as_ref();
        let unread = unread.map(|unread| unread_with_key(unread, producer, key)).unwrap_or_default();
        let unread =
            unread.into_iter().map(|(id, fields)| (id, decode(fields, &self.search.catalog))).collect();
        Ok(key_fates(&KeyFindings { progress: self.progress.clone(), records, malformed, unread }))
    }

    async fn records(&self, ids: &[NotificationId]) -> Result<Vec<Record>, StoreError> {
        self.search.queries.list_records(ids).await
    }

    /// The records with the key, at most one for each producer.
    async fn records_with_key(&self, producer: Option<&str>, key: &str) -> Result<Vec<Record>, StoreError> {
        let filter = NotificationFilter {
            producer: producer.map(str::to_owned),
            idempotency_key: Some(key.to_owned()),
            ..NotificationFilter::default()
        };
        let page = self.search.queries.list_notifications(&filter, None, PageLimit::default()).await?;
        let ids: Vec<NotificationId> = page.items.into_iter().map(|item| item.notification_id).collect();
        self.records(&ids).await
    }

    /// The records that hold these keys.
    async fn holders(&self, keys: BTreeSet<IdempotencyKey>) -> Result<Vec<Record>, StoreError> {
        let mut holders = Vec::new();
        let known = keys.iter().filter(|key| !key.producer.is_empty() && !key.key.is_empty());
        for key in known.take(MAX_HOLDERS) {
            holders.extend(self.records_with_key(Some(&key.producer), &key.key).await?);
        }
        Ok(holders)
    }

    /// The malformed intents with the key; the flag is true if all of them were searched.
    async fn malformed_with_key(
        &self,
        producer: Option<&str>,
        key: &str,
    ) -> Result<(Vec<MalformedSummary>, bool), StoreError> {
        let filter = MalformedFilter {
            producer: producer.map(str::to_owned),
            idempotency_key: Some(key.to_owned()),
            ..MalformedFilter::default()
        };
        let mut found = Vec::new();
        let mut after: Option<MalformedPlace> = None;
        for _ in 0..MAX_KEY_PAGES {
            let queries = &self.search.queries;
            let page = queries.list_malformed_intents(&filter, after.as_ref(), PageLimit::default()).await?;
            found.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok((found, true));
            }
        }
        Ok((found, false))
    }
}

/// The fields of the entry, if they were read.
fn fields(look: &EntryLook) -> Option<&RawFields> {
    match &look.entry {
        Some(FoundEntry::Fields(fields)) => Some(fields),
        _ => None,
    }
}
