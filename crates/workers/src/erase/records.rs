//! Erasing a user from records and routes, chunk by chunk, under the leases of the routes.

use std::collections::HashSet;
use std::time::Duration;

use domain::hold::HoldActor;
use domain::ports::{
    AuditStore, EntryDeletion, ErasureStore, Leasable, LeaseOutcome, LeaseStore, LeaseToken, StoreError,
    StreamReader,
};
use domain::record::NotificationId;
use domain::route::RouteKey;
use tokio::time::sleep;

use super::Run;

/// The records of one transaction.
pub(super) const CHUNK_RECORDS: usize = 250;
/// The most records that are left for later because something else has them.
const MAX_BLOCKED: usize = 1_000;
/// The number of times that these are tried again, and the pause before.
const BLOCKED_ATTEMPTS: usize = 5;
const BLOCKED_PAUSE: Duration = Duration::from_secs(1);

/// A route whose published marker names this entry. The marker gives way to the lease.
pub(super) struct Marked<'a> {
    pub(super) key: &'a RouteKey,
    pub(super) entry_id: String,
}

impl Leasable for Marked<'_> {
    fn key(&self) -> &RouteKey {
        self.key
    }

    fn replaces(&self) -> Option<&str> {
        Some(&self.entry_id)
    }
}

impl<S, A, R, D, L, C> Run<'_, S, A, R, D, L, C>
where
    S: ErasureStore,
    A: AuditStore,
    R: StreamReader,
    D: EntryDeletion,
    L: LeaseStore,
{
    pub(super) async fn records(&mut self) -> Result<(), StoreError> {
        let Some(actor) = self.actor else { return Ok(()) };
        for attempt in 0..=BLOCKED_ATTEMPTS {
            let mut blocked: Vec<NotificationId> = Vec::new();
            loop {
                if self.is_over() {
                    return Ok(());
                }
                let tables = &self.eraser.stores.tables;
                let found = tables.list_records_naming(self.user, &blocked, CHUNK_RECORDS).await?;
                if found.is_empty() || blocked.len() > MAX_BLOCKED {
                    break;
                }
                let erased = self.chunk_or_each(&found, actor).await?;
                blocked.extend(found.into_iter().filter(|id| !erased.contains(id)));
            }
            if blocked.is_empty() {
                return Ok(());
            }
            if attempt < BLOCKED_ATTEMPTS {
                sleep(BLOCKED_PAUSE).await;
            }
        }
        self.complete = false;
        Ok(())
    }

    /// Erases a chunk of records, or each by itself if another transaction has a row of one of them.
    async fn chunk_or_each(
        &mut self,
        records: &[NotificationId],
        actor: HoldActor<'_>,
    ) -> Result<HashSet<NotificationId>, StoreError> {
        match self.chunk(records, actor).await {
            Err(StoreError::Locked { .. }) => {}
            result => return result,
        }
        let mut erased = HashSet::new();
        for record in records {
            match self.chunk(std::slice::from_ref(record), actor).await {
                Err(StoreError::Locked { .. }) => {}
                result => erased.extend(result?),
            }
        }
        Ok(erased)
    }

    /// Erases a chunk of records under the leases of their routes, and returns those that are erased.
    async fn chunk(
        &mut self,
        records: &[NotificationId],
        actor: HoldActor<'_>,
    ) -> Result<HashSet<NotificationId>, StoreError> {
        let (stores, ttl) = (&self.eraser.stores, self.eraser.settings.dedupe_ttl);
        let token = LeaseToken(format!("erase:{}", self.user.hash()));
        let keys: Vec<RouteKey> = records.iter().flat_map(|id| self.user.routes(id)).collect();
        let asked: Vec<&RouteKey> = keys.iter().collect();
        let outcomes = stores.leases.acquire_leases(&asked, &token, ttl).await?;
        let (mut leased, mut marked) = (HashSet::new(), Vec::new());
        for (key, outcome) in keys.iter().zip(outcomes) {
            match outcome {
                LeaseOutcome::Won => {}
                LeaseOutcome::Held => drop(leased.insert(key.clone())),
                LeaseOutcome::Published(entry) => marked.push(Marked { key, entry_id: entry.entry_id }),
            }
        }
        if !marked.is_empty() {
            let asked: Vec<&Marked<'_>> = marked.iter().collect();
            let outcomes = stores.leases.acquire_leases(&asked, &token, ttl).await?;
            let lost = marked.iter().zip(outcomes).filter(|(_, outcome)| *outcome != LeaseOutcome::Won);
            leased.extend(lost.map(|(marked, _)| marked.key.clone()));
        }
        let chunk = stores.tables.erase_from_records(self.user, records, &leased, actor).await?;
        self.rows = self.rows.plus(chunk.rows);
        Ok(chunk.erased)
    }
}
