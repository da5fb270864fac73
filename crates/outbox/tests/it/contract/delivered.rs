//! Lists of DELIVERED events for a comparison.

use std::collections::BTreeSet;

use ambient::Timestamp;
use outbox::{DeliveredEvent, EventTypes, Storage};
use pg::RawTimestamp;
use uuid::Uuid;

use crate::support::{MINUTE, TICK, World, event, id, ids};

async fn deliver(world: &impl World, number: u64) {
    world.add(number, "").await;
    let (token, claimed) = world.claim(10).await;
    let _ = world.deliver(&token, &claimed).await;
}

/// Returns the whole list, read in pages of two.
async fn listed(world: &impl World, types: &EventTypes, since: RawTimestamp) -> Vec<DeliveredEvent> {
    let (mut events, mut cursor) = (Vec::new(), None);
    loop {
        let page = world.storage().list_delivered(types, since, cursor, 2).await.expect("no failure");
        events.extend(page.events);
        cursor = page.next;
        if cursor.is_none() {
            return events;
        }
    }
}

fn found(events: &[DeliveredEvent]) -> BTreeSet<Uuid> {
    events.iter().map(|event| event.event_id).collect()
}

pub(super) async fn what_was_delivered_is_listed_in_parts_to_the_end(world: &impl World) {
    deliver(world, 1).await;
    world.pass(MINUTE).await;
    let since = world.now().await.into();
    for number in 2..=5 {
        world.add(number, "").await;
    }
    let other = outbox::NewEvent { event_type: "other".to_owned(), ..event(6, "") };
    world.insert(other, world.now().await).await;
    let (token, claimed) = world.claim(10).await;
    let _ = world.deliver(&token, &claimed).await;
    world.pass(TICK).await;
    deliver(world, 7).await;
    world.add(8, "").await;
    let events = listed(world, &EventTypes::All, since).await;
    assert_eq!(found(&events), ids(2..=7).into_iter().collect());
    assert_eq!(events.len(), 6, "each once");
    let only = EventTypes::Only(vec!["other".to_owned()]);
    assert_eq!(
        found(&listed(world, &only, RawTimestamp::NEG_INFINITY).await),
        ids([6]).into_iter().collect()
    );
}

pub(super) async fn only_what_is_delivered_as_it_was_read_is_pending_again(world: &impl World) {
    for number in 1..=3 {
        deliver(world, number).await;
    }
    world.add(4, "").await;
    let mut events = listed(world, &EventTypes::All, RawTimestamp::NEG_INFINITY).await;
    events.sort_by_key(|event| event.event_id);
    world.pass(TICK).await;
    let outcome = world.storage().requeue_delivered(&events[..1]).await.expect("no failure");
    assert_eq!((outcome.requeued, outcome.locked), (ids([1]), Vec::new()));
    let (token, claimed) = world.claim(1).await;
    assert_eq!(claimed, ids([4]), "what was requeued fell due later");
    let _ = world.release(&token, &claimed).await;
    let (token, claimed) = world.claim(10).await;
    let _ = world.deliver(&token, &claimed).await;
    let foreign = DeliveredEvent { event_id: id(9), ..events[0].clone() };
    events.push(foreign);
    let requeued = world.storage().requeue_delivered(&events).await.expect("no failure");
    assert_eq!(requeued.locked, Vec::<Uuid>::new());
    assert_eq!(requeued.requeued.into_iter().collect::<BTreeSet<_>>(), ids([2, 3]).into_iter().collect());
    for (number, status) in [(1, "DELIVERED"), (2, "PENDING"), (3, "PENDING"), (4, "DELIVERED")] {
        assert_eq!(world.status(id(number)).await, status, "{number}");
    }
}

/// Returns the newest time at which an event of these types was delivered.
async fn newest(world: &impl World, types: &EventTypes) -> Option<RawTimestamp> {
    let mut cursor = None;
    loop {
        let page = world.storage().newest_delivered(types, cursor).await.expect("no failure");
        cursor = page.next;
        if cursor.is_none() {
            return page.newest;
        }
    }
}

pub(super) async fn the_newest_delivered_event_is_the_newest_of_the_types(world: &impl World) {
    let now = world.now().await;
    assert_eq!(world.storage().now().await.expect("no failure"), now.into());
    assert_eq!(newest(world, &EventTypes::All).await, None, "there is none");
    deliver(world, 1).await;
    world.pass(MINUTE * 60).await;
    let other = outbox::NewEvent { event_type: "other".to_owned(), ..event(2, "") };
    world.insert(other, world.now().await).await;
    let (token, claimed) = world.claim(10).await;
    let _ = world.deliver(&token, &claimed).await;
    assert_eq!(newest(world, &EventTypes::All).await, Some((now + MINUTE * 60).into()));
    let types = |name: &str| EventTypes::Only(vec![name.to_owned()]);
    assert_eq!(newest(world, &types("t")).await, Some(now.into()));
    assert_eq!(newest(world, &types("unknown")).await, None);
}

pub(super) async fn the_oldest_claim_that_was_made_before_a_time_is_seen_until_its_mark(world: &impl World) {
    let storage = world.storage();
    world.add(1, "").await;
    let (token, claimed) = world.claim(1).await;
    let now = world.now().await;
    world.pass(TICK).await;
    world.add(2, "").await;
    let (later, claimed_later) = world.claim(1).await;
    let oldest_until =
        async |time: Timestamp| storage.oldest_claim_until(time.into()).await.expect("no failure");
    assert_eq!(oldest_until(now - TICK).await, None);
    assert_eq!(oldest_until(now + TICK).await, Some(now.into()));
    let _ = world.deliver(&token, &claimed).await;
    assert_eq!(oldest_until(now).await, None);
    assert_eq!(oldest_until(now + TICK).await, Some((now + TICK).into()));
    let _ = world.deliver(&later, &claimed_later).await;
    assert_eq!(oldest_until(now + TICK).await, None);
}
