//! Under a permit, entries are appended whose routes nobody has leased.

use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{Append, LeaseOutcome, LeaseStore, Outbound, ServerId};
use domain::record::NotificationId;
use domain::route::{Channel, RouteKey};

use super::publishing::{
    DEDUPE_TTL, LEASE_TTL, PublishingFixture, Resent, acquire, append, assert_published, assert_remaining,
    id_of, key, server, token,
};

/// Runs every case of [`crate::contract::permits`], each on a fixture of its own.
#[macro_export]
macro_rules! permits_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            permits, $fixture;
            an_append_under_a_permit_needs_no_lease_and_leaves_a_marker,
            a_repeated_append_under_a_permit_returns_the_first_entry,
            a_permit_is_that_of_its_token_and_its_channel,
            an_append_after_the_permit_expired_appends_nothing,
            a_permit_does_not_pass_over_a_lease_or_a_marker,
            each_entry_under_a_permit_has_its_own_outcome,
            a_marker_under_a_permit_gives_way_to_a_resend_and_does_not_come_back,
            a_marker_under_a_permit_is_extended_unless_it_is_of_a_later_entry,
            a_marker_under_a_permit_expires,
        );
    };
}

async fn permit(fixture: &impl PublishingFixture, name: &str) {
    let granted = fixture.leases().grant_permit(Channel::Push, &token(name), LEASE_TTL).await;
    granted.expect("the store is there");
}

pub async fn an_append_under_a_permit_needs_no_lease_and_leaves_a_marker(fixture: impl PublishingFixture) {
    let server = server(&fixture).await;
    permit(&fixture, "p").await;
    let first = id_of(append(&fixture, Channel::Push, 1, "p").await);
    let second = id_of(append(&fixture, Channel::Push, 2, "p").await);
    let found: Vec<String> =
        fixture.entries(Channel::Push).await.iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(found, [first.clone(), second.clone()]);
    for name in ["p", "b"] {
        assert_published(&acquire(&fixture, 1, name, LEASE_TTL).await, &server, &first);
        assert_published(&acquire(&fixture, 2, name, LEASE_TTL).await, &server, &second);
    }
    assert_remaining(&fixture, 1, DEDUPE_TTL).await;
}

pub async fn a_repeated_append_under_a_permit_returns_the_first_entry(fixture: impl PublishingFixture) {
    for name in ["p", "q"] {
        permit(&fixture, name).await;
    }
    let first = append(&fixture, Channel::Push, 1, "p").await;
    for name in ["p", "q", "neither"] {
        assert_eq!(append(&fixture, Channel::Push, 1, name).await, first);
    }
    fixture.expire_permit(Channel::Push, &token("p")).await;
    assert_eq!(append(&fixture, Channel::Push, 1, "p").await, first);
    assert_eq!(fixture.entries(Channel::Push).await.len(), 1);
}

pub async fn a_permit_is_that_of_its_token_and_its_channel(fixture: impl PublishingFixture) {
    permit(&fixture, "p").await;
    assert_eq!(append(&fixture, Channel::Push, 1, "q").await, Append::LeaseLost);
    assert_eq!(append(&fixture, Channel::Email, 1, "p").await, Append::LeaseLost);
    assert_eq!(fixture.entries(Channel::Push).await, []);
    assert_eq!(fixture.entries(Channel::Email).await, []);
}

pub async fn an_append_after_the_permit_expired_appends_nothing(fixture: impl PublishingFixture) {
    permit(&fixture, "p").await;
    fixture.expire_permit(Channel::Push, &token("p")).await;
    assert_eq!(append(&fixture, Channel::Push, 1, "p").await, Append::LeaseLost);
    assert_eq!(fixture.entries(Channel::Push).await, []);
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
}

pub async fn a_permit_does_not_pass_over_a_lease_or_a_marker(fixture: impl PublishingFixture) {
    permit(&fixture, "p").await;
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
    assert_eq!(append(&fixture, Channel::Push, 1, "p").await, Append::LeaseLost);
    assert_remaining(&fixture, 1, LEASE_TTL).await;
    let first = append(&fixture, Channel::Push, 1, "b").await;
    assert_eq!(append(&fixture, Channel::Push, 1, "p").await, first);
    assert_eq!(fixture.entries(Channel::Push).await.len(), 1);
}

