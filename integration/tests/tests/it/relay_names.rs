//! Losses of Redis under other names: of the intents stream, of streams of events, and of producers.

use harness::wait_for;

use crate::outbox::*;
use crate::relay_loss::{ask, compared, deliver, with_snapshots};
use crate::restore::Snapshot;
use crate::world::*;

#[tokio::test]
async fn a_relay_with_another_stream_sends_nothing_again_that_was_delivered_to_the_former_one() {
    const RENAMED: &str = "notification:renamed_intents";
    let outbox = with_snapshots().await;
    let relay = outbox.relay().start().await;
    deliver(&outbox, 0..5).await;
    relay.kill().await;
    let _next = outbox.relay().env("NOTIFICATION_INTENTS_STREAM", RENAMED).start().await;
    deliver(&outbox, 5..8).await;
    assert_eq!(outbox.entries(RENAMED).await.len(), 3);
    assert_eq!(outbox.entries(INTENTS).await.len(), 5);
}

#[tokio::test]
async fn an_intent_of_another_producer_with_the_same_key_does_not_stand_for_a_lost_event() {
    let mut outbox = with_snapshots().await;
    let empty = Snapshot::of(&outbox.world).await;
    let relay = outbox.relay().start().await;
    deliver(&outbox, 0..3).await;
    relay.kill().await;
    empty.restore(&mut outbox.world).await;
    for event in 0..3 {
        ask(&outbox, &["XADD", INTENTS, "*", "producer", "geoprofile", "idempotency_key", &event_id(event)])
            .await;
    }
    let _next = outbox.relay().start().await;
    wait_for("all are on the stream", BOUND, async || {
        (outbox.entries(INTENTS).await.len() == 6).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_a_stream_lost_while_no_relay_had_it_is_sent_again_once_one_has_it() {
    let streams = |outbox: &Outbox, names: &str| {
        outbox.relay().env("NOTIFICATION_OUTBOX_MODE", "streams").env("NOTIFICATION_OUTBOX_STREAMS", names)
    };
    let mut outbox = with_snapshots().await;
    let relay = streams(&outbox, "sa,sb").start().await;
    compared(&relay, 0).await;
    let snapshot = Snapshot::of(&outbox.world).await;
    let rows: Vec<String> = (0..6).map(|n| row(n, ["sa", "sb"][n as usize % 2], "{}")).collect();
    outbox.execute(&format!("{INSERT} {}", rows.join(","))).await;
    outbox.drained().await;
    relay.kill().await;
    snapshot.restore(&mut outbox.world).await;
    let without = streams(&outbox, "sa").start().await;
    wait_for("the events of sa", BOUND, async || (outbox.entries("sa").await.len() == 3).then_some(())).await;
    without.kill().await;
    let _with = streams(&outbox, "sa,sb").start().await;
    wait_for("the events of sb", BOUND, async || (outbox.entries("sb").await.len() == 3).then_some(())).await;
    assert_eq!(outbox.entries("sa").await.len(), 3, "none is there twice");
}
