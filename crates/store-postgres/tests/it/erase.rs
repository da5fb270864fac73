//! Erasing a user from the tables, beside other transactions and after a crash.

use std::collections::HashSet;

use domain::erase::{ErasedRows, ErasedUser};
use domain::hold::HoldActor;
use domain::ports::{ErasedChunk, ErasureStore, FoundAction};
use domain::record::NotificationId;
use serde_json::json;

use super::*;

const BY: HoldActor<'_> = HoldActor { name: "ada", request_id: "r", idempotency_key: Some("erase u now") };

fn user() -> ErasedUser {
    ErasedUser::new("u".to_owned(), b"installation").expect("an id")
}

fn ids(numbers: impl IntoIterator<Item = u32>) -> Vec<NotificationId> {
    numbers.into_iter().map(|number| NotificationId::from(format!("{number}-0"))).collect()
}

/// Records to u, to both, and to v, in turn; with two routes for each recipient, of which that for e-mail is
/// a dead letter, a receipt for each route and a stored response for each record. Every record mentions u.
async fn records(world: &World, count: u32) {
    let sql = format!(
        r#"INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
            idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 't', 'p', 'user', (ARRAY['["v"]', '["u"]', '["u", "v"]'])[n % 3 + 1]::jsonb, '{{"by": "u"}}', n::text, 'v1:', t, t, t, t
         FROM (SELECT n, timestamptz '2026-01-01' + n * interval '1 ms' AS t FROM generate_series(1, {count}) n) r;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, attempt_count, max_attempts, created_at,
            updated_at, next_attempt_at, dead_lettered_at)
         SELECT notification_id, c || ':user:' || u, c, 'user:' || u, CASE c WHEN 'push' THEN 'pending' ELSE 'dead_letter' END, 0, 3,
            accepted_at, accepted_at, CASE c WHEN 'push' THEN accepted_at END, CASE c WHEN 'email' THEN accepted_at END
         FROM records, jsonb_array_elements_text(recipient_user_ids) u, unnest(ARRAY['push', 'email']) c;
         INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
            failure_classification, failure_message, recovery_hint, created_at)
         SELECT notification_id, route_id, channel, recipient_ref, 3, 3, 'c', 'm', 'h', created_at FROM routes WHERE channel = 'email';
         INSERT INTO idempotency_keys (scope, key, state, token, fingerprint, response_status, response_headers, response_body, expires_at, created_at)
         SELECT 'POST /v1/intents p', idempotency_key, 'completed', '', '', 202, '', '', now() + interval '1 day', now() FROM records"#
    );
    world.database.client().await.batch_execute(&sql).await.expect("rows");
}

async fn erase(world: &World, ids: &[NotificationId]) -> ErasedChunk {
    world.store.erase_from_records(&user(), ids, &HashSet::new(), BY).await.expect("PostgreSQL is there")
}

const COUNTS: &str = "SELECT concat_ws('|', (SELECT count(*) FROM records), (SELECT count(*) FROM routes), (SELECT count(*) FROM dead_letters),
    (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM operator_actions))";

#[tokio::test]
async fn others_keep_their_routes_and_records_and_a_second_time_finds_nothing() {
    let world = World::new().await;
    records(&world, 6).await;
    let named = world.store.list_records_naming(&user(), &ids([1]), 10).await.expect("PostgreSQL is there");
    assert_eq!(named.len(), 3, "{named:?}");
    let chunk = erase(&world, &ids(1..=6)).await;
    let expected = ErasedRows {
        records_deleted: 2,
        records_changed: 2,
        routes: 8,
        dead_letters: 4,
        responses: 4,
        ..ErasedRows::default()
    };
    assert_eq!(chunk.rows, expected);
    assert_eq!(chunk.erased.len(), 4, "{chunk:?}");
    assert_eq!(world.column(COUNTS).await, ["4|8|4|2|1"]);
    let left = "SELECT DISTINCT recipient_user_ids::text || (SELECT string_agg(route_id, ' ' ORDER BY route_id) FROM routes r
        WHERE r.notification_id = records.notification_id) FROM records";
    assert_eq!(world.column(left).await, [r#"["v"]email:user:v push:user:v"#]);
    let recorded = "SELECT concat_ws('|', actor, action, affected, request_id, arguments->>'user_hash', arguments->'erased'->>'routes',
        arguments->>'idempotency_key') FROM operator_actions";
    // The key of the request contains the id, so it is not recorded.
    assert_eq!(world.column(recorded).await, [format!("ada|erase_user|16|r|{}|8", user().hash())]);
    assert_eq!(erase(&world, &ids(1..=6)).await, ErasedChunk::default());
    assert_eq!(world.column(COUNTS).await, ["4|8|4|2|1"]);
}

