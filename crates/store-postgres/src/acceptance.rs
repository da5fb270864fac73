//! Acceptance is a committed row: progress, records, routes and malformed rows in one transaction.
//!
//! Two flights to the server: the first moves the progress and inserts the records, the second, sent only if all of that
//! happened, inserts what hangs on them and commits. Killed before COMMIT, nothing is left; killed after it, the entries
//! are read again and found to be duplicates; a lost answer to COMMIT is the one or the other. The routes cannot ride in
//! the first flight: where a record was not inserted because its id was taken, they would fall to another's record.

use ambient::Timestamp;
use domain::accept::{Acceptance, Settled};
use domain::entry::EntryId;
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, Claim, Commit, Fence, Known, Progress, StoreError, Swap,
};
use domain::record::{IdempotencyScope, Record};
use domain::route::{NewRoute, RouteStatus, Start};
use futures_util::future::{join, join3};
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, InsertStatement, OnConflict, Query, SelectStatement, UpdateStatement};

use crate::codec::{column, corrupt};
use crate::error::store_error;
use crate::schema::{Given, Intake, Records, Routes, any, insert_rows, unnest};
use crate::{PgStore, malformed_intents};

impl AcceptanceStore for PgStore {
    async fn find_known(&self, intents: &[(IdempotencyScope, EntryId)]) -> Result<Known, StoreError> {
        if intents.is_empty() {
            return Ok(Known::default());
        }
        let session = self.session("look for known idempotency keys").await?;
        let by_scope = session.prepare(&fingerprints_of(intents)).await.map_err(store_error)?;
        let by_id = session.prepare(&ids_taken(intents)).await.map_err(store_error)?;
        let (by_scope, by_id) = join(session.run(&by_scope), session.run(&by_id)).await;

        let mut known = Known::default();
        for row in by_scope.map_err(store_error)? {
            let producer = column(&row, 0, "records.producer", "")?;
            let key: String = column(&row, 1, "records.idempotency_key", "")?;
            let fingerprint = column(&row, 2, "records.request_fingerprint", &key)?;
            known.fingerprints.insert(IdempotencyScope { producer, key }, fingerprint);
        }
        let taken: Vec<String> = by_id
            .map_err(store_error)?
            .iter()
            .map(|row| column(row, 0, "records.notification_id", ""))
            .collect::<Result<_, _>>()?;
        for (scope, id) in intents {
            if !known.fingerprints.contains_key(scope) && taken.contains(&id.to_string()) {
                known.taken_ids.insert(*id, self.next_suffix(&session, *id).await?);
            }
        }
        Ok(known)
    }

    async fn accept(&self, batch: AcceptanceBatch<'_>) -> Result<Commit, StoreError> {
        let session = self.session("accept a batch of intents").await?;
        let rows = Rows::of(batch.settled);
        let outcome = write(&session, &batch, &rows).await;
        match outcome {
            Ok(Written::Committed) => return Ok(Commit::Done),
            Ok(Written::IdsOrKeysTaken) => session.rollback().await.map_err(store_error)?,
            Ok(Written::ProgressRefused) => {
                session.rollback().await.map_err(store_error)?;
                return Ok(Commit::Moved);
            }
            Err(error) => {
                // The connection stays good if the server only refused a value; otherwise this fails, too, and the
                // session closes it. Either way the error that matters is the first one.
                drop(session.rollback().await);
                return Err(store_error(error));
            }
        }
        Ok(Commit::Raced)
    }

    async fn claim_progress(&self, stream: &str, fence: Fence) -> Result<Claim, StoreError> {
        let session = self.session("claim the intake's progress").await?;
        let claimed = session.query(&claim(stream, fence)).await.map_err(store_error)?;
        drop(session);
        // A row that could not be claimed has a higher fence; claimed or not, it says where the progress stands.
        Ok(match self.load_progress(stream).await? {
            None => Claim::Unread,
            Some(progress) if claimed.is_empty() => Claim::Deposed(progress.fence),
            Some(progress) => Claim::At(progress.last_entry_id),
        })
    }

    async fn load_progress(&self, stream: &str) -> Result<Option<Progress>, StoreError> {
        let session = self.session("load the intake's progress").await?;
        let rows = session.query(&progress_of(stream)).await.map_err(store_error)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let fence: i64 = column(row, 0, "intake.fence", stream)?;
        let id: String = column(row, 1, "intake.last_entry_id", stream)?;
        let fence =
            Fence::try_from(fence).map_err(|error| corrupt("intake.fence", stream, error.to_string()))?;
        let last_entry_id = id
            .parse()
            .map_err(|error| corrupt("intake.last_entry_id", stream, format!("{id:?} is {error}")))?;
        Ok(Some(Progress { fence, last_entry_id }))
    }

