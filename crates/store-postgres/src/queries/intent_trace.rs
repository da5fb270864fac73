//! The trace of the intents with an idempotency key.

use domain::ports::StoreError;
use domain::query::IntentTrace;
use domain::record::IdempotencyKey;
use pg::Session;

use super::{candidates, detail, malformed_intents};
use crate::checkpoint;
use crate::codec::column;
use crate::error::store_error;

/// Reads the parts in the order of the fields of [`IntentTrace`].
pub(super) async fn get(
    session: &Session,
    stream: &str,
    key: &IdempotencyKey,
) -> Result<IntentTrace, StoreError> {
    let checkpoint = checkpoint::load(session, stream).await?.map(|checkpoint| checkpoint.last_entry_id);
    let malformed = malformed_intents::newest_with_key(session, key).await?;
    let with_key = candidates::with_key(std::slice::from_ref(&key.producer), &key.key);
    let notification = match session.query(with_key).await.map_err(store_error)?.first() {
        Some(row) => {
            let id: String = column(row, "records.notification_id", &key.key)?;
            detail::get(session, &id.into()).await?
        }
        None => None,
    };
    Ok(IntentTrace { checkpoint, malformed, notification })
}
