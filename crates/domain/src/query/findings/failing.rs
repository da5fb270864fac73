//! Failing parts: they work, but without success. Channels with failed attempts or new dead letters,
//! completions that have been deferred for long, and producers with nothing but malformed intents.

use std::time::Duration;

use super::super::store_status::{RecentFailure, StoreStatus};
use super::{
    CulpritList, Culprits, DEAD_LETTERS, FAILING_CHANNEL, Finding, MALFORMED, PUBLISHING, ServiceState,
    counted, tidy,
};
use crate::document::{Age, Counted, grouped};
use crate::replica::{AttemptsReport, DeferredReport, LockHolder, is_failing};
use crate::route::{Channel, RouteStatus};

/// The period in which a new dead letter, or a producer with nothing but malformed intents, is failing.
pub const RECENT: Duration = Duration::from_secs(300);
/// A completion that has been deferred for longer than this is failing.
pub const DEFERRED_LIMIT: Duration = Duration::from_secs(10);

/// The failing parts of the service, except those that are among `stuck`.
pub(in crate::query) fn failing(store: &StoreStatus, stuck: &[Finding]) -> Vec<Finding> {
    let (mut found, mut dead_of) = (Vec::new(), Vec::new());
    for channel in Channel::ALL {
        let name = channel.as_str();
        let dead = store.recent.dead_letters.iter().find(|failure| failure.name == name);
        match (attempts_of(store, channel), dead) {
            (Some(attempts), dead) if is_failing(attempts.succeeded, attempts.failed) => {
                found.push(failing_channel(name, &attempts, dead));
            }
            (_, dead) => dead_of.extend(dead),
        }
        let deferred = deferred_of(store, channel);
        let deferred = deferred.filter(|of| Age::between(of.since, store.at).0 > DEFERRED_LIMIT);
        found.extend(
            deferred
                .map(|deferred| deferral(name, &deferred))
                .filter(|finding| !stuck.iter().any(|known| known.sentence == finding.sentence)),
        );
    }
    // Channels with the same cause have one finding.
    let dead = dead_of.chunk_by(|one, other| tidy(&one.cause) == tidy(&other.cause));
    let malformed = store.recent.producers.iter().map(malformed);
    dead.filter_map(dead_letters).chain(found).chain(malformed).collect()
}

fn failing_channel(name: &str, attempts: &AttemptsReport, dead: Option<&RecentFailure>) -> Finding {
    let cause = tidy(&attempts.cause);
    let succeeded = match attempts.succeeded {
        0 => "none succeeded".to_owned(),
        succeeded => format!("{} succeeded", grouped(succeeded)),
    };
    let dead = dead.map_or_else(String::new, |dead| {
        format!("; {:#} became dead letters in the last {}", dead.count, Age(RECENT))
    });
    Finding {
        state: ServiceState::Failing,
        parts: vec![name.to_owned()],
        sentence: format!(
            "The channel {name} fails: {} failed in the last minute, and {succeeded}{dead}",
            counted(attempts.failed, "attempt")
        ),
        cause,
        since: attempts.failing_since,
        count: Some(attempts.failed),
        culprits: Culprits::routes(name, RouteStatus::Failed),
        runbook: FAILING_CHANNEL,
    }
}

/// The finding about the dead letters of channels, which have one cause.
fn dead_letters(channels: &[&RecentFailure]) -> Option<Finding> {
    let first = channels.iter().min_by_key(|dead| dead.since)?;
    let names: Vec<String> = channels.iter().map(|dead| dead.name.clone()).collect();
    let count = Counted {
        count: channels.iter().map(|dead| dead.count.count).sum(),
        capped: channels.iter().any(|dead| dead.count.capped),
    };
    let (routes, letters) =
        if count.count == 1 { ("route", "a dead letter") } else { ("routes", "dead letters") };
    let of = if names.len() == 1 { "channel" } else { "channels" };
    let channel = (names.len() == 1).then(|| ("channel", names[0].clone()));
    let since = ("created_after", first.since.to_string());
    Some(Finding {
        state: ServiceState::Failing,
        sentence: format!(
            "{count:#} {routes} of the {of} {} became {letters} in the last {}",
            names.join(" and "),
            Age(RECENT)
        ),
        parts: names,
        cause: tidy(&first.cause),
        since: Some(first.since),
        count: Some(count.count),
        culprits: Culprits::new(CulpritList::DeadLetters, channel.into_iter().chain([since])),
        runbook: DEAD_LETTERS,
    })
}