    async fn restart_progress(&self, stream: &str, fence: Fence) -> Result<Swap, StoreError> {
        let session = self.session("start the intake over").await?;
        let changed = session.execute(&restart(stream, fence)).await.map_err(store_error)?;
        Ok(if changed == 0 { Swap::Conflict } else { Swap::Applied })
    }
}

impl PgStore {
    /// The number behind the highest `~n` of an entry id that is taken.
    async fn next_suffix(&self, session: &Session, id: EntryId) -> Result<u32, StoreError> {
        let mut highest: u32 = 0;
        for row in session.query(&suffixed_ids(id)).await.map_err(store_error)? {
            let name: String = column(&row, 0, "records.notification_id", "")?;
            let suffix = name.rsplit_once('~').and_then(|(_, digits)| digits.parse().ok());
            highest = Ord::max(highest, suffix.unwrap_or(0));
        }
        Ok(highest.saturating_add(1))
    }
}

/// What a batch writes, table by table.
struct Rows<'a> {
    acceptances: Vec<&'a Acceptance>,
    malformed: Vec<&'a domain::malformed::MalformedIntent>,
}

impl<'a> Rows<'a> {
    fn of(settled: &'a [Settled]) -> Self {
        let mut rows = Self { acceptances: Vec::new(), malformed: Vec::new() };
        for outcome in settled {
            match outcome {
                Settled::Accepted(acceptance) => rows.acceptances.push(acceptance),
                Settled::Malformed(row) => rows.malformed.push(row),
                Settled::Duplicate => {}
            }
        }
        rows
    }
}

/// How far the transaction came.
enum Written {
    Committed,
    /// Some records were not inserted: their key or their id has been taken.
    IdsOrKeysTaken,
    /// The progress is not where the batch goes on.
    ProgressRefused,
}

async fn write(session: &Session, batch: &AcceptanceBatch<'_>, rows: &Rows<'_>) -> Result<Written, PgError> {
    let progress = match batch.after {
        Some(after) => session.prepare(&advance(batch, after)).await?,
        None => session.prepare(&begin(batch)).await?,
    };
    let records = session.prepare(&insert_records(&rows.acceptances)).await?;

    // What has nothing to write is left out.
    let with_records =
        async { if rows.acceptances.is_empty() { Ok(0) } else { session.change(&records).await } };
    let first = join3(session.begin(), session.change(&progress), with_records);
    // Written down while PostgreSQL is at the records.
    let second = async {
        let routes = session.prepare(&insert_routes(&rows.acceptances)).await?;
        Ok::<_, PgError>((routes, session.prepare(&malformed_intents::insert(&rows.malformed)).await?))
    };
    let ((begun, moved, inserted), second) = join(first, second).await;
    begun?;
    if moved? == 0 {
        return Ok(Written::ProgressRefused);
    }
    if inserted? < rows.acceptances.len() as u64 {
        return Ok(Written::IdsOrKeysTaken);
    }
    let (routes, malformed) = second?;
    let with_routes =
        async { if rows.acceptances.is_empty() { Ok(0) } else { session.change(&routes).await } };
    let with_malformed =
        async { if rows.malformed.is_empty() { Ok(0) } else { session.change(&malformed).await } };
    // A COMMIT behind a failed statement rolls back without an error of its own, so every answer is looked at.
    let (routes, malformed, committed) = join3(with_routes, with_malformed, session.commit()).await;
    routes?;
    malformed?;
    committed?;
    Ok(Written::Committed)
}

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    let batch =
        AcceptanceBatch { stream: "", fence: 0, after: None, last_entry_id: EntryId::ZERO, settled: &[] };
    session.prepare(&fingerprints_of(&[])).await?;
    session.prepare(&ids_taken(&[])).await?;
    session.prepare(&suffixed_ids(EntryId::ZERO)).await?;
    session.prepare(&begin(&batch)).await?;
    session.prepare(&advance(&batch, EntryId::ZERO)).await?;
    session.prepare(&progress_of("")).await?;
    session.prepare(&claim("", 0)).await?;
    session.prepare(&restart("", 0)).await?;
    session.prepare(&insert_records(&[])).await?;
    session.prepare(&insert_routes(&[])).await?;
    session.prepare(&malformed_intents::insert(&[])).await?;
    Ok(())
}

