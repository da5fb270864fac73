//! What is DELIVERED, listed for a comparison.

use std::collections::BTreeSet;

use outbox::{DeliveredEvent, EventTypes, Storage};
use pg::RawTimestamp;
use uuid::Uuid;

use crate::support::{MINUTE, TICK, World, event, id, ids};

async fn deliver(world: &impl World, number: u64) {
    world.add(number, "").await;
    let (token, claimed) = world.claim(10).await;
    let _ = world.deliver(&token, &claimed).await;
}

/// All that is listed, in parts of two.
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
    assert_eq!(world.storage().requeue_delivered(&events[..1]).await.expect("no failure"), ids([1]));
    let (token, claimed) = world.claim(1).await;
    assert_eq!(claimed, ids([4]), "what was requeued fell due later");
    let _ = world.release(&token, &claimed).await;
    let (token, claimed) = world.claim(10).await;
    let _ = world.deliver(&token, &claimed).await;
    let foreign = DeliveredEvent { event_id: id(9), ..events[0].clone() };
    events.push(foreign);
    let requeued = world.storage().requeue_delivered(&events).await.expect("no failure");
    assert_eq!(requeued.into_iter().collect::<BTreeSet<_>>(), ids([2, 3]).into_iter().collect());
    for (number, status) in [(1, "DELIVERED"), (2, "PENDING"), (3, "PENDING"), (4, "DELIVERED")] {
        assert_eq!(world.status(id(number)).await, status, "{number}");
    }
}

pub(super) async fn a_comparison_goes_back_from_the_newest_delivered_event(world: &impl World) {
    let now = world.now().await;
    let start = world.storage().comparison_start(MINUTE).await.expect("no failure");
    assert_eq!((start.now, start.since), (now.into(), (now - MINUTE).into()), "there is none");
    deliver(world, 1).await;
    world.pass(MINUTE * 60).await;
    let start = world.storage().comparison_start(MINUTE).await.expect("no failure");
    assert_eq!((start.now, start.since), ((now + MINUTE * 60).into(), (now - MINUTE).into()));
}

pub(super) async fn claims_that_were_made_before_a_time_are_seen(world: &impl World) {
    let storage = world.storage();
    world.add(1, "").await;
    let (token, claimed) = world.claim(1).await;
    let now = world.now().await;
    assert!(!storage.has_claims_until((now - TICK).into()).await.expect("no failure"));
    assert!(storage.has_claims_until(now.into()).await.expect("no failure"));
    let _ = world.deliver(&token, &claimed).await;
    assert!(!storage.has_claims_until(now.into()).await.expect("no failure"));
}
