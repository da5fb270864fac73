//! Leases become markers, and no entry is appended without the lease.

use std::time::Duration;

use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{
    Acknowledged, Append, Appends, Leasable, LeaseOutcome, LeaseStore, LeaseToken, Outbound, ServerId,
};
use domain::record::NotificationId;
use domain::route::{Channel, RouteKey};

use memory_stores::PublishedFields;

/// A store under test, and a test's observations of it and actions on it.
pub trait PublishingFixture {
    /// The leases and markers.
    fn leases(&self) -> &impl LeaseStore;

    /// The streams to which the markers belong.
    fn outbound(&self) -> &impl Outbound;

    /// Expires the lease or marker of `key`.
    fn expire(&self, key: &RouteKey) -> impl Future<Output = ()>;

    /// Expires the permit of a token.
    fn expire_permit(&self, channel: Channel, token: &LeaseToken) -> impl Future<Output = ()>;

    /// The remaining lifetime of the lease or marker of `key`.
    fn remaining(&self, key: &RouteKey) -> impl Future<Output = Option<Duration>>;

    /// The entries of a channel's stream.
    fn entries(&self, channel: Channel) -> impl Future<Output = Vec<(EntryId, PublishedFields)>>;
}

/// Runs every case of [`crate::contract::publishing`], each on a fixture of its own.
#[macro_export]
macro_rules! publishing_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            publishing, $fixture;
            a_lease_is_won_once_and_held_for_every_other_token,
            a_refused_token_does_not_extend_the_lease,
            the_holder_wins_again_and_renews_its_lease,
            a_lease_is_released_by_its_own_token_only,
            an_expired_lease_is_won_by_the_next_token,
            a_channel_has_one_scan_lock_which_only_its_token_releases,
            an_append_under_the_lease_leaves_a_marker_that_every_token_finds,
            a_repeated_append_returns_the_first_entry,
            an_append_without_the_lease_appends_nothing,
            an_append_after_the_lease_expired_appends_nothing,
            another_server_than_the_expected_one_appends_nothing,
            a_marker_is_not_released,
            an_expired_marker_lets_the_route_be_leased_again,
            an_extended_marker_replaces_what_is_there,
            a_marker_of_the_replaced_entry_gives_way_and_any_other_does_not,
            a_marker_of_a_later_entry_is_not_overwritten,
            a_marker_of_an_entry_that_another_server_acknowledged_is_not_extended,
            each_key_of_a_call_has_its_own_answer_in_the_order_asked,
            each_channel_has_its_own_stream,
        );
    };
}

pub(super) const LEASE_TTL: Duration = Duration::from_secs(60);
pub(super) const DEDUPE_TTL: Duration = Duration::from_secs(600);
/// The most time that a real server may take between a call and the check of its effect.
const SLACK: Duration = Duration::from_secs(20);

pub(super) fn key(n: u64) -> RouteKey {
    let notification_id = NotificationId::of(EntryId::new(1_775_121_700_000, n), 0);
    RouteKey { notification_id, route_id: "push:user:u-1".to_owned() }
}

pub(super) fn token(name: &str) -> LeaseToken {
    LeaseToken(name.to_owned())
}

pub(super) async fn acquire(
    fixture: &impl PublishingFixture,
    n: u64,
    name: &str,
    ttl: Duration,
) -> LeaseOutcome {
    let mut leases =
        fixture.leases().acquire_leases(&[&key(n)], &token(name), ttl).await.expect("the store is there");
    assert_eq!(leases.len(), 1);
    leases.remove(0)
}

pub(super) async fn append(fixture: &impl PublishingFixture, channel: Channel, n: u64, name: &str) -> Append {
    let key = key(n);
    let entry = OutboundEntry(vec![("event_id", key.to_string().into()), ("attempt", "1".into())]);
    let appended =
        fixture.outbound().append(channel, &[(&key, &entry)], &token(name), DEDUPE_TTL, None).await;
    let mut appended = appended.expect("the store is there").entries;
    assert_eq!(appended.len(), 1);
    appended.remove(0)
}

