//! The database as an audit reads it.

use ambient::Timestamp;
use domain::audit::{
    AuditedRecord, AuditedRoute, EntryTrace, FoundOutcome, MalformedTrace, RouteRow, RouteState,
};
use domain::catalog::AudienceKind;
use domain::checkpoint::Checkpoint;
use domain::ports::{AuditStore, AuditedPage, ChildTable, OrphanPage, RecordCursor, StoreError};
use domain::record::{NotificationId, Record};
use domain::route::{Channel, RouteKey, RouteStatus};

use super::database::{MemoryDatabase, Row, ServiceTables};
use super::lock;

/// The number of records in one page.
const PAGE_RECORDS: usize = 256;

impl ServiceTables {
    fn audited(&self, record: &Record) -> AuditedRecord {
        let accepted_at = record.content.accepted_at;
        let routes = self.routes_of(&record.notification_id);
        AuditedRecord {
            notification_id: record.notification_id.clone(),
            accepted_at,
            updated_at: accepted_at,
            audience: match record.audience_kind {
                "user" => AudienceKind::User,
                _ => AudienceKind::AdminEmail,
            },
            recipient_user_ids: record.recipient_user_ids.clone(),
            routes: routes.map(|row| RouteRow::Read(self.audited_route(row, accepted_at))).collect(),
        }
    }

    fn audited_route(&self, row: &Row, accepted_at: Timestamp) -> AuditedRoute {
        let route = &row.route;
        let letter = self.dead_letters.get(&route.key);
        AuditedRoute {
            key: route.key.clone(),
            channel: route.channel,
            recipient_ref: route.recipient_ref.clone(),
            status: row.status,
            attempt_count: route.attempt_count,
            max_attempts: route.max_attempts,
            next_attempt_at: row.status.is_live().then_some(route.next_attempt_at),
            created_at: accepted_at,
            updated_at: route.version.updated_at(),
            published_at: row.published_at,
            dead_lettered_at: letter.map(|letter| letter.created_at),
            skipped_at: (row.status == RouteStatus::Skipped).then_some(accepted_at),
            published_entry_id: row.published_entry_id.clone(),
            has_dead_letter: letter.is_some(),
            is_held: self.held.contains_key(&route.key),
        }
    }
}

impl AuditStore for MemoryDatabase {
    async fn audited_checkpoint(&self, stream: &str) -> Result<Option<Checkpoint>, StoreError> {
        Ok(lock(&self.0).checkpoints.get(stream).copied())
    }

    async fn list_audited_records(
        &self,
        after: &RecordCursor,
        until: Timestamp,
    ) -> Result<AuditedPage, StoreError> {
        let tables = lock(&self.0);
        let place = |record: &Record| (record.content.accepted_at, record.notification_id.clone());
        let after = (after.accepted_at, after.notification_id.clone());
        let mut page: Vec<&Record> = tables.records.values().collect();
        page.retain(|record| record.content.accepted_at < until && place(record) > after);
        page.sort_by_key(|record| place(record));
        page.truncate(PAGE_RECORDS);
        let last = page.last().filter(|_| page.len() == PAGE_RECORDS);
        let next = last.map(|record| RecordCursor {
            accepted_at: record.content.accepted_at,
            notification_id: record.notification_id.clone(),
        });
        let records = page.into_iter().map(|record| tables.audited(record)).collect();
        Ok(AuditedPage { records, unreadable: Vec::new(), next })
    }

    async fn get_audited_records(&self, ids: &[&NotificationId]) -> Result<AuditedPage, StoreError> {
        let tables = lock(&self.0);
        let records = ids.iter().filter_map(|id| tables.records.get(*id));
        let records = records.map(|record| tables.audited(record)).collect();
        Ok(AuditedPage { records, ..AuditedPage::default() })
    }

    async fn find_outcomes(
        &self,
        stream: &str,
        entries: &[EntryTrace],
    ) -> Result<Vec<FoundOutcome>, StoreError> {
        let tables = lock(&self.0);
        let outcome = |entry: &EntryTrace| {
            let id = entry.key.as_ref().and_then(|key| tables.by_key.get(key));
            let record = id.and_then(|id| tables.records.get(id));
            let of_entry =
                tables.malformed.values().filter(|row| row.stream == stream && row.entry_id == entry.id).map(
                    |row| MalformedTrace {
                        fields_fingerprint: row.fields_fingerprint.clone(),
                        failure_code: row.rejection.code.as_str().to_owned(),
                    },
                );
            FoundOutcome {
                record: record.map(|record| (record.notification_id.clone(), record.fingerprint.clone())),
                malformed: of_entry.collect(),
            }
        };
        Ok(entries.iter().map(outcome).collect())
    }

    async fn find_routes(&self, keys: &[&RouteKey]) -> Result<Vec<Option<RouteState>>, StoreError> {
        let tables = lock(&self.0);
        let state = |row: &Row| RouteState {
            status: Some(row.status),
            published_entry_id: row.published_entry_id.clone(),
            replaced_entry_id: row.route.replaces.clone().unwrap_or_default(),
        };
        Ok(keys.iter().map(|key| tables.routes.get(*key).map(state)).collect())
    }

    async fn list_audited_names(&self, since: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        let tables = lock(&self.0);
        let used = tables.outbound_names.iter().filter(|(_, used_at)| **used_at >= since);
        let mut names: Vec<(Channel, String)> = used.map(|(name, _)| name.clone()).collect();
        names.sort();
        Ok(names)
    }

    /// No row is without a parent: a record is removed with everything that belongs to it.
    async fn list_orphans(&self, _: ChildTable, _: Option<&RouteKey>) -> Result<OrphanPage, StoreError> {
        Ok(OrphanPage::default())
    }
}
