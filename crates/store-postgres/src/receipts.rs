//! Delivery receipts: consumers' reports on routes, as documents in the table `receipts`, each under the id
//! of its route.
//!
//! Reports are processed in parts, each of which is a transaction:
//!
//! 1. It locks the routes against their deletion, and against nothing else: publishers continue. Retention
//!    skips a record with a locked route, so no receipt is left without its record. A report without a route
//!    is unknown.
//! 2. It reads the existing receipts and locks them, in the order of their keys.
//! 3. The domain decides. New receipts are inserted, the others replaced.
//!
//! Two transactions may both find that a route has no receipt, and insert one. Then the second inserts
//! nothing, and its reports of that route are decided again in another transaction, which finds the receipt
//! and locks it.
//!
//! If another transaction has locked a row of a part, the part is halved until that row is found, so that the
//! other reports are processed. Then the request fails, and its repetition processes the rest.
//!
//! No deadlock: a transaction that waits for a locked receipt holds earlier keys only. A transaction that
//! inserts waits only for receipts that are being inserted, in the order of their keys, too.
//!
//! Crash recovery: a crash leaves the parts that were committed. The consumer gets no response and repeats
//! its request; the committed reports are then stale.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::LazyLock;

use domain::ports::{ReceiptStore, StoreError};
use domain::receipt::{Receipt, ReceiptStatus, ReportOutcome, RouteReport};
use domain::route::{Channel, RouteKey};
use futures_util::future::join;
use pg::{BoundStatement, Session};
use state::{Document, Key, StateError, TableName, Value, insert_many_in, lock_many_in, put_many_in};

use crate::codec::{corrupt, loggable, name, route_key};
use crate::error::{document_error, store_error};
use crate::schema::receipts_table;
use crate::{PgStore, routes};

/// The maximum number of reports of one transaction. With the longest histories their receipts take 30 MB.
const MAX_PART_REPORTS: usize = 100;
/// The maximum number of rounds for reports whose receipts other transactions insert meanwhile. In the second
/// round these exist, unless they were deleted by hand.
const MAX_ROUNDS: usize = 4;
/// The maximum number of times that a request waits for rows locked by other transactions, half a second
/// each. It suffices to find two rows of one part.
const MAX_LOCK_WAITS: u32 = 16;
/// The number of receipts that are read together for display. With the longest histories they take 15 MiB,
/// which [`state::MAX_ANSWER_BYTES`] allows.
const READ_AT_ONCE: usize = 50;
const OPERATION: &str = "record receipts";

/// The table, created once: every statement needs it.
pub(crate) static TABLE: LazyLock<TableName> = LazyLock::new(receipts_table);

