//! Erasing a person from the tables (ADR 0064).
//!
//! Each call is one transaction that ends with a row in `operator_actions`, or changes nothing. It waits for
//! no lock: a record is left out if another transaction has locked its row or one of its routes to the user.
//!
//! Crash recovery: a crash before COMMIT leaves the chunk as it was, a later one leaves it done. A repeated
//! erasure finds the records that still name the user.

use std::collections::HashSet;

use domain::erase::{ACTION, ErasedRows, ErasedUser, arguments};
use domain::hold::HoldActor;
use domain::malformed_intent::MalformedKey;
use domain::operations::OperatorActionId;
use domain::ports::{ErasedChunk, ErasureStore, FoundAction, FoundMalformed, StoreError};
use domain::query::{MalformedPlace, Page};
use domain::record::{IdempotencyKey, NotificationId, RecordCursor};
use domain::route::RouteKey;
use pg::parameter::{bytea, text, texts};
use pg::{BoundStatement, Session};
use serde_json::{Value, json};
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::{column, route_key, route_keys};
use crate::error::store_error;
use crate::operator_actions::insert_action;
use crate::routes::keys;

pub(crate) mod contents;
pub(crate) mod naming;

pg::statements! {
    /// Sets the key for the hashes of erased users, unless the installation has one.
    SET_KEY = "erase.set_key", plan ["Seq Scan"], "
        UPDATE installation SET erasure_key = $1::bytea WHERE erasure_key IS NULL";

    /// Reads the key for the hashes of erased users.
    KEY = "erase.key", plan ["Seq Scan"], "
        SELECT erasure_key FROM installation WHERE erasure_key IS NOT NULL LIMIT 1";

    /// Locks records that name a user.
    LOCK_RECORDS = "erase.lock_records", plan ["records_pkey"], "
        SELECT notification_id, producer, idempotency_key FROM records
        WHERE notification_id = ANY ($1::text[]) AND jsonb_exists(recipient_user_ids, $2::text)
        FOR UPDATE SKIP LOCKED";

    /// Locks routes, and returns whether they are live.
    LOCK_ROUTES = "erase.lock_routes", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id, r.next_attempt_at IS NOT NULL AS live
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        FOR UPDATE OF r SKIP LOCKED";

    /// The routes that exist.
    ROUTES = "erase.routes", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id";

    /// Deletes receipts. A transaction that writes one locks its route first, and all are locked here.
    DELETE_RECEIPTS = "erase.delete_receipts", plan ["receipts_pkey"], "
        DELETE FROM receipts WHERE key = ANY ($1::text[])";

    /// Deletes dead letters, so that they are counted.
    DELETE_DEAD_LETTERS = "erase.delete_dead_letters", plan ["dead_letters_pkey"], "
        DELETE FROM dead_letters d
        USING unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        WHERE d.notification_id = g.notification_id AND d.route_id = g.route_id";

    /// Deletes routes, and by cascade what keeps them.
    DELETE_ROUTES = "erase.delete_routes", plan ["routes_pkey"], "
        DELETE FROM routes r
        USING unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        WHERE r.notification_id = g.notification_id AND r.route_id = g.route_id";

    /// Deletes stored responses: they list the routes. A repeated request is a duplicate by its record.
    DELETE_RESPONSES = "erase.delete_responses", plan ["idempotency_keys_pkey"], "
        DELETE FROM idempotency_keys k
        USING unnest($1::text[], $2::text[]) AS g (scope, key)
        WHERE k.scope = g.scope AND k.key = g.key AND k.state = 'completed'";

    /// Deletes records that name a user and no one else.
    DELETE_RECORDS = "erase.delete_records", plan ["records_pkey"], "
        DELETE FROM records
        WHERE notification_id = ANY ($1::text[]) AND recipient_user_ids = jsonb_build_array($2::text)";

    /// Removes a user from the recipients. The fingerprint of the request stays, so that a repeated request
    /// is a duplicate, and so does the version, because acceptance is not repeated.
    CHANGE_RECORDS = "erase.change_records", plan ["records_pkey"], "
        UPDATE records SET recipient_user_ids = recipient_user_ids - $2::text
        WHERE notification_id = ANY ($1::text[]) AND jsonb_exists(recipient_user_ids, $2::text)";

    /// A document of the user directory.
    DOCUMENT = "erase.document", plan ["kv_pkey"], "SELECT key FROM kv WHERE key = $1::text LIMIT 1";

    /// Deletes a document of the user directory.
    DELETE_DOCUMENT = "erase.delete_document", plan ["kv_pkey"], "DELETE FROM kv WHERE key = $1::text";
}

