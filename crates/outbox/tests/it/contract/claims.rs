//! The events that a claim takes: by keys, types, bytes and number of events examined.

use super::*;

pub(super) async fn events_of_a_key_go_by_creation_whenever_they_fell_due(world: &impl World) {
    let now = world.now().await;
    // Older events become due later.
    for (number, created, available) in [(1, 9, 1), (2, 8, 2), (3, 7, 3)] {
        let event = NewEvent { available_at: Some(now - MINUTE * available), ..event(number, "k") };
        world.insert(event, now - MINUTE * created).await;
    }
    world.insert(NewEvent { available_at: Some(now - MINUTE * 4), ..event(4, "") }, now).await;
    let (token, claimed) = world.claim(2).await;
    assert_eq!(claimed, ids([4, 1]), "the first of the key, although another one of it fell due before");
    assert_eq!(world.deliver(&token, &claimed).await, [Marked::Applied; 2]);
    assert_eq!(world.claim(10).await.1, ids([2, 3]));
}

pub(super) async fn a_key_is_held_by_one_claim(world: &impl World) {
    for number in 1..=3 {
        world.add(number, "k").await;
    }
    world.add(4, "l").await;
    let (token, claimed) = world.claim(1).await;
    assert_eq!(claimed, ids([1]));
    assert_eq!(world.claim(10).await.1, ids([4]));
    assert_eq!(world.deliver(&token, &claimed).await, [Marked::Applied]);
    assert_eq!(world.claim(10).await.1, ids([2, 3]));
}

pub(super) async fn an_event_that_waits_for_its_retry_blocks_its_key_and_no_other(world: &impl World) {
    for (number, key) in [(1, "k"), (2, "k"), (3, "l"), (4, ""), (5, "")] {
        world.add(number, key).await;
    }
    let (token, _) = world.claim(10).await;
    assert_eq!(world.fail(&token, &ids([1, 4]), FailureKind::Retry(MINUTE)).await, [Marked::Applied; 2]);
    assert_eq!(world.release(&token, &ids([2, 3, 5])).await, [Marked::Applied; 3]);
    assert_eq!(world.claim(10).await.1, ids([3, 5]));
    world.pass(MINUTE).await;
    assert_eq!(world.claim(10).await.1, ids([1, 2, 4]), "in the places of the key");
}

pub(super) async fn an_event_that_is_scheduled_and_was_never_tried_blocks_nothing(world: &impl World) {
    let now = world.now().await;
    world.insert(NewEvent { available_at: Some(now + MINUTE), ..event(1, "k") }, now - MINUTE).await;
    world.add(2, "k").await;
    assert_eq!(world.claim(10).await.1, ids([2]));
    world.pass(MINUTE).await;
    assert_eq!(world.claim(10).await.1, ids([]), "the key is held");
}

pub(super) async fn a_claim_looks_at_no_more_events_than_its_limit_and_says_how_far(world: &impl World) {
    for number in 1..=4 {
        world.add(number, "k").await;
    }
    for number in 5..=6 {
        world.add(number, "").await;
    }
    assert_eq!(world.claim(1).await.1, ids([1]));
    let blocked = world.claim_with(&request(2)).await;
    assert_eq!(found(&blocked), ids([]));
    let next = blocked.next.expect("there is more");
    assert_eq!(next.event_id, id(3));
    let further = world.claim_with(&BatchClaim { after: Some(next), ..request(2) }).await;
    assert_eq!((found(&further), further.next.map(|next| next.event_id)), (ids([5]), Some(id(5))));
    let last = world.claim_with(&BatchClaim { after: further.next, ..request(2) }).await;
    assert_eq!((found(&last), last.next), (ids([6]), None));
}

pub(super) async fn other_types_are_left_alone_and_block_nothing(world: &impl World) {
    let now = world.now().await;
    let only = |name: &str| EventTypes::Only(vec![name.to_owned()]);
    for (number, event_type) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
        world.insert(NewEvent { event_type: event_type.to_owned(), ..event(number, "k") }, now).await;
    }
    let a = world.claim_with(&BatchClaim { types: only("a"), ..request(3) }).await;
    assert_eq!((found(&a), a.next.map(|next| next.event_id)), (ids([1, 3]), Some(id(3))));
    let b = world.claim_with(&BatchClaim { types: only("b"), ..request(10) }).await;
    assert_eq!(found(&b), ids([2, 4]), "the other relay's claim of the key is none of this one's");
    world.pass(LEASE + TICK).await;
    let reap = ReapRequest { types: only("a"), lease_timeout: LEASE, limit: 10, except: Vec::new() };
    assert_eq!(world.storage().reap_expired_leases(&reap, &kind).await.expect("reaped").count, 2);
    assert_eq!(world.status(id(2)).await, "DELIVERING");
}

