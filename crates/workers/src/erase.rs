//! Erases a person: from the user directory, the tables and the streams (ADR 0064).
//!
//! The steps are in this order, and each finds what it erases by the id of the user, not by what an earlier
//! step found. So an erasure that ended early is repeated as a whole, and continues with what is left. If the
//! process dies, this is left:
//!
//! * After the document of the directory is deleted: everything else. Once the cache of 5 s has expired,
//!   acceptance no longer finds the user; the next run erases the rest.
//! * After leases are acquired, before the commit: routes that no publisher takes for the dedupe TTL. The
//!   next run has the same token, so it acquires the same leases. Without one, live routes are published once
//!   the leases expire.
//! * After the commit: the same leases, as after every chunk.
//! * Within malformed intents or actions: those of later pages, which the next run finds.
//! * Within the streams: entries. The next run reads the streams from their beginning. The deletions that
//!   were made are not recorded.
//! * Within the mentions: nothing. The next run counts them again.
//!
//! A live route is not published afterwards: a publisher appends only under the lease of the route, or under
//! a permit while nobody holds it. This worker holds it before it deletes the row, and for as long as a copy
//! that was read before may be appended without reading the row again (`dedupe_ttl`). If a publisher holds
//! the lease of a live route, this worker waits for it. A cancelled route is not waited for: the lease that
//! its cancellation took keeps it from being published. The lease also replaces a published marker: if the
//! route is to be sent again, an older copy of it would replace the entry that the marker names. What was
//! appended under an earlier lease is found in the stream, which is read last.
//!
//! Leases are not released; they expire. Two runs for one user have the same token, so a run cannot know why
//! a route is gone or locked.
//!
//! Not excluded, and found by the next run: an intent that is accepted meanwhile (`complete` is then false),
//! and an entry that a comparison after a loss in Redis appends again at the same moment (ADR 0021).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::{Clock, Timestamp, Tokens};
use domain::erase::{ErasedRows, ErasedUser, ErasurePlan, ErasureReport, InvalidUserId, Mentions};
use domain::hold::HoldActor;
use domain::operations::PLAN_IDS;
use domain::ports::{
    AuditStore, EntryDeletion, ErasureStore, Erasures, FoundAction, LeaseStore, StoreError, StreamReader,
};
use domain::query::{COUNT_CAP, Counted};
use tokio::time::Instant;

/// The most pages that a plan looks at, of each table and stream.
const PLANNED_PAGES: usize = 40;

mod records;
mod streams;
#[cfg(test)]
mod tests;

/// The stores of an erasure.
#[derive(Clone, Debug)]
pub struct ErasureStores<S, A, R, D, L> {
    /// The tables.
    pub tables: S,
    /// The checkpoint of the intents stream, and the names of outbound streams.
    pub audited: A,
    /// Reads the streams.
    pub streams: R,
    /// Deletes entries of streams.
    pub deletion: D,
    /// The leases of routes.
    pub leases: L,
}

/// The settings of an erasure.
#[derive(Clone, Debug)]
pub struct ErasureSettings {
    /// The intents stream.
    pub intents_stream: String,
    /// The outbound streams that are configured.
    pub outbound_streams: Vec<String>,
    /// The prefix of the documents of users; `None` if the user directory is another service.
    pub users_prefix: Option<&'static str>,
    /// The lifetime of a published marker, and of the leases of erased routes.
    pub dedupe_ttl: Duration,
    /// The time after which no further step begins; `None` for as long as it takes.
    pub time_limit: Option<Duration>,
}

/// Erases users.
#[derive(Clone)]
pub struct Eraser<S, A, R, D, L, C> {
    /// The stores.
    pub stores: ErasureStores<S, A, R, D, L>,
    /// The settings.
    pub settings: ErasureSettings,
    /// The clock, for the receipt.
    pub clock: C,
    /// Generates the key of an installation that has none.
    pub ids: Arc<dyn Tokens>,
}

