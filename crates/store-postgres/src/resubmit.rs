//! Selects malformed intents for resubmission, and records it in one transaction for each chunk.
//!
//! 1. Each row of the chunk that is there and was not resubmitted gets the id of its new entry. A row that
//!    retention deleted, or that another operator resubmitted meanwhile, is not changed.
//! 2. The action is recorded with the number of changed rows, and committed. It is recorded even if no row
//!    was changed, because the entries are in the stream.
//!
//! Crash recovery: a crash before COMMIT leaves the rows unmarked and their entries in the stream. The head
//! of `crates/workers/src/resubmit.rs` has what follows.

use std::collections::HashSet;
use std::time::Duration;

use domain::malformed_intent::MalformedKey;
use domain::ports::{ResubmitStore, StoreError};
use domain::query::MalformedFilter;
use domain::resubmit::{
    MAX_INTENTS_PER_REQUEST, RESUBMIT_ACTION, ResubmitActor, ResubmitSelection, ResubmitTarget,
    ResubmitTargets, arguments,
};
use pg::parameter::{Parameter, rows, text, texts};
use pg::{BoundStatement, Session};
use tokio::time::Instant;
use tokio_postgres::Row;

use crate::PgStore;
use crate::codec::column;
use crate::error::store_error;
use crate::operator_actions::insert_action;
use crate::queries::{malformed_page, malformed_row, malformed_text};

/// The smallest difference between two times in the tables.
const RESOLUTION: Duration = Duration::from_micros(1);
/// The number of malformed intents that are read together while they are selected.
const SELECTED_AT_ONCE: usize = 1_000;