fn fingerprints_of(intents: &[(IdempotencyScope, EntryId)]) -> SelectStatement {
    let given = Query::select()
        .expr_as(
            unnest(bind::texts(intents.iter().map(|(scope, _)| scope.producer.as_str()))),
            Given::Producer,
        )
        .expr_as(
            unnest(bind::texts(intents.iter().map(|(scope, _)| scope.key.as_str()))),
            Given::IdempotencyKey,
        )
        .take();
    Query::select()
        .columns([
            (Records::Table, Records::Producer),
            (Records::Table, Records::IdempotencyKey),
            (Records::Table, Records::RequestFingerprint),
        ])
        .from_subquery(given, Given::Table)
        .inner_join(
            Records::Table,
            Expr::col((Records::Table, Records::Producer)).equals((Given::Table, Given::Producer)).and(
                Expr::col((Records::Table, Records::IdempotencyKey))
                    .equals((Given::Table, Given::IdempotencyKey)),
            ),
        )
        .take()
}

fn ids_taken(intents: &[(IdempotencyScope, EntryId)]) -> SelectStatement {
    let ids = bind::texts(intents.iter().map(|(_, id)| id.to_string()));
    Query::select()
        .column(Records::NotificationId)
        .from(Records::Table)
        .and_where(Expr::col(Records::NotificationId).eq(any(ids)))
        .take()
}

/// All ids of the form `<id>~<n>`: in byte order they lie between `<id>~` and `<id>` followed by the next character.
fn suffixed_ids(id: EntryId) -> SelectStatement {
    Query::select()
        .column(Records::NotificationId)
        .from(Records::Table)
        .and_where(Expr::col(Records::NotificationId).gte(bind::text(format!("{id}~"))))
        .and_where(Expr::col(Records::NotificationId).lt(bind::text(format!("{id}\u{7f}"))))
        .take()
}

/// Moves the progress on, but only if it stands where the batch goes on. Compared for equality: a lower
/// progress means that PostgreSQL has forgotten outcomes, and those entries must be read again.
fn advance(batch: &AcceptanceBatch<'_>, after: EntryId) -> UpdateStatement {
    Query::update()
        .table(Intake::Table)
        .value(Intake::Fence, fence_value(batch.fence))
        .value(Intake::LastEntryId, bind::text(batch.last_entry_id.to_string()))
        .value(Intake::UpdatedAt, Expr::cust("clock_timestamp()"))
        .and_where(Expr::col(Intake::Stream).eq(bind::text(batch.stream)))
        .and_where(Expr::col(Intake::Fence).lte(fence_value(batch.fence)))
        .and_where(Expr::col(Intake::LastEntryId).eq(bind::text(after.to_string())))
        .take()
}

/// The first progress of a stream, if it is the first.
fn begin(batch: &AcceptanceBatch<'_>) -> InsertStatement {
    let mut insert = Query::insert();
    insert
        .into_table(Intake::Table)
        .columns([Intake::Stream, Intake::Fence, Intake::LastEntryId, Intake::UpdatedAt])
        .values_panic([
            bind::text(batch.stream),
            fence_value(batch.fence),
            bind::text(batch.last_entry_id.to_string()),
            Expr::cust("clock_timestamp()"),
        ])
        .on_conflict(OnConflict::new().do_nothing().to_owned());
    insert
}

fn progress_of(stream: &str) -> SelectStatement {
    Query::select()
        .columns([Intake::Fence, Intake::LastEntryId])
        .from(Intake::Table)
        .and_where(Expr::col(Intake::Stream).eq(bind::text(stream)))
        .take()
}

fn claim(stream: &str, fence: Fence) -> UpdateStatement {
    Query::update()
        .table(Intake::Table)
        .value(Intake::Fence, fence_value(fence))
        .value(Intake::UpdatedAt, Expr::cust("clock_timestamp()"))
        .and_where(Expr::col(Intake::Stream).eq(bind::text(stream)))
        .and_where(Expr::col(Intake::Fence).lte(fence_value(fence)))
        .returning_col(Intake::Stream)
        .take()
}

fn restart(stream: &str, fence: Fence) -> UpdateStatement {
    Query::update()
        .table(Intake::Table)
        .value(Intake::Fence, fence_value(fence))
        .value(Intake::LastEntryId, bind::text(EntryId::ZERO.to_string()))
        .value(Intake::UpdatedAt, Expr::cust("clock_timestamp()"))
        .and_where(Expr::col(Intake::Stream).eq(bind::text(stream)))
        .and_where(Expr::col(Intake::Fence).lte(fence_value(fence)))
        .take()
}