impl ReceiptStore for PgStore {
    async fn record_reports(
        &self,
        reports: &[RouteReport],
        channel: Option<Channel>,
    ) -> Result<Vec<ReportOutcome>, StoreError> {
        let mut outcomes = vec![ReportOutcome::UnknownRoute; reports.len()];
        // The id of a route is the key of a document. A text that is too long for one, or contains NUL, is
        // not the id of a route.
        let placed = reports.iter().enumerate().filter_map(|(place, about)| {
            let key = document_key(&about.key)?;
            Some(Placed { place, key, about })
        });
        let placed: Vec<Placed<'_>> = placed.collect();
        let mut parts: VecDeque<Vec<Placed<'_>>> =
            placed.chunks(MAX_PART_REPORTS).map(<[_]>::to_vec).collect();
        let (mut waits, mut locked) = (0, None);
        while let Some(mut part) = parts.pop_front() {
            // Each part has the time limit of one operation.
            let session = self.session(OPERATION).await?;
            match record_part(&session, &mut part, channel, &mut outcomes).await {
                Ok(()) => {}
                Err(error @ StoreError::Locked { .. }) => {
                    waits += 1;
                    if waits == MAX_LOCK_WAITS {
                        return Err(error);
                    }
                    match part.split_at(part.len() / 2) {
                        ([], _) => locked = Some(error),
                        (first, second) => {
                            parts.push_front(second.to_vec());
                            parts.push_front(first.to_vec());
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        locked.map_or(Ok(outcomes), Err)
    }
}

/// A report, the key of its document and its place in the request.
#[derive(Clone)]
struct Placed<'a> {
    place: usize,
    key: Key,
    about: &'a RouteReport,
}

/// The key of the document of a route; `None` if no document can have it.
pub(crate) fn document_key(key: &RouteKey) -> Option<Key> {
    Key::new(&key.to_string()).ok()
}

/// Processes one part. After an error, `left` contains the reports that were not processed.
async fn record_part(
    session: &Session,
    left: &mut Vec<Placed<'_>>,
    channel: Option<Channel>,
    outcomes: &mut [ReportOutcome],
) -> Result<(), StoreError> {
    for _ in 0..MAX_ROUNDS {
        let written = match write(session, left, channel).await {
            Ok(written) => written,
            Err(error) => {
                // If this fails too, the session closes its connection. Either way the first error is the one
                // to report.
                drop(session.rollback().await);
                return Err(error);
            }
        };
        for (place, outcome) in written.outcomes {
            outcomes[place] = outcome;
        }
        left.retain(|placed| written.overtaken.contains(&placed.key));
        if left.is_empty() {
            return Ok(());
        }
    }
    let source = "other transactions inserted and deleted receipts again and again".into();
    Err(StoreError::Unavailable { operation: OPERATION, source })
}

/// The result of a transaction.
struct Written {
    /// The outcomes by place, without those of receipts that were overtaken.
    outcomes: Vec<(usize, ReportOutcome)>,
    /// The receipts that another transaction inserted meanwhile.
    overtaken: HashSet<Key>,
}

async fn write(
    session: &Session,
    reports: &[Placed<'_>],
    channel: Option<Channel>,
) -> Result<Written, StoreError> {
    let channels = begin_with_routes(session, reports).await?;
    let is_known = |placed: &&Placed<'_>| {
        let of_route = channels.get(&placed.about.key);
        of_route.is_some_and(|of_route| channel.is_none_or(|channel| channel == *of_route))
    };
    let (known, unknown): (Vec<_>, Vec<_>) = reports.iter().partition(is_known);
    let mut outcomes: Vec<_> =
        unknown.iter().map(|placed| (placed.place, ReportOutcome::UnknownRoute)).collect();
    if known.is_empty() {
        session.rollback().await.map_err(store_error)?;
        return Ok(Written { outcomes, overtaken: HashSet::new() });
    }
    let keys: Vec<Key> =
        known.iter().map(|placed| placed.key.clone()).collect::<BTreeSet<_>>().into_iter().collect();
    let failed = |error| document_error(OPERATION, error);
    let there = lock_many_in(session, &TABLE, &keys).await.map_err(failed)?;
    let Decision { new, replaced, outcomes: decided } = decide(&known, &there).map_err(failed)?;
    let mut overtaken = HashSet::new();
    if !new.is_empty() {
        let inserted = insert_many_in(session, &TABLE, &new).await.map_err(failed)?;
        let inserted: HashSet<Key> = inserted.into_iter().collect();
        overtaken.extend(new.into_iter().map(|(key, _)| key).filter(|key| !inserted.contains(key)));
    }
    if !replaced.is_empty() {
        put_many_in(session, &TABLE, &replaced).await.map_err(failed)?;
    }
    session.commit().await.map_err(store_error)?;
    let taken = decided.into_iter().filter(|(placed, _)| !overtaken.contains(&placed.key));
    outcomes.extend(taken.map(|(placed, outcome)| (placed.place, outcome)));
    Ok(Written { outcomes, overtaken })
}

/// The receipts to write for reports of known routes.
struct Decision<'a> {
    /// Receipts of routes that have none.
    new: Vec<(Key, Value)>,
    /// Receipts that replace existing ones.
    replaced: Vec<(Key, Value)>,
    outcomes: Vec<(&'a Placed<'a>, ReportOutcome)>,
}

/// Decides the reports; `there` are the documents of these routes. A document that is not a receipt, because
/// another program wrote it, is replaced as if it did not exist: no report could follow it.
fn decide<'a>(known: &[&'a Placed<'a>], there: &[Document]) -> Result<Decision<'a>, StateError> {
    let readable = |document: &Document| {
        Receipt::from_json(document.value.as_str()).ok().map(|receipt| (document.key.clone(), receipt))
    };
    let mut receipts: BTreeMap<Key, Receipt> = there.iter().filter_map(readable).collect();
    let mut outcomes = Vec::with_capacity(known.len());
    for placed in known {
        let before = receipts.remove(&placed.key);
        let (receipt, recorded) = Receipt::after(before, placed.about.report.clone());
        receipts.insert(placed.key.clone(), receipt);
        outcomes.push((*placed, ReportOutcome::Known(recorded)));
    }
    let documents = receipts.into_iter().map(|(key, receipt)| Ok((key, Value::parse(receipt.to_json())?)));
    let documents = documents.collect::<Result<Vec<_>, StateError>>()?;
    let there: HashSet<&Key> = there.iter().map(|document| &document.key).collect();
    let (replaced, new) = documents.into_iter().partition(|(key, _)| there.contains(key));
    Ok(Decision { new, replaced, outcomes })
}

/// Opens a transaction, locks the routes that exist, and returns their channels.
async fn begin_with_routes(
    session: &Session,
    reports: &[Placed<'_>],
) -> Result<HashMap<RouteKey, Channel>, StoreError> {
    let keys: BTreeSet<&RouteKey> = reports.iter().map(|placed| &placed.about.key).collect();
    let lock = session.prepare(lock_routes(&keys)).await.map_err(store_error)?;
    let (begun, rows) = join(session.begin(), session.run(&lock)).await;
    begun.map_err(store_error)?;
    let channel = |row| {
        let key = route_key(row)?;
        let channel = name(row, "routes.channel", &loggable(&key))?;
        Ok((key, channel))
    };
    rows.map_err(store_error)?.iter().map(channel).collect()
}

/// The JSON that the receipts with a status contain, which the index of the documents finds.
pub(crate) fn receipt_with(status: ReceiptStatus) -> String {
    serde_json::json!({ "status": status.as_str() }).to_string()
}

/// The receipts of the routes that have one.
pub(crate) async fn receipts_of(
    session: &Session,
    routes: &[&RouteKey],
) -> Result<HashMap<RouteKey, Receipt>, StoreError> {
    let by_document: HashMap<Key, &RouteKey> =
        routes.iter().filter_map(|key| document_key(key).map(|document| (document, *key))).collect();
    let keys: Vec<Key> = by_document.keys().cloned().collect();
    let mut found = Vec::new();
    for some in keys.chunks(READ_AT_ONCE) {
        let some = state::get_many_in(session, &TABLE, some).await;
        found.extend(some.map_err(|error| document_error(session.operation(), error))?);
    }
    let receipt = |document: &Document| {
        let Some(key) = by_document.get(&document.key) else { return Ok(None) };
        match Receipt::from_json(document.value.as_str()) {
            Ok(receipt) => Ok(Some(((*key).clone(), receipt))),
            Err(error) => Err(corrupt("receipts.value", &loggable(key), error.to_string())),
        }
    };
    found.iter().filter_map(|document| receipt(document).transpose()).collect()
}

pg::statements! {
    /// The routes with these keys, locked as a row that refers to them would lock them.
    LOCK_ROUTES = "receipts.lock_routes", plan ["routes_pkey"], "
        SELECT r.notification_id, r.route_id, r.channel
        FROM unnest($1::text[], $2::text[]) AS g (notification_id, route_id)
        JOIN routes r ON r.notification_id = g.notification_id AND r.route_id = g.route_id
        FOR KEY SHARE OF r";
}

pub(crate) fn lock_routes(keys: &BTreeSet<&RouteKey>) -> BoundStatement {
    LOCK_ROUTES.bind(routes::keys(keys.iter().copied()))
}
