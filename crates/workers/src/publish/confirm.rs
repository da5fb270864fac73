//! Confirmation of acknowledgements: an append is valid only on the server that acknowledged it (ADR 0045).
//!
//! A completion that waited, because PostgreSQL was down or its row was locked, may have outlived that
//! server. Before the completion is committed, the publisher looks for its entry. If the entry is missing,
//! the completion is dropped and the route is published again.

use std::time::Duration;

use domain::entry::EntryId;
use domain::ports::{MAX_FOUND_ENTRIES, OutboundInspection, Published, StoreError};
use domain::republish::EntryState;
use domain::route::RouteKey;

use super::RoutePublisher;
use super::state::PublisherState;
use crate::ports::Ports;

/// The longest age of an acknowledgement whose completion is sent to PostgreSQL without confirmation. After a
/// change of server, a comparison of the streams begins later than this ([`crate::republish`]), so it sees
/// the completions that were sent before the change.
// MODEL-22
pub(super) const MAX_UNCONFIRMED: Duration = Duration::from_secs(1);

/// Completions whose acknowledgements were confirmed.
#[derive(Debug, Default)]
struct Confirmed {
    /// Completions to commit.
    published: Vec<Published>,
    /// Routes without an entry on the current server.
    lost: Vec<RouteKey>,
    /// The number of entries that were trimmed or deleted on another server than the one that acknowledged
    /// them: consumers may have processed them.
    unknown: usize,
}

impl<P: Ports> RoutePublisher<P> {
    /// Keeps the completions whose entries may be in the stream, and lets the scan publish the other routes
    /// again. If it fails, all are kept, and none may be committed.
    pub(super) async fn confirm(
        &self,
        published: &mut Vec<Published>,
        shared: &PublisherState,
    ) -> Result<(), StoreError> {
        let mut confirmed = Confirmed::default();
        for chunk in published.chunks(MAX_FOUND_ENTRIES) {
            self.confirm_chunk(chunk, &mut confirmed).await?;
        }
        let Confirmed { published: kept, lost, unknown } = confirmed;
        *published = kept;
        self.metrics.attempts(self.channel, "append_unconfirmed", unknown);
        if !lost.is_empty() {
            self.publish_again(&lost, shared);
        }
        Ok(())
    }

    // MODEL-23
    async fn confirm_chunk(&self, chunk: &[Published], confirmed: &mut Confirmed) -> Result<(), StoreError> {
        // An unparsable id does not belong to an entry that this service appended; PostgreSQL decides about
        // it.
        let readable = |route: &Published| route.entry.entry_id.parse::<EntryId>().unwrap_or(EntryId::ZERO);
        let entries: Vec<(&RouteKey, EntryId)> =
            chunk.iter().map(|route| (&route.key, readable(route))).collect();
        let found = self.outbound.find_entries(self.channel, &entries).await?;
        for (route, state) in chunk.iter().zip(found.states) {
            if route.entry.server != found.server {
                match state {
                    EntryState::Present => {}
                    EntryState::Trimmed | EntryState::Deleted => confirmed.unknown += 1,
                    EntryState::Missing | EntryState::Lost | EntryState::NoStream => {
                        confirmed.lost.push(route.key.clone());
                        continue;
                    }
                }
            }
            let mut route = route.clone();
            route.entry.server = found.server.clone();
            confirmed.published.push(route);
        }
        Ok(())
    }

    /// Leaves routes to the scan, which finds them: they are still live in PostgreSQL, and their markers are
    /// no longer renewed.
    fn publish_again(&self, lost: &[RouteKey], shared: &PublisherState) {
        shared.markers.stop_renewing(lost.iter());
        let deferred = {
            let mut deferred = shared.deferred();
            lost.iter().for_each(|key| deferred.remove(key));
            (deferred.len(), deferred.first())
        };
        self.health.set_deferred(deferred.0, deferred.1);
        self.metrics.attempts(self.channel, "append_lost", lost.len());
        lost.iter().for_each(|key| shared.log().entry_lost(key));
        shared.scan_now();
    }
}