impl<S, A, R, D, L, C> fmt::Debug for Eraser<S, A, R, D, L, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Eraser").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The error for an id that is not that of a user.
fn refused(error: InvalidUserId) -> StoreError {
    StoreError::Refused { operation: "erase a user", source: error.into() }
}

impl<S, A, R, D, L, C> Erasures for Eraser<S, A, R, D, L, C>
where
    S: ErasureStore,
    A: AuditStore,
    R: StreamReader,
    D: EntryDeletion,
    L: LeaseStore,
    C: Clock,
{
    async fn plan_erasure(&self, user_id: &str) -> Result<Option<ErasurePlan>, StoreError> {
        let Some(user) = self.user(user_id).await? else { return Ok(None) };
        let tables = &self.stores.tables;
        let limit = usize::try_from(COUNT_CAP).unwrap_or(usize::MAX);
        let records = tables.list_records_naming(&user, &[], limit).await?;
        let mut plan = ErasurePlan {
            user_hash: user.hash().to_owned(),
            notifications: Counted::up_to_cap(records.len() as u64),
            first: records.into_iter().take(PLAN_IDS).collect(),
            ..ErasurePlan::default()
        };
        if let Some(prefix) = self.settings.users_prefix {
            plan.directory_document = tables.has_user_document(&format!("{prefix}{user_id}")).await?;
        }
        let mut run = Run::new(self, &user, None, PLANNED_PAGES);
        run.malformed().await?;
        run.mentions().await?;
        plan.malformed_intents = run.rows.malformed_intents;
        plan.mentions = run.mentions;
        plan.mentions.count.capped |= !run.complete;
        let mut run = Run::new(self, &user, None, PLANNED_PAGES);
        run.streams().await?;
        plan.stream_entries = Counted { count: run.stream_entries, capped: !run.complete };
        Ok(Some(plan))
    }

    async fn erase_user(
        &self,
        user_id: &str,
        actor: HoldActor<'_>,
        now: Timestamp,
    ) -> Result<Option<ErasureReport>, StoreError> {
        let Some(user) = self.user(user_id).await? else { return Ok(None) };
        let mut run = Run::new(self, &user, Some(actor), usize::MAX);
        run.directory(user_id).await?;
        run.records().await?;
        run.malformed().await?;
        run.actions().await?;
        run.streams().await?;
        run.mentions().await?;
        run.look_again().await?;
        Ok(Some(ErasureReport {
            user_hash: user.hash().to_owned(),
            request_id: actor.request_id.to_owned(),
            started_at: now,
            ended_at: self.clock.now(),
            rows: run.rows,
            stream_entries: run.stream_entries,
            unread_entries: run.unread_entries,
            complete: run.complete,
            mentions: run.mentions,
        }))
    }
}

impl<S: ErasureStore, A, R, D, L, C> Eraser<S, A, R, D, L, C> {
    async fn user(&self, user_id: &str) -> Result<Option<ErasedUser>, StoreError> {
        let proposed = [self.ids.next(), self.ids.next()].concat();
        let key = self.stores.tables.erasure_key(&proposed).await?;
        key.map(|key| ErasedUser::new(user_id.to_owned(), &key).map_err(refused)).transpose()
    }
}

/// One erasure, or the plan of one, which has no actor.
struct Run<'a, S, A, R, D, L, C> {
    eraser: &'a Eraser<S, A, R, D, L, C>,
    user: &'a ErasedUser,
    actor: Option<HoldActor<'a>>,
    max_pages: usize,
    begun: Instant,
    rows: ErasedRows,
    stream_entries: u64,
    unread_entries: u64,
    mentions: Mentions,
    complete: bool,
}