impl ErasureStore for PgStore {
    async fn erasure_key(&self, proposed: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let session = self.session("read the key of the installation").await?;
        session.execute(SET_KEY.bind([bytea(proposed)])).await.map_err(store_error)?;
        let found = session.query(KEY.bind([])).await.map_err(store_error)?;
        found.first().map(|row| column(row, "installation.erasure_key", "installation")).transpose()
    }

    async fn list_records_naming(
        &self,
        user: &ErasedUser,
        except: &[NotificationId],
        limit: usize,
    ) -> Result<Vec<NotificationId>, StoreError> {
        let session = self.plans.session("find records of a user").await.map_err(store_error)?;
        session
            .query(naming::records(user, except, limit))
            .await
            .map_err(store_error)?
            .iter()
            .map(notification_id)
            .collect()
    }

    async fn erase_from_records(
        &self,
        user: &ErasedUser,
        records: &[NotificationId],
        leased: &HashSet<RouteKey>,
        actor: HoldActor<'_>,
    ) -> Result<ErasedChunk, StoreError> {
        let session = self.session("erase a user from records").await?;
        let erased = self.erase_chunk(&session, user, (records, leased), actor).await;
        ended(&session, erased).await
    }

    async fn list_malformed_containing(
        &self,
        user: &ErasedUser,
        after: Option<&MalformedPlace>,
    ) -> Result<Page<FoundMalformed, MalformedPlace>, StoreError> {
        let session = self.session("find malformed intents of a user").await?;
        contents::malformed(&session, user, after).await
    }

    async fn erase_malformed(
        &self,
        user: &ErasedUser,
        keys: &[MalformedKey],
        actor: HoldActor<'_>,
    ) -> Result<u64, StoreError> {
        let session = self.session("erase the fields of malformed intents").await?;
        let erased = async {
            session.begin().await.map_err(store_error)?;
            let erase = contents::erase_malformed(user, keys);
            let malformed_intents = session.execute(erase).await.map_err(store_error)?;
            commit(&session, user, ErasedRows { malformed_intents, ..ErasedRows::default() }, actor).await?;
            Ok(malformed_intents)
        };
        let erased = erased.await;
        ended(&session, erased).await
    }

    async fn list_actions_containing(
        &self,
        user: &ErasedUser,
        after: Option<OperatorActionId>,
    ) -> Result<Page<FoundAction, OperatorActionId>, StoreError> {
        let session = self.session("find actions that name a user").await?;
        contents::actions(&session, user, after).await
    }

    async fn replace_arguments(
        &self,
        user: &ErasedUser,
        found: &[FoundAction],
        actor: HoldActor<'_>,
    ) -> Result<u64, StoreError> {
        let session = self.session("erase a user from actions").await?;
        let erased = async {
            session.begin().await.map_err(store_error)?;
            let replace = contents::replace_arguments(found);
            let actions = session.execute(replace).await.map_err(store_error)?;
            commit(&session, user, ErasedRows { actions, ..ErasedRows::default() }, actor).await?;
            Ok(actions)
        };
        let erased = erased.await;
        ended(&session, erased).await
    }

    async fn list_records_containing(
        &self,
        user: &ErasedUser,
        after: Option<&RecordCursor>,
    ) -> Result<Page<NotificationId, RecordCursor>, StoreError> {
        let session = self.plans.session("find payloads that mention a user").await.map_err(store_error)?;
        contents::records(&session, user, after).await
    }

    async fn record_stream_entries(
        &self,
        user: &ErasedUser,
        entries: u64,
        actor: HoldActor<'_>,
    ) -> Result<(), StoreError> {
        let session = self.session("record the deletion of stream entries").await?;
        let erased = json!({ "stream_entries": entries });
        session.execute(action(user, &erased, entries, actor)).await.map_err(store_error)?;
        Ok(())
    }

    async fn has_user_document(&self, document: &str) -> Result<bool, StoreError> {
        let session = self.session("look for a user's document").await?;
        Ok(!session.query(DOCUMENT.bind([text(document)])).await.map_err(store_error)?.is_empty())
    }

    async fn delete_user_document(
        &self,
        user: &ErasedUser,
        document: &str,
        actor: HoldActor<'_>,
    ) -> Result<bool, StoreError> {
        let session = self.session("delete a user's document").await?;
        let erased = async {
            session.begin().await.map_err(store_error)?;
            let statement = DELETE_DOCUMENT.bind([text(document)]);
            let directory_documents = session.execute(statement).await.map_err(store_error)?;
            commit(&session, user, ErasedRows { directory_documents, ..ErasedRows::default() }, actor)
                .await?;
            Ok(directory_documents > 0)
        };
        let erased = erased.await;
        ended(&session, erased).await
    }
}