fn malformed(producer: &RecentFailure) -> Finding {
    Finding {
        state: ServiceState::Failing,
        parts: vec![producer.name.clone()],
        sentence: format!(
            "The producer {} sent only malformed intents in the last {}, {:#} of them",
            producer.name,
            Age(RECENT),
            producer.count
        ),
        cause: tidy(&producer.cause),
        since: Some(producer.since),
        count: Some(producer.count.count),
        culprits: Culprits::new(
            CulpritList::MalformedIntents,
            [("producer", producer.name.clone()), ("recorded_after", producer.since.to_string())],
        ),
        runbook: MALFORMED,
    }
}

/// The finding about the deferred completions of a channel.
pub(super) fn deferral(name: &str, deferred: &DeferredReport) -> Finding {
    let DeferredReport { completions, first, is_published, .. } = deferred;
    let (are, rows) = if *completions == 1 { ("is", "its row") } else { ("are", "their rows") };
    let routes = match is_published {
        true => format!("{} of the channel {name} {are} published", counted(*completions, "route")),
        false => format!("{} of the channel {name} failed", counted(*completions, "attempt")),
    };
    let (obstacle, cause) = deferral_cause(deferred, rows);
    Finding {
        state: ServiceState::Failing,
        parts: vec![name.to_owned()],
        sentence: format!("{routes}, but {obstacle}"),
        cause,
        since: Some(deferred.since),
        count: Some(*completions),
        culprits: Culprits::new(
            CulpritList::Notifications,
            [("notification_id", first.notification_id.as_str().to_owned())],
        ),
        runbook: PUBLISHING,
    }
}

/// The obstacle to recording a deferred completion in `rows`, and its cause if a lock is not the obstacle.
pub(crate) fn deferral_cause(deferred: &DeferredReport, rows: &str) -> (String, Option<String>) {
    match &deferred.held_by {
        Some(LockHolder { pid, application, since }) => {
            let since = since.map_or_else(String::new, |at| format!(", since {at}"));
            let application = if application.is_empty() { "no name" } else { application };
            (format!("another transaction holds {rows} (pid {pid}, {application}{since})"), None)
        }
        None => (format!("PostgreSQL cannot record it in {rows} yet"), tidy(&deferred.cause)),
    }
}

/// The reports of a channel's publishers on all running replicas.
fn reports(store: &StoreStatus, channel: Channel) -> impl Iterator<Item = &crate::replica::WorkerReport> {
    let running = store.replicas.iter().filter(|replica| replica.is_running(store.at));
    running.flat_map(|replica| &replica.workers).filter(move |worker| worker.worker == channel.as_str())
}

/// The attempts of a channel on all running replicas, with the cause of those that fail longest.
fn attempts_of(store: &StoreStatus, channel: Channel) -> Option<AttemptsReport> {
    let all: Vec<_> = reports(store, channel).filter_map(|worker| worker.attempts.as_ref()).collect();
    let first = all
        .iter()
        .filter(|of| of.failed > 0)
        .min_by_key(|of| (of.failing_since.is_none(), of.failing_since))?;
    Some(AttemptsReport {
        succeeded: all.iter().map(|of| of.succeeded).sum(),
        failed: all.iter().map(|of| of.failed).sum(),
        failing_since: first.failing_since,
        cause: first.cause.clone(),
    })
}

/// The deferred completions of a channel; the first is that of the first replica. Replicas that find the
/// marker of one route all defer its completion, so the largest number counts: it is the least that there
/// are.
pub(super) fn deferred_of(store: &StoreStatus, channel: Channel) -> Option<DeferredReport> {
    let all: Vec<_> = reports(store, channel).filter_map(|worker| worker.deferred.as_ref()).collect();
    let first = all.iter().min_by_key(|deferred| deferred.since)?;
    let completions = all.iter().map(|deferred| deferred.completions).max()?;
    Some(DeferredReport { completions, ..(*first).clone() })
}
