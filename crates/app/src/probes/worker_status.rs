//! The members of the workers beside `status` in the response of `/readyz`.

use std::time::Duration;

use serde_json::{Value, json};
use workers::{Health, WorkerStatus};

use super::ReadyState;
use crate::config::ReplicaId;

impl ReadyState {
    /// Adds the status of a worker to `/readyz`, as a member with the name of the worker.
    pub fn add_worker(&self, health: &Health) {
        let health = health.clone();
        self.add_detail(health.worker(), move || show(&health.status()));
    }

    /// Adds the name of this replica to `/readyz`, as the member `replica`.
    pub fn add_replica(&self, replica: &ReplicaId) {
        let replica = replica.clone();
        self.add_detail("replica", move || json!(replica.as_str()));
    }

    /// Adds the member `leader` to `/readyz`: true if the worker of `health`, which reads the stream, is the
    /// leader.
    pub fn add_leader(&self, health: &Health) {
        let health = health.clone();
        self.add_detail("leader", move || json!(health.status().leader));
    }
}

fn show(status: &WorkerStatus) -> Value {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut shown = json!({ "last_pass_ms_ago": millis(status.last_pass.elapsed()) });
    if let Some(position) = status.position {
        shown["position"] = json!(position.to_string());
    }
    if let (asked @ 1.., held) = status.leases {
        shown["leases"] = json!({ "asked": asked, "held_by_others": held });
    }
    if status.deferred > 0 {
        shown["deferred_completions"] = json!(status.deferred);
    }
    if let Some(blocked) = &status.blocked {
        shown["waiting"] = json!({
            "entry_id": blocked.entry_id.map(|id| id.to_string()),
            "cause": blocked.cause,
            "age_ms": millis(blocked.since.elapsed()),
        });
    }
    shown
}
