//! The records that name a person, by the index of recipients. Only a bitmap can use it, so the statement
//! runs with the settings [`crate::QUERY_SESSION`].

use domain::erase::ErasedUser;
use domain::record::NotificationId;
use pg::BoundStatement;
use pg::parameter::{rows, text, texts};

pg::statements! {
    /// Records that name a user, except those that were left out before.
    NAMING = "erase.records_naming", plan ["records_recipients_idx"], "
        SELECT notification_id FROM records
        WHERE recipient_user_ids @> $1::text::jsonb AND notification_id <> ALL ($2::text[])
        LIMIT $3::bigint";
}

pub(super) fn records(user: &ErasedUser, except: &[NotificationId], limit: usize) -> BoundStatement {
    let list = serde_json::json!([user.id()]).to_string();
    NAMING.bind([text(list), texts(except.iter().map(NotificationId::as_str)), rows(limit)])
}
