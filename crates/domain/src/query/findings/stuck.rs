//! Stuck parts: an operator has to look at them because they do not recover by themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::Timestamp;

use super::super::store_status::{ChannelStatus, INTAKE, StoreStatus, Waiting, meaning};
use super::failing::deferred_of;
use super::{Culprits, Finding, NO_LEADER, PUBLISHING, ServiceState, in_order, listed, section_of};
use crate::document::Age;
use crate::replica::DeferredReport;
use crate::route::RouteStatus;

/// A worker that has been blocked for this long is stuck.
pub const BLOCKED_LIMIT: Duration = Duration::from_secs(30);
/// Intake is stuck if no replica has led for this long: after a crash another replica leads within 12 s.
pub const NO_LEADER_LIMIT: Duration = Duration::from_secs(15);
/// A channel is stuck if its oldest due route has been due for longer than this.
pub const OLDEST_DUE_LIMIT: Duration = Duration::from_secs(60);

/// The stuck parts of the service, given its `blocked` workers by name. `leaderless_since` is the end of the
/// last term, if no replica leads and that time is known.
pub(in crate::query) fn stuck(
    store: &StoreStatus,
    blocked: &BTreeMap<String, Waiting>,
    leaderless_since: Option<Timestamp>,
) -> Vec<Finding> {
    let late: Vec<&ChannelStatus> = store.channels.iter().filter(|channel| is_late(channel)).collect();
    let is_late = |worker: &str| late.iter().any(|channel| channel.channel.as_str() == worker);
    let mut causes: BTreeMap<(bool, &str), Vec<(&str, &Waiting)>> = BTreeMap::new();
    for (worker, waiting) in blocked {
        causes.entry(key_of(worker, waiting)).or_default().push((worker, waiting));
    }
    let is_stuck = |(worker, waiting): &(&str, &Waiting)| waiting.age.0 >= BLOCKED_LIMIT || is_late(worker);
    let obstacles = causes.values().filter(|workers| workers.iter().any(is_stuck));
    let obstacles = obstacles.map(|workers| obstacle(workers, store, &late));
    let others = late.iter().filter(|channel| !blocked.contains_key(channel.channel.as_str()));
    let channels = others.map(|channel| late_channel(channel, store));
    no_leader(store, leaderless_since).into_iter().chain(obstacles).chain(channels).collect()
}

fn is_late(channel: &ChannelStatus) -> bool {
    channel.oldest_due.is_some_and(|age| age.0 > OLDEST_DUE_LIMIT)
}

fn no_leader(store: &StoreStatus, since: Option<Timestamp>) -> Option<Finding> {
    let age = Age::between(since?, store.at);
    (age.0 >= NO_LEADER_LIMIT).then(|| Finding {
        state: ServiceState::Stuck,
        parts: vec![INTAKE.to_owned()],
        sentence: format!("No replica has led for {age}, so no intent is read"),
        cause: None,
        since,
        count: None,
        culprits: None,
        runbook: NO_LEADER,
    })
}

/// The key that workers with the same obstacle share: its meaning, or the text after the failed operation. A
/// worker that waits at an entry waits by itself.
fn key_of<'a>(worker: &'a str, waiting: &'a Waiting) -> (bool, &'a str) {
    if waiting.entry_id.is_some() {
        return (false, worker);
    }
    let cause = waiting.cause.as_str();
    let operation = cause.strip_prefix("could not ").and_then(|rest| rest.split_once(": "));
    (true, meaning(cause).or(operation.map(|(_, cause)| cause)).unwrap_or(cause))
}

/// The finding about workers with the same obstacle.
fn obstacle(workers: &[(&str, &Waiting)], store: &StoreStatus, late: &[&ChannelStatus]) -> Finding {
    let mut parts: Vec<String> = workers.iter().map(|(worker, _)| (*worker).to_owned()).collect();
    parts.sort_by(|one, other| in_order(one).cmp(&in_order(other)));
    let longest = workers.iter().max_by_key(|(_, waiting)| waiting.age);
    let (cause, age) = longest.map_or(("", Age(Duration::ZERO)), |(_, of)| (of.cause.as_str(), of.age));
    let sentence = match (workers, meaning(cause)) {
        ([(worker, waiting)], None) => {
            let at = waiting.entry_id.map_or_else(String::new, |id| format!(" at the entry {id}"));
            format!("The worker {worker} of {} has been blocked for {age}{at}", waiting.replica)
        }
        ([_], Some(meaning)) => format!("{meaning}: {} has been blocked for {age}", listed(&parts)),
        (_, Some(meaning)) => format!("{meaning}: {} have been blocked for up to {age}", listed(&parts)),
        (_, None) => format!("{} have been blocked for up to {age}", listed(&parts)),
    };
    let due = late.iter().filter(|channel| parts.iter().any(|part| part == channel.channel.as_str()));
    let due = due.filter_map(|channel| channel.oldest_due).max();
    let due = due.map_or_else(String::new, |age| format!(", and a route has been due for {age}"));
    Finding {
        state: ServiceState::Stuck,
        sentence: format!("{sentence}{due}"),
        cause: super::tidy(cause),
        since: Some(store.at - age.0),
        count: None,
        culprits: None,
        runbook: parts.first().map_or(PUBLISHING, |part| section_of(part)),
        parts,
    }
}

/// The finding about a channel with a route that is not published although no publisher is blocked.
fn late_channel(channel: &ChannelStatus, store: &StoreStatus) -> Finding {
    let (name, age) = (channel.channel.as_str(), channel.oldest_due.unwrap_or(Age(Duration::ZERO)));
    let deferred = deferred_of(store, channel.channel);
    // The completions are the cause if they are all that is due, or if they began with what is due longest.
    let explains = |of: &DeferredReport| {
        of.completions >= channel.due.count || Age::between(of.since, store.at).0 + BLOCKED_LIMIT >= age.0
    };
    match deferred.filter(explains) {
        Some(deferred) => Finding { state: ServiceState::Stuck, ..super::failing::deferral(name, &deferred) },
        None => Finding {
            state: ServiceState::Stuck,
            parts: vec![name.to_owned()],
            sentence: format!(
                "The channel {name} has a route that has been due for {age} and is not published"
            ),
            cause: None,
            since: Some(store.at - age.0),
            count: Some(channel.due.count),
            culprits: Culprits::routes(name, RouteStatus::Pending),
            runbook: PUBLISHING,
        },
    }
}
