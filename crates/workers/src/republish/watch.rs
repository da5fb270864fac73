//! The outbound streams as one replica has observed them, and a change that is to be compared.

use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{SavedStream, ServerId};
use domain::republish::SeenStream;
use tokio::time::Instant;

use super::SETTLE_TIME;
use super::compare::Comparison;
use super::losses::Losses;

/// The streams as one replica has observed them.
#[derive(Default)]
pub(super) struct Watch {
    /// The streams as they were saved last; `None` before they are loaded.
    pub(super) saved: Option<Vec<SavedStream>>,
    /// The time at which this replica saved them last.
    pub(super) saved_at: Option<Instant>,
    /// The streams as they were observed last while nothing was lost.
    pub(super) known: Vec<SeenStream>,
    /// A change after which entries may be lost.
    pub(super) change: Option<PendingChange>,
    /// The time at which the last comparison is to be repeated.
    pub(super) repeat_at: Option<Instant>,
    /// The time at which the names of the streams were recorded last.
    pub(super) touched_at: Option<Instant>,
    /// The comparison that is not complete.
    pub(super) unfinished: Option<Comparison>,
    /// The losses that were reported.
    pub(super) losses: Losses,
}

/// A stream as it was on the current server before it lost entries.
pub(super) struct Fallen {
    pub(super) seen: SeenStream,
    /// The time of the last save of the stream when the loss was noticed. A replica that has noticed it does
    /// not save before a comparison.
    pub(super) saved_at: Option<Timestamp>,
}

/// A change that has not been compared yet.
pub(super) struct PendingChange {
    /// The server after the change.
    pub(super) server: ServerId,
    /// Streams as they were on this server before their last id fell. New entries raise the last id again.
    pub(super) fallen: Vec<Fallen>,
    /// The time since which both stores have responded.
    pub(super) settled_since: Instant,
    /// The cause of the last failure to compare, until the comparison is tried again.
    pub(super) failure: Option<String>,
}

impl Watch {
    /// Returns true if both stores have responded for long enough since the current change. Called when both
    /// have responded. `suspected` contains streams as they were before a change that was just observed,
    /// `saved` the streams as they are saved now.
    pub(super) fn is_settled(
        &mut self,
        server: &ServerId,
        suspected: Vec<SeenStream>,
        saved: &[SavedStream],
    ) -> bool {
        let change = self.change.take().filter(|change| change.server == *server);
        let mut change = change.unwrap_or_else(|| PendingChange {
            server: server.clone(),
            fallen: Vec::new(),
            settled_since: Instant::now(),
            failure: None,
        });
        for seen in suspected.into_iter().filter(|stream| stream.server == *server) {
            if change.fallen.iter().all(|fallen| fallen.seen.stream != seen.stream) {
                let saved_at = saved_stream(saved, &seen).map(|saved| saved.seen_at);
                change.fallen.push(Fallen { seen, saved_at });
            }
        }
        let settled_since = change.settled_since;
        self.change = Some(change);
        settled_since.elapsed() >= SETTLE_TIME
    }

    /// Schedules the repetition if one is due for these streams. Every replica schedules it, and the first
    /// one performs it.
    pub(super) fn note_repeat(&mut self, saved: &[SavedStream], delay: Duration) {
        match saved.iter().any(|saved| saved.compare_again_since.is_some()) {
            true => drop(self.repeat_at.get_or_insert_with(|| Instant::now() + delay)),
            false => self.repeat_at = None,
        }
    }
}

pub(super) fn saved_stream<'a>(saved: &'a [SavedStream], like: &SeenStream) -> Option<&'a SavedStream> {
    saved.iter().find(|saved| saved.seen.stream == like.stream)
}
