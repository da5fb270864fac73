//! Finds the traces of an intent. The domain interprets them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ambient::Timestamp;
use domain::catalog::Catalog;
use domain::entry::EntryId;
use domain::explanation::intent::{
    Content, EntryFindings, Fate, KeyFindings, MAX_ID_NUMBERS, Reading, StreamPosition, entry_fates,
    key_fates, read_until, unread_with_key,
};
use domain::intent::decode;
use domain::ports::{IntentStream, LeaderLookup, Queries, StoreError, StreamQueries, error_chain};
use domain::query::{
    FoundEntry, MalformedFilter, MalformedPlace, MalformedSummary, NotificationFilter, PageLimit, Status,
    UnreadEntries,
};
use domain::record::{IdempotencyKey, NotificationId, Record};
use store_redis::{RedisClient, RedisIntentStream};

use crate::commands::Failure;
use crate::commands::operators::Tables;

/// The most pages of malformed intents that are searched for a key.
const MAX_KEY_PAGES: usize = 10;
/// The most keys whose notifications are looked up for one entry.
const MAX_HOLDERS: usize = 20;

/// The places where an intent may have left a trace.
pub(super) struct Trail<'a> {
    tables: &'a Tables,
    stream: RedisIntentStream,
    catalog: Arc<Catalog>,
    progress: StreamPosition,
    stream_error: Option<String>,
    searched: Vec<String>,
}

impl<'a> Trail<'a> {
    /// Reads the position of the stream before anything is searched. An intent decided during the search is
    /// then found where it is stored.
    pub(super) async fn begin(
        tables: &'a Tables,
        redis: &RedisClient,
        catalog: Arc<Catalog>,
        now: Timestamp,
    ) -> Result<Self, Failure> {
        let name = &tables.config.intents_stream;
        let stream = RedisIntentStream::new(redis, name.clone());
        let store = tables.explained(tables.queries.status(name, now).await)?;
        let term = tables.explained(tables.leader()?.leader().await)?;
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
        Ok(Self { tables, stream, catalog, progress, stream_error, searched: Vec::new() })
    }

    /// The places searched so far.
    pub(super) fn searched(&self) -> &[String] {
        &self.searched
    }

    /// The error of Redis, if it could not be read.
    pub(super) fn stream_error(&self) -> Option<&str> {
        self.stream_error.as_deref()
    }

    /// Returns the fates of the intents that `reading` refers to.
    pub(super) async fn follow(
        &mut self,
        reading: &Reading,
        producer: Option<&str>,
    ) -> Result<Vec<Fate>, Failure> {
        match reading {
            Reading::Entry(id) => self.entry(*id).await,
            Reading::Notification(id) => {
                self.searched.push(format!("notifications with the id {id}"));
                Ok(self.records(std::slice::from_ref(id)).await?.iter().map(Fate::accepted).collect())
            }
            Reading::Route(key) => {
                let id = &key.notification_id;
                self.searched.push(format!("the routes of the notification {id}"));
                let found = self.tables.explained(self.tables.queries.get_notification(id).await)?;
                let Some(found) = found else { return Ok(Vec::new()) };
                Ok(vec![match found.route(key) {
                    Some(_) => Fate::Accepted { notification_id: id.clone(), accepted_at: found.accepted_at },
                    None => Fate::NoRoute(key.clone()),
                }])
            }
            Reading::Key(key) => self.key(key, producer).await,
        }
    }

