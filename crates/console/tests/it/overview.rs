//! Tests of the overview beyond its rendering: its data, and its content while some of that cannot be read.

use std::collections::BTreeMap;
use std::time::Duration;

use ambient::{Clock, SystemClock};
use axum::http::StatusCode;
use domain::ports::{Activity, ReplicaStore, StoreError};
use domain::replica::{ActivityPart, Delays, PartActivity};
use domain::route::Channel;

use crate::rows::dead;
use crate::support::*;

fn down() -> StoreError {
    StoreError::Unavailable { operation: "read", source: "it is down".into() }
}

#[tokio::test]
async fn the_overview_of_an_empty_service_says_that_nothing_is_there() {
    let world = World::new().await;
    let answer = world.signed_in().await.get("/console/").await;
    assert_eq!(answer.status, StatusCode::OK);
    for expected in [
        "No replica leads at the moment.",
        "no leader",
        "No dead letter of the last 24 hours",
        "No replica has reported",
    ] {
        assert!(answer.body.contains(expected), "{expected}: {}", answer.body);
    }
}

#[tokio::test]
async fn the_charts_have_the_sums_of_all_replicas() {
    let world = World::new().await;
    let activity =
        Activity { accepted: 700, published: 1_300, malformed: 3, conflicts: 2, ..Activity::default() };
    for replica in ["one", "other"] {
        world.replicas.add_activity(replica, &activity).await.expect("the store is there");
    }
    let mut browser = world.signed_in().await;
    let body = browser.get("/console/").await.body;
    let sums = [
        "accepted: 1,400 in the last hour",
        "malformed or conflicting: 10 in",
        "published: 2,600 in the last hour",
    ];
    for expected in sums {
        assert!(body.contains(expected), "{expected}: {body}");
    }
}

#[tokio::test]
async fn the_charts_show_an_hour_or_a_day_of_all_routes_or_of_a_channel_and_a_type() {
    let world = World::new().await;
    let counted = |published, delay| {
        let mut delays = Delays::default();
        delays.add(Duration::from_millis(delay));
        PartActivity { activity: Activity { published, ..Activity::default() }, delays }
    };
    let part =
        |channel, of_type: &str| ActivityPart::Routes { channel, notification_type: of_type.to_owned() };
    let parts = BTreeMap::from([
        (part(Channel::Push, "game.turn.ready"), counted(540_000, 20)),
        (part(Channel::Email, "game.finished"), counted(7, 2_000)),
        (
            ActivityPart::Producer("lobby".to_owned()),
            PartActivity {
                activity: Activity { malformed: 3, ..Activity::default() },
                ..PartActivity::default()
            },
        ),
    ]);
    world.replicas.add_part_activity("one", &parts).await.expect("the store is there");
    let mut browser = world.signed_in().await;
    for (query, expected) in [
        (
            "?channel=push",
            vec![
                "Routes of push a minute. published: 540,000 in the last hour",
                ">600k<",
                "p99: at most 25 ms",
            ],
        ),
        (
            "?type=game.finished&period=day",
            vec![
                "Routes of game.finished in 15 minutes. published: 7 in the last 24 hours",
                "p50: at most 2.5 s",
            ],
        ),
        ("", vec!["Malformed intents by producer", "lobby", "<option value=\"game.finished\">"]),
    ] {
        let body = browser.get(&format!("/console/{query}")).await.body;
        for part in expected {
            assert!(body.contains(part), "{query}: {part}: {body}");
        }
    }
    assert_eq!(browser.get("/console/?period=year").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_finding_leads_to_the_list_of_its_culprits_and_to_the_runbook() {
    let world = World::new().await;
    dead(&world.store, 1..=2, SystemClock.now()).await;
    let mut browser = world.signed_in().await;
    let page = browser.get("/console/").await.body;
    assert!(page.contains("4 routes of the channels push and email became dead letters"), "{page}");
    assert!(page.contains("href=\"/console/runbook#retrying-dead-letters\""), "{page}");
    let (_, link) = page.split_once("href=\"/console/dead-letters?created_after=").expect("a link");
    let link = link.split('"').next().unwrap_or_default();
    let list = browser.get(&format!("/console/dead-letters?created_after={link}")).await.body;
    assert_eq!(list.matches("type=\"checkbox\" name=\"id\"").count(), 4, "{list}");
    let runbook = browser.get("/console/runbook").await.body;
    assert!(runbook.contains("<h3 id=\"retrying-dead-letters\">Retrying dead letters</h3>"), "{runbook}");
}

#[tokio::test]
async fn without_redis_and_without_activity_the_rest_is_shown() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    world.script.fail("backlog", down());
    world.script.fail("activity", down());
    let answer = browser.get("/console/").await;
    assert_eq!(answer.status, StatusCode::OK);
    for expected in ["The stream cannot be read", "The activity could not be read.", "Channel push"] {
        assert!(answer.body.contains(expected), "{expected}: {}", answer.body);
    }
}

#[tokio::test]
async fn without_postgresql_a_page_says_so_and_what_to_do() {
    let world = World::new().await;
    let mut browser = world.signed_in().await;
    world.script.fail("get_session", down());
    let answer = browser.get("/console/").await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "5"));
    assert!(answer.body.contains("Try again in a few seconds"), "{}", answer.body);
    assert_eq!(browser.get("/console/").await.status, StatusCode::OK, "the session is kept");

    world.script.fail("insert_session", down());
    let mut other = world.browser();
    assert_eq!(other.sign_in(OPERATOR).await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(other.sign_in(OPERATOR).await.status, StatusCode::SEE_OTHER);
}
