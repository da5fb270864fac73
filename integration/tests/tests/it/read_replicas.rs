//! Reads from a streaming standby of the primary: they say how old they may be, and a standby that is too far
//! behind, gone or promoted is passed over.

use harness::{HttpResponse, Service, ServiceBuilder, wait_for};
use serde_json::Value;

use crate::api::{OPERATOR, TokensFile, read, with_api};
use crate::console::Browser;
use crate::standby::Pair;
use crate::world::*;

/// The header of a response from a replica.
const AGE: &str = "data-age-ms";

impl Pair {
    /// The service, or a command, that reads from the standby if it is at most `max_lag` behind.
    fn with_replica(&self, service: ServiceBuilder, max_lag: &str) -> ServiceBuilder {
        service
            .env("NOTIFICATION_POSTGRES_REPLICA_DSNS", self.world.database.on_port(self.standby.port()).dsn())
            .env("NOTIFICATION_POSTGRES_REPLICA_MAX_LAG", max_lag)
    }

    /// Lets the standby fall behind: it receives everything, and shows nothing of it.
    async fn stop_replay(&self) {
        self.standby.execute("postgres", "SELECT pg_wal_replay_pause()").await.expect("it is allowed");
        wait_for("the replay has stopped", BOUND, async || {
            let paused = self.world.database.on_port(self.standby.port());
            let client = paused.client().await;
            let row = client.query_one("SELECT pg_get_wal_replay_pause_state()", &[]).await.expect("a state");
            (row.get::<_, String>(0) == "paused").then_some(())
        })
        .await;
    }
}

fn listed(response: &HttpResponse) -> usize {
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["notifications"].as_array().map_or(0, Vec::len)
}

/// Waits until a list is read from the replica, or from the primary, and returns the list.
async fn list_from(service: &Service, is_replica: bool) -> HttpResponse {
    let expected = if is_replica { "the replica" } else { "the primary" };
    wait_for(&format!("a list is read from {expected}"), BOUND, async || {
        let page = read(service, OPERATOR, "/v1/notifications").await;
        (page.header(AGE).is_some() == is_replica).then_some(page)
    })
    .await
}

/// Waits until the log contains this text.
async fn says(service: &Service, text: &str) {
    let is_said = || service.output().iter().any(|line| line.contains(text)).then_some(());
    wait_for(&format!("the log says: {text}"), BOUND, async || is_said()).await;
}

#[tokio::test]
async fn lists_are_read_from_a_replica_and_say_how_old_they_may_be_and_ids_are_read_from_the_primary() {
    let pair = Pair::new().await;
    let world = &pair.world;
    let tokens = TokensFile::new(world);
    let service = pair.with_replica(with_api(world.service(), &tokens), "1h");
    let service = service.env("NOTIFICATION_CONSOLE", "on").start().await;
    world.send(0..3).await;
    world.settled(3).await;
    pair.replicated().await;
    assert_eq!(listed(&list_from(&service, true).await), 3);
    pair.stop_replay().await;
    world.send(3..4).await;
    world.settled(4).await;

    let page = list_from(&service, true).await;
    assert_eq!(listed(&page), 3, "the replica lacks the last one");
    let newest = "SELECT notification_id FROM records ORDER BY accepted_at DESC LIMIT 1";
    let newest = world.column(newest).await.remove(0);
    for (path, status) in [
        (format!("/v1/notifications/{newest}"), 200),
        ("/v1/intents/game-1:turn-3?producer=game_master".into(), 200),
    ] {
        let response = read(&service, OPERATOR, &path).await;
        assert_eq!((response.status, response.header(AGE)), (status, None), "{path}: {}", response.body);
    }
    for path in ["/v1/status", "/v1/activity", "/v1/actions", "/v1/dead-letters", "/v1/malformed-intents"] {
        let response = read(&service, OPERATOR, path).await;
        assert!(response.status == 200 && response.header(AGE).is_some(), "{path}: {}", response.body);
    }
    let mut browser = Browser::default();
    browser.sign_in(&service.api_addr(), OPERATOR).await;
    let page = browser.get(&service.api_addr(), "/console/notifications").await;
    assert!(page.status == 200 && page.body.contains("Read from a replica"), "{}", page.body);

    let command = |arguments: &[&'static str]| {
        pair.with_replica(unhurried(world.service()), "1h").arguments(arguments.iter().copied())
    };
    let list = command(&["list", "--json"]).run().await;
    assert!(list.code == Some(0) && list.stderr.contains("read from a replica"), "{list:?}");
    assert!(!list.stdout.contains(&newest), "{list:?}");
    let explained = command(&["explain", "game-1:turn-3", "--json"]).run().await;
    assert!(explained.code == Some(0) && explained.stderr.is_empty(), "{explained:?}");
    let document: Value = serde_json::from_str(&explained.stdout).expect("JSON");
    assert_eq!(document["found"][0]["notification_id"], *newest, "{document}");
    // What only the replica lacks is no discrepancy.
    let audit = pair.with_replica(world.audit(), "1h").run().await;
    assert!(audit.code == Some(0) && audit.stderr.contains("read from a replica"), "{audit:?}");
}

#[tokio::test]
async fn a_replica_that_is_too_far_behind_gone_or_promoted_is_passed_over_until_it_serves_again() {
    let mut pair = Pair::new().await;
    let tokens = TokensFile::new(&pair.world);
    let service = pair.with_replica(with_api(pair.world.service(), &tokens), "2s").start().await;
    pair.world.send(0..3).await;
    pair.world.settled(3).await;
    pair.replicated().await;
    list_from(&service, true).await;

    pair.stop_replay().await;
    pair.world.send(3..4).await;
    pair.world.settled(4).await;
    assert_eq!(listed(&list_from(&service, false).await), 4);
    says(&service, "it is too far behind the primary").await;
    pair.standby.execute("postgres", "SELECT pg_wal_replay_resume()").await.expect("it is allowed");
    assert_eq!(listed(&list_from(&service, true).await), 4);
    says(&service, "read replica recovered").await;

    pair.standby.kill().await;
    assert_eq!(listed(&list_from(&service, false).await), 4);
    pair.standby.start_again().await.expect("it starts again");
    list_from(&service, true).await;

    pair.standby.promote().await.expect("it is promoted");
    assert_eq!(listed(&list_from(&service, false).await), 4);
    says(&service, "it is not a standby").await;
}