/// Appends as [`append`], and only to this server. Returns the server that responded, too.
async fn append_on(
    fixture: &impl PublishingFixture,
    n: u64,
    name: &str,
    server: Option<&ServerId>,
) -> (ServerId, Append) {
    let key = key(n);
    let entry = OutboundEntry(vec![("event_id", key.to_string().into())]);
    let given = [(&key, &entry)];
    let appended = fixture.outbound().append(Channel::Push, &given, &token(name), DEDUPE_TTL, server).await;
    let Appends { server, mut entries } = appended.expect("the store is there");
    (server, entries.remove(0))
}

pub async fn another_server_than_the_expected_one_appends_nothing(fixture: impl PublishingFixture) {
    for n in [1, 2] {
        assert_eq!(acquire(&fixture, n, "a", LEASE_TTL).await, LeaseOutcome::Won);
    }
    let (server, _) = append_on(&fixture, 1, "a", None).await;
    for (run_id, replication_id) in [("another", &*server.replication_id), (&*server.run_id, "another")] {
        let other = ServerId { run_id: run_id.into(), replication_id: replication_id.into() };
        let (responded, refused) = append_on(&fixture, 2, "a", Some(&other)).await;
        assert_eq!((&responded, refused), (&server, Append::LeaseLost));
        let (_, found) = append_on(&fixture, 1, "a", Some(&other)).await;
        assert!(matches!(found, Append::Done(_)), "what is appended is found: {found:?}");
    }
    assert_eq!(fixture.entries(Channel::Push).await.len(), 1);
    let (_, appended) = append_on(&fixture, 2, "a", Some(&server)).await;
    assert!(matches!(appended, Append::Done(_)), "the lease is still held: {appended:?}");
}

pub(super) fn id_of(append: Append) -> String {
    match append {
        Append::Done(entry) => entry.entry_id,
        other => panic!("not appended: {other:?}"),
    }
}

/// A route that is sent again in place of an entry.
pub(super) struct Resent<'a> {
    pub(super) key: RouteKey,
    pub(super) replaces: &'a str,
}

impl Leasable for Resent<'_> {
    fn key(&self) -> &RouteKey {
        &self.key
    }

    fn replaces(&self) -> Option<&str> {
        Some(self.replaces)
    }
}

/// The server's id, as acknowledged with an entry of the other stream.
pub(super) async fn server(fixture: &impl PublishingFixture) -> ServerId {
    assert_eq!(acquire(fixture, 99, "server", LEASE_TTL).await, LeaseOutcome::Won);
    match append(fixture, Channel::Email, 99, "server").await {
        Append::Done(entry) => entry.server,
        other => panic!("not appended: {other:?}"),
    }
}

#[track_caller]
pub(super) fn assert_published(lease: &LeaseOutcome, server: &ServerId, entry_id: &str) {
    let entry = Acknowledged { entry_id: entry_id.to_owned(), server: server.clone() };
    assert_eq!(*lease, LeaseOutcome::Published(entry));
}

pub(super) async fn assert_remaining(fixture: &impl PublishingFixture, n: u64, ttl: Duration) {
    let remaining = fixture.remaining(&key(n)).await.expect("it lives and has an end");
    assert!(remaining <= ttl && remaining > ttl - SLACK, "{remaining:?} is not about {ttl:?}");
}

pub async fn a_lease_is_won_once_and_held_for_every_other_token(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    assert_remaining(&fixture, 1, LEASE_TTL).await;
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Held);
    assert_eq!(acquire(&fixture, 2, "b", LEASE_TTL).await, LeaseOutcome::Won);
}

pub async fn a_refused_token_does_not_extend_the_lease(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL * 10).await, LeaseOutcome::Held);
    assert_remaining(&fixture, 1, LEASE_TTL).await;
}

pub async fn the_holder_wins_again_and_renews_its_lease(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL * 10).await, LeaseOutcome::Won);
    assert_remaining(&fixture, 1, LEASE_TTL * 10).await;
}

pub async fn a_lease_is_released_by_its_own_token_only(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    fixture.leases().release_leases(&[&key(1)], &token("b")).await.expect("the store is there");
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Held);
    // A missing key does not disturb the others.
    fixture.leases().release_leases(&[&key(2), &key(1)], &token("a")).await.expect("the store is there");
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
}

pub async fn an_expired_lease_is_won_by_the_next_token(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    fixture.expire(&key(1)).await;
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Held);
}