pg::statements! {
    /// Those of the given rows whose fields were not kept whole: they were erased, or parts of them are
    /// objects with one of these members.
    CUT = "malformed_intents.cut", plan ["malformed_intents_pkey"], "
        SELECT m.stream, m.stream_entry_id, m.fields_fingerprint
        FROM unnest($1::text[], $2::text[], $3::text[]) AS g (stream, entry_id, fingerprint)
        JOIN malformed_intents m ON m.stream = g.stream AND m.stream_entry_id = g.entry_id
            AND m.fields_fingerprint = g.fingerprint
        WHERE m.raw_fields = '[]'
            OR jsonb_path_exists(m.raw_fields, '$[*][*] ? (exists(@.truncated) || exists(@.omitted))')";

    /// The rows with these entry ids, by the first two columns of the primary key.
    NAMED = "malformed_intents.named", plan ["malformed_intents_pkey"], concat!("
        SELECT ", malformed_text!(), " FROM malformed_intents
        WHERE stream = $1::text AND stream_entry_id = ANY ($2::text[])
        LIMIT $3::bigint");

    /// The raw fields of a row that was not resubmitted.
    FIELDS = "malformed_intents.fields_to_resubmit", plan ["malformed_intents_pkey"], "
        SELECT raw_fields::text AS raw_fields FROM malformed_intents
        WHERE stream = $1::text AND stream_entry_id = $2::text AND fields_fingerprint = $3::text
            AND resubmitted_at IS NULL
        LIMIT 1";

    /// Marks rows that were not resubmitted, at the time of the server.
    MARK = "malformed_intents.mark_resubmitted", plan ["malformed_intents_pkey"], "
        UPDATE malformed_intents m
        SET resubmitted_at = clock_timestamp(), resubmitted_entry_id = g.new_id
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS g (stream, entry_id, fingerprint, new_id)
        WHERE m.stream = g.stream AND m.stream_entry_id = g.entry_id AND m.fields_fingerprint = g.fingerprint
            AND m.resubmitted_at IS NULL";
}

impl ResubmitStore for PgStore {
    async fn select_malformed_intents(
        &self,
        stream: &str,
        selection: &ResubmitSelection,
    ) -> Result<ResubmitTargets, StoreError> {
        let session = self.plans.session("select malformed intents").await.map_err(store_error)?;
        // Another page may take as long as all before it.
        let time = self.plans.operation_timeout().map_or(Duration::MAX, |limit| limit / 2);
        let mut selected = match selection {
            ResubmitSelection::Ids(ids) => select_named(&session, stream, ids).await?,
            ResubmitSelection::Filter(filter) => select_listed(&session, stream, filter, time).await?,
        };
        for page in selected.targets.chunks_mut(SELECTED_AT_ONCE) {
            find_cut(&session, page).await?;
        }
        Ok(selected)
    }

    async fn get_fields_to_resubmit(&self, key: &MalformedKey) -> Result<Option<String>, StoreError> {
        let session = self.session("read the fields of a malformed intent").await?;
        let statement = FIELDS.bind([&key.stream, &key.entry_id, &key.fields_fingerprint].map(text));
        let found = session.query(statement).await.map_err(store_error)?;
        found.first().map(|row| column(row, "malformed_intents.raw_fields", &key.entry_id)).transpose()
    }

    async fn mark_resubmitted(
        &self,
        chunk: &[(MalformedKey, String)],
        selection: &ResubmitSelection,
        actor: ResubmitActor<'_>,
    ) -> Result<u64, StoreError> {
        let session = self.session("mark resubmitted intents").await?;
        let marked = mark(&session, chunk, selection, actor).await;
        if marked.is_err() {
            // If this fails too, the session closes its connection. Either way the first error is the one to
            // report.
            drop(session.rollback().await);
        }
        marked
    }
}

/// The malformed intents that the list shows, and that were not resubmitted.
async fn select_listed(
    session: &Session,
    stream: &str,
    filter: &MalformedFilter,
    time: Duration,
) -> Result<ResubmitTargets, StoreError> {
    let begun = Instant::now();
    let (mut selected, mut after) = (ResubmitTargets::default(), None);
    loop {
        let left = MAX_INTENTS_PER_REQUEST - selected.targets.len();
        let page = malformed_page(session, filter, after.as_ref(), left.min(SELECTED_AT_ONCE)).await?;
        let rows = page.items.into_iter().filter(|row| row.resubmitted_at.is_none());
        selected.targets.extend(rows.map(|row| ResubmitTarget::new(row, stream)));
        after = page.next;
        let Some(place) = &after else { return Ok(selected) };
        if selected.targets.len() == MAX_INTENTS_PER_REQUEST || begun.elapsed() >= time {
            // Other rows may have been recorded at the same time.
            selected.continue_before = Some(place.recorded_at + RESOLUTION);
            return Ok(selected);
        }
    }
}

async fn select_named(
    session: &Session,
    stream: &str,
    ids: &[String],
) -> Result<ResubmitTargets, StoreError> {
    let rows = session.query(named(stream, ids)).await.map_err(store_error)?;
    let mut rows = rows.iter().map(malformed_row).collect::<Result<Vec<_>, _>>()?;
    rows.sort_by_key(|row| std::cmp::Reverse(row.recorded_at));
    let targets: Vec<_> = rows.into_iter().map(|row| ResubmitTarget::new(row, stream)).collect();
    let found: HashSet<&str> = targets.iter().map(|target| target.key.entry_id.as_str()).collect();
    let unknown = ids.iter().filter(|id| !found.contains(id.as_str())).cloned().collect();
    Ok(ResubmitTargets { targets, unknown, continue_before: None })
}

/// Finds the targets whose fields were not kept whole, among those that are not refused already.
async fn find_cut(session: &Session, page: &mut [ResubmitTarget]) -> Result<(), StoreError> {
    let allowed = page.iter().filter(|target| target.refusal().is_none()).map(|target| &target.key);
    let rows = session.query(CUT.bind(keys(allowed))).await.map_err(store_error)?;
    let cut: HashSet<MalformedKey> = rows.iter().map(key).collect::<Result<_, _>>()?;
    page.iter_mut().for_each(|target| target.is_whole = !cut.contains(&target.key));
    Ok(())
}

async fn mark(
    session: &Session,
    chunk: &[(MalformedKey, String)],
    selection: &ResubmitSelection,
    actor: ResubmitActor<'_>,
) -> Result<u64, StoreError> {
    session.begin().await.map_err(store_error)?;
    let marked = session.execute(marking(chunk)).await.map_err(store_error)?;
    let arguments = arguments(selection, chunk, actor).to_string();
    let insert = insert_action((actor.name, actor.request_id), RESUBMIT_ACTION, &arguments, marked);
    session.execute(insert).await.map_err(store_error)?;
    session.commit().await.map_err(store_error)?;
    Ok(marked)
}

fn key(row: &Row) -> Result<MalformedKey, StoreError> {
    let entry_id: String = column(row, "malformed_intents.stream_entry_id", "")?;
    Ok(MalformedKey {
        stream: column(row, "malformed_intents.stream", &entry_id)?,
        fields_fingerprint: column(row, "malformed_intents.fields_fingerprint", &entry_id)?,
        entry_id,
    })
}

fn named(stream: &str, ids: &[String]) -> BoundStatement {
    let ids = texts(ids.iter().map(String::as_str));
    NAMED.bind([text(stream), ids, rows(MAX_INTENTS_PER_REQUEST)])
}

fn keys<'a>(keys: impl Iterator<Item = &'a MalformedKey> + Clone) -> [Parameter; 3] {
    let texts = |part: fn(&MalformedKey) -> &str| texts(keys.clone().map(part));
    [texts(|key| &key.stream), texts(|key| &key.entry_id), texts(|key| &key.fields_fingerprint)]
}

fn marking(chunk: &[(MalformedKey, String)]) -> BoundStatement {
    let [streams, entry_ids, fingerprints] = keys(chunk.iter().map(|(key, _)| key));
    MARK.bind([streams, entry_ids, fingerprints, texts(chunk.iter().map(|(_, id)| id.as_str()))])
}