pub(super) async fn a_claim_ends_at_its_bytes_and_takes_its_first_event_whole(world: &impl World) {
    let now = world.now().await;
    for (number, bytes) in [(1, 3_000), (2, 600), (3, 300), (4, 300)] {
        world.insert(NewEvent { payload: vec![b'x'; bytes].into(), ..event(number, "") }, now).await;
    }
    let first = world.claim_with(&BatchClaim { max_bytes: 1_000, ..request(10) }).await;
    assert_eq!((found(&first), first.next.map(|next| next.event_id)), (ids([1]), Some(id(1))));
    let second = world.claim_with(&BatchClaim { max_bytes: 1_000, after: first.next, ..request(10) }).await;
    assert_eq!((found(&second), second.next.map(|next| next.event_id)), (ids([2, 3]), Some(id(3))));
}

pub(super) async fn an_event_that_is_too_large_is_claimed_without_its_payload(world: &impl World) {
    let now = world.now().await;
    for (number, bytes) in [(1, 1_000), (2, 1_001)] {
        world.insert(NewEvent { payload: vec![b'x'; bytes].into(), ..event(number, "k") }, now).await;
    }
    let headers = [("name".to_owned(), "y".repeat(5_000))].into();
    world.insert(NewEvent { headers, ..event(3, "k") }, now).await;
    let claim =
        world.claim_with(&BatchClaim { max_event_bytes: 1_000, max_bytes: 1_200, ..request(10) }).await;
    let sizes: Vec<Option<u64>> = claim
        .events
        .iter()
        .map(|event| match event.content {
            EventContent::Whole { .. } => None,
            EventContent::TooLarge { bytes } => Some(bytes),
        })
        .collect();
    assert_eq!((found(&claim), &sizes[..2]), (ids([1, 2, 3]), &[None, Some(1_001)][..]));
}

// O-24
pub(super) async fn reaped_events_are_claimed_together_and_fewer_each_time(world: &impl World) {
    for number in 1..=64 {
        world.add(number, if number % 2 == 0 { "k" } else { "" }).await;
    }
    assert_eq!(world.claim(64).await.1.len(), 64);
    world.pass(LEASE + TICK).await;
    assert_eq!(world.reap().await, 64);
    world.pass(MINUTE).await;
    world.add(65, "").await;
    world.add(66, "k").await;
    let group = world.claim_with(&request(64)).await;
    assert_eq!((found(&group), group.of_reaped), (ids(1..=4), true));
    // New events are claimed apart from them, but not before others of their key.
    let fresh = world.claim_with(&BatchClaim { passes_reaped: true, ..request(128) }).await;
    assert_eq!((found(&fresh), fresh.of_reaped), (ids([65]), false));
    world.pass(LEASE + TICK).await;
    assert_eq!(world.reap().await, 5);
    world.pass(MINUTE).await;
    let mut sizes = Vec::new();
    let mut after = None;
    loop {
        let claim = world.claim_with(&BatchClaim { after, ..request(64) }).await;
        if claim.events.is_empty() && claim.next.is_none() {
            break;
        }
        sizes.extend(Some(claim.events.len()).filter(|size| *size > 0));
        after = claim.next;
    }
    assert!(sizes.iter().all(|size| *size <= 4), "{sizes:?}");
    assert!(sizes.iter().filter(|size| **size == 1).count() >= 2, "reaped twice, they are alone: {sizes:?}");
    let last = BatchClaim { max_attempts: 2, ..request(64) };
    world.pass(LEASE + TICK).await;
    assert!(world.reap().await > 0);
    world.pass(MINUTE * 10).await;
    assert_eq!(found(&world.claim_with(&last).await).len(), 1, "its last attempt it has alone");
}

pub(super) async fn an_event_that_is_set_aside_holds_back_its_key_and_nothing_else(world: &impl World) {
    for (number, key) in [(1, "k"), (2, ""), (3, "k"), (4, "l"), (5, "")] {
        world.add(number, key).await;
    }
    let request = BatchClaim { set_aside: ids([1, 2]), ..request(10) };
    assert_eq!(world.storage().first_claimable(&request).await.expect("no failure"), Some(id(4)));
    let claim = world.claim_with(&request).await;
    assert_eq!((found(&claim), claim.next), (ids([4, 5]), None));
}