pub async fn each_entry_under_a_permit_has_its_own_outcome(fixture: impl PublishingFixture) {
    // Of two times, so that their markers may have two places.
    let mut keys: Vec<RouteKey> = (0..4).map(key).collect();
    keys[3].notification_id = NotificationId::of(EntryId::new(1_775_121_800_000, 3), 0);
    permit(&fixture, "p").await;
    let published = append(&fixture, Channel::Push, 2, "p").await;
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
    let entries: Vec<OutboundEntry<'_>> =
        keys.iter().map(|key| OutboundEntry(vec![("event_id", key.to_string().into())])).collect();
    let given: Vec<_> = keys.iter().zip(&entries).collect();
    let append = async || {
        let appended = fixture.outbound().append(Channel::Push, &given, &token("p"), DEDUPE_TTL, None).await;
        appended.expect("the store is there").entries
    };
    let appended = append().await;
    assert_eq!(appended[1..3], [Append::LeaseLost, published]);
    let ids = [0, 3].map(|at| id_of(appended[at].clone()));
    assert!(ids[0].parse::<EntryId>().expect("an id") < ids[1].parse().expect("an id"));
    assert_eq!(append().await, appended, "the markers are found again");
    assert_eq!(fixture.entries(Channel::Push).await.len(), 3);
}

pub async fn a_marker_under_a_permit_gives_way_to_a_resend_and_does_not_come_back(
    fixture: impl PublishingFixture,
) {
    let server = server(&fixture).await;
    permit(&fixture, "p").await;
    let first = id_of(append(&fixture, Channel::Push, 1, "p").await);
    let lease = async |replaces: &str, name: &str| {
        let route = Resent { key: key(1), replaces };
        let leases = fixture.leases().acquire_leases(&[&route], &token(name), LEASE_TTL).await;
        leases.expect("the store is there").remove(0)
    };
    assert_published(&lease("1-1", "b").await, &server, &first);
    assert_eq!(lease(&first, "b").await, LeaseOutcome::Won);
    assert_eq!(append(&fixture, Channel::Push, 1, "p").await, Append::LeaseLost);
    let second = id_of(append(&fixture, Channel::Push, 1, "b").await);
    assert_ne!(first, second);
    assert_published(&lease(&first, "c").await, &server, &second);
    fixture.expire(&key(1)).await;
    assert_eq!(acquire(&fixture, 1, "c", LEASE_TTL).await, LeaseOutcome::Won);
}

pub async fn a_marker_under_a_permit_is_extended_unless_it_is_of_a_later_entry(
    fixture: impl PublishingFixture,
) {
    let server = server(&fixture).await;
    permit(&fixture, "p").await;
    let first = id_of(append(&fixture, Channel::Push, 1, "p").await);
    let second = id_of(append(&fixture, Channel::Push, 2, "p").await);
    let third = id_of(append(&fixture, Channel::Push, 3, "p").await);
    let extend = async |server: &ServerId, n: u64, id: &str| {
        let extended = fixture.leases().extend_markers(server, &[(&key(n), id)], DEDUPE_TTL * 2).await;
        extended.expect("the store is there")
    };
    assert!(extend(&server, 1, &first).await);
    assert_remaining(&fixture, 1, DEDUPE_TTL * 2).await;
    assert!(extend(&server, 2, &first).await);
    let other = ServerId { run_id: "before the restart".into(), ..server.clone() };
    assert!(!extend(&other, 3, &third).await);
    assert_remaining(&fixture, 3, DEDUPE_TTL * 2).await;
    for (n, id) in [(1, &first), (2, &second), (3, &third)] {
        assert_published(&acquire(&fixture, n, "b", LEASE_TTL).await, &server, id);
    }
    fixture.expire(&key(1)).await;
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won, "it is nowhere else");
}

pub async fn a_marker_under_a_permit_expires(fixture: impl PublishingFixture) {
    permit(&fixture, "p").await;
    let first = id_of(append(&fixture, Channel::Push, 1, "p").await);
    fixture.expire(&key(1)).await;
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
    assert_ne!(id_of(append(&fixture, Channel::Push, 1, "b").await), first);
}
