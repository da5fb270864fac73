//! The suites of the ports on the stores in memory.

mod database;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ambient::{ManualClock, Timestamp};
use domain::entry::EntryId;
use domain::ports::{
    Activity, ActivityQueries, CheckpointCache, Election, IntentProducer, IntentStream, LeaderLookup,
    LeaseStore, LeaseToken, Lookup, Outbound, OutboundInspection, ReplicaStore, SessionHash, SessionStore,
    SessionSweep, StepDownStore, StreamQueries, UserDirectory,
};
use domain::replica::{ActivityPart, PartActivity};
use domain::route::{Channel, RouteKey};
use harness::contract::backlog::BacklogFixture;
use harness::contract::checkpoints::CheckpointsFixture;
use harness::contract::directory::DirectoryFixture;
use harness::contract::election::ElectionFixture;
use harness::contract::inspection::InspectionFixture;
use harness::contract::leader::LeaderFixture;
use harness::contract::publishing::PublishingFixture;
use harness::contract::replicas::ReplicasFixture;
use harness::contract::sessions::SessionsFixture;
use harness::contract::streams::StreamsFixture;
use memory_stores::{
    MemoryCheckpoints, MemoryDirectory, MemoryElection, MemoryIntents, MemoryPublishing, MemoryReplicas,
    MemorySessions, PublishedFields, RecordedAction,
};

use self::database::Database;

struct Publishing {
    clock: Arc<ManualClock>,
    store: MemoryPublishing,
}

impl Publishing {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        Self { store: MemoryPublishing::new(Arc::clone(&clock)), clock }
    }
}

impl PublishingFixture for Publishing {
    fn leases(&self) -> &impl LeaseStore {
        &self.store
    }

    fn outbound(&self) -> &impl Outbound {
        &self.store
    }

    async fn expire(&self, key: &RouteKey) {
        self.clock.advance(self.store.remaining(key).expect("it lives"));
    }

    async fn expire_permit(&self, channel: Channel, token: &LeaseToken) {
        self.store.expire_permit(channel, token);
    }

    async fn remaining(&self, key: &RouteKey) -> Option<Duration> {
        self.store.remaining(key)
    }

    async fn entries(&self, channel: Channel) -> Vec<(EntryId, PublishedFields)> {
        self.store.entries(channel)
    }
}

impl InspectionFixture for Publishing {
    fn inspection(&self) -> &impl OutboundInspection {
        &self.store
    }

    async fn delete(&self, channel: Channel, id: EntryId) {
        self.store.delete_entry(channel, id);
    }

    async fn delete_stream(&self, channel: Channel, with_changes: bool) {
        self.store.delete_stream(channel);
        if with_changes {
            self.store.forget_changes(channel);
        }
        self.clock.advance(Duration::from_millis(1));
    }

    async fn restart(&mut self) {
        self.store.restart();
    }
}

struct Replicas {
    clock: Arc<ManualClock>,
    store: MemoryReplicas,
}

impl Replicas {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        Self { store: MemoryReplicas::new(Arc::clone(&clock)), clock }
    }
}

impl ReplicasFixture for Replicas {
    fn store(&self) -> &(impl ReplicaStore + StepDownStore) {
        &self.store
    }

    async fn actions(&self) -> Vec<RecordedAction> {
        self.store.actions()
    }

    fn queries(&self) -> &impl ActivityQueries {
        &self.store
    }

    async fn replicas(&self) -> Vec<(String, Vec<String>)> {
        self.store.replicas().into_iter().map(|report| (report.replica, report.leader_of)).collect()
    }

    async fn activity(&self) -> BTreeMap<String, Activity> {
        self.store.activity()
    }

    async fn parts(&self) -> BTreeMap<ActivityPart, PartActivity> {
        self.store.parts()
    }

    async fn age(&self, by: Duration) {
        self.clock.advance(by);
    }
}

struct Sessions {
    clock: Arc<ManualClock>,
    store: MemorySessions,
}

impl Sessions {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        Self { store: MemorySessions::new(Arc::clone(&clock)), clock }
    }
}

impl SessionsFixture for Sessions {
    fn store(&self) -> &(impl SessionStore + SessionSweep) {
        &self.store
    }

    async fn sessions(&self) -> Vec<SessionHash> {
        self.store.ids()
    }

    async fn age(&self, by: Duration) {
        self.clock.advance(by);
    }
}