impl<'a, S, A, R, D, L, C> Run<'a, S, A, R, D, L, C>
where
    S: ErasureStore,
    A: AuditStore,
    R: StreamReader,
    D: EntryDeletion,
    L: LeaseStore,
{
    fn new(
        eraser: &'a Eraser<S, A, R, D, L, C>,
        user: &'a ErasedUser,
        actor: Option<HoldActor<'a>>,
        max_pages: usize,
    ) -> Self {
        Self {
            eraser,
            user,
            actor,
            max_pages,
            begun: Instant::now(),
            rows: ErasedRows::default(),
            stream_entries: 0,
            unread_entries: 0,
            mentions: Mentions::default(),
            complete: true,
        }
    }

    fn is_late(&self) -> bool {
        self.eraser.settings.time_limit.is_some_and(|limit| self.begun.elapsed() >= limit)
    }

    /// Returns true if the time is over: the run is then incomplete.
    fn is_over(&mut self) -> bool {
        let is_over = self.is_late();
        self.complete &= !is_over;
        is_over
    }

    async fn directory(&mut self, user_id: &str) -> Result<(), StoreError> {
        if let (Some(prefix), Some(actor)) = (self.eraser.settings.users_prefix, self.actor) {
            let document = format!("{prefix}{user_id}");
            let deleted = self.eraser.stores.tables.delete_user_document(self.user, &document, actor).await?;
            self.rows.directory_documents += u64::from(deleted);
        }
        Ok(())
    }

    async fn malformed(&mut self) -> Result<(), StoreError> {
        let (tables, user) = (&self.eraser.stores.tables, self.user);
        let mut after = None;
        for _ in 0..self.max_pages {
            if self.is_over() {
                return Ok(());
            }
            let page = tables.list_malformed_containing(user, after.as_ref()).await?;
            let (named, mentioned): (Vec<_>, Vec<_>) =
                page.items.into_iter().partition(|found| user.is_named_by_stored(&found.raw_fields));
            let keys: Vec<_> = named.into_iter().map(|found| found.key).collect();
            self.rows.malformed_intents += match self.actor {
                Some(actor) if !keys.is_empty() => tables.erase_malformed(user, &keys, actor).await?,
                _ => keys.len() as u64,
            };
            let mentioned =
                mentioned.into_iter().filter(|found| user.is_mentioned_by_stored(&found.raw_fields));
            mentioned.for_each(|found| self.mentions.add_malformed(found.key.entry_id));
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
        self.complete = false;
        Ok(())
    }

    async fn actions(&mut self) -> Result<(), StoreError> {
        let Some(actor) = self.actor else { return Ok(()) };
        let (tables, user) = (&self.eraser.stores.tables, self.user);
        let mut after = None;
        while !self.is_over() {
            let page = tables.list_actions_containing(user, after).await?;
            let without = |found: FoundAction| {
                let arguments = user.without_user(found.arguments)?;
                Some(FoundAction { arguments, ..found })
            };
            let changed: Vec<FoundAction> = page.items.into_iter().filter_map(without).collect();
            if !changed.is_empty() {
                self.rows.actions += tables.replace_arguments(user, &changed, actor).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Counts what only mentions the user. The count is capped if the time is over; nothing is left by that.
    async fn mentions(&mut self) -> Result<(), StoreError> {
        let tables = &self.eraser.stores.tables;
        let mut after = None;
        for _ in 0..self.max_pages {
            if self.is_late() {
                break;
            }
            let page = tables.list_records_containing(self.user, after.as_ref()).await?;
            page.items.into_iter().for_each(|id| self.mentions.add_notification(id));
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
        self.mentions.count.capped = true;
        Ok(())
    }

    /// The run is incomplete if an intent to the user was accepted meanwhile.
    async fn look_again(&mut self) -> Result<(), StoreError> {
        let found = self.eraser.stores.tables.list_records_naming(self.user, &[], 1).await?;
        self.complete &= found.is_empty();
        self.mentions.count.capped |= !self.complete;
        Ok(())
    }
}