/// A fence has 15 digits: it always fits.
fn fence_value(fence: Fence) -> Expr {
    bind::bigint(i64::try_from(fence).unwrap_or(i64::MAX))
}

fn insert_records(acceptances: &[&Acceptance]) -> InsertStatement {
    let records = || acceptances.iter().map(|acceptance| &acceptance.record);
    let texts = |value: fn(&Record) -> &str| unnest(bind::texts(records().map(value)));
    let instants = |value: fn(&Record) -> Timestamp| unnest(bind::instants(records().map(value)));
    let recipients = records().map(|record| serde_json::json!(record.recipient_user_ids).to_string());
    let columns_and_values = [
        (Records::NotificationId, texts(|record| record.notification_id.as_str())),
        (Records::NotificationType, texts(|record| &record.content.notification_type)),
        (Records::Producer, texts(|record| &record.scope.producer)),
        (Records::AudienceKind, texts(|record| record.audience_kind)),
        (Records::RecipientUserIds, unnest(bind::jsonbs(recipients))),
        (Records::PayloadJson, texts(|record| &record.content.payload_json)),
        (Records::IdempotencyKey, texts(|record| &record.scope.key)),
        (Records::RequestFingerprint, texts(|record| &record.fingerprint)),
        (Records::RequestId, texts(|record| &record.content.request_id)),
        (Records::TraceId, texts(|record| &record.content.trace_id)),
        (Records::OccurredAt, instants(|record| record.content.occurred_at)),
        (Records::AcceptedAt, instants(|record| record.content.accepted_at)),
        (Records::UpdatedAt, instants(|record| record.content.accepted_at)),
        (Records::IdempotencyExpiresAt, instants(|record| record.idempotency_expires_at)),
    ];
    let mut insert = insert_rows(Records::Table, columns_and_values);
    insert.on_conflict(OnConflict::new().do_nothing().to_owned());
    insert
}

fn insert_routes(acceptances: &[&Acceptance]) -> InsertStatement {
    let routes = || acceptances.iter().flat_map(|acceptance| &acceptance.routes);
    let texts = |value: fn(&NewRoute) -> &str| unnest(bind::texts(routes().map(value)));
    // A batch is accepted at one time; each route repeats that of its record.
    let accepted_at = || {
        let times = acceptances
            .iter()
            .flat_map(|acceptance| acceptance.routes.iter().map(|_| acceptance.record.content.accepted_at));
        unnest(bind::instants(times))
    };
    let due = routes().map(|route| match route.start {
        Start::Pending { due } => Some(due),
        Start::Skipped(_) => None,
    });
    let skipped = acceptances.iter().flat_map(|acceptance| {
        acceptance.routes.iter().map(|route| match route.start {
            Start::Pending { .. } => None,
            Start::Skipped(_) => Some(acceptance.record.content.accepted_at),
        })
    });
    let columns_and_values = [
        (Routes::NotificationId, texts(|route| route.key.notification_id.as_str())),
        (Routes::RouteId, texts(|route| &route.key.route_id)),
        (Routes::Channel, texts(|route| route.channel.as_str())),
        (Routes::RecipientRef, texts(|route| &route.recipient_ref)),
        (
            Routes::Status,
            texts(|route| match route.start {
                Start::Pending { .. } => RouteStatus::Pending.as_str(),
                Start::Skipped(_) => RouteStatus::Skipped.as_str(),
            }),
        ),
        (Routes::MaxAttempts, unnest(bind::bigints(routes().map(|route| route.max_attempts.into())))),
        (Routes::NextAttemptAt, unnest(bind::optional_instants(due))),
        (Routes::ResolvedEmail, texts(|route| &route.resolved_email)),
        (Routes::ResolvedLocale, texts(|route| &route.resolved_locale)),
        (
            Routes::LastErrorClassification,
            texts(|route| match route.start {
                Start::Pending { .. } => "",
                Start::Skipped(reason) => reason.as_str(),
            }),
        ),
        (Routes::CreatedAt, accepted_at()),
        (Routes::UpdatedAt, accepted_at()),
        (Routes::SkippedAt, unnest(bind::optional_instants(skipped))),
    ];
    insert_rows(Routes::Table, columns_and_values)
}
