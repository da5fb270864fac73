//! The outbound streams as a whole, and appending lost entries again.

use std::time::Duration;

use domain::entry::EntryId;
use domain::outbound::OutboundEntry;
use domain::ports::{
    Append, LeaseStore, LeaseToken, ObservedStream, Outbound, OutboundInspection, OutboundState,
};
use domain::record::NotificationId;
use domain::republish::{EntryState, Gap, entry_state};
use domain::route::{Channel, RouteKey};

use super::publishing::{PublishingFixture, Resent};

/// Streams under test, and a test's actions on them.
pub trait InspectionFixture: PublishingFixture {
    /// The inspection of the streams.
    fn inspection(&self) -> &impl OutboundInspection;

    /// Deletes an entry, as a consumer does.
    fn delete(&self, channel: Channel, id: EntryId) -> impl Future<Output = ()>;

    /// Deletes the key of a stream, and the record of its servers too if `with_changes`.
    fn delete_stream(&self, channel: Channel, with_changes: bool) -> impl Future<Output = ()>;

    /// Restarts the server with all its data.
    fn restart(&mut self) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::inspection`], each on a fixture of its own.
#[macro_export]
macro_rules! inspection_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            inspection, $fixture;
            a_stream_is_seen_with_its_first_last_and_highest_deleted_entry,
            a_server_keeps_its_ids_until_it_is_started_again,
            a_started_server_knows_the_ids_that_it_never_had,
            a_stream_that_is_deleted_and_appended_to_at_once_has_lost_its_ids,
            a_marker_of_an_entry_of_a_deleted_stream_does_not_count,
            an_entry_is_found_only_under_its_id_and_of_its_route,
            an_entry_that_is_appended_again_has_a_marker_and_is_not_appended_twice,
            a_marker_that_is_found_again_lives_as_long_as_a_new_one,
            a_marker_counts_although_a_consumer_has_deleted_its_entry,
            a_marker_of_the_entry_that_the_lost_one_replaced_does_not_count,
            a_lease_that_a_publisher_holds_is_left_alone,
            a_publisher_that_finds_the_marker_of_a_republished_route_appends_nothing,
        );
    };
}

const LEASE_TTL: Duration = Duration::from_secs(60);
const MARKER_TTL: Duration = Duration::from_secs(600);

fn key(number: u64) -> RouteKey {
    RouteKey {
        notification_id: NotificationId::of(EntryId::new(number, 0), 0),
        route_id: "push:user:u-1".to_owned(),
    }
}

fn token() -> LeaseToken {
    LeaseToken("a".to_owned())
}

fn entry(key: &RouteKey) -> OutboundEntry<'static> {
    OutboundEntry(vec![("event_id", key.to_string().into()), ("attempt", "1".into())])
}

async fn append_again(fixture: &impl InspectionFixture, keys: &[RouteKey]) -> Vec<Append> {
    let entries: Vec<OutboundEntry<'_>> = keys.iter().map(entry).collect();
    let given: Vec<_> = keys.iter().zip(&entries).collect();
    let appended = fixture.inspection().append_again(Channel::Push, &given, MARKER_TTL).await;
    appended.expect("the server is there")
}

async fn append(fixture: &impl InspectionFixture, key: &RouteKey) -> Append {
    let entry = entry(key);
    let appended =
        fixture.outbound().append(Channel::Push, &[(key, &entry)], &token(), MARKER_TTL, None).await;
    appended.expect("the server is there").entries.remove(0)
}

#[track_caller]
fn id(append: &Append) -> EntryId {
    let Append::Done(entry) = append else { panic!("not appended: {append:?}") };
    entry.entry_id.parse().expect("an id")
}

async fn state(fixture: &impl InspectionFixture, channel: Channel) -> Option<OutboundState> {
    let observed = fixture.inspection().observe(channel).await.expect("the server is there");
    observed.state.map(|state| OutboundState { copied_bytes: 0, ..state })
}

async fn find(fixture: &impl InspectionFixture, asked: &[(&RouteKey, EntryId)]) -> Vec<bool> {
    let found = fixture.inspection().find_entries(Channel::Push, asked).await;
    let states = found.expect("the server is there").states;
    states.into_iter().map(|state| state == EntryState::Present).collect()
}

pub async fn a_stream_is_seen_with_its_first_last_and_highest_deleted_entry(fixture: impl InspectionFixture) {
    assert_eq!(state(&fixture, Channel::Push).await, None);
    let appended = append_again(&fixture, &[key(1), key(2), key(3)]).await;
    let ids: Vec<EntryId> = appended.iter().map(id).collect();
    let server = fixture.inspection().observe(Channel::Push).await.expect("the server is there").server;
    let gaps = vec![Gap { server, after: EntryId::ZERO, before: Some(ids[0]) }];
    let whole = OutboundState {
        first: Some(ids[0]),
        last_generated: ids[2],
        max_deleted: EntryId::ZERO,
        copied_bytes: 0,
        gaps: gaps.clone(),
    };
    assert_eq!(state(&fixture, Channel::Push).await, Some(whole.clone()));
    fixture.delete(Channel::Push, ids[0]).await;
    fixture.delete(Channel::Push, ids[2]).await;
    let cut = OutboundState { first: Some(ids[1]), max_deleted: ids[2], ..whole };
    assert_eq!(state(&fixture, Channel::Push).await, Some(cut));
    assert_eq!(state(&fixture, Channel::Email).await, None);
}

pub async fn a_server_keeps_its_ids_until_it_is_started_again(mut fixture: impl InspectionFixture) {
    append_again(&fixture, &[key(1)]).await;
    let first = fixture.inspection().observe(Channel::Push).await.expect("the server is there");
    assert_eq!(fixture.inspection().observe(Channel::Push).await.expect("the server is there"), first);
    fixture.restart().await;
    let again = fixture.inspection().observe(Channel::Push).await.expect("the server is there");
    assert_ne!(again.server.run_id, first.server.run_id);
    let last = |observed: &ObservedStream| observed.state.as_ref().map(|state| state.last_generated);
    assert_eq!(last(&again), last(&first));
}

// INV-13
pub async fn a_started_server_knows_the_ids_that_it_never_had(mut fixture: impl InspectionFixture) {
    let former = fixture.inspection().observe(Channel::Push).await.expect("the server is there").server;
    let before = id(&append_again(&fixture, &[key(1)]).await[0]);
    fixture.restart().await;
    let lost = EntryId::new(before.millis + 1, 0);
    let found = fixture.inspection().find_entries(Channel::Push, &[(&key(2), lost)]).await;
    let gap = |stream: Option<OutboundState>| stream.expect("it exists").gaps[0].clone();
    let found = found.expect("the server is there");
    let server = found.server;
    let open = Gap { server: server.clone(), after: before, before: None };
    assert_eq!(gap(found.stream), open, "nothing was appended yet");
    let after = id(&append_again(&fixture, &[key(3), key(4)]).await[0]);
    append_again(&fixture, &[key(5)]).await;
    let found = fixture.inspection().find_entries(Channel::Push, &[]).await.expect("the server is there");
    let filled = Gap { before: Some(after), ..open };
    assert_eq!(gap(found.stream), filled);
    let observed = fixture.inspection().observe(Channel::Push).await.expect("the server is there");
    assert_eq!(observed.server, found.server);
    let gaps = observed.state.expect("it exists").gaps;
    let first = Gap { server: former, after: EntryId::ZERO, before: Some(before) };
    assert_eq!(gaps, [filled, first], "latest first");
}

// INV-13
pub async fn a_stream_that_is_deleted_and_appended_to_at_once_has_lost_its_ids(
    fixture: impl InspectionFixture,
) {
    for with_changes in [false, true] {
        let numbers = if with_changes { 11..=13 } else { 1..=3 };
        let keys: Vec<RouteKey> = numbers.map(key).collect();
        let lost = id(&append_again(&fixture, &keys[..1]).await[0]);
        let before = state(&fixture, Channel::Push).await.expect("it exists");
        fixture.delete_stream(Channel::Push, with_changes).await;
        // The stream is not observed before publishers append to it.
        append_again(&fixture, &keys[1..2]).await;
        append_again(&fixture, &keys[2..]).await;
        let after = state(&fixture, Channel::Push).await.expect("it exists");
        assert!(after.last_generated > before.last_generated, "no id fell");
        assert_eq!(entry_state(lost, false, Some(&after)), EntryState::Lost, "{after:?}");
        let added = if with_changes { 0 } else { before.gaps.len() };
        assert_eq!(after.gaps.len(), added + 1, "{after:?}");
    }
}

// INV-13
pub async fn a_marker_of_an_entry_of_a_deleted_stream_does_not_count(fixture: impl InspectionFixture) {
    let keys = [key(1), key(2)];
    let first = append_again(&fixture, &keys[..1]).await;
    fixture.delete_stream(Channel::Push, false).await;
    append_again(&fixture, &keys[1..]).await;
    let again = append_again(&fixture, &keys[..1]).await;
    assert!(id(&again[0]) > id(&first[0]), "{again:?}");
    assert_eq!(find(&fixture, &[(&keys[0], id(&again[0]))]).await, [true]);
}

pub async fn an_entry_is_found_only_under_its_id_and_of_its_route(fixture: impl InspectionFixture) {
    let absent = fixture.inspection().find_entries(Channel::Push, &[(&key(1), EntryId::new(1, 0))]).await;
    let absent = absent.expect("the server is there");
    assert_eq!((absent.stream, absent.states), (None, vec![EntryState::NoStream]));
    let appended = append_again(&fixture, &[key(1), key(2)]).await;
    let (one, two) = (id(&appended[0]), id(&appended[1]));
    let later = EntryId::new(two.millis + 1, 0);
    let asked = [(&key(1), one), (&key(2), one), (&key(2), two), (&key(2), later)];
    assert_eq!(find(&fixture, &asked).await, [true, false, true, false]);
}

// INV-13
pub async fn an_entry_that_is_appended_again_has_a_marker_and_is_not_appended_twice(
    fixture: impl InspectionFixture,
) {
    let keys = [key(1), key(2), key(3)];
    let first = append_again(&fixture, &keys).await;
    let before = state(&fixture, Channel::Push).await;
    assert_eq!(append_again(&fixture, &keys).await, first, "as after a reply that was lost");
    assert_eq!(state(&fixture, Channel::Push).await, before);
}

// INV-13
pub async fn a_marker_that_is_found_again_lives_as_long_as_a_new_one(fixture: impl InspectionFixture) {
    let first = append_again(&fixture, &[key(1)]).await;
    let (key, Append::Done(entry)) = (key(1), &first[0]) else { panic!("not appended: {first:?}") };
    let markers = [(&key, entry.entry_id.as_str())];
    let shorter = fixture.leases().extend_markers(&entry.server, &markers, LEASE_TTL).await;
    assert!(shorter.expect("the server is there"));
    assert_eq!(append_again(&fixture, std::slice::from_ref(&key)).await, first);
    let remaining = fixture.remaining(&key).await.expect("it lives");
    assert!(remaining > MARKER_TTL / 2, "{remaining:?}");
}

// INV-13
pub async fn a_marker_counts_although_a_consumer_has_deleted_its_entry(fixture: impl InspectionFixture) {
    let keys = [key(1), key(2)];
    let first = append_again(&fixture, &keys).await;
    fixture.delete(Channel::Push, id(&first[0])).await;
    let before = state(&fixture, Channel::Push).await;
    assert_eq!(append_again(&fixture, &keys).await, first);
    assert_eq!(state(&fixture, Channel::Push).await, before);
}

// INV-13
pub async fn a_marker_of_the_entry_that_the_lost_one_replaced_does_not_count(
    fixture: impl InspectionFixture,
) {
    let replaced = id(&append_again(&fixture, &[key(1)]).await[0]).to_string();
    let (route, entry) = (Resent { key: key(1), replaces: &replaced }, entry(&key(1)));
    let append = async || {
        let appended =
            fixture.inspection().append_again(Channel::Push, &[(&route, &entry)], MARKER_TTL).await;
        id(&appended.expect("the server is there")[0])
    };
    let again = append().await;
    assert_ne!(again.to_string(), replaced);
    assert_eq!(append().await, again, "its own marker counts");
}

pub async fn a_lease_that_a_publisher_holds_is_left_alone(fixture: impl InspectionFixture) {
    let held = key(1);
    let won = fixture.leases().acquire_leases(&[&held], &token(), LEASE_TTL).await;
    assert_eq!(won.expect("the server is there").len(), 1);
    let appended = append_again(&fixture, &[held.clone(), key(2)]).await;
    assert_eq!(appended[0], Append::LeaseLost);
    let published = append(&fixture, &held).await;
    assert!(id(&published) > id(&appended[1]), "the publisher still holds its lease");
}

pub async fn a_publisher_that_finds_the_marker_of_a_republished_route_appends_nothing(
    fixture: impl InspectionFixture,
) {
    let again = append_again(&fixture, &[key(1)]).await;
    let before = state(&fixture, Channel::Push).await;
    assert_eq!(append(&fixture, &key(1)).await, again[0]);
    assert_eq!(state(&fixture, Channel::Push).await, before);
}
