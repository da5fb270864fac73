//! The intents of a run, all appended before it or at a steady rate. Each names one or two of 500 users on
//! two channels, so it has two or four routes. An entry has half a kilobyte.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::intent::{IntentDraft, Recipients};
use redis::aio::MultiplexedConnection;
use store_redis::append_command;
use tokio::task::JoinSet;

use crate::testbed::INTENTS;

/// Routes of an intent, by default: two users on two channels.
pub(crate) const ROUTES: u32 = 4;

pub(crate) const USERS: u32 = 500;
const PIPELINE: u32 = 1_000;

/// Intent number `n`, with four routes.
pub(crate) fn draft(n: u32) -> IntentDraft {
    draft_of(n, ROUTES)
}

/// Intent number `n`, with two routes (one user) or four (two users).
pub(crate) fn draft_of(n: u32, routes: u32) -> IntentDraft {
    let (one, two) = (n % USERS, (n * 7 + 1) % USERS);
    let two = if one == two { (two + 1) % USERS } else { two };
    let mut users = vec![format!("user-{one}")];
    if routes >= ROUTES {
        users.push(format!("user-{two}"));
    }
    IntentDraft {
        notification_type: "game.turn.ready".to_owned(),
        producer: "game_master".to_owned(),
        recipients: Recipients::Users(users),
        idempotency_key: format!("game-master:game-{}:turn-{n}", n % 1_000),
        occurred_at_ms: "1775121700000".to_owned(),
        payload_json: format!(
            r#"{{"game_id":"game-{}","game_name":"{}","turn_number":{n}}}"#,
            n % 1_000,
            "Nebula ".repeat(28).trim()
        ),
        request_id: Some(format!("request-{n}")),
        trace_id: None,
    }
}

fn xadd(n: u32, routes: u32) -> redis::Cmd {
    append_command(INTENTS, &draft_of(n, routes).into_entry())
}

/// Appends the intents from number `first` on to the stream.
pub(crate) async fn preload(
    redis: &mut MultiplexedConnection,
    first: u32,
    intents: u32,
    routes: u32,
) -> anyhow::Result<()> {
    preload_of(redis, first, intents, |n| draft_of(n, routes)).await
}

/// As [`preload`], with these drafts.
pub(crate) async fn preload_of(
    redis: &mut MultiplexedConnection,
    first: u32,
    intents: u32,
    draft: impl Fn(u32) -> IntentDraft,
) -> anyhow::Result<()> {
    let last = first + intents;
    for first in (first..last).step_by(PIPELINE as usize) {
        let mut pipeline = redis::pipe();
        for n in first..(first + PIPELINE).min(last) {
            pipeline.add_command(append_command(INTENTS, &draft(n).into_entry())).ignore();
        }
        pipeline.query_async::<()>(redis).await?;
    }
    Ok(())
}

/// A load of intents at a steady rate.
#[derive(Clone, Copy)]
pub(crate) struct Steady {
    /// The number of the first intent.
    pub(crate) first: u32,
    /// Routes of each intent.
    pub(crate) routes: u32,
    /// Intents per second.
    pub(crate) rate: u32,
    /// The maximum number of intents.
    pub(crate) most: u32,
}

impl Steady {
    /// The due time of intent `n` of the load, relative to the start.
    pub(crate) fn due(self, n: u32) -> Duration {
        Duration::from_secs(1) * n / self.rate
    }

    /// An open loop: sends each intent when it is due, without waiting for earlier replies, while `more`
    /// returns true for the number sent. Returns the due time of each intent by its id. Latency counts from
    /// the due time, so that a late producer does not hide it.
    pub(crate) async fn send(
        self,
        redis: MultiplexedConnection,
        mut more: impl FnMut(u32) -> bool,
    ) -> anyhow::Result<HashMap<String, Instant>> {
        let started = tokio::time::Instant::now();
        let (mut sending, mut sent) = (JoinSet::new(), HashMap::new());
        let mut n = 0;
        while n < self.most && more(n) {
            let due = started + self.due(n);
            tokio::time::sleep_until(due).await;
            let mut redis = redis.clone();
            sending.spawn(async move {
                let id: String = xadd(self.first + n, self.routes).query_async(&mut redis).await?;
                anyhow::Ok((id, due.into_std()))
            });
            while let Some(done) = sending.try_join_next() {
                sent.extend([done??]);
            }
            n += 1;
        }
        while let Some(done) = sending.join_next().await {
            sent.extend([done??]);
        }
        Ok(sent)
    }
}
