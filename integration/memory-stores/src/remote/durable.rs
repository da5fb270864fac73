//! The ports of PostgreSQL behind a link.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use ambient::Timestamp;
use domain::accept::Probe;
use domain::checkpoint::{Checkpoint, Witness};
use domain::entry::EntryId;
use domain::hold::{Hold, HoldActor, HoldChange, HoldKey, HoldPlan, HoldsInForce, RouteToHold};
use domain::operations::{OperatorAction, RouteChange, Selection, Target, TargetPlace, Targets};
use domain::outcome::Outcome;
use domain::ports::{
    AbandonOutcome, AcceptanceBatch, AcceptanceStore, Activity, ChangeOutcome, CheckpointMove,
    CheckpointStore, Completion, Cutoff, DueCursor, DueOrder, DuePage, Expired, Failed, FailureCounts, Fate,
    Fence, FenceWrite, HoldChanges, HoldStore, IdempotencyStore, KeyClaim, KeyClaimRequest, KeyClaimToken,
    Known, Operations, ProcessedTrace, Published, PublishedPage, RecordCursor, Removal, ReplicaReport,
    ReplicaStore, RepublishStore, RetentionStore, RouteStore, RowLocks, SavedStream, ServerId, StepDownStore,
    StoreError, Swap,
};
use domain::query::Page;
use domain::record::IdempotencyKey;
use domain::replica::{ActivityPart, PartActivity};
use domain::republish::SeenStream;
use domain::route::{Channel, RouteKey};
use domain::step_down::{StepDown, StepDownState};
use domain::submission::AcceptedRequest;

use super::{Link, Remote, texts};

/// The id of the entry and its outcome; for a duplicate, which has no row, only the outcome.
fn outcome(outcome: &Outcome) -> String {
    let code = outcome.failure_code().map_or(outcome.name(), |code| code.as_str());
    match (outcome.acceptance(), outcome.malformed_row()) {
        (Some(acceptance), _) => format!("{} {code}", acceptance.record.notification_id),
        (None, Some(row)) => format!("{} {code}", row.entry_id),
        (None, None) => code.to_owned(),
    }
}

impl<S: AcceptanceStore, L: Link> AcceptanceStore for Remote<S, L> {
    async fn find_known(&self, intents: &[(IdempotencyKey, EntryId)]) -> Result<Known, StoreError> {
        let ids = texts(intents.iter().map(|(_, id)| id));
        self.call("find_known", ids, self.store.find_known(intents)).await
    }

    async fn accept(&self, batch: AcceptanceBatch<'_>) -> Result<Fate, StoreError> {
        let outcomes = batch.outcomes.iter().map(|given| outcome(given));
        // The keys whose responses are stored, which the ids do not show.
        let responses = batch.responses.iter();
        let responses = responses.map(|stored| format!("response {}", stored.record.idempotency_key.key));
        let outcomes = outcomes.chain(responses).collect();
        // Other tasks run meanwhile, as with a real server.
        tokio::task::yield_now().await;
        let is_committed = |fate: &Fate| *fate == Fate::Committed;
        self.link.call("accept", outcomes, self.store.accept(batch), is_committed).await
    }

    async fn probe(&self, probe: &Probe) -> Result<(), StoreError> {
        self.call("probe", Vec::new(), self.store.probe(probe)).await
    }
}

impl<S: IdempotencyStore, L: Link> IdempotencyStore for Remote<S, L> {
    async fn find_requests(
        &self,
        keys: &[IdempotencyKey],
    ) -> Result<HashMap<IdempotencyKey, AcceptedRequest>, StoreError> {
        let named = texts(keys.iter().map(|key| &key.key));
        self.call("find_requests", named, self.store.find_requests(keys)).await
    }

    async fn lookup_keys(
        &self,
        keys: &[(&IdempotencyKey, &str)],
    ) -> Result<Vec<Option<KeyClaim>>, StoreError> {
        let named = texts(keys.iter().map(|(key, _)| &key.key));
        self.call("lookup_keys", named, self.store.lookup_keys(keys)).await
    }

    async fn claim_keys(
        &self,
        claims: &[KeyClaimRequest<'_>],
        lock_ttl: Duration,
    ) -> Result<Vec<KeyClaim>, StoreError> {
        let keys = texts(claims.iter().map(|claim| &claim.key.key));
        self.call("claim_keys", keys, self.store.claim_keys(claims, lock_ttl)).await
    }

    async fn abandon_keys(
        &self,
        claims: &[(IdempotencyKey, KeyClaimToken)],
    ) -> Result<Vec<AbandonOutcome>, StoreError> {
        let keys = texts(claims.iter().map(|(key, _)| &key.key));
        self.call("abandon_keys", keys, self.store.abandon_keys(claims)).await
    }
}

impl<S: CheckpointStore, L: Link> CheckpointStore for Remote<S, L> {
    async fn find_last_processed(
        &self,
        stream: &str,
        entries: &[ProcessedTrace],
    ) -> Result<Option<EntryId>, StoreError> {
        let ids = texts(entries.iter().map(|entry| entry.entry_id));
        self.call("find_last_processed", ids, self.store.find_last_processed(stream, entries)).await
    }

