//! Published routes that an operator has sent again: each has one new entry.

use domain::operations::{Budgets, OperatorAction, RouteChange, Selection};
use domain::ports::{ChangeOutcome, Operations};

use super::*;

/// The attempts of the entries of the route with this number.
fn attempts(fixture: &Fixture, number: u64) -> Vec<String> {
    let id = route(number, 0).key.to_string();
    let entries = fixture.world.publishing.entries(Channel::Push).into_iter();
    let of_route = entries.filter(|(_, fields)| fields[0].1 == id);
    let attempt = |(name, value): (String, String)| (name == "attempt").then_some(value);
    of_route.flat_map(|(_, fields)| fields.into_iter().filter_map(attempt)).collect()
}

/// Has the published route with this number sent again.
async fn resend(fixture: &Fixture, number: u64) {
    let (database, now) = (&fixture.world.database, fixture.world.clock.now());
    let change = RouteChange::resend(Budgets { push: 3, email: 7 }, String::new()).expect("no reason");
    let selection = Selection::Ids(vec![route(number, 0).key.to_string()]);
    let selected = database.select_routes(&change, &selection).await.expect("the store is there");
    let action = OperatorAction {
        actor: "me@here".to_owned(),
        request_id: "r-1".to_owned(),
        idempotency_key: None,
        selection,
    };
    let changed = database.change_routes(&change, &selected.targets, &action, now).await;
    assert_eq!(changed.expect("the store is there"), [ChangeOutcome::Changed]);
}

async fn published(fixture: &Fixture) {
    fixture.run_until(|world| world.database.live_count() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_resent_route_is_appended_once_more_with_the_next_attempt_although_its_marker_exists() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0), route(2, 0)]);
    published(&fixture).await;
    let first = fixture.state(1).published_entry_id;
    resend(&fixture, 1).await;
    published(&fixture).await;
    assert_eq!(
        (attempts(&fixture, 1), attempts(&fixture, 2)),
        (vec!["1".into(), "2".into()], vec!["1".into()])
    );
    assert_ne!(fixture.state(1).published_entry_id, first);
    resend(&fixture, 1).await;
    published(&fixture).await;
    assert_eq!(attempts(&fixture, 1), ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_resent_route_that_was_appended_before_a_crash_is_completed_without_another_entry() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    published(&fixture).await;
    let first = fixture.state(1).published_entry_id;
    resend(&fixture, 1).await;
    // The publisher dies after the append.
    fixture.world.script.on("complete_routes_published", |_| Effect::Hang);
    fixture.run_until(|world| world.publishing.entry_count(Channel::Push) == 2).await;
    fixture.world.script.off("complete_routes_published");
    assert_eq!(fixture.state(1).published_entry_id, first, "it is not completed");
    published(&fixture).await;
    assert_eq!(attempts(&fixture, 1), ["1", "2"]);
    assert_ne!(fixture.state(1).published_entry_id, first);
}

#[tokio::test(start_paused = true)]
async fn a_resent_route_has_one_new_entry_although_redis_has_lost_its_markers() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    published(&fixture).await;
    resend(&fixture, 1).await;
    fixture.world.publishing.lose_leases();
    published(&fixture).await;
    assert_eq!(attempts(&fixture, 1), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_resent_route_that_another_replica_holds_is_left_to_it_until_its_lease_ends() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    published(&fixture).await;
    resend(&fixture, 1).await;
    let (publishing, database) = (&fixture.world.publishing, &fixture.world.database);
    let live = database.get_live_routes(&[&route(1, 0).key]).await.expect("it is there").routes.remove(0);
    let won = LeaseStore::acquire_leases(&**publishing, &[&live], &another(), OTHERS_TTL).await;
    assert_eq!(won.expect("it is there"), [LeaseOutcome::Won]);
    let acquired = fixture.world.script.count("acquire_leases");
    fixture.run_until(|world| world.script.count("acquire_leases") > acquired + 1).await;
    assert_eq!(attempts(&fixture, 1), ["1"]);
    publishing.release_leases(&[&live.key], &another()).await.expect("it is there");
    published(&fixture).await;
    assert_eq!(attempts(&fixture, 1), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_marker_of_the_replaced_entry_that_is_renewed_meanwhile_loses_no_resend() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    published(&fixture).await;
    let first = fixture.state(1).published_entry_id;
    resend(&fixture, 1).await;
    // The publisher of the first entry, whose completion got no reply, renews its marker over the lease.
    let (publishing, mut is_first) = (fixture.world.publishing.clone(), true);
    let key = route(1, 0).key;
    fixture.world.script.on("append", move |_| {
        if std::mem::take(&mut is_first) {
            publishing.write_marker(&key, &first, Duration::from_secs(120));
        }
        Effect::Pass
    });
    published(&fixture).await;
    assert_eq!(attempts(&fixture, 1), ["1", "2"]);
}