    async fn entry(&mut self, id: EntryId) -> Result<Vec<Fate>, Failure> {
        let stream = self.tables.config.intents_stream.clone();
        let look = match self.stream.find_entry(id).await {
            Ok(look) => {
                let range = look.stream.map_or_else(
                    || "which does not exist".to_owned(),
                    |state| match state.first {
                        Some(first) => format!("from {first} to {}", state.last_generated),
                        None => format!("which is empty; its last id was {}", state.last_generated),
                    },
                );
                self.searched.push(format!("the entry {id} of the stream {stream}, {range}"));
                Some(look)
            }
            Err(error) => {
                self.searched.push(format!("not the stream {stream}: Redis could not be asked"));
                self.stream_error = Some(error_chain(&error));
                None
            }
        };
        let numbers = (0..=MAX_ID_NUMBERS).map(|number| NotificationId::of(id, number));
        let records = self.records(&numbers.collect::<Vec<_>>()).await?;
        let rows = self.tables.queries.get_malformed_intents(&stream, &id.to_string()).await;
        let rows = self.tables.explained(rows)?;
        self.searched.push(format!("notifications and malformed intents with the id {id}"));
        let malformed: Vec<MalformedSummary> = rows.into_iter().map(|row| row.summary).collect();
        let fields = look.as_ref().and_then(|look| match &look.entry {
            Some(FoundEntry::Fields(fields)) => Some(fields),
            _ => None,
        });
        let content: Option<Content> = fields.map(|fields| decode(fields, &self.catalog));
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

    async fn key(&mut self, key: &str, producer: Option<&str>) -> Result<Vec<Fate>, Failure> {
        let of = producer.map_or_else(String::new, |producer| format!(" of the producer {producer}"));
        let records = self.records_with_key(producer, key).await?;
        self.searched.push(format!("notifications with the idempotency key {key}{of}"));
        let (malformed, is_all) = self.malformed_with_key(producer, key).await?;
        let newest = if is_all { "" } else { "the newest " };
        self.searched.push(format!("{newest}malformed intents with this key{of}"));
        let stream = &self.tables.config.intents_stream;
        self.searched.push(match &self.progress.unread {
            Some(UnreadEntries { entries, is_all }) => {
                let cut = if *is_all { "" } else { ", the first of more" };
                format!("the unread entries of the stream {stream} ({}{cut})", entries.len())
            }
            None => format!("not the stream {stream}: Redis could not be asked"),
        });
        let unread = self.progress.unread.as_ref();
        let unread = unread.map(|unread| unread_with_key(unread, producer, key)).unwrap_or_default();
        let unread = unread.into_iter().map(|(id, fields)| (id, decode(fields, &self.catalog))).collect();
        Ok(key_fates(&KeyFindings { progress: self.progress.clone(), records, malformed, unread }))
    }

    async fn records(&self, ids: &[NotificationId]) -> Result<Vec<Record>, Failure> {
        Ok(self.tables.explained(self.tables.queries.list_records(ids).await)?)
    }

    /// The records with the key, at most one for each producer.
    async fn records_with_key(&self, producer: Option<&str>, key: &str) -> Result<Vec<Record>, Failure> {
        let filter = NotificationFilter {
            producer: producer.map(str::to_owned),
            idempotency_key: Some(key.to_owned()),
            ..NotificationFilter::default()
        };
        let page = self.tables.queries.list_notifications(&filter, None, PageLimit::default()).await;
        let page = self.tables.explained(page)?;
        let ids: Vec<NotificationId> = page.items.into_iter().map(|item| item.notification_id).collect();
        self.records(&ids).await
    }

    /// The records that hold these keys.
    async fn holders(&self, keys: BTreeSet<IdempotencyKey>) -> Result<Vec<Record>, Failure> {
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
    ) -> Result<(Vec<MalformedSummary>, bool), Failure> {
        let filter = MalformedFilter {
            producer: producer.map(str::to_owned),
            idempotency_key: Some(key.to_owned()),
            ..MalformedFilter::default()
        };
        let mut found = Vec::new();
        let mut after: Option<MalformedPlace> = None;
        for _ in 0..MAX_KEY_PAGES {
            let queries = &self.tables.queries;
            let page = queries.list_malformed_intents(&filter, after.as_ref(), PageLimit::default()).await;
            let page = self.tables.explained(page)?;
            found.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok((found, true));
            }
        }
        Ok((found, false))
    }
}