    async fn write_fence(&self, stream: &str, fence: Fence, begins: bool) -> Result<FenceWrite, StoreError> {
        let claim = self.store.write_fence(stream, fence, begins);
        self.call("write_fence", texts([fence]), claim).await
    }

    async fn load_checkpoint(&self, stream: &str) -> Result<Option<Checkpoint>, StoreError> {
        self.call("load_checkpoint", Vec::new(), self.store.load_checkpoint(stream)).await
    }

    async fn load_witness(&self, stream: &str) -> Result<Witness, StoreError> {
        self.call("load_witness", Vec::new(), self.store.load_witness(stream)).await
    }

    async fn move_checkpoint_back(
        &self,
        to: CheckpointMove<'_>,
        server: &ServerId,
    ) -> Result<Swap, StoreError> {
        let id = texts([to.last_entry_id]);
        self.call("move_checkpoint_back", id, self.store.move_checkpoint_back(to, server)).await
    }

    async fn save_intents_server(&self, stream: &str, server: &ServerId) -> Result<(), StoreError> {
        self.call("save_intents_server", Vec::new(), self.store.save_intents_server(stream, server)).await
    }
}

impl<S: HoldStore, L: Link> HoldStore for Remote<S, L> {
    async fn list_holds(&self) -> Result<Vec<Hold>, StoreError> {
        self.call("list_holds", Vec::new(), self.store.list_holds()).await
    }

    async fn holds_in_force(&self) -> Result<HoldsInForce, StoreError> {
        self.call("holds_in_force", Vec::new(), self.store.holds_in_force()).await
    }

    async fn hold_routes(
        &self,
        routes: &[RouteToHold],
        now: Timestamp,
    ) -> Result<HashSet<RouteKey>, StoreError> {
        let keys = texts(routes.iter().map(|route| &route.key));
        self.call("hold_routes", keys, self.store.hold_routes(routes, now)).await
    }

    async fn released_holds(&self) -> Result<Vec<HoldKey>, StoreError> {
        self.call("released_holds", Vec::new(), self.store.released_holds()).await
    }

    async fn release_routes(&self, hold: &HoldKey, limit: usize, now: Timestamp) -> Result<u64, StoreError> {
        self.call("release_routes", texts([hold]), self.store.release_routes(hold, limit, now)).await
    }

    async fn end_hold(&self, hold: &HoldKey) -> Result<bool, StoreError> {
        self.call("end_hold", texts([hold]), self.store.end_hold(hold)).await
    }
}

impl<S: HoldChanges, L: Link> HoldChanges for Remote<S, L> {
    async fn plan_hold(&self, key: &HoldKey, change: &HoldChange) -> Result<HoldPlan, StoreError> {
        self.call("plan_hold", texts([key]), self.store.plan_hold(key, change)).await
    }

    async fn change_hold(
        &self,
        key: &HoldKey,
        change: &HoldChange,
        actor: HoldActor<'_>,
    ) -> Result<bool, StoreError> {
        self.call("change_hold", texts([key]), self.store.change_hold(key, change, actor)).await
    }
}

impl<S: RouteStore, L: Link> RouteStore for Remote<S, L> {
    async fn list_due_routes(
        &self,
        channel: Channel,
        order: DueOrder,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        let page = self.store.list_due_routes(channel, order, now, after, limit);
        self.call("list_due_routes", texts([limit]), page).await
    }

    async fn next_due(&self) -> Result<HashMap<Channel, Timestamp>, StoreError> {
        self.call("next_due", Vec::new(), self.store.next_due()).await
    }

    async fn count_failures(&self, cap: usize) -> Result<HashMap<Channel, FailureCounts>, StoreError> {
        self.call("count_failures", texts([cap]), self.store.count_failures(cap)).await
    }

    async fn count_due_routes(&self, now: Timestamp, cap: usize) -> Result<u64, StoreError> {
        self.call("count_due_routes", texts([cap]), self.store.count_due_routes(now, cap)).await
    }

    async fn get_live_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        self.call("get_live_routes", texts(keys), self.store.get_live_routes(keys)).await
    }

    async fn complete_routes_published(
        &self,
        routes: &[Published],
        now: Timestamp,
        locks: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        let keys = texts(routes.iter().map(|route| &route.key));
        let completions = self.store.complete_routes_published(routes, now, locks);
        self.call("complete_routes_published", keys, completions).await
    }

    async fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
        locks: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        let keys = texts(routes.iter().map(|route| &route.key));
        let completions = self.store.complete_routes_failed(routes, now, locks);
        self.call("complete_routes_failed", keys, completions).await
    }
}

impl<K: Send + Sync, S: RetentionStore<K>, L: Link> RetentionStore<K> for Remote<S, L> {
    async fn list_expired(
        &self,
        cutoff: Cutoff,
        after: Option<&Expired<K>>,
        limit: usize,
    ) -> Result<Vec<Expired<K>>, StoreError> {
        self.call("list_expired", texts([limit]), self.store.list_expired(cutoff, after, limit)).await
    }

