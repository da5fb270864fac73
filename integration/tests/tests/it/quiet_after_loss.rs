//! Redis returns without its newest intents, and no new intent arrives: operators and producers see that
//! nothing waits.

use harness::{Service, wait_for};

use crate::api_client::*;
use crate::prometheus::Scrape;
use crate::restore::{Snapshot, world_with_snapshots};
use crate::world::*;

const CUT: &str = "the stream was cut short: Redis lost its newest entries; those up to the checkpoint have their \
                   outcomes; entries that producers added after it and that were not read, if there were any, are lost";
const AGE: &str = "notification_intent_stream_oldest_unprocessed_age_seconds";

/// A service whose Redis lost the intents 3 to 5, which are accepted. No intent was sent since.
async fn cut_short(world: &mut World, tokens: &TokensFile) -> Service {
    let service = with_api(world.service(), tokens).start().await;
    world.send(0..3).await;
    world.settled(3).await;
    let snapshot = Snapshot::of(world).await;
    world.send(3..6).await;
    world.settled(6).await;
    world.caught_up().await;
    snapshot.restore(world).await;
    wait_for("the loss is reported", BOUND, async || service.logged(CUT)).await;
    service
}

// INV-07
#[tokio::test]
async fn a_key_that_was_never_sent_is_unknown_and_not_unread() {
    let mut world = world_with_snapshots().await;
    let tokens = TokensFile::new(&world);
    let service = cut_short(&mut world, &tokens).await;
    wait_for("the key is unknown", BOUND, async || {
        let answer = read(&service, PRODUCER, "/v1/intents/never-sent").await;
        (answer.status == 200 && answer.json()["state"] == "unknown").then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_status_has_nothing_unread_and_the_checkpoint_of_the_last_entry() {
    let mut world = world_with_snapshots().await;
    let tokens = TokensFile::new(&world);
    let service = cut_short(&mut world, &tokens).await;
    let last = world.caught_up().await;
    wait_for("nothing is unread", BOUND, async || {
        let answer = read(&service, OPERATOR, "/v1/status").await;
        let intake = answer.json()["intake"].clone();
        (intake["entries_behind"] == 0 && intake["checkpoint"] == last.as_str()).then_some(())
    })
    .await;
    let shown = world.service().arguments(["status"]).run().await;
    assert!(
        shown.stdout.contains(&format!("read up to the entry {last}; nothing is unread")),
        "{}",
        shown.stdout
    );
}

#[tokio::test]
async fn the_gauge_behind_the_alert_of_a_growing_stream_is_zero() {
    let mut world = world_with_snapshots().await;
    let tokens = TokensFile::new(&world);
    let service = cut_short(&mut world, &tokens).await;
    world.caught_up().await;
    wait_for("no intent waits", BOUND, async || {
        (Scrape::of(&service.http_addr()).await.sum(AGE, &[]) == Some(0.0)).then_some(())
    })
    .await;
    world.check_audit().await;
}

#[tokio::test]
async fn one_loss_is_reported_once() {
    let mut world = world_with_snapshots().await;
    let tokens = TokensFile::new(&world);
    let service = cut_short(&mut world, &tokens).await;
    world.send(6..8).await;
    world.settled(8).await;
    let lines = service.output().into_iter().filter(|line| line.contains(CUT)).count();
    assert_eq!(lines, 1);
}
