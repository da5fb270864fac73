//! What the loops tell beside `status` in the answer of `/readyz`.

use std::time::Duration;

use serde_json::{Value, json};
use workers::status::{Standing, Status};

use super::ReadyState;

impl ReadyState {
    /// A new status, shown as the member `name` from now on.
    pub fn add_status(&self, name: &'static str) -> Status {
        let status = Status::default();
        let shown = status.clone();
        self.add_detail(name, move || show(&shown.get()));
        status
    }

    /// From now on the member `leader` says whether `status` is that of the loop that reads the stream.
    pub fn add_leader(&self, status: &Status) {
        let status = status.clone();
        self.add_detail("leader", move || json!(status.get().leader));
    }
}

fn show(standing: &Standing) -> Value {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut shown = json!({ "last_pass_ms_ago": millis(standing.last_pass.elapsed()) });
    if let Some(position) = standing.position {
        shown["position"] = json!(position.to_string());
    }
    if let (asked @ 1.., held) = standing.leases {
        shown["leases"] = json!({ "asked": asked, "held_by_others": held });
    }
    if let Some(holdup) = &standing.holdup {
        shown["waiting"] = json!({
            "entry_id": holdup.entry_id.map(|id| id.to_string()),
            "cause": holdup.cause,
            "age_ms": millis(holdup.since.elapsed()),
        });
    }
    shown
}
