//! Responses that are stored in the caller's transaction, together with the effect of the request.

use std::collections::BTreeMap;

use pg::Session;

use super::{column, key_of, outcomes};
use crate::{CompletionRequest, FreeCompletion, Guarded, IdempotencyError, statements};

/// Stores responses within the transaction that is open on `session`: they are committed or rolled back with
/// it. If a claim is fenced, another attempt may be processing the request: roll back.
///
/// It waits for rows like any statement of the transaction; [`pg::PgError::Locked`] then names the timeout.
/// To send it together with other statements, see [`statements::complete`].
pub async fn complete_in(
    session: &Session,
    completions: &[CompletionRequest],
) -> Result<Vec<Guarded>, IdempotencyError> {
    let rows = session.query(statements::complete(completions)).await?;
    outcomes(&rows, completions.len())
}

/// Stores the responses of free keys within the transaction that is open on `session`: they are committed or
/// rolled back with it. [`Guarded::Fenced`] means that a key is already claimed or completed;
/// [`crate::Store::lookup`], after the caller has rolled back, returns which. If several elements have the
/// same key, only the first can be stored.
///
/// Until the end of the transaction, claims of these keys wait as for any row that another transaction has
/// locked.
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
    for row in &session.query(statements::complete_free(&distinct)).await? {
        let position = positions.get(&(column(row, "scope")?, column(row, "key")?));
        outcomes[*position.ok_or(IdempotencyError::Corrupt("key"))?] = Guarded::Applied;
    }
    Ok(outcomes)
}
