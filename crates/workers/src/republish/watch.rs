//! The outbound streams as one replica has observed them, and a change that is to be compared.

use std::time::Duration;

use ambient::Timestamp;
use domain::ports::{SavedStream, ServerId};
use domain::republish::SeenStream;
use tokio::time::Instant;

use super::compare::Comparison;
use super::losses::Losses;
use super::{Observed, REPEAT_DELAY, SETTLE_TIME, TAKEOVER_DELAY};

/// The streams as one replica has observed them.
#[derive(Default)]
pub(super) struct Watch {
    /// The names of the streams in `saved`, and of those that were never saved.
    loaded: Vec<String>,
    /// The streams as they were saved last.
    pub(super) saved: Vec<SavedStream>,
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
    /// The server of each stream after the change.
    servers: Vec<(String, ServerId)>,
    /// Streams as they were on this server before their last id fell. New entries raise the last id again.
    pub(super) fallen: Vec<Fallen>,
    /// The time since which both stores have responded.
    pub(super) settled_since: Instant,
    /// The cause of the last failure to compare, until the comparison is tried again.
    pub(super) failure: Option<String>,
}

impl Watch {
    /// True if the saved observation of this stream was loaded.
    pub(super) fn has_loaded(&self, now: &Observed) -> bool {
        self.loaded.contains(&now.seen.stream)
    }

    /// Forgets the saved observations of streams that are not observed now: another replica may replace them.
    pub(super) fn forget_unseen(&mut self, seen: &[Observed]) {
        self.loaded.retain(|stream| is_in(seen, stream));
        self.saved.retain(|saved| is_in(seen, &saved.seen.stream));
    }

    /// Adds the saved observations of these streams.
    pub(super) fn add_loaded(&mut self, streams: &[Observed], saved: Vec<SavedStream>) {
        for SavedStream { seen, .. } in &saved {
            // What this process observed itself is newer.
            if self.known.iter().all(|known| known.stream != seen.stream) {
                self.known.push(seen.clone());
            }
        }
        self.loaded.extend(streams.iter().map(|now| now.seen.stream.clone()));
        self.saved.extend(saved);
        let saved = std::mem::take(&mut self.saved);
        self.note_repeat(&saved, REPEAT_DELAY + TAKEOVER_DELAY);
        self.saved = saved;
    }

    /// Replaces the observations of these streams.
    pub(super) fn note_known(&mut self, seen: &[Observed]) {
        self.known.retain(|known| !is_in(seen, &known.stream));
        self.known.extend(seen.iter().map(|now| now.seen.clone()));
    }

    /// Replaces the saved observations of the streams that were loaded.
    pub(super) fn note_saved(&mut self, saved: Vec<SavedStream>) {
        self.saved = saved;
    }

    /// Ends the change for these streams, which were compared.
    pub(super) fn note_compared(&mut self, seen: &[Observed]) {
        if let Some(change) = &mut self.change {
            change.fallen.retain(|fallen| !is_in(seen, &fallen.seen.stream));
        }
        self.change = self.change.take().filter(|change| !change.fallen.is_empty());
    }

    /// Returns true if both stores have responded for long enough since the current change. Called when both
    /// have responded. `suspected` contains streams as they were before a change that was just observed,
    /// `saved` the streams as they are saved now.
    pub(super) fn is_settled(
        &mut self,
        seen: &[Observed],
        suspected: Vec<SeenStream>,
        saved: &[SavedStream],
    ) -> bool {
        let is_on = |stream: &str, server: &ServerId| {
            seen.iter().all(|now| now.seen.stream != stream || now.seen.server == *server)
        };
        let new = || PendingChange {
            servers: Vec::new(),
            fallen: Vec::new(),
            settled_since: Instant::now(),
            failure: None,
        };
        let mut change = self.change.take().unwrap_or_else(new);
        if !change.servers.iter().all(|(stream, server)| is_on(stream, server)) {
            (change.settled_since, change.failure) = (Instant::now(), None);
        }
        change.fallen.retain(|fallen| is_on(&fallen.seen.stream, &fallen.seen.server));
        change.servers.retain(|(stream, _)| !is_in(seen, stream));
        let servers = seen.iter().map(|now| (now.seen.stream.clone(), now.seen.server.clone()));
        change.servers.extend(servers);
        for seen in suspected.into_iter().filter(|former| is_on(&former.stream, &former.server)) {
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

fn is_in(seen: &[Observed], stream: &str) -> bool {
    seen.iter().any(|now| now.seen.stream == stream)
}

pub(super) fn saved_stream<'a>(saved: &'a [SavedStream], like: &SeenStream) -> Option<&'a SavedStream> {
    saved.iter().find(|saved| saved.seen.stream == like.stream)
}
