//! What the database knows of published entries and of the streams that had them.

use ambient::Timestamp;
use domain::ports::{
    DuePage, Published, PublishedEntry, PublishedPage, RecordCursor, RepublishStore, StoreError, Swap,
};
use domain::republish::SeenStream;
use domain::route::{LiveRoute, RouteKey, RouteStatus};

use super::database::{MemoryDatabase, Row};
use super::lock;

/// The row as far as the comparison needs it, if it is published and its entry id can be read.
fn published_entry(row: &Row) -> Option<PublishedEntry> {
    Some(PublishedEntry {
        key: row.route.key.clone(),
        channel: row.route.channel,
        entry_id: row.published_entry_id.parse().ok()?,
    })
}

impl RepublishStore for MemoryDatabase {
    async fn load_outbound_streams(&self, streams: &[&str]) -> Result<Vec<SeenStream>, StoreError> {
        let tables = lock(&self.0);
        Ok(streams.iter().filter_map(|stream| tables.outbound_streams.get(*stream)).cloned().collect())
    }

    async fn save_outbound_streams(&self, seen: &[SeenStream]) -> Result<(), StoreError> {
        let rows = seen.iter().map(|seen| (seen.stream.clone(), seen.clone()));
        lock(&self.0).outbound_streams.extend(rows);
        Ok(())
    }

    async fn list_published_entries(
        &self,
        since: Timestamp,
        after: &RecordCursor,
        until: Timestamp,
        records: usize,
    ) -> Result<PublishedPage, StoreError> {
        let tables = lock(&self.0);
        let place = |record: &domain::record::Record| RecordCursor {
            accepted_at: record.content.accepted_at,
            notification_id: record.notification_id.clone(),
        };
        let order = |cursor: &RecordCursor| (cursor.accepted_at, cursor.notification_id.clone());
        let mut page: Vec<RecordCursor> = tables.records.values().map(place).collect();
        page.retain(|record| order(record) > order(after) && record.accepted_at <= until);
        page.sort_by_key(order);
        page.truncate(records);
        let routes = page.iter().flat_map(|record| tables.routes_of(&record.notification_id));
        let published = routes.filter(|row| {
            row.status == RouteStatus::Published && row.published_at.is_some_and(|at| at >= since)
        });
        let entries = published.filter_map(published_entry).collect();
        let next = if page.len() == records { page.pop() } else { None };
        Ok(PublishedPage { entries, corrupt: Vec::new(), next })
    }

    async fn get_published_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let tables = lock(&self.0);
        let rows = keys.iter().filter_map(|key| tables.routes.get(*key));
        let routes = rows.filter_map(|row| {
            let next_attempt_at = row.published_at.filter(|_| row.status == RouteStatus::Published)?;
            Some(LiveRoute { next_attempt_at, ..row.route.clone() })
        });
        Ok(DuePage { routes: routes.collect(), ..DuePage::default() })
    }

    async fn replace_published_entries(
        &self,
        routes: &[Published],
        now: Timestamp,
    ) -> Result<Vec<Swap>, StoreError> {
        let mut tables = lock(&self.0);
        if routes.iter().any(|given| tables.locked.contains(&given.key)) {
            return Err(StoreError::Locked {
                operation: "replace published entry ids",
                source: "another transaction has locked a row".into(),
            });
        }
        let mut replace = |given: &Published| {
            let row = tables.routes.get_mut(&given.key);
            let is_unchanged =
                |row: &&mut Row| row.status == RouteStatus::Published && row.route.version == given.version;
            match row.filter(is_unchanged) {
                Some(row) => {
                    row.published_entry_id.clone_from(&given.entry_id);
                    row.touch(now);
                    Swap::Applied
                }
                None => Swap::Conflict,
            }
        };
        Ok(routes.iter().map(&mut replace).collect())
    }
}