pub async fn a_channel_has_one_scan_lock_which_only_its_token_releases(fixture: impl PublishingFixture) {
    let leases = fixture.leases();
    let acquire = async |channel, name| {
        leases.acquire_scan_lock(channel, &token(name), LEASE_TTL).await.expect("the store is there")
    };
    assert!(acquire(Channel::Push, "a").await);
    assert!(!acquire(Channel::Push, "b").await);
    assert!(acquire(Channel::Email, "b").await);
    leases.release_scan_lock(Channel::Push, &token("b")).await.expect("the store is there");
    assert!(!acquire(Channel::Push, "b").await);
    leases.release_scan_lock(Channel::Push, &token("a")).await.expect("the store is there");
    assert!(acquire(Channel::Push, "b").await);
}

pub async fn an_append_under_the_lease_leaves_a_marker_that_every_token_finds(
    fixture: impl PublishingFixture,
) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    let server = server(&fixture).await;
    let id = id_of(append(&fixture, Channel::Push, 1, "a").await);
    let entries = fixture.entries(Channel::Push).await;
    let fields = [("event_id", key(1).to_string()), ("attempt", "1".to_owned())];
    let fields = fields.map(|(name, value)| (name.to_owned(), value)).to_vec();
    assert_eq!(entries, [(id.parse().expect("an entry id"), fields)]);
    for name in ["a", "b"] {
        assert_published(&acquire(&fixture, 1, name, LEASE_TTL).await, &server, &id);
    }
    assert_remaining(&fixture, 1, DEDUPE_TTL).await;
}

pub async fn a_repeated_append_returns_the_first_entry(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    let first = append(&fixture, Channel::Push, 1, "a").await;
    for name in ["a", "b"] {
        assert_eq!(append(&fixture, Channel::Push, 1, name).await, first);
    }
    assert_eq!(fixture.entries(Channel::Push).await.len(), 1);
}

pub async fn an_append_without_the_lease_appends_nothing(fixture: impl PublishingFixture) {
    assert_eq!(append(&fixture, Channel::Push, 1, "a").await, Append::LeaseLost);
    assert_eq!(acquire(&fixture, 2, "b", LEASE_TTL).await, LeaseOutcome::Won);
    assert_eq!(append(&fixture, Channel::Push, 2, "a").await, Append::LeaseLost);
    assert_eq!(fixture.entries(Channel::Push).await, []);
    assert_remaining(&fixture, 2, LEASE_TTL).await;
}

pub async fn an_append_after_the_lease_expired_appends_nothing(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    fixture.expire(&key(1)).await;
    assert_eq!(append(&fixture, Channel::Push, 1, "a").await, Append::LeaseLost);
    assert_eq!(fixture.entries(Channel::Push).await, []);
}

pub async fn a_marker_is_not_released(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    let server = server(&fixture).await;
    let id = id_of(append(&fixture, Channel::Push, 1, "a").await);
    fixture.leases().release_leases(&[&key(1)], &token("a")).await.expect("the store is there");
    assert_published(&acquire(&fixture, 1, "b", LEASE_TTL).await, &server, &id);
}

pub async fn an_expired_marker_lets_the_route_be_leased_again(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    let first = id_of(append(&fixture, Channel::Push, 1, "a").await);
    fixture.expire(&key(1)).await;
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
    let second = id_of(append(&fixture, Channel::Push, 1, "b").await);
    assert_ne!(first, second);
    assert_eq!(fixture.entries(Channel::Push).await.len(), 2);
}

pub async fn an_extended_marker_replaces_what_is_there(fixture: impl PublishingFixture) {
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
    let (leased, absent) = (key(1), key(2));
    let (server, markers) = (server(&fixture).await, [(&leased, "5-1"), (&absent, "5-2")]);
    let extended = fixture.leases().extend_markers(&server, &markers, DEDUPE_TTL).await;
    assert!(extended.expect("the store is there"));
    assert_remaining(&fixture, 1, DEDUPE_TTL).await;
    assert_published(&acquire(&fixture, 1, "b", LEASE_TTL).await, &server, "5-1");
    assert_published(&acquire(&fixture, 2, "b", LEASE_TTL).await, &server, "5-2");
}

