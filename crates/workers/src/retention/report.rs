//! The log lines of a pass of retention.

use super::{TABLES, TablePass};

/// Logs the rows that are expired and stay.
pub(super) fn report_what_stays(passes: [(&'static str, &TablePass); TABLES]) {
    let [(_, records), ..] = passes;
    if records.live > 0 {
        tracing::warn!(
            records = records.live,
            "expired records stay because a route of theirs is still live"
        );
    }
    for (table, pass) in passes {
        if pass.locked > 0 {
            tracing::warn!(
                table,
                rows = pass.locked,
                "expired rows stay because another transaction holds them; the next pass tries again"
            );
        }
        if let Some(failure) = &pass.failure {
            tracing::warn!(
                table,
                rows = pass.failed,
                error = failure,
                "expired rows could not be deleted; the next pass tries again"
            );
        }
    }
}

/// Logs the numbers of deleted rows, if there are any.
pub(super) fn report_deleted(passes: [(&'static str, &TablePass); TABLES]) {
    let deleted = passes.map(|(_, pass)| pass.deleted);
    let [records, malformed_intents, operator_actions, idempotency_keys, console_sessions] = deleted;
    if deleted != [0; TABLES] {
        let longest = passes.map(|(_, pass)| pass.longest_chunk).into_iter().max().unwrap_or_default();
        tracing::info!(
            records,
            malformed_intents,
            operator_actions,
            idempotency_keys,
            console_sessions,
            longest_chunk_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX),
            "retention removed old rows"
        );
    }
}
