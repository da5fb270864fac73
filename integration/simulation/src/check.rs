//! The invariants that hold when every fault has ended and the service has come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::entry::EntryId;
use domain::operations::CANCELLED;
use domain::route::{Channel, RouteStatus};

use crate::outbox_streams::PRODUCER;
use crate::plan::Way;
use crate::producers::key;
use crate::replica::{DEDUPE_TTL, EMAIL_MAX_ATTEMPTS, PUSH_MAX_ATTEMPTS};
use crate::world::World;

/// The time from the end of an outage to the next try.
const RETRY_MARGIN: Duration = Duration::from_secs(3);

/// Returns every violation. Empty: all is well.
pub(crate) fn violations(world: &World) -> Vec<String> {
    let mut found = world.ledger.state().violations.clone();
    found.extend(intake(world));
    found.extend(records(world));
    found.extend(publishing(world));
    found
}

/// Checks that every promise to a producer holds: accepted once, or malformed.
fn intake(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    let accepted = world.postgres.database.accepted_keys();
    let accepted: BTreeMap<&str, String> = accepted
        .iter()
        .filter(|(key, _)| key.producer == PRODUCER)
        .map(|(key, id)| (key.key.as_str(), id.to_string()))
        .collect();
    let ledger = world.ledger.state();
    let promised = ledger.acknowledged.keys().chain(ledger.responses.keys()).chain(&ledger.events);
    for key in promised.collect::<BTreeSet<_>>() {
        if !accepted.contains_key(key.as_str()) && !ledger.excused.contains(key) {
            found.push(format!("INV-01 {key} was promised and is not accepted"));
        }
    }
    for (key, ids) in &ledger.responses {
        let kept = accepted.get(key.as_str()).is_some_and(|id| ids.contains(id));
        if (ids.len() > 1 || !kept) && !ledger.excused.contains(key) {
            found.push(format!(
                "INV-01 the client of {key} received {ids:?}, accepted is {:?}",
                accepted.get(key.as_str())
            ));
        }
    }
    let malformed: BTreeSet<_> = world.postgres.database.malformed().iter().map(|row| row.entry_id).collect();
    for id in ledger.malformed.difference(&malformed) {
        if !ledger.excused_entries.contains(id) {
            found.push(format!("INV-01 the malformed entry {id} has no outcome"));
        }
    }
    for intent in world.plan.intents.iter().filter(|intent| intent.is_malformed && intent.way == Way::Stream)
    {
        if accepted.contains_key(key(intent).as_str()) {
            found.push(format!("INV-01 the malformed {} is accepted", key(intent)));
        }
    }
    found
}

/// Checks that every record has all its routes: one for each recipient and channel.
fn records(world: &World) -> Vec<String> {
    let mut routes: BTreeMap<String, u64> = BTreeMap::new();
    for (key, _) in world.postgres.database.routes() {
        *routes.entry(key.notification_id.to_string()).or_default() += 1;
    }
    let accepted = world.postgres.database.accepted_keys();
    let recipients: BTreeMap<String, u64> =
        world.plan.intents.iter().map(|intent| (key(intent), intent.recipients)).collect();
    let mut found = Vec::new();
    for (request, record) in accepted.iter().filter(|(request, _)| request.producer == PRODUCER) {
        let expected = recipients.get(&request.key).map_or(0, |users| users * Channel::ALL.len() as u64);
        let has = routes.get(record.as_str()).copied().unwrap_or(0);
        if has != expected {
            found.push(format!("INV-02 the record {record} has {has} of {expected} routes"));
        }
    }
    found
}