    async fn delete_expired(&self, keys: &[&K], cutoff: Cutoff) -> Result<Removal, StoreError> {
        self.call("delete_expired", texts([keys.len()]), self.store.delete_expired(keys, cutoff)).await
    }
}

impl<S: RepublishStore, L: Link> RepublishStore for Remote<S, L> {
    async fn load_outbound_streams(&self, streams: &[&str]) -> Result<Vec<SavedStream>, StoreError> {
        self.call("load_outbound_streams", texts(streams), self.store.load_outbound_streams(streams)).await
    }

    async fn save_outbound_streams(
        &self,
        seen: &[(SeenStream, Option<Timestamp>)],
    ) -> Result<(), StoreError> {
        let streams = texts(seen.iter().map(|(seen, _)| &seen.stream));
        self.call("save_outbound_streams", streams, self.store.save_outbound_streams(seen)).await
    }

    async fn touch_outbound_names(&self, streams: &[(Channel, &str)]) -> Result<(), StoreError> {
        let names = texts(streams.iter().map(|(_, stream)| stream));
        self.call("touch_outbound_names", names, self.store.touch_outbound_names(streams)).await
    }

    async fn list_outbound_names(&self, since: Timestamp) -> Result<Vec<(Channel, String)>, StoreError> {
        self.call("list_outbound_names", texts([since]), self.store.list_outbound_names(since)).await
    }

    async fn list_published_entries(
        &self,
        before: &RecordCursor,
        since: Timestamp,
        records: usize,
    ) -> Result<PublishedPage, StoreError> {
        let bounds = texts([before.accepted_at, since]);
        let page = self.store.list_published_entries(before, since, records);
        self.call("list_published_entries", bounds, page).await
    }

    async fn get_published_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        self.call("get_published_routes", texts(keys), self.store.get_published_routes(keys)).await
    }

    async fn replace_published_entries(
        &self,
        routes: &[Published],
        now: Timestamp,
    ) -> Result<Vec<Completion>, StoreError> {
        let keys = texts(routes.iter().map(|route| &route.key));
        let replaced = self.store.replace_published_entries(routes, now);
        self.call("replace_published_entries", keys, replaced).await
    }
}

impl<S: ReplicaStore, L: Link> ReplicaStore for Remote<S, L> {
    async fn save_replica(&self, report: &ReplicaReport) -> Result<(), StoreError> {
        self.call("save_replica", texts([&report.replica]), self.store.save_replica(report)).await
    }

    async fn add_activity(&self, replica: &str, activity: &Activity) -> Result<(), StoreError> {
        self.call("add_activity", texts([replica]), self.store.add_activity(replica, activity)).await
    }

    async fn add_part_activity(
        &self,
        replica: &str,
        parts: &BTreeMap<ActivityPart, PartActivity>,
    ) -> Result<(), StoreError> {
        let added = self.store.add_part_activity(replica, parts);
        self.call("add_part_activity", texts([replica]), added).await
    }

    async fn delete_replicas(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        self.call("delete_replicas", texts([age.as_secs()]), self.store.delete_replicas(age, limit)).await
    }

    async fn delete_activity(&self, age: Duration, limit: usize) -> Result<u64, StoreError> {
        self.call("delete_activity", texts([age.as_secs()]), self.store.delete_activity(age, limit)).await
    }
}

impl<S: StepDownStore, L: Link> StepDownStore for Remote<S, L> {
    async fn request_step_down(&self, request: &StepDown) -> Result<bool, StoreError> {
        let replica = texts([&request.replica]);
        self.call("request_step_down", replica, self.store.request_step_down(request)).await
    }

    async fn get_step_down(&self, replica: &str) -> Result<StepDownState, StoreError> {
        self.call("get_step_down", texts([replica]), self.store.get_step_down(replica)).await
    }
}

impl<S: Operations, L: Link> Operations for Remote<S, L> {
    async fn select_routes(
        &self,
        change: &RouteChange,
        selection: &Selection,
    ) -> Result<Targets, StoreError> {
        let selected = self.store.select_routes(change, selection);
        self.call("select_routes", Vec::new(), selected).await
    }

    async fn list_targets(
        &self,
        change: &RouteChange,
        selection: &Selection,
        after: Option<&TargetPlace>,
        limit: usize,
    ) -> Result<Page<Target, TargetPlace>, StoreError> {
        let page = self.store.list_targets(change, selection, after, limit);
        self.call("list_targets", Vec::new(), page).await
    }

    async fn change_routes(
        &self,
        change: &RouteChange,
        chunk: &[Target],
        action: &OperatorAction,
        now: Timestamp,
    ) -> Result<Vec<ChangeOutcome>, StoreError> {
        let keys = texts(chunk.iter().map(|target| &target.key));
        let changed = self.store.change_routes(change, chunk, action, now);
        self.call("change_routes", keys, changed).await
    }
}
