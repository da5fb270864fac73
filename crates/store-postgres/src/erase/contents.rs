//! Finding the id of a user in texts, page by page: in the fields of malformed intents, the arguments of
//! actions and payloads. No index finds them, so a page examines a number of rows in the order of a key.

use ambient::Timestamp;
use domain::erase::{ERASED_MESSAGE, ErasedUser};
use domain::malformed_intent::MalformedKey;
use domain::operations::OperatorActionId;
use domain::ports::{FoundAction, FoundMalformed, StoreError};
use domain::query::{MalformedPlace, Page};
use domain::record::{NotificationId, RecordCursor};
use pg::parameter::{bigint, bigints, instant, rows, text, texts};
use pg::{BoundStatement, Session};

use super::notification_id;
use crate::codec::{self, column};
use crate::error::store_error;

/// The rows that a page of malformed intents, actions or records examines: with the longest texts, some MiB.
const EXAMINED_MALFORMED: usize = 50;
const EXAMINED_ACTIONS: usize = 500;
const EXAMINED_RECORDS: usize = 500;

pg::statements! {
    /// The next malformed intents in the order of recording. Returns those that contain a pattern, and the
    /// last one in any case.
    MALFORMED = "erase.malformed", plan ["malformed_intents_recorded_idx"], "
        SELECT * FROM (
            SELECT recorded_at, stream, stream_entry_id, fields_fingerprint, raw_fields::text ~ $5::text AS found,
                CASE WHEN raw_fields::text ~ $5::text THEN raw_fields::text ELSE '' END AS raw_fields,
                row_number() OVER (ORDER BY recorded_at, stream, stream_entry_id, fields_fingerprint) AS rows
            FROM (
                SELECT recorded_at, stream, stream_entry_id, fields_fingerprint, raw_fields FROM malformed_intents
                WHERE (recorded_at, stream, stream_entry_id, fields_fingerprint)
                    > ($1::timestamptz, $2::text, $3::text, $4::text)
                ORDER BY recorded_at, stream, stream_entry_id, fields_fingerprint
                LIMIT $6::bigint
            ) AS examined
        ) AS compared
        WHERE found OR rows = $6::bigint
        ORDER BY recorded_at, stream, stream_entry_id, fields_fingerprint
        LIMIT $6::bigint";

    /// Deletes the fields of malformed intents, and keys that contain the id. The rows remain: they are
    /// the outcomes of their entries.
    ERASE_MALFORMED = "erase.erase_malformed", plan ["malformed_intents_pkey"], "
        UPDATE malformed_intents m SET raw_fields = '[]', failure_message = $4::text,
            idempotency_key = CASE WHEN strpos(idempotency_key, $5::text) > 0 THEN '' ELSE idempotency_key END
        FROM unnest($1::text[], $2::text[], $3::text[]) AS g (stream, stream_entry_id, fields_fingerprint)
        WHERE m.stream = g.stream AND m.stream_entry_id = g.stream_entry_id
            AND m.fields_fingerprint = g.fields_fingerprint";

    /// The next actions in their order. Returns those whose arguments contain a pattern, and the last one in
    /// any case.
    ACTIONS = "erase.actions", plan ["operator_actions_pkey"], "
        SELECT * FROM (
            SELECT id, arguments::text ~ $2::text AS found,
                CASE WHEN arguments::text ~ $2::text THEN arguments ELSE 'null' END AS arguments,
                row_number() OVER (ORDER BY id) AS rows
            FROM (
                SELECT id, arguments FROM operator_actions WHERE id > $1::bigint ORDER BY id LIMIT $3::bigint
            ) AS examined
        ) AS compared
        WHERE found OR rows = $3::bigint
        ORDER BY id
        LIMIT $3::bigint";

    /// Replaces the arguments of actions.
    REPLACE_ARGUMENTS = "erase.replace_arguments", plan ["operator_actions_pkey"], "
        UPDATE operator_actions o SET arguments = g.arguments::jsonb
        FROM unnest($1::bigint[], $2::text[]) AS g (id, arguments)
        WHERE o.id = g.id";

    /// The next records from a place, the newest first. Returns those of others whose texts contain a
    /// pattern, and the last one in any case.
    CONTAINING = "erase.records_containing", plan ["records_listing_idx"], "
        SELECT * FROM (
            SELECT accepted_at, notification_id, texts ~ $3::text AND NOT jsonb_exists(recipient_user_ids, $5::text) AS found,
                row_number() OVER (ORDER BY accepted_at DESC, notification_id DESC) AS rows
            FROM (
                SELECT accepted_at, notification_id, recipient_user_ids,
                    concat_ws(' ', payload_json, idempotency_key, request_id, trace_id) AS texts
                FROM records
                WHERE (accepted_at, notification_id) < ($1::timestamptz, $2::text)
                ORDER BY accepted_at DESC, notification_id DESC
                LIMIT $4::bigint
            ) AS examined
        ) AS compared
        WHERE found OR rows = $4::bigint
        ORDER BY accepted_at DESC, notification_id DESC
        LIMIT $4::bigint";
}