/// The row of `operator_actions` for what was erased.
fn action(user: &ErasedUser, erased: &Value, affected: u64, actor: HoldActor<'_>) -> BoundStatement {
    let arguments = arguments(user, erased, actor.idempotency_key).to_string();
    insert_action((actor.name, actor.request_id), ACTION, &arguments, affected)
}

/// The result of a transaction, which is rolled back after an error. If that fails too, the session closes
/// its connection; either way the first error is the one to report.
async fn ended<T>(session: &Session, result: Result<T, StoreError>) -> Result<T, StoreError> {
    if result.is_err() {
        drop(session.rollback().await);
    }
    result
}

/// Records what was erased and commits; rolls back if nothing was.
async fn commit(
    session: &Session,
    user: &ErasedUser,
    erased: ErasedRows,
    actor: HoldActor<'_>,
) -> Result<(), StoreError> {
    if erased.total() == 0 {
        return session.rollback().await.map_err(store_error);
    }
    session.execute(action(user, &json!(erased), erased.total(), actor)).await.map_err(store_error)?;
    session.commit().await.map_err(store_error)
}

impl PgStore {
    async fn erase_chunk(
        &self,
        session: &Session,
        user: &ErasedUser,
        (records, leased): (&[NotificationId], &HashSet<RouteKey>),
        actor: HoldActor<'_>,
    ) -> Result<ErasedChunk, StoreError> {
        session.begin().await.map_err(store_error)?;
        let ids = texts(records.iter().map(NotificationId::as_str));
        let locked = session.query(LOCK_RECORDS.bind([ids, text(user.id())])).await.map_err(store_error)?;
        let locked = locked.iter().map(locked_record).collect::<Result<Vec<_>, _>>()?;
        let given: Vec<RouteKey> = locked.iter().flat_map(|(id, _)| user.routes(id)).collect();
        let routes = session.query(LOCK_ROUTES.bind(keys(given.iter()))).await.map_err(store_error)?;
        let mut held = HashSet::with_capacity(routes.len());
        let mut blocked: HashSet<NotificationId> = HashSet::new();
        for row in &routes {
            let key = route_key(row)?;
            if leased.contains(&key) && column(row, "live", key.notification_id.as_str())? {
                blocked.insert(key.notification_id.clone());
            }
            held.insert(key);
        }
        let existing = session.query(ROUTES.bind(keys(given.iter()))).await.map_err(store_error)?;
        let locked_by_others = route_keys(&existing)?.into_iter().filter(|key| !held.contains(key));
        blocked.extend(locked_by_others.map(|key| key.notification_id));
        held.retain(|key| !blocked.contains(&key.notification_id));
        let free = locked.into_iter().filter(|(id, _)| !blocked.contains(id)).collect::<Vec<_>>();
        let rows = self.delete(session, user, &free, &held).await?;
        commit(session, user, rows, actor).await?;
        Ok(ErasedChunk { rows, erased: free.into_iter().map(|(id, _)| id).collect() })
    }

    /// Deletes what belongs to locked records and routes.
    async fn delete(
        &self,
        session: &Session,
        user: &ErasedUser,
        records: &[(NotificationId, IdempotencyKey)],
        routes: &HashSet<RouteKey>,
    ) -> Result<ErasedRows, StoreError> {
        let run = async |statement: BoundStatement| session.execute(statement).await.map_err(store_error);
        let ids = || texts(records.iter().map(|(id, _)| id.as_str()));
        let scopes = texts(records.iter().map(|(_, key)| self.endpoint.scope(key)));
        let responses = texts(records.iter().map(|(_, key)| &key.key));
        Ok(ErasedRows {
            receipts: run(DELETE_RECEIPTS.bind([texts(routes.iter().map(RouteKey::to_string))])).await?,
            dead_letters: run(DELETE_DEAD_LETTERS.bind(keys(routes.iter()))).await?,
            routes: run(DELETE_ROUTES.bind(keys(routes.iter()))).await?,
            responses: run(DELETE_RESPONSES.bind([scopes, responses])).await?,
            records_deleted: run(DELETE_RECORDS.bind([ids(), text(user.id())])).await?,
            records_changed: run(CHANGE_RECORDS.bind([ids(), text(user.id())])).await?,
            ..ErasedRows::default()
        })
    }
}

fn notification_id(row: &Row) -> Result<NotificationId, StoreError> {
    column::<String>(row, "records.notification_id", "").map(NotificationId::from)
}

fn locked_record(row: &Row) -> Result<(NotificationId, IdempotencyKey), StoreError> {
    let id = notification_id(row)?;
    let key = IdempotencyKey {
        producer: column(row, "records.producer", id.as_str())?,
        key: column(row, "records.idempotency_key", id.as_str())?,
    };
    Ok((id, key))
}
