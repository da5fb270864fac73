//! The ports of the intake in memory.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use domain::accept::Probe;

use domain::checkpoint::{CachedCheckpoint, Checkpoint};
use domain::entry::{EntryId, RawEntry};
use domain::outcome::Outcome;
use domain::ports::*;
use domain::record::IdempotencyScope;

use super::World;

/// The intents stream, both checkpoints, what was accepted, and the directory.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) stream: Vec<RawEntry>,
    pub(crate) last_generated: EntryId,
    /// There is no such key.
    pub(crate) absent: bool,
    /// The connection leads to a server that has nothing.
    pub(crate) stale: bool,
    /// How many times it was replaced.
    pub(crate) reconnects: usize,
    /// What each read asked for.
    pub(crate) reads: Vec<ReadLimit>,
    pub(crate) durable: Option<Checkpoint>,
    pub(crate) cached: Option<Checkpoint>,
    /// Every transaction finds that the checkpoint was moved.
    pub(crate) moves: bool,
    /// Outcomes by entry, in the order of their commits.
    pub(crate) outcomes: Vec<(EntryId, String)>,
    /// Transactions, by the number of their entries.
    pub(crate) transactions: Vec<usize>,
    /// Entries that the store refuses to take as what they are.
    pub(crate) poison: Vec<EntryId>,
    /// The store refuses every row, valid ones, too.
    pub(crate) refuses_all: bool,
    /// A row that each transaction with this entry waits for in vain.
    pub(crate) locked: Option<EntryId>,
    /// More entries than this take too long.
    pub(crate) slow_beyond: Option<usize>,
    /// The fingerprints of the keys that are taken.
    pub(crate) keys: HashMap<IdempotencyScope, String>,
    /// The entries that [`CheckpointStore::find_last_processed`] recognises.
    pub(crate) processed: HashSet<EntryId>,
    pub(crate) users: HashMap<String, Lookup>,
    /// Each call to the directory.
    pub(crate) asked: Vec<Vec<String>>,
    /// How long a call to the directory about this user takes.
    pub(crate) slow_user: Option<(String, Duration)>,
    pub(crate) trims: Vec<EntryId>,
    /// The fence of the next term, less one.
    pub(crate) terms: Fence,
}

fn refused(operation: &'static str) -> StoreError {
    StoreError::Refused { operation, source: "not storable".into() }
}

impl AcceptanceStore for World {
    async fn find_known(&self, intents: &[(IdempotencyScope, EntryId)]) -> Result<Known, StoreError> {
        let inner = self.call("find_known")?;
        let known = |(scope, _): &(IdempotencyScope, _)| {
            inner.intake.keys.get(scope).map(|fingerprint| (scope.clone(), fingerprint.clone()))
        };
        Ok(Known { fingerprints: intents.iter().filter_map(known).collect(), ..Known::default() })
    }

    async fn accept(&self, batch: AcceptanceBatch<'_>) -> Result<Commit, StoreError> {
        // As a server would: other tasks continue meanwhile.
        tokio::task::yield_now().await;
        let state = &mut self.call("accept")?.intake;
        let checkpoint = batch.checkpoint.expect("the intake moves a checkpoint");
        // The outcomes are those of the entries before the new checkpoint, in stream order.
        let before = state.stream.iter().rev().filter(|entry| entry.id <= checkpoint.last_entry_id);
        let mut ids: Vec<EntryId> = before.take(batch.outcomes.len()).map(|entry| entry.id).collect();
        ids.reverse();
        let has = |id: EntryId| ids.contains(&id);
        if state.moves || state.durable.map(|durable| durable.last_entry_id) != checkpoint.expected {
            return Ok(Commit::CheckpointMoved);
        }
        if state.locked.is_some_and(has) {
            return Err(StoreError::Locked { operation: "accept", source: "a lock".into() });
        }
        if state.slow_beyond.is_some_and(|most| batch.outcomes.len() > most) {
            return Err(StoreError::TimedOut { operation: "accept", source: "too slow".into() });
        }
        let accepted = || {
            let accepted = batch.outcomes.iter().filter_map(|outcome| outcome.acceptance());
            accepted.map(|acceptance| &acceptance.record)
        };
        let poisoned = ids
            .iter()
            .zip(&batch.outcomes)
            .any(|(id, outcome)| matches!(outcome, Outcome::Accepted(_)) && state.poison.contains(id));
        if poisoned || state.refuses_all {
            return Err(refused("accept"));
        }
        if accepted().any(|record| state.keys.contains_key(&record.scope)) {
            return Ok(Commit::WriteConflict);
        }
        state.keys.extend(accepted().map(|record| (record.scope.clone(), record.fingerprint.clone())));
        state.transactions.push(batch.outcomes.len());
        for (id, outcome) in ids.iter().zip(&batch.outcomes) {
            let code = outcome.failure_code().map(|code| code.as_str());
            state.outcomes.push((*id, code.unwrap_or(outcome.name()).to_owned()));
        }
        state.durable = Some(Checkpoint { fence: checkpoint.fence, last_entry_id: checkpoint.last_entry_id });
        Ok(Commit::Committed)
    }

    async fn probe(&self, _: &Probe) -> Result<(), StoreError> {
        if self.call("probe")?.intake.refuses_all { Err(refused("probe")) } else { Ok(()) }
    }
}

impl CheckpointStore for World {
    async fn find_last_processed(
        &self,
        _: &str,
        entries: &[ProcessedTrace],
    ) -> Result<Option<EntryId>, StoreError> {
        let state = &self.call("find_last_processed")?.intake;
        Ok(entries.iter().map(|entry| entry.entry_id).filter(|id| state.processed.contains(id)).max())
    }