pub async fn a_marker_of_the_replaced_entry_gives_way_and_any_other_does_not(
    fixture: impl PublishingFixture,
) {
    assert_eq!(acquire(&fixture, 1, "a", LEASE_TTL).await, LeaseOutcome::Won);
    let server = server(&fixture).await;
    let first = id_of(append(&fixture, Channel::Push, 1, "a").await);
    let (again, other) = (Resent { key: key(1), replaces: &first }, Resent { key: key(1), replaces: "1-1" });
    let lease = async |route: &Resent<'_>, name: &str| {
        let leases = fixture.leases().acquire_leases(&[route], &token(name), LEASE_TTL).await;
        leases.expect("the store is there").remove(0)
    };
    assert_published(&lease(&other, "b").await, &server, &first);
    assert_eq!(lease(&again, "b").await, LeaseOutcome::Won);
    assert_remaining(&fixture, 1, LEASE_TTL).await;
    assert_eq!(lease(&again, "c").await, LeaseOutcome::Held);
    let second = id_of(append(&fixture, Channel::Push, 1, "b").await);
    assert_ne!(first, second);
    assert_published(&lease(&again, "c").await, &server, &second);
}

pub async fn a_marker_of_a_later_entry_is_not_overwritten(fixture: impl PublishingFixture) {
    let (server, one) = (server(&fixture).await, key(1));
    for (extended, kept) in
        [("9-1", "9-1"), ("10-0", "10-0"), ("9-7", "10-0"), ("10-2", "10-2"), ("10-1", "10-2")]
    {
        let done = fixture.leases().extend_markers(&server, &[(&one, extended)], DEDUPE_TTL).await;
        assert!(done.expect("the store is there"));
        assert_published(&acquire(&fixture, 1, "b", LEASE_TTL).await, &server, kept);
    }
}

// INV-13
pub async fn a_marker_of_an_entry_that_another_server_acknowledged_is_not_extended(
    fixture: impl PublishingFixture,
) {
    let present = server(&fixture).await;
    for other in [
        ServerId { run_id: "before the restart".into(), ..present.clone() },
        ServerId { replication_id: "before the promotion".into(), ..present.clone() },
    ] {
        let extended = fixture.leases().extend_markers(&other, &[(&key(1), "5-1")], DEDUPE_TTL).await;
        assert!(!extended.expect("the store is there"));
    }
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won, "no marker was written");
}

pub async fn each_key_of_a_call_has_its_own_answer_in_the_order_asked(fixture: impl PublishingFixture) {
    let keys: Vec<RouteKey> = (0..4).map(key).collect();
    assert_eq!(acquire(&fixture, 1, "b", LEASE_TTL).await, LeaseOutcome::Won);
    let server = server(&fixture).await;
    let extended = fixture.leases().extend_markers(&server, &[(&keys[2], "7-3")], DEDUPE_TTL).await;
    assert!(extended.expect("the store is there"));
    let asked: Vec<&RouteKey> = keys.iter().collect();
    let leases = fixture.leases().acquire_leases(&asked, &token("a"), LEASE_TTL).await;
    let entry = Acknowledged { entry_id: "7-3".to_owned(), server };
    let published = LeaseOutcome::Published(entry.clone());
    assert_eq!(
        leases.expect("the store is there"),
        [LeaseOutcome::Won, LeaseOutcome::Held, published, LeaseOutcome::Won]
    );

    let entries: Vec<OutboundEntry<'_>> =
        keys.iter().map(|key| OutboundEntry(vec![("event_id", key.to_string().into())])).collect();
    let given: Vec<_> = keys.iter().zip(&entries).collect();
    let appended = fixture.outbound().append(Channel::Push, &given, &token("a"), DEDUPE_TTL, None).await;
    let appended = appended.expect("the store is there").entries;
    assert_eq!(appended[1..3], [Append::LeaseLost, Append::Done(entry)]);
    let ids = [&appended[0], &appended[3]].map(|append| id_of(append.clone()));
    let found: Vec<String> =
        fixture.entries(Channel::Push).await.iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(found, ids);
}

pub async fn each_channel_has_its_own_stream(fixture: impl PublishingFixture) {
    for (n, channel) in [(1, Channel::Push), (2, Channel::Email)] {
        assert_eq!(acquire(&fixture, n, "a", LEASE_TTL).await, LeaseOutcome::Won);
        let id = id_of(append(&fixture, channel, n, "a").await);
        let entries = fixture.entries(channel).await;
        assert_eq!(entries.iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>(), [id]);
    }
}