#[tokio::test]
async fn deleted_entries_of_streams_are_recorded_with_their_number() {
    let world = World::new().await;
    world.store.record_stream_entries(&user(), 7, BY).await.expect("PostgreSQL is there");
    let recorded =
        "SELECT concat_ws('|', action, actor, affected, arguments->'erased') FROM operator_actions";
    assert_eq!(world.column(recorded).await, [r#"erase_user|ada|7|{"stream_entries": 7}"#]);
}

#[tokio::test]
async fn a_record_or_a_route_that_another_transaction_has_is_left_out_without_waiting() {
    let world = World::new().await;
    records(&world, 6).await;
    let other = world.database.client().await;
    let locks = "BEGIN; SELECT 1 FROM routes WHERE notification_id = '1-0' FOR UPDATE; SELECT 1 FROM records WHERE notification_id = '2-0' FOR UPDATE";
    other.batch_execute(locks).await.expect("it is right");
    // A call that waited for a lock would fail.
    let chunk = erase(&world, &ids(1..=6)).await;
    let mut erased: Vec<&str> = chunk.erased.iter().map(NotificationId::as_str).collect();
    erased.sort_unstable();
    assert_eq!(erased, ["4-0", "5-0"]);
    assert_eq!(world.column(COUNTS).await, ["5|12|6|4|1"]);
    other.batch_execute("ROLLBACK").await.expect("it is right");
    assert_eq!(erase(&world, &ids(1..=6)).await.erased.len(), 2);
}

// INV-05
#[tokio::test]
async fn a_crash_before_the_commit_leaves_the_chunk_as_it_was() {
    let world = World::new().await;
    records(&world, 6).await;
    world.execute("ALTER TABLE operator_actions ADD CONSTRAINT refused CHECK (actor <> 'ada')").await;
    let failed = world.store.erase_from_records(&user(), &ids(1..=6), &HashSet::new(), BY).await;
    assert!(matches!(failed, Err(StoreError::Refused { .. })), "{failed:?}");
    assert_eq!(world.column(COUNTS).await, ["6|16|8|6|0"]);
    world.execute("ALTER TABLE operator_actions DROP CONSTRAINT refused").await;
    assert_eq!(erase(&world, &ids(1..=6)).await.erased.len(), 4);
}

#[tokio::test]
async fn pages_find_each_text_with_the_id_once_and_nothing_after_it_is_erased() {
    let world = World::new().await;
    let store = &world.store;
    records(&world, 1_200).await;
    let filled = r#"INSERT INTO malformed_intents (stream, stream_entry_id, fields_fingerprint, idempotency_key, failure_code, failure_message, raw_fields, recorded_at)
        SELECT 's', n || '-0', 'f', CASE n % 2 WHEN 0 THEN 'for u' ELSE 'k' END, 'c', 'm',
            CASE n % 40 WHEN 0 THEN '[["a", "to u"]]' WHEN 1 THEN '[["a", {"base64": "/w=="}]]' ELSE '[["u-2", "us"]]' END::jsonb, now()
        FROM generate_series(1, 120) n;
        INSERT INTO operator_actions (at, actor, action, arguments, affected, request_id)
        SELECT now(), 'ops', 'a', json_build_object('ids', ARRAY['1-0/push:user:' || CASE n % 400 WHEN 0 THEN 'u' ELSE 'v' END]), n, 'r'
        FROM generate_series(1, 1200) n"#;
    world.database.client().await.batch_execute(filled).await.expect("rows");

    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store.list_malformed_containing(&user(), after.as_ref()).await.expect("it is there");
        found.extend(page.items);
        (after, pages) = (page.next, pages + 1);
        if after.is_none() {
            break;
        }
    }
    // Those with Base64 may contain anything.
    assert_eq!((found.len(), pages), (6, 3));
    found.retain(|found| user().is_mentioned_by_stored(&found.raw_fields));
    let keys: Vec<_> = found.into_iter().map(|found| found.key).collect();
    assert_eq!(store.erase_malformed(&user(), &keys, BY).await.expect("it is there"), 3);
    let left = "SELECT concat_ws('|', failure_message, idempotency_key, count(*)) FROM malformed_intents WHERE raw_fields = '[]' GROUP BY failure_message, idempotency_key";
    assert_eq!(world.column(left).await, ["the fields named a user who was erased||3"]);

    let (mut after, mut replaced) = (None, 0);
    loop {
        let page = store.list_actions_containing(&user(), after).await.expect("it is there");
        let without = |found: FoundAction| FoundAction {
            arguments: user().without_user(found.arguments).expect("it has the id"),
            ..found
        };
        let changed: Vec<FoundAction> = page.items.into_iter().map(without).collect();
        if !changed.is_empty() {
            replaced += store.replace_arguments(&user(), &changed, BY).await.expect("it is there");
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(replaced, 3);
    let named = r#"SELECT count(*)::text FROM operator_actions WHERE arguments->'ids' ? '1-0/push:user:u'"#;
    assert_eq!(world.column(named).await, ["0"]);
    let erased = r#"SELECT arguments::text FROM operator_actions WHERE affected = 400 AND action = 'a'"#;
    assert_eq!(
        world.column(erased).await,
        [json!({"ids": ["1-0/push:user:erased"]}).to_string().replace(":[", ": [")]
    );

    let (mut after, mut mentions) = (None, Vec::new());
    loop {
        let page = store.list_records_containing(&user(), after.as_ref()).await.expect("it is there");
        mentions.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(mentions.len(), 400, "the records to v, each once");
}

#[tokio::test]
async fn an_installation_gets_its_key_once_and_a_document_goes_once() {
    let world = World::new().await;
    let store = &world.store;
    assert_eq!(store.erasure_key(b"first").await.expect("it is there"), None, "it has never started");
    world.execute("INSERT INTO installation (id, intents_stream, created_at) VALUES ('i', 's', now())").await;
    for proposed in [b"first".as_slice(), b"second"] {
        let key = store.erasure_key(proposed).await.expect("it is there");
        assert_eq!(key.as_deref(), Some(b"first".as_slice()));
    }
    assert!(!store.has_user_document("users/u").await.expect("it is there"));
    assert!(!store.delete_user_document(&user(), "users/u", BY).await.expect("it is there"));
}