/// Checks that every route is published once, and that every entry belongs to one.
fn publishing(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    let mut entries: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for channel in Channel::ALL {
        for (route, id) in world.published(channel) {
            entries.entry(route).or_default().push(id);
        }
    }
    let database = &world.postgres.database;
    let resent = world.ledger.state().resent.clone();
    let letters: BTreeSet<String> = database.dead_letters().iter().map(ToString::to_string).collect();
    for (key, status) in database.routes() {
        let (name, state) = (key.to_string(), database.route(&key));
        let ids = entries.remove(&name).unwrap_or_default();
        if letters.contains(&name) != (status == RouteStatus::DeadLetter) {
            found.push(format!("INV-05 {name} is {status:?}, and its dead letter says otherwise"));
        }
        let attempts = state.as_ref().map_or(0, |state| state.attempt_count);
        // A route that is sent again counts its former attempt.
        let resent = resent.get(&name).copied();
        let is_resent = resent.is_some();
        if attempts > u32::from(is_resent) && !world.plan.fails_attempts() {
            found.push(format!("INV-05 {name} has {attempts} failed attempts, and no stream refused it"));
        }
        let budget = if key.route_id.starts_with("push:") { PUSH_MAX_ATTEMPTS } else { EMAIL_MAX_ATTEMPTS };
        let budget = if is_resent { budget * 2 } else { budget };
        if attempts > budget {
            found.push(format!("INV-05 {name} has {attempts} failed attempts of {budget}"));
        }
        let is_cancelled = state.as_ref().is_some_and(|state| state.last_error_classification == CANCELLED);
        let recorded = state.map(|state| state.published_entry_id).unwrap_or_default();
        match (status, &ids[..]) {
            (RouteStatus::Published, [id]) if *id == recorded => {
                // PostgreSQL may have lost that it was sent again, and Redis the replaced entry.
                let may_lose = world.plan.loses_records() || world.plan.loses_entries();
                if resent == Some(Some(true)) && !may_lose {
                    found.push(format!("RESEND {name} was sent again, and its only entry is {id}"));
                }
            }
            // PostgreSQL may have lost that it was sent again.
            (RouteStatus::Published, [_, second])
                if is_resent && (*second == recorded || world.plan.loses_records()) => {}
            (RouteStatus::Skipped, []) => {}
            (RouteStatus::Skipped, [_]) if is_cancelled && is_resent => {}
            (RouteStatus::Skipped, ids) if is_cancelled => {
                if !may_be_cancelled_late(world) {
                    found.push(format!("CANCEL {name} is cancelled, and its entries are {ids:?}"));
                }
            }
            (RouteStatus::DeadLetter, []) if world.plan.fails_attempts() => {}
            (RouteStatus::DeadLetter, [_]) if world.plan.fails_attempts() && is_resent => {}
            (RouteStatus::Published, []) => {
                found.push(format!("INV-13 {name} is published as {recorded}, and in no stream"))
            }
            // The completion of either entry may be committed first.
            (RouteStatus::Published, [_, _, ..])
                if ids.contains(&recorded) && may_be_repeated(world, &ids) => {}
            (_, [_, _, ..]) => found.push(format!("INV-10 {name} has several entries: {ids:?}")),
            _ => found
                .push(format!("INV-04 {name} is {status:?} as {recorded:?}, and its entries are {ids:?}")),
        }
    }
    let excused = &world.ledger.state().excused;
    for (name, ids) in entries {
        // The record of an entry may be lost with PostgreSQL's last commits, if no stream has its intent.
        if excused.is_empty() {
            found.push(format!("INV-04 the entries {ids:?} of {name} belong to no route"));
        }
    }
    found
}

/// True if a route may be cancelled although its entry is in the stream: PostgreSQL lost its publication, or
/// the marker of the entry expired before the route was cancelled.
pub(crate) fn may_be_cancelled_late(world: &World) -> bool {
    world.plan.loses_records() || may_expire_unrenewed(world)
}

/// True if a marker may expire because nothing could renew it: Redis was out of reach or no replica ran.
fn may_expire_unrenewed(world: &World) -> bool {
    let plan = &world.plan;
    let unrenewed = plan.longest_redis_outage() + plan.longest_without_replicas();
    unrenewed + plan.redis_clock_steps() + RETRY_MARGIN >= DEDUPE_TTL
}

/// True if each entry of a route came when the marker of the one before had expired, and nothing could renew
/// it: PostgreSQL had lost the record, or Redis was out of reach or no replica ran for that long.
fn may_be_repeated(world: &World, ids: &[String]) -> bool {
    let plan = &world.plan;
    let (steps, ttl) = (plan.redis_clock_steps(), DEDUPE_TTL);
    let ids: Vec<EntryId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
    let apart =
        |pair: &[EntryId]| Duration::from_millis(pair[1].millis.saturating_sub(pair[0].millis)) + steps;
    let may_expire = plan.loses_records() || may_expire_unrenewed(world);
    may_expire && ids.windows(2).all(|pair| apart(pair) >= ttl)
}
