//! Many dead letters, without the failures that lead to them.

use crate::world::World;

/// Inserts records `1-0` to `<records>-0`, accepted an hour ago, each with a dead letter by push and one by
/// e-mail to a user of its own.
pub async fn insert_dead_letters(world: &World, records: u32) {
    let sql = format!(
        r#"INSERT INTO records (notification_id, notification_type, producer, audience_kind, recipient_user_ids, payload_json,
            idempotency_key, request_fingerprint, occurred_at, accepted_at, updated_at, idempotency_expires_at)
         SELECT n || '-0', 'game.turn.ready', 'game_master', 'user', jsonb_build_array('u-' || n),
            '{{"game_id":"g","game_name":"n","turn_number":54}}', 'dead:' || n, 'v1:', t, t, t, t
         FROM (SELECT n, now() - interval '1 hour' + n * interval '1 ms' AS t FROM generate_series(1, {records}) n) r;
         INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, attempt_count, max_attempts, resolved_email,
            resolved_locale, last_error_classification, last_error_message, last_error_at, created_at, updated_at, dead_lettered_at)
         SELECT notification_id, c || ':user:' || (recipient_user_ids ->> 0), c, 'user:' || (recipient_user_ids ->> 0), 'dead_letter', 3, 3,
            CASE c WHEN 'email' THEN 'u@example.com' ELSE '' END, 'en',
            CASE c WHEN 'email' THEN 'mail' ELSE 'gateway' END || '_stream_publish_failed', E'WRONGTYPE \x1b[31m',
            accepted_at, accepted_at, accepted_at, accepted_at
         FROM records, unnest(ARRAY['push', 'email']) c WHERE idempotency_key LIKE 'dead:%';
         INSERT INTO dead_letters (notification_id, route_id, channel, recipient_ref, final_attempt_count, max_attempts,
            failure_classification, failure_message, recovery_hint, created_at)
         SELECT notification_id, route_id, channel, recipient_ref, 3, 3, last_error_classification, last_error_message, 'fix it',
            dead_lettered_at FROM routes WHERE status = 'dead_letter'"#
    );
    world.database.client().await.batch_execute(&sql).await.expect("rows");
}
