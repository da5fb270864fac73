//! Reports committed entries to publishers, metrics, status and log.

use std::collections::BTreeMap;

use domain::accept::Decided;
use domain::malformed_intent::FailureCode;
use domain::outcome::Outcome;
use domain::ports::Activity;
use domain::replica::{ActivityPart, PartActivity};
use tokio::time::Instant;

use crate::activity::Parts;
use crate::intake::Intake;
use crate::log_limiter::LogLimiter;
use crate::metrics::STREAM;
use crate::ports::Ports;

/// Reports committed entries: to publishers first, because recipients wait for them; their routes are due at
/// `due_at`. Returns the names of their outcomes.
pub(super) async fn report<P: Ports>(
    intake: &Intake<P>,
    log: &mut LogLimiter<FailureCode>,
    decided: &[Decided<'_>],
    due_at: Instant,
) -> Vec<&'static str> {
    let Intake { dispatcher, metrics, health, settings, .. } = intake;
    let acceptances = decided.iter().filter_map(|decided| decided.outcome.acceptance());
    metrics.overflowed(dispatcher.send(acceptances, due_at).await);
    if let Some(last) = decided.last() {
        health.set_position(last.entry.id);
    }
    report_suppressed(&settings.stream, log, false);
    let (mut activity, mut producers) = (Activity::default(), BTreeMap::<&str, PartActivity>::new());
    let mut counts: BTreeMap<(&'static str, &str, &str), u64> = BTreeMap::new();
    for Decided { entry, outcome } in decided {
        let label = entry.intent().map_or(("", ""), |intent| (&*intent.notification_type, &*intent.producer));
        *counts.entry((outcome.name(), label.0, label.1)).or_default() += 1;
        let producer = outcome.malformed_row().map_or(label.1, |row| row.producer.as_str());
        for counts in [&mut activity, &mut producers.entry(producer).or_default().activity] {
            match outcome {
                Outcome::Accepted(_) => counts.accepted += 1,
                Outcome::Duplicate => counts.duplicates += 1,
                Outcome::Conflict(_) => counts.conflicts += 1,
                Outcome::Malformed(_) => counts.malformed += 1,
            }
        }
        if let Some(row) = outcome.malformed_row() {
            metrics.malformed(&row.producer, row.rejection.code, 1);
        }
        report_malformed(log, outcome);
    }
    metrics.outcomes(STREAM, &counts);
    health.count(&activity);
    let named = producers.into_iter().map(|(name, of)| (ActivityPart::Producer(name.to_owned()), of));
    health.count_parts(named.collect::<Parts>());
    decided.iter().map(|decided| decided.outcome.name()).collect()
}

fn report_malformed(log: &mut LogLimiter<FailureCode>, outcome: &Outcome) {
    let Some(row) = outcome.malformed_row() else { return };
    if log.admits(row.rejection.code) {
        tracing::warn!(stream = row.stream, entry_id = %row.entry_id, failure_code = row.rejection.code.as_str(),
            reason = row.rejection.message, "an entry was not accepted");
    }
}

/// Logs the number of suppressed lines, once a second is over or if no lines follow (`ends`).
pub(super) fn report_suppressed(stream: &str, log: &mut LogLimiter<FailureCode>, ends: bool) {
    for (code, suppressed) in log.suppressed(ends) {
        tracing::warn!(
            stream,
            failure_code = code.as_str(),
            suppressed,
            "more entries were not accepted for the same reason; malformed_intents has them all"
        );
    }
}