/// The next page of malformed intents.
pub(super) async fn malformed(
    session: &Session,
    user: &ErasedUser,
    after: Option<&MalformedPlace>,
) -> Result<Page<FoundMalformed, MalformedPlace>, StoreError> {
    let found = session.query(select_malformed(user, after)).await.map_err(store_error)?;
    let is_last = |place: u64| place == EXAMINED_MALFORMED as u64;
    let mut page = Page { items: Vec::new(), next: None };
    for row in &found {
        let entry_id: String = column(row, "malformed_intents.stream_entry_id", "")?;
        let key = MalformedKey {
            stream: column(row, "malformed_intents.stream", &entry_id)?,
            fields_fingerprint: column(row, "malformed_intents.fields_fingerprint", &entry_id)?,
            entry_id: entry_id.clone(),
        };
        if is_last(codec::count(row, "rows", &entry_id)?) {
            let recorded_at = codec::instant(row, "malformed_intents.recorded_at", &entry_id)?;
            page.next = Some(MalformedPlace { recorded_at, key: key.clone() });
        }
        if column(row, "found", &entry_id)? {
            let raw_fields = column(row, "malformed_intents.raw_fields", &entry_id)?;
            page.items.push(FoundMalformed { key, raw_fields });
        }
    }
    Ok(page)
}

/// Deletes the fields of these malformed intents.
pub(super) fn erase_malformed(user: &ErasedUser, keys: &[MalformedKey]) -> BoundStatement {
    let list = |part: fn(&MalformedKey) -> &String| texts(keys.iter().map(part));
    ERASE_MALFORMED.bind([
        list(|key| &key.stream),
        list(|key| &key.entry_id),
        list(|key| &key.fields_fingerprint),
        text(ERASED_MESSAGE),
        text(user.id()),
    ])
}

/// The next page of actions.
pub(super) async fn actions(
    session: &Session,
    user: &ErasedUser,
    after: Option<OperatorActionId>,
) -> Result<Page<FoundAction, OperatorActionId>, StoreError> {
    let after = after.map_or(i64::MIN, |after| after.0);
    let statement = ACTIONS.bind([bigint(after), text(user.pattern()), rows(EXAMINED_ACTIONS)]);
    let mut page = Page { items: Vec::new(), next: None };
    for row in &session.query(statement).await.map_err(store_error)? {
        let id = OperatorActionId(column(row, "operator_actions.id", "")?);
        let key = id.0.to_string();
        if codec::count(row, "rows", &key)? == EXAMINED_ACTIONS as u64 {
            page.next = Some(id);
        }
        if column(row, "found", &key)? {
            page.items.push(FoundAction { id, arguments: column(row, "operator_actions.arguments", &key)? });
        }
    }
    Ok(page)
}

/// Replaces the arguments of these actions.
pub(super) fn replace_arguments(actions: &[FoundAction]) -> BoundStatement {
    REPLACE_ARGUMENTS.bind([
        bigints(actions.iter().map(|action| action.id.0)),
        texts(actions.iter().map(|action| action.arguments.to_string())),
    ])
}

/// The next page of records.
pub(super) async fn records(
    session: &Session,
    user: &ErasedUser,
    after: Option<&RecordCursor>,
) -> Result<Page<NotificationId, RecordCursor>, StoreError> {
    let found = session.query(containing(user, after)).await.map_err(store_error)?;
    let mut page = Page { items: Vec::new(), next: None };
    for row in &found {
        let id = notification_id(row)?;
        if codec::count(row, "rows", id.as_str())? == EXAMINED_RECORDS as u64 {
            let accepted_at = codec::instant(row, "records.accepted_at", id.as_str())?;
            page.next = Some(RecordCursor { accepted_at, notification_id: id.clone() });
        }
        if column(row, "found", id.as_str())? {
            page.items.push(id);
        }
    }
    Ok(page)
}

fn select_malformed(user: &ErasedUser, after: Option<&MalformedPlace>) -> BoundStatement {
    let (at, stream, entry_id, fingerprint) = match after {
        Some(MalformedPlace { recorded_at, key }) => {
            (*recorded_at, &*key.stream, &*key.entry_id, &*key.fields_fingerprint)
        }
        None => (Timestamp::MIN, "", "", ""),
    };
    MALFORMED.bind([
        instant(at),
        text(stream),
        text(entry_id),
        text(fingerprint),
        // Fields that are not text, or too long, are stored in Base64.
        text(format!("{}|base64\":", user.pattern())),
        rows(EXAMINED_MALFORMED),
    ])
}

fn containing(user: &ErasedUser, after: Option<&RecordCursor>) -> BoundStatement {
    let (at, id) =
        after.map_or((Timestamp::MAX, ""), |after| (after.accepted_at, after.notification_id.as_str()));
    CONTAINING.bind([instant(at), text(id), text(user.pattern()), rows(EXAMINED_RECORDS), text(user.id())])
}