    async fn claim_checkpoint(&self, _: &str, fence: Fence, begins: bool) -> Result<Claim, StoreError> {
        let mut inner = self.call("claim_checkpoint")?;
        Ok(match &mut inner.intake.durable {
            None => Claim::NoCheckpoint,
            Some(durable) if durable.fence > fence || (begins && durable.fence == fence) => {
                Claim::Superseded(durable.fence)
            }
            Some(durable) => {
                durable.fence = fence;
                Claim::At(durable.last_entry_id)
            }
        })
    }

    async fn load_checkpoint(&self, _: &str) -> Result<Option<Checkpoint>, StoreError> {
        self.call("load_checkpoint").map(|inner| inner.intake.durable)
    }
}

/// There is no other replica; the term lasts.
#[derive(Debug)]
pub(crate) struct Alone(pub(crate) Fence);

impl Term for Alone {
    fn fence(&self) -> Fence {
        self.0
    }

    async fn lost(&self) {
        std::future::pending().await
    }

    async fn step_down(self) {}
}

impl Election for World {
    type Term = Alone;

    async fn campaign(&self) -> Result<Option<Alone>, StoreError> {
        let terms = &mut self.call("campaign")?.intake.terms;
        *terms += 1;
        Ok(Some(Alone(*terms)))
    }

    async fn leader_change(&self) {}

    async fn raise_fence(&self, floor: Fence) -> Result<(), StoreError> {
        let terms = &mut self.call("raise_fence")?.intake.terms;
        *terms = floor.max(*terms);
        Ok(())
    }
}

impl IntentStream for World {
    async fn read(&self, after: EntryId, limit: ReadLimit, block: Duration) -> Result<Read, StoreError> {
        let entries: Vec<RawEntry> = {
            self.lock().intake.reads.push(limit);
            let state = &self.call("read")?.intake;
            let there = state.stream.iter().filter(|entry| entry.id > after);
            there.take(if state.stale || state.absent { 0 } else { limit.entries }).cloned().collect()
        };
        if entries.is_empty() {
            tokio::time::sleep(block).await;
        }
        if entries.iter().map(|entry| entry.fields.size()).sum::<usize>() > limit.bytes {
            return Ok(Read::TooLarge);
        }
        Ok(Read::Entries(entries))
    }

    async fn reconnect(&self) {
        let mut inner = self.lock();
        inner.calls.push("reconnect");
        inner.intake.reconnects += 1;
    }

    async fn list_last(&self, limit: ReadLimit) -> Result<Vec<RawEntry>, StoreError> {
        let state = &self.call("list_last")?.intake;
        let mut bytes = 0;
        let within = |entry: &&RawEntry| {
            bytes += entry.fields.size();
            bytes <= limit.bytes
        };
        Ok(state.stream.iter().rev().take(limit.entries).take_while(within).cloned().collect())
    }

    async fn trim(&self, before: EntryId) -> Result<u64, StoreError> {
        let state = &mut self.call("trim")?.intake;
        state.trims.push(before);
        let length = state.stream.len();
        state.stream.retain(|entry| entry.id >= before);
        Ok((length - state.stream.len()) as u64)
    }

    async fn first_after(&self, after: EntryId) -> Result<Option<EntryId>, StoreError> {
        let state = &self.call("first_after")?.intake;
        Ok(state.stream.iter().map(|entry| entry.id).find(|id| *id > after))
    }

    async fn inspect(&self) -> Result<Option<StreamState>, StoreError> {
        let state = &self.call("inspect")?.intake;
        let first = state.stream.first().map(|entry| entry.id);
        Ok((!state.absent).then_some(StreamState { first, last_generated: state.last_generated }))
    }
}

impl CheckpointCache for World {
    async fn load(&self, _: &str) -> Result<CachedCheckpoint, StoreError> {
        let state = &self.call("load")?.intake;
        Ok(state.cached.map_or(CachedCheckpoint::Missing, CachedCheckpoint::At))
    }

    async fn save(&self, _: &str, checkpoint: Checkpoint) -> Result<Swap, StoreError> {
        let cached = &mut self.call("save")?.intake.cached;
        let at = CachedCheckpoint::At(checkpoint);
        let is_older = cached.is_some_and(|cached| {
            cached.fence == checkpoint.fence && cached.last_entry_id > checkpoint.last_entry_id
        });
        if is_older || at.superseding(cached.map_or(0, |cached| cached.fence), true).is_none() {
            return Ok(Swap::Conflict);
        }
        *cached = Some(checkpoint);
        Ok(Swap::Applied)
    }

    async fn reset(&self, _: &str, checkpoint: Checkpoint) -> Result<Swap, StoreError> {
        self.call("reset")?.intake.cached = Some(checkpoint);
        Ok(Swap::Applied)
    }
}

impl UserDirectory for World {
    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        self.hang("look_up").await;
        let slow = self.lock().intake.slow_user.clone();
        if let Some((_, time)) = slow.filter(|(user, _)| user_ids.contains(&user.as_str())) {
            tokio::time::sleep(time).await;
        }
        let mut inner = self.lock();
        inner.calls.push("look_up");
        inner.intake.asked.push(user_ids.iter().map(|id| (*id).to_owned()).collect());
        let found =
            |id: &&str| inner.intake.users.get(*id).cloned().unwrap_or(Lookup::Found(User::default()));
        user_ids.iter().map(found).collect()
    }
}
