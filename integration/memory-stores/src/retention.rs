//! Expired records and malformed intents.

use ambient::Timestamp;
use domain::malformed_intent::MalformedKey;
use domain::ports::{Cutoff, Expired, Removal, RetentionStore, StoreError};
use domain::record::NotificationId;

use super::database::MemoryDatabase;
use super::lock;

impl RetentionStore<NotificationId> for MemoryDatabase {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<NotificationId>>,
        limit: usize,
    ) -> Result<Vec<Expired<NotificationId>>, StoreError> {
        let tables = lock(&self.0);
        let mut expired: Vec<Expired<NotificationId>> = tables
            .records
            .values()
            .filter(|record| record.content.accepted_at < cutoff.at)
            .map(|record| Expired {
                key: record.notification_id.clone(),
                at: record.content.accepted_at,
                rows: 1 + tables.routes_of(&record.notification_id).count() as u64,
                bytes: record.content.payload_json.len() as u64,
                live: tables.routes_of(&record.notification_id).any(|row| row.status.is_live()),
            })
            .filter(|row| after.is_none_or(|after| (row.at, &row.key) > (after.at, &after.key)))
            .collect();
        expired.sort_by(|one, other| (one.at, &one.key).cmp(&(other.at, &other.key)));
        expired.truncate(limit);
        Ok(expired)
    }

    async fn delete_expired(&self, keys: &[&NotificationId], cutoff: Cutoff) -> Result<Removal, StoreError> {
        let mut tables = lock(&self.0);
        let mut removal = Removal::default();
        for id in keys {
            match tables.records.get(*id) {
                Some(record)
                    if record.content.accepted_at < cutoff.at
                        && record.idempotency_expires_at <= cutoff.at + cutoff.age => {}
                Some(_) | None => continue,
            }
            if tables.routes_of(id).any(|row| row.status.is_live()) {
                removal.live += 1;
            } else if tables.routes_of(id).any(|row| tables.locked.contains(&row.route.key)) {
                removal.locked += 1;
            } else {
                tables.remove(id);
                removal.removed += 1;
            }
        }
        Ok(removal)
    }
}

impl RetentionStore<MalformedKey> for MemoryDatabase {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<MalformedKey>>,
        limit: usize,
    ) -> Result<Vec<Expired<MalformedKey>>, StoreError> {
        let tables = lock(&self.0);
        let old = tables.malformed.iter().filter(|(_, row)| row.recorded_at < cutoff.at);
        let mut expired: Vec<Expired<MalformedKey>> = old
            .map(|(key, row)| Expired {
                key: key.clone(),
                at: row.recorded_at,
                rows: 1,
                bytes: row.raw_fields.json_length() as u64,
                live: false,
            })
            .filter(|row| after.is_none_or(|after| malformed_place(row) > malformed_place(after)))
            .collect();
        expired.sort_by(|one, other| malformed_place(one).cmp(&malformed_place(other)));
        expired.truncate(limit);
        Ok(expired)
    }

    async fn delete_expired(&self, keys: &[&MalformedKey], cutoff: Cutoff) -> Result<Removal, StoreError> {
        let mut tables = lock(&self.0);
        let mut removal = Removal::default();
        for key in keys {
            if tables.malformed.get(*key).is_some_and(|row| row.recorded_at < cutoff.at) {
                tables.malformed.remove(*key);
                removal.removed += 1;
            }
        }
        Ok(removal)
    }
}

/// The order of expired malformed intents.
fn malformed_place(row: &Expired<MalformedKey>) -> (Timestamp, &str, &str, &str) {
    (row.at, &row.key.stream, &row.key.entry_id, &row.key.fields_fingerprint)
}
