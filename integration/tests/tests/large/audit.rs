//! A million records, with as many entries of the intents stream and two outbound entries each, are audited
//! within limited memory.

use std::time::{Duration, Instant};

use ambient::{Clock, SystemClock};
use domain::catalog::Catalog;
use harness::wait_for;

use crate::world::*;

/// The number of records, unless the variable sets another, for a short run that only shows that the test
/// works.
const RECORDS: u32 = 1_000_000;
const RECORDS_VARIABLE: &str = "TEST_LARGE_AUDIT_RECORDS";
/// The number of records that are inserted at once.
const CHUNK: u32 = 5_000;
/// The time limit of an audit.
const AUDIT_BOUND: Duration = Duration::from_secs(3_600);
/// The maximum memory that it may ever use, in bytes.
const MAX_MEMORY_BYTES: u64 = 200 << 20;

/// Records of one user each, published to both channels, with all their entries.
async fn insert(world: &World, records: u32) {
    let now = SystemClock.now().as_millis();
    // One record per millisecond, up to now.
    let first = u64::try_from(now).expect("in range") - u64::from(records);
    let (client, mut redis) = (world.database.client().await, world.redis().await);
    let catalog = Catalog::built_in();
    for chunk in (0..records).step_by(CHUNK as usize) {
        let mut pipeline = redis::pipe();
        let (mut ids, mut keys, mut fingerprints) = (Vec::new(), Vec::new(), Vec::new());
        for n in chunk..(chunk + CHUNK).min(records) {
            let id = format!("{}-0", first + u64::from(n));
            let draft = harness::turn_ready(["u-1"], &key(n), n);
            let intent = draft.clone().decode(&catalog).expect("it is valid");
            let mut add = redis::cmd("XADD");
            add.arg(INTENTS).arg(&id);
            for (name, value) in draft.into_fields() {
                add.arg(name).arg(value);
            }
            pipeline.add_command(add).ignore();
            for (stream, name, channel) in [(PUSH, "event_id", "push"), (MAIL, "delivery_id", "email")] {
                let route = format!("{id}/{channel}:user:u-1");
                pipeline.cmd("XADD").arg(stream).arg(&id).arg(name).arg(route).arg("x").arg("y").ignore();
            }
            ids.push(id);
            keys.push(key(n));
            fingerprints.push(intent.fingerprint);
        }
        pipeline.query_async::<()>(&mut redis).await.expect("Redis is there");
        client
            .execute(
                "WITH given AS (
                    SELECT *, to_timestamp(split_part(id, '-', 1)::float8 / 1000) AS at
                    FROM unnest($1::text[], $2::text[], $3::text[]) AS given (id, key, fingerprint)
                 ), inserted AS (
                    INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
                        idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
                    SELECT id, 'game.turn.ready', 'game_master', 'user', '[\"u-1\"]', '{}', key, fingerprint, at, at, at, at FROM given
                 )
                 INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, created_at, updated_at,
                    published_at, published_entry_id)
                 SELECT id, channel || ':user:u-1', channel, 'user:u-1', 'published', 3, at, at + interval '1 s', at, id
                 FROM given, unnest(ARRAY['push', 'email']) AS channel",
                &[&ids, &keys, &fingerprints],
            )
            .await
            .expect("the statement is right");
    }
    let last = format!("{}-0", first + u64::from(records) - 1);
    let checkpoint = format!("INSERT INTO intake VALUES ('{INTENTS}', 1, '{last}', now())");
    client.batch_execute(&checkpoint).await.expect("the statement is right");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_records_and_their_entries_are_audited_in_less_than_200_mb() {
    let records = std::env::var(RECORDS_VARIABLE);
    let records: u32 = records.map_or(RECORDS, |text| text.parse().expect("a number"));
    let world = World::new().await;
    insert(&world, records).await;
    let begun = Instant::now();
    let (mut audit, mut peak) = (world.audit().spawn(), 0);
    wait_for("the audit ends", AUDIT_BOUND, async || {
        peak = peak.max(audit.peak_memory().unwrap_or(0));
        audit.has_ended().then_some(())
    })
    .await;
    let status = audit.wait_exit(AUDIT_BOUND).await;
    println!("{records} records: {:.1?}, at most {} MiB", begun.elapsed(), peak >> 20);
    let output = audit.output();
    assert!(status.success(), "{:?}", output.iter().take(10).collect::<Vec<_>>());
    let figures: serde_json::Value = serde_json::from_str(output.last().expect("figures")).expect("JSON");
    assert_eq!(figures["entries"]["accepted"], records);
    assert_eq!(
        (&figures["records"], &figures["routes"]["published"]),
        (&records.into(), &(2 * records).into())
    );
    assert_eq!(figures["published_entries"]["present"], 2 * records);
    assert_eq!(figures["outbound_entries"]["published"], 2 * records);
    assert!((1..MAX_MEMORY_BYTES).contains(&peak), "{peak} bytes");
}
