//! The results of an attempt: appended, refused, out of memory, or with a marker that already exists.

use super::*;

// INV-04
#[tokio::test(start_paused = true)]
async fn due_routes_are_appended_once_and_completed() {
    let fixture = Fixture::default();
    fixture.put((1..=20).map(|n| route(n, 0)));
    fixture.run_until(|world| world.database.live_count() == 0).await;
    let world = &fixture.world;
    assert_eq!(world.publishing.entry_count(Channel::Push), 20);
    assert!(world.database.routes().iter().all(|(_, status)| *status == RouteStatus::Published));
}

#[tokio::test(start_paused = true)]
async fn due_routes_that_take_too_long_to_list_together_are_listed_in_smaller_pages() {
    let fixture = Fixture::default();
    fixture.put((1..=20).map(|n| route(n, 0)));
    fixture.time_out_reads_above(3);
    fixture.run_until(|world| world.database.live_count() == 0).await;
    assert_eq!(fixture.world.publishing.entry_count(Channel::Push), 20);
}

// INV-04
#[tokio::test(start_paused = true)]
async fn an_outage_of_any_store_costs_no_attempt_and_appends_nothing_twice() {
    for call in [
        "next_due",
        "acquire_scan_lock",
        "list_due_routes",
        "acquire_leases",
        "append",
        "complete_routes_published",
        "release_scan_lock",
    ] {
        let fixture = Fixture::default();
        fixture.put([route(1, 0)]);
        fixture.world.script.fail(call, down(call));
        fixture.world.script.fail(call, down(call));
        fixture.run_until(|world| world.database.live_count() == 0).await;
        let world = &fixture.world;
        assert_eq!(world.publishing.entry_count(Channel::Push), 1, "{call}");
        assert_eq!(fixture.state(1).attempt_count, 0, "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_redis_that_is_out_of_memory_is_waited_for_and_costs_no_attempt() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0), route(2, 0)]);
    fixture.world.publishing.set_full(true);
    let (publishing, mut appends) = (fixture.world.publishing.clone(), 0);
    fixture.world.script.on("append", move |_| {
        appends += 1;
        publishing.set_full(appends < 3);
        Effect::Pass
    });
    fixture.run_until(|world| world.database.live_count() == 0).await;
    let world = &fixture.world;
    assert_eq!(world.publishing.entry_count(Channel::Push), 2);
    assert_eq!((fixture.state(1).attempt_count, fixture.state(2).attempt_count), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_refuses_costs_an_attempt_and_the_lease_is_given_back() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    fixture.world.publishing.set_refusing(Channel::Push, true);
    fixture.run_until(|world| world.script.count("release_leases") > 0).await;
    let failed = fixture.state(1);
    assert_eq!((failed.status, failed.attempt_count), (RouteStatus::Failed, 1));
    assert_eq!(failed.next_attempt_at, Some(Timestamp::UNIX_EPOCH + Duration::from_secs(1)));
    assert_eq!(failed.last_error_classification, "gateway_stream_publish_failed");
    assert_eq!(fixture.world.publishing.remaining(&route(1, 0).key), None, "it is released");
}

// INV-05
#[tokio::test(start_paused = true)]
async fn the_last_attempt_of_the_budget_makes_a_dead_letter() {
    let fixture = Fixture::default();
    fixture.put([route(1, 2)]);
    fixture.world.publishing.set_refusing(Channel::Push, true);
    fixture.run_until(|world| world.database.live_count() == 0).await;
    assert_eq!((fixture.state(1).status, fixture.state(1).attempt_count), (RouteStatus::DeadLetter, 3));
    assert_eq!(fixture.world.database.dead_letters(), [route(1, 0).key]);
}

// INV-09
#[tokio::test(start_paused = true)]
async fn a_route_that_cannot_be_encoded_fails_alone() {
    let fixture = Fixture::default();
    let mut broken = route(1, 0);
    broken.recipient_ref = "nobody".into();
    fixture.put([broken, route(2, 0)]);
    let done = |fixture: &Fixture| {
        fixture.state(1).status == RouteStatus::Failed && fixture.state(2).status == RouteStatus::Published
    };
    fixture.run_until(|_| done(&fixture)).await;
    assert_eq!(fixture.state(1).last_error_classification, "payload_encoding_failed");
    assert_eq!(fixture.world.appended(), [route(2, 0).key.to_string()]);
}

// INV-04
#[tokio::test(start_paused = true)]
async fn a_marker_where_a_lease_was_wanted_completes_without_appending() {
    let fixture = Fixture::default();
    fixture.put([route(1, 0)]);
    let marker = (&route(1, 0).key, "77-0");
    let (server, ttl) = (acknowledged("77-0").server, Duration::from_secs(60));
    let extended = fixture.world.publishing.extend_markers(&server, &[marker], ttl).await;
    assert!(extended.expect("it is there"));
    fixture.run_until(|world| world.database.live_count() == 0).await;
    let world = &fixture.world;
    assert_eq!(world.publishing.entry_count(Channel::Push), 0);
    assert_eq!(fixture.state(1).published_entry_id, "77-0");
}
