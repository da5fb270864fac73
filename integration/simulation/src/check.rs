//! The invariants that hold when every fault has ended and the service has come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::entry::EntryId;
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
    let letters: BTreeSet<String> = database.dead_letters().iter().map(ToString::to_string).collect();
    for (key, status) in database.routes() {
        let (name, state) = (key.to_string(), database.route(&key));
        let ids = entries.remove(&name).unwrap_or_default();
        if letters.contains(&name) != (status == RouteStatus::DeadLetter) {
            found.push(format!("INV-05 {name} is {status:?}, and its dead letter says otherwise"));
        }
        let attempts = state.as_ref().map_or(0, |state| state.attempt_count);
        if attempts > 0 && !world.plan.fails_attempts() {
            found.push(format!("INV-05 {name} has {attempts} failed attempts, and no stream refused it"));
        }
        let budget = if key.route_id.starts_with("push:") { PUSH_MAX_ATTEMPTS } else { EMAIL_MAX_ATTEMPTS };
        if attempts > budget {
            found.push(format!("INV-05 {name} has {attempts} failed attempts of {budget}"));
        }
        let recorded = state.map(|state| state.published_entry_id).unwrap_or_default();
        match (status, &ids[..]) {
            (RouteStatus::Published, [id]) if *id == recorded => {}
            (RouteStatus::Skipped, []) => {}
            (RouteStatus::DeadLetter, []) if world.plan.fails_attempts() => {}
            (RouteStatus::Published, []) => {
                found.push(format!("INV-13 {name} is published as {recorded}, and in no stream"))
            }
            (RouteStatus::Published, [first, _, ..])
                if *ids.last().unwrap_or(first) == recorded && may_be_repeated(world, &ids) => {}
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

/// True if each entry of a route came when the marker of the one before had expired, and nothing could renew
/// it: PostgreSQL had lost the record, or Redis was out of reach or no replica ran for that long.
fn may_be_repeated(world: &World, ids: &[String]) -> bool {
    let plan = &world.plan;
    let (steps, ttl) = (plan.redis_clock_steps(), DEDUPE_TTL);
    let ids: Vec<EntryId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
    let apart =
        |pair: &[EntryId]| Duration::from_millis(pair[1].millis.saturating_sub(pair[0].millis)) + steps;
    let unrenewed = plan.longest_redis_outage() + plan.longest_without_replicas();
    let may_expire = plan.loses_records() || unrenewed + steps + RETRY_MARGIN >= ttl;
    may_expire && ids.windows(2).all(|pair| apart(pair) >= ttl)
}
