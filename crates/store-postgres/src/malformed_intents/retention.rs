//! Deletes old malformed intents, in chunks that the worker sizes.

use ambient::Timestamp;
use domain::ports::{Cutoff, Expired, MalformedKey, Removal, RetentionStore, StoreError};
use pg::{BoundStatement, Statement, parameter};

use crate::PgStore;
use crate::codec::{column, count, instant};
use crate::error::store_error;
use crate::retention::clocks;

impl RetentionStore<MalformedKey> for PgStore {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<MalformedKey>>,
        limit: usize,
    ) -> Result<Vec<Expired<MalformedKey>>, StoreError> {
        let session = self.session("list expired malformed intents").await?;
        let rows = session.query(expired_malformed(cutoff, after, limit)).await.map_err(store_error)?;
        rows.iter()
            .map(|row| {
                let stream: String = column(row, "malformed_intents.stream", "")?;
                let entry_id: String = column(row, "malformed_intents.stream_entry_id", &stream)?;
                Ok(Expired {
                    at: instant(row, "malformed_intents.recorded_at", &entry_id)?,
                    rows: 1,
                    bytes: column::<i32>(row, "bytes", &entry_id)?.unsigned_abs().into(),
                    live: false,
                    key: MalformedKey {
                        fields_fingerprint: column(row, "malformed_intents.fields_fingerprint", &entry_id)?,
                        stream,
                        entry_id,
                    },
                })
            })
            .collect()
    }

    async fn delete_expired(&self, keys: &[&MalformedKey], cutoff: Cutoff) -> Result<Removal, StoreError> {
        let session = self.session("delete expired malformed intents").await?;
        let removed = session.execute(delete_malformed(keys, cutoff)).await.map_err(store_error)?;
        let mut removal = Removal { removed, ..Removal::default() };
        if removed < keys.len() as u64 {
            let left = session.query(count_malformed(keys, cutoff)).await.map_err(store_error)?;
            for row in &left {
                removal.locked = count(row, "rows", "malformed_intents")?;
            }
        }
        Ok(removal)
    }
}

pg::statements! {
    /// A page of expired rows.
    EXPIRED = "malformed_intents.expired", plan ["malformed_intents_recorded_idx"], "
        SELECT stream, stream_entry_id, fields_fingerprint, recorded_at, pg_column_size(raw_fields) AS bytes
        FROM malformed_intents
        WHERE recorded_at < least($1::timestamptz, now() - $2::bigint * interval '1 microsecond')
            AND (recorded_at, stream, stream_entry_id, fields_fingerprint)
                > ($3::timestamptz, $4::text, $5::text, $6::text)
        ORDER BY recorded_at, stream, stream_entry_id, fields_fingerprint
        LIMIT $7::bigint";

    /// Deletes the rows with these keys that are expired; skips locked rows.
    DELETE = "malformed_intents.delete_expired", plan ["malformed_intents_pkey"], "
        DELETE FROM malformed_intents
        WHERE (stream, stream_entry_id, fields_fingerprint) IN (
            SELECT m.stream, m.stream_entry_id, m.fields_fingerprint
            FROM unnest($1::text[], $2::text[], $3::text[]) AS g (stream, stream_entry_id, fields_fingerprint)
            JOIN malformed_intents m ON m.stream = g.stream AND m.stream_entry_id = g.stream_entry_id
                AND m.fields_fingerprint = g.fields_fingerprint
            WHERE m.recorded_at < least($4::timestamptz, now() - $5::bigint * interval '1 microsecond')
            FOR UPDATE OF m SKIP LOCKED
        )";

    /// The number of these rows that still exist.
    COUNT = "malformed_intents.count_expired", plan ["malformed_intents_pkey"], "
        SELECT count(*) AS rows
        FROM unnest($1::text[], $2::text[], $3::text[]) AS g (stream, stream_entry_id, fields_fingerprint)
        JOIN malformed_intents m ON m.stream = g.stream AND m.stream_entry_id = g.stream_entry_id
            AND m.fields_fingerprint = g.fields_fingerprint
        WHERE m.recorded_at < least($4::timestamptz, now() - $5::bigint * interval '1 microsecond')";
}

pub(crate) fn expired_malformed(
    cutoff: Cutoff,
    after: Option<&Expired<MalformedKey>>,
    limit: usize,
) -> BoundStatement {
    let (recorded_at, [stream, entry_id, fingerprint]) = match after {
        Some(Expired { key, at, .. }) => {
            (*at, [key.stream.as_str(), key.entry_id.as_str(), key.fields_fingerprint.as_str()])
        }
        None => (Timestamp::MIN, [""; 3]),
    };
    let [at, age] = clocks(cutoff);
    EXPIRED.bind([
        at,
        age,
        parameter::instant(recorded_at),
        parameter::text(stream),
        parameter::text(entry_id),
        parameter::text(fingerprint),
        parameter::rows(limit),
    ])
}

pub(crate) fn delete_malformed(keys: &[&MalformedKey], cutoff: Cutoff) -> BoundStatement {
    of_keys(&DELETE, keys, cutoff)
}

pub(crate) fn count_malformed(keys: &[&MalformedKey], cutoff: Cutoff) -> BoundStatement {
    of_keys(&COUNT, keys, cutoff)
}

fn of_keys(statement: &Statement, keys: &[&MalformedKey], cutoff: Cutoff) -> BoundStatement {
    let texts = |value: fn(&MalformedKey) -> &str| parameter::texts(keys.iter().map(|key| value(key)));
    let [at, age] = clocks(cutoff);
    statement.bind([
        texts(|key| &key.stream),
        texts(|key| &key.entry_id),
        texts(|key| &key.fields_fingerprint),
        at,
        age,
    ])
}