struct Candidates(MemoryElection);

impl ElectionFixture for Candidates {
    fn candidate(&self) -> impl Election {
        self.0.clone()
    }

    async fn end_term(&self) {
        self.0.end_term();
    }
}

impl LeaderFixture for Candidates {
    fn lookup(&self) -> impl LeaderLookup {
        self.0.clone()
    }
}

struct Directory(MemoryDirectory);

impl DirectoryFixture for Directory {
    fn directory(&self) -> &impl UserDirectory {
        &self.0
    }

    async fn set(&self, user_id: &str, lookup: &Lookup) {
        self.0.set(user_id, lookup.clone());
    }
}

struct Checkpoints(MemoryCheckpoints);

impl CheckpointsFixture for Checkpoints {
    fn cache(&self) -> &impl CheckpointCache {
        &self.0
    }

    async fn garble(&self, stream: &str) {
        self.0.garble(stream);
    }
}

struct Intents(MemoryIntents);

impl StreamsFixture for Intents {
    fn stream(&self) -> &impl IntentStream {
        &self.0
    }

    fn producer(&self) -> &impl IntentProducer {
        &self.0
    }

    async fn delete(&self) {
        self.0.delete();
    }
}

impl BacklogFixture for Intents {
    fn queries(&self) -> &impl StreamQueries {
        &self.0
    }
}

mod publishing {
    harness::publishing_contract!(super::Publishing::new());
}

mod permits {
    harness::permits_contract!(super::Publishing::new());
}

mod inspection {
    harness::inspection_contract!(super::Publishing::new());
}

mod republish {
    harness::republish_contract!(super::Database(Default::default()));
}

mod replicas {
    harness::replicas_contract!(super::Replicas::new());
}

mod sessions {
    harness::sessions_contract!(super::Sessions::new());
}

mod election {
    harness::election_contract!(super::Candidates(Default::default()));
}

mod directory {
    harness::directory_contract!(super::Directory(Default::default()));
}

mod accept {
    harness::acceptance_contract!(super::Database(Default::default()));
}

mod idempotency {
    harness::idempotency_contract!(super::Database(Default::default()));
}

mod keys {
    harness::keys_contract!(super::Database(Default::default()));
}

mod leader {
    harness::leader_contract!(super::Candidates(Default::default()));
}

mod backlog {
    harness::backlog_contract!(super::Intents(Default::default()));
}

mod holds {
    harness::holds_contract!(super::Database(Default::default()));
}

mod retention {
    harness::retention_contract!(super::Database(Default::default()));
}

mod routes {
    harness::routes_contract!(super::Database(Default::default()));
}

mod checkpoints {
    harness::checkpoints_contract!(super::Checkpoints(Default::default()));
}

mod streams {
    harness::streams_contract!(super::Intents(Default::default()));
}

/// The files of a folder, each with the file of its suite, which lists the cases: itself, or the parent of
/// the folder that it is in.
fn suites(folder: &Path, suite: Option<&Path>) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        match path.is_dir() {
            true => found.extend(suites(&path, Some(&path.with_extension("rs")))),
            false => found.push((path.clone(), suite.map_or(path, Path::to_owned))),
        }
    }
    found
}

#[test]
fn every_case_of_a_suite_is_run() {
    let read = |path: &Path| fs::read_to_string(path).expect("a suite");
    for (file, suite) in suites(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/contract"), None) {
        let (text, list) = (read(&file), read(&suite));
        let cases = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        for case in cases.filter_map(|line| line.split('(').next()) {
            let is_listed = list.contains(&format!("            {case},\n"));
            assert!(is_listed, "{case} is not in the list of {}", suite.display());
        }
    }
}

/// The data that a server loses when it restarts with an older state.
mod losses {
    use domain::checkpoint::StreamState;
    use domain::entry::RawFields;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_lost_its_tail_gives_its_ids_again() {
        let intents = MemoryIntents::default();
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(intents.append(&RawFields::default()).await.expect("it is there"));
        }
        intents.lose_tail(2);
        let state = intents.inspect().await.expect("it is there");
        assert_eq!(
            state,
            Some(StreamState {
                first: Some(ids[0]),
                last_generated: ids[0],
                max_deleted: EntryId::ZERO,
                copied_bytes: 0
            })
        );
        assert_eq!(intents.append(&RawFields::default()).await.expect("it is there"), ids[1]);
    }
}
