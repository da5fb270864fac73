//! Published entries and their streams, as recorded in the database.

use ambient::Timestamp;
use domain::ports::{
    Completion, DuePage, Published, PublishedEntry, PublishedPage, RecordCursor, RepublishStore, SavedStream,
    StoreError,
};
use domain::record::{NotificationId, Record};
use domain::republish::{SeenStream, keeps_entry};
use domain::route::{Channel, LiveRoute, RouteKey};

use super::database::{MemoryDatabase, Row};
use super::lock;

/// The columns of the row that the comparison needs, if the row is published and its entry id is readable.
fn published_entry(row: &Row) -> Option<PublishedEntry> {
    Some(PublishedEntry {
        key: row.route.key.clone(),
        channel: row.route.channel,
        entry_id: row.published_entry_id.parse().ok()?,
    })
}

fn place(record: &Record) -> RecordCursor {
    RecordCursor { accepted_at: record.content.accepted_at, notification_id: record.notification_id.clone() }
}

fn order(cursor: &RecordCursor) -> (Timestamp, NotificationId) {
    (cursor.accepted_at, cursor.notification_id.clone())
}

impl RepublishStore for MemoryDatabase {
    async fn load_outbound_streams(&self, streams: &[&str]) -> Result<Vec<SavedStream>, StoreError> {
        let tables = lock(&self.0);
        Ok(streams.iter().filter_map(|stream| tables.outbound_streams.get(*stream)).cloned().collect())
    }

    async fn save_outbound_streams(
        &self,
        seen: &[(SeenStream, Option<Timestamp>)],
    ) -> Result<(), StoreError> {
        let mut tables = lock(&self.0);
        let seen_at = tables.now();
        let rows = seen.iter().map(|(seen, compare_again_since)| {
            let saved =
                SavedStream { seen: seen.clone(), seen_at, compare_again_since: *compare_again_since };
            (seen.stream.clone(), saved)
        });
        tables.outbound_streams.extend(rows);
        Ok(())
    }

    async fn touch_outbound_names(&self, streams: &[(Channel, &str)]) -> Result<(), StoreError> {
        let mut tables = lock(&self.0);
        let used_at = tables.now();
        let rows = streams.iter().map(|(channel, stream)| ((*channel, (*stream).to_owned()), used_at));
        tables.outbound_names.extend(rows);
        Ok(())
    }

    async fn list_outbound_names(&self, since: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        let tables = lock(&self.0);
        let names = tables.outbound_names.iter().filter(|(_, used_at)| **used_at >= since);
        Ok(names.map(|(name, _)| name.clone()).collect())
    }

    async fn list_published_entries(
        &self,
        before: &RecordCursor,
        since: Timestamp,
        records: usize,
    ) -> Result<PublishedPage, StoreError> {
        let tables = lock(&self.0);
        let mut page: Vec<RecordCursor> = tables.records.values().map(place).collect();
        page.retain(|record| order(record) < order(before) && record.accepted_at >= since);
        page.sort_by_key(|record| std::cmp::Reverse(order(record)));
        page.truncate(records);
        let routes = page.iter().flat_map(|record| tables.routes_of(&record.notification_id));
        let published = routes.filter(|row| keeps_entry(row.status, &row.published_entry_id));
        let entries = published.filter_map(published_entry).collect();
        let next = if page.len() == records { page.pop() } else { None };
        Ok(PublishedPage { entries, corrupt: Vec::new(), next })
    }

    async fn get_published_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let tables = lock(&self.0);
        let rows = keys.iter().filter_map(|key| tables.routes.get(*key));
        let routes = rows.filter_map(|row| {
            let is_kept = keeps_entry(row.status, &row.published_entry_id);
            let next_attempt_at = row.published_at.filter(|_| is_kept)?;
            let replaces = row.route.replaces.clone().filter(|replaced| *replaced != row.published_entry_id);
            Some(LiveRoute { next_attempt_at, replaces, ..row.route.clone() })
        });
        Ok(DuePage { routes: routes.collect(), ..DuePage::default() })
    }

    async fn replace_published_entries(
        &self,
        routes: &[Published],
        now: Timestamp,
    ) -> Result<Vec<Completion>, StoreError> {
        let mut tables = lock(&self.0);
        let mut replace = |given: &Published| {
            let is_locked = tables.locked.contains(&given.key);
            let row = tables.routes.get_mut(&given.key);
            let is_unchanged = |row: &&mut Row| {
                keeps_entry(row.status, &row.published_entry_id) && row.route.version == given.version
            };
            match row.filter(is_unchanged) {
                Some(_) if is_locked => Completion::Locked,
                Some(row) => {
                    row.published_entry_id.clone_from(&given.entry.entry_id);
                    row.touch(now);
                    Completion::Applied
                }
                None => Completion::Conflict,
            }
        };
        Ok(routes.iter().map(&mut replace).collect())
    }
}
