//! The outcome of entries: of the intents stream by their keys and ids, of the outbound streams by their
//! routes.

use std::collections::HashMap;

use domain::audit::{EntryTrace, FoundOutcome, MalformedTrace, RouteState};
use domain::ports::StoreError;
use domain::route::{RouteKey, RouteStatus};
use pg::{BoundStatement, Session, parameter};

use crate::codec::{column, loggable, route_key};
use crate::error::store_error;
use crate::records::{requests, requests_of};

/// The maximum number of malformed rows that are read of one entry: it has several only if its stream was
/// recreated.
const MAX_ROWS_PER_ENTRY: usize = 16;

pub(super) async fn outcomes(
    session: &Session,
    stream: &str,
    entries: &[EntryTrace],
) -> Result<Vec<FoundOutcome>, StoreError> {
    let keys = entries.iter().filter_map(|entry| entry.key.as_ref());
    let records = requests(&session.query(requests_of(keys)).await.map_err(store_error)?)?;
    let mut malformed: HashMap<String, Vec<MalformedTrace>> = HashMap::new();
    for row in session.query(malformed_of(stream, entries)).await.map_err(store_error)? {
        let id: String = column(&row, "malformed_intents.stream_entry_id", stream)?;
        let trace = MalformedTrace {
            fields_fingerprint: column(&row, "malformed_intents.fields_fingerprint", &id)?,
            failure_code: column(&row, "malformed_intents.failure_code", &id)?,
        };
        malformed.entry(id).or_default().push(trace);
    }
    let found = |entry: &EntryTrace| {
        let record = entry.key.as_ref().and_then(|key| records.get(key));
        FoundOutcome {
            record: record.map(|record| (record.notification_id.clone(), record.fingerprint.clone())),
            malformed: malformed.remove(&entry.id.to_string()).unwrap_or_default(),
        }
    };
    Ok(entries.iter().map(found).collect())
}

pub(super) async fn routes(
    session: &Session,
    keys: &[&RouteKey],
) -> Result<Vec<Option<RouteState>>, StoreError> {
    let mut states = HashMap::with_capacity(keys.len());
    for row in session.query(states_of(keys)).await.map_err(store_error)? {
        let key = route_key(&row)?;
        let status: String = column(&row, "routes.status", &loggable(&key))?;
        let state = RouteState {
            status: status.parse::<RouteStatus>().ok(),
            published_entry_id: column(&row, "routes.published_entry_id", &loggable(&key))?,
            replaced_entry_id: column(&row, "routes.replaced_entry_id", &loggable(&key))?,
        };
        states.insert(key, state);
    }
    Ok(keys.iter().map(|key| states.get(*key).cloned()).collect())
}

pg::statements! {
    /// The malformed rows of entries, read for each entry by itself: the order of the index is the required
    /// one. Otherwise the planner, whose statistics may be of an empty table, would read the whole index by
    /// time.
    MALFORMED = "audit.malformed_of_entries", plan ["malformed_intents_pkey"], "
        SELECT found.stream_entry_id, found.fields_fingerprint, found.failure_code
        FROM unnest($2::text[]) AS g (stream_entry_id)
        JOIN LATERAL (
            SELECT m.stream_entry_id, m.fields_fingerprint, m.failure_code FROM malformed_intents m
            WHERE m.stream = $1::text AND m.stream_entry_id = g.stream_entry_id
            ORDER BY m.stream, m.stream_entry_id, m.fields_fingerprint
            LIMIT $3::bigint
        ) AS found ON true";

    /// The states of routes. An entry may occur twice, and so may its key.
    STATES = "audit.states_of_routes", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id, r.status, r.published_entry_id, r.replaced_entry_id
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id";
}

pub(super) fn malformed_of(stream: &str, entries: &[EntryTrace]) -> BoundStatement {
    let ids = parameter::texts(entries.iter().map(|entry| entry.id.to_string()));
    MALFORMED.bind([parameter::text(stream), ids, parameter::rows(MAX_ROWS_PER_ENTRY)])
}

pub(super) fn states_of(keys: &[&RouteKey]) -> BoundStatement {
    STATES.bind(crate::routes::keys(keys.iter().copied()))
}
