//! The effect of one producer's requests on those of another.

use std::time::{Duration, Instant};

use harness::wait_for;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::api_client::*;
use crate::world::*;

/// A batch of 500 intents.
fn batch_of(caller: usize, number: usize) -> String {
    let element = |place: usize| {
        let mut element = body(u32::try_from(place).expect("few"));
        element["idempotency_key"] = json!(format!("greedy-{caller}-{number}-{place}"));
        element
    };
    json!({"intents": (0..500).map(element).collect::<Vec<_>>()}).to_string()
}

/// The longest duration of `count` sequential intents.
async fn slowest(service: &harness::Service, prefix: &str, count: u32) -> Duration {
    let mut slowest = Duration::ZERO;
    for number in 0..count {
        let since = Instant::now();
        assert_eq!(send(service, &format!("{prefix}-{number}"), &body(number)).await.status, 202);
        slowest = slowest.max(since.elapsed());
    }
    slowest
}

#[tokio::test]
async fn a_single_intent_does_not_wait_for_the_batches_that_were_sent_before_it() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let addr = service.api_addr();
    let batches: Vec<JoinHandle<()>> = (0..12)
        .map(|caller| {
            let addr = addr.clone();
            tokio::spawn(async move {
                for number in 0.. {
                    let answer = try_ask(
                        &addr,
                        PRODUCER,
                        "POST",
                        "/v1/intents:batch",
                        None,
                        &batch_of(caller, number),
                    )
                    .await;
                    if answer.map_or(true, |answer| answer.status != 200) {
                        return;
                    }
                }
            })
        })
        .collect();
    wait_for("a batch is being accepted", BOUND, async || {
        (world.number("SELECT count(*) FROM records").await > 500).then_some(())
    })
    .await;
    // A batch of 500 takes many times as long; twelve of them wait.
    let slowest = slowest(&service, "single", 20).await;
    println!("the slowest of 20 took {slowest:?}");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    batches.iter().for_each(JoinHandle::abort);
}
