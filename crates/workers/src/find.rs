//! Search for an intent, a notification or a route by any of its ids (ADR 0062). It gathers what the tables
//! and the streams hold under a name; the domain interprets it.
//!
//! What an index finds is always looked for, and all of it is listed. Request ids and trace ids have no
//! index, because every acceptance would pay for it: they are compared with those of the newest
//! notifications, and only if nothing else was found.

mod trail;

use std::sync::Arc;

use ambient::Timestamp;
use domain::catalog::Catalog;
use domain::conflict::Conflict;
use domain::explanation::intent::{Fate, Reading, readings};
use domain::find::{FindQuery, Match, Matches, SHOWN_NOTIFICATIONS};
use domain::ports::{Finder, IntentStream, LeaderLookup, Queries, StoreError, StreamQueries};
use domain::query::{MalformedSummary, Notification};

use trail::Trail;

/// The most resubmitted intents of a result whose new entries are looked up.
const MAX_FOLLOWED: usize = 10;
/// The most conflicts of a result that are compared with their notifications.
const MAX_COMPARED: usize = 10;

/// A stream and its name.
#[derive(Clone, Debug)]
pub struct NamedStream<S> {
    /// The name.
    pub name: String,
    /// The stream.
    pub stream: S,
}

/// A search in the tables and the streams.
#[derive(Clone, Debug)]
pub struct Search<Q, S, L> {
    /// The tables.
    pub queries: Q,
    /// The intents stream.
    pub intents: NamedStream<S>,
    /// The outbound streams.
    pub outbound: Vec<NamedStream<S>>,
    /// The lookup of the leader.
    pub leader: L,
    /// The catalogue with which entries are decoded.
    pub catalog: Arc<Catalog>,
}

impl<Q, S, L> Finder for Search<Q, S, L>
where
    Q: Queries,
    S: StreamQueries + IntentStream,
    L: LeaderLookup,
{
    async fn find(&self, query: &FindQuery, now: Timestamp) -> Result<Matches, StoreError> {
        let mut trail = Trail::begin(self, now).await?;
        let mut fates: Vec<Fate> = Vec::new();
        for reading in readings(query) {
            if matches!(reading, Reading::Trace(_)) && fates.iter().any(Fate::is_found) {
                break;
            }
            for fate in trail.follow(&reading, query).await? {
                if !fates.contains(&fate) {
                    fates.push(fate);
                }
            }
        }
        let is_found = fates.iter().any(Fate::is_found);
        fates.retain(|fate| fate.is_found() || !is_found);
        if fates.is_empty() {
            fates.push(Fate::Unknown { name: query.name.clone() });
        }
        self.follow_resubmitted(&mut trail, &mut fates).await?;
        let (searched, stream_error) = trail.end();
        Ok(Matches {
            name: query.name.clone(),
            notifications: self.details(&fates, now).await?,
            found: self.matches(&fates, now).await?,
            searched,
            stream_error,
        })
    }
}

impl<Q, S, L> Search<Q, S, L>
where
    Q: Queries,
    S: StreamQueries + IntentStream,
    L: LeaderLookup,
{
    /// Adds the fates of the entries as which malformed intents were resubmitted: their outcomes are those of
    /// the intents.
    async fn follow_resubmitted(
        &self,
        trail: &mut Trail<'_, Q, S, L>,
        fates: &mut Vec<Fate>,
    ) -> Result<(), StoreError> {
        let (mut place, mut followed) = (0, 0);
        while let (Some(fate), true) = (fates.get(place), followed < MAX_FOLLOWED) {
            place += 1;
            let row = fate.malformed().filter(|row| row.key.stream == self.intents.name);
            let new_id = row.and_then(|row| row.resubmitted_entry_id.as_ref()?.parse().ok());
            let Some(new_id) = new_id else { continue };
            followed += 1;
            for fate in trail.follow(&Reading::Entry(new_id), &FindQuery::default()).await? {
                if !fates.contains(&fate) {
                    fates.push(fate);
                }
            }
        }
        Ok(())
    }
}

impl<Q: Queries, S, L> Search<Q, S, L> {
    /// The fates with what the first conflicts among them are about.
    async fn matches(&self, fates: &[Fate], now: Timestamp) -> Result<Vec<Match>, StoreError> {
        let (mut matches, mut compared) = (Vec::with_capacity(fates.len()), 0);
        for fate in fates {
            let row = fate.malformed().filter(|row| Conflict::key(row).is_some());
            let mut conflict = None;
            if let Some(MalformedSummary { key, .. }) = row.filter(|_| compared < MAX_COMPARED) {
                compared += 1;
                let (queries, catalog) = (&self.queries, &self.catalog);
                let rows = queries.get_malformed_details(&key.stream, &key.entry_id, catalog).await?;
                conflict = rows.into_iter().find(|row| row.summary.key == *key).and_then(|row| row.conflict);
            }
            matches.push(Match::new(fate, conflict, now));
        }
        Ok(matches)
    }

    /// The first notifications that the fates refer to.
    async fn details(&self, fates: &[Fate], now: Timestamp) -> Result<Vec<Notification>, StoreError> {
        let mut details: Vec<Notification> = Vec::new();
        for id in fates.iter().filter_map(Fate::notification) {
            let is_known = details.iter().any(|found| found.notification_id == *id);
            if !is_known && details.len() < SHOWN_NOTIFICATIONS {
                let found = self.queries.get_notification(id).await?;
                details.extend(found.map(|found| found.explained(now)));
            }
        }
        Ok(details)
    }
}
