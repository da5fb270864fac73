//! Answers that are stored in a transaction of the caller, together with the effect of the request.

use std::collections::BTreeMap;

use pg::Session;

use super::{column, key_of, outcomes};
use crate::{Completion, FreeCompletion, Guarded, IdempotencyError, statements};

/// Stores answers within the transaction that is open on `session`: they are committed or rolled back with
/// it. If a claim is fenced, another attempt may be processing the request: roll back.
///
/// It waits for rows as any statement of the transaction does; [`pg::PgError::Locked`] then names the
/// timeout. To send it together with other statements, see [`statements::complete`].
pub async fn complete_in(
    session: &Session,
    completions: &[Completion],
) -> Result<Vec<Guarded>, IdempotencyError> {
    let rows = session.query(&statements::complete(completions)).await?;
    outcomes(&rows, completions.len())
}

/// Stores the answers of keys that are free within the transaction that is open on `session`: they are
/// committed or rolled back with it. [`Guarded::Fenced`] tells that a key is claimed or completed already:
/// [`crate::Store::lookup`] tells by what, after the caller has rolled back. Of several with one key, none
/// but the first can be stored.
///
/// Until the end of the transaction, claims of these keys wait as they do for any row that another
/// transaction holds.
pub async fn complete_free_in(
    session: &Session,
    completions: &[FreeCompletion],
) -> Result<Vec<Guarded>, IdempotencyError> {
    let mut positions: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (position, free) in completions.iter().enumerate() {
        positions.entry(key_of(&free.completion.id)).or_insert(position);
    }
    let distinct: Vec<FreeCompletion> =
        positions.values().map(|position| completions[*position].clone()).collect();
    let mut outcomes = vec![Guarded::Fenced; completions.len()];
    for row in &session.query(&statements::complete_free(&distinct)).await? {
        let position = positions.get(&(column(row, "scope")?, column(row, "key")?));
        outcomes[*position.ok_or(IdempotencyError::Corrupt("key"))?] = Guarded::Applied;
    }
    Ok(outcomes)
}
