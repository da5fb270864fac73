//! `GET /v1/status`: the state of the service as a whole.

use std::sync::Arc;

use ambient::{Clock, Timestamp};
use axum::Json;
use axum::extract::{RawQuery, State};
use domain::entry::EntryId;
use domain::ports::{LeaderLookup, Queries, StreamQueries};
use domain::query::{CauseCounts, Counted, IntakeStatus, ReplicaStatus, Status, Waiting};
use http_server::problem::Problem;
use serde_json::{Map, Value, json};

use crate::params::Params;
use crate::ports::{Api, Ports};
use crate::problems::store_failed;

pub(crate) async fn show<P: Ports>(
    State(api): State<Arc<Api<P>>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    Params::parse(query.as_deref(), &[])?;
    let store = api.queries.status(&api.settings.stream, api.clock.now()).await;
    let store = store.map_err(|error| store_failed(&error))?;
    let term = api.leader.leader().await.map_err(|error| store_failed(&error))?;
    let checkpoint = store.checkpoint.map_or(EntryId::ZERO, |checkpoint| checkpoint.last_entry_id);
    // Without Redis the rest is worth telling all the same.
    let backlog = api.stream.backlog(checkpoint).await.ok();
    let status = Status::new(store, term, backlog);
    let now = status.store.at;
    let leader = status.leader.as_ref().map(|leader| {
        json!({"replica": leader.replica, "since": leader.term.since.to_string(), "fence": leader.term.fence})
    });
    let channels: Map<String, Value> = status
        .store
        .channels
        .iter()
        .map(|channel| {
            let waiting = status.publishers.iter().find(|(of, _)| *of == channel.channel);
            let waiting = waiting.and_then(|(_, waiting)| waiting.as_ref());
            let mut view = Map::new();
            counted(&mut view, "due", channel.due);
            view.insert("oldest_due_ms".into(), channel.oldest_due.map(|at| age_ms(at, now)).into());
            counted(&mut view, "failing", channel.failing);
            view.insert("waiting".into(), waiting.map(|waiting| waiting_view(waiting, now)).into());
            (channel.channel.as_str().to_owned(), Value::Object(view))
        })
        .collect();
    Ok(Json(json!({
        "leader": leader,
        "intake": intake(&status.intake, &api.settings.stream, now),
        "channels": channels,
        "dead_letters": last_day(&status.store.dead_letters, "classification"),
        "malformed_intents": last_day(&status.store.malformed_intents, "code"),
        "replicas": status.store.replicas.iter().map(replica).collect::<Vec<_>>(),
        "version": api.settings.version,
    })))
}

fn intake(intake: &IntakeStatus, stream: &str, now: Timestamp) -> Value {
    let mut view = Map::new();
    view.insert("stream".into(), stream.into());
    view.insert("checkpoint".into(), intake.checkpoint.map(|id| id.to_string()).into());
    let last = intake.backlog.and_then(|backlog| backlog.last_entry_id);
    view.insert("last_entry_id".into(), last.map(|id| id.to_string()).into());
    match intake.backlog {
        Some(backlog) => counted(&mut view, "entries_behind", backlog.entries),
        None => drop(view.insert("entries_behind".into(), Value::Null)),
    }
    view.insert("oldest_age_ms".into(), intake.oldest.map(|at| age_ms(at, now)).into());
    let waiting = intake.waiting.as_ref().map(|waiting| waiting_view(waiting, now));
    view.insert("waiting".into(), waiting.into());
    Value::Object(view)
}

fn waiting_view(waiting: &Waiting, now: Timestamp) -> Value {
    json!({
        "entry_id": waiting.entry_id.map(|id| id.to_string()),
        "cause": waiting.cause,
        "age_ms": age_ms(waiting.since, now),
    })
}

/// A count, and whether there may be more.
fn counted(view: &mut Map<String, Value>, name: &str, counted: Counted) {
    view.insert(name.to_owned(), counted.count.into());
    if counted.capped {
        view.insert(format!("{name}_capped"), true.into());
    }
}

fn last_day(causes: &CauseCounts, name: &str) -> Value {
    let counts = causes.counts.iter().map(|(cause, count)| json!({name: cause, "count": count}));
    let mut view = json!({"last_day": counts.collect::<Vec<_>>()});
    if causes.capped {
        view["last_day_capped"] = true.into();
    }
    view
}

fn replica(status: &ReplicaStatus) -> Value {
    let report = &status.report;
    let workers: Map<String, Value> = report
        .workers
        .iter()
        .map(|worker| {
            let blocked = worker.blocked.as_ref().map(|blocked| {
                json!({
                    "entry_id": blocked.entry_id.map(|id| id.to_string()),
                    "cause": blocked.cause,
                    "since": blocked.since.to_string(),
                })
            });
            let view = json!({"last_pass_at": worker.last_pass_at.to_string(), "blocked": blocked});
            (worker.worker.clone(), view)
        })
        .collect();
    json!({
        "replica": report.replica,
        "version": report.version,
        "started_at": report.started_at.to_string(),
        "seen_at": status.seen_at.to_string(),
        "leader_of": report.leader_of,
        "workers": workers,
    })
}

fn age_ms(since: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.saturating_since(since).as_millis()).unwrap_or(u64::MAX)
}
