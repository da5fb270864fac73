//! The first entries of a batch, as the engine accepts them: in order, up to the first one that must wait,
//! and with the checkpoint.

use std::collections::HashMap;
use std::time::Duration;

use ambient::Clock;
use domain::accept::{self, BatchDecision, Decoded, FirstUndecided, Probe};
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, CheckpointMove, Known, Lookup, StoreError, UserDirectory,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::BatchCheckpoint;
use crate::accept::CommitGroup;
use crate::intake::Intake;
use crate::ports::Ports;

/// After a call that took longer than this, entries whose users have all been looked up are accepted before
/// the other users are looked up.
const SLOW_LOOK_UP: Duration = Duration::from_millis(250);

/// Entries in stream order.
pub(super) struct Entries<'a, P: Ports> {
    intake: &'a Intake<P>,
    entries: Vec<&'a Decoded>,
    target: BatchCheckpoint,
    lookups: &'a mut HashMap<String, Lookup>,
    stop: &'a CancellationToken,
    known: Known,
    pub(super) decision: BatchDecision<'a>,
    /// The fingerprint of the last decided entry.
    fingerprint: String,
    /// The time at which the last transaction began.
    begun: Instant,
    /// The time at which the routes of the last decision are due, or earlier.
    pub(super) due_at: Instant,
}

impl<'a, P: Ports> Entries<'a, P> {
    pub(super) fn new(
        intake: &'a Intake<P>,
        entries: Vec<&'a Decoded>,
        target: BatchCheckpoint,
        lookups: &'a mut HashMap<String, Lookup>,
        stop: &'a CancellationToken,
    ) -> Self {
        Self {
            intake,
            entries,
            target,
            lookups,
            stop,
            known: Known::default(),
            decision: BatchDecision { decided: Vec::new(), rest: FirstUndecided::NotLookedUp },
            fingerprint: String::new(),
            begun: Instant::now(),
            due_at: Instant::now(),
        }
    }

    /// The time since the last transaction began.
    pub(super) fn commit_time(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Looks up the users that have no lookup yet, in stream order. Stops if continuing would only delay
    /// entries that can be accepted already, or if a whole call returned no lookup.
    async fn look_up_users(&mut self) {
        let Intake { directory, .. } = self.intake;
        self.lookups.retain(|_, lookup| !matches!(lookup, Lookup::Unavailable(_)));
        let missing = accept::missing_lookups(self.entries.iter().copied(), &self.known, self.lookups);
        let mut first_failed = None;
        for portion in missing.chunks(directory.users_per_call()) {
            let ids: Vec<&str> = portion.iter().map(|user| user.user_id).collect();
            let requested_at = Instant::now();
            let lookups = directory.look_up(&ids).await;
            let mut found = false;
            for (user, lookup) in portion.iter().zip(lookups) {
                match lookup {
                    Lookup::Unavailable(_) => first_failed = first_failed.or(Some(user.place)),
                    Lookup::Found(_) | Lookup::Missing => found = true,
                }
                self.lookups.insert(user.user_id.to_owned(), lookup);
            }
            // All entries before the first one with a user that could not be looked up can be decided.
            let complete = first_failed.or(portion.last().map(|user| user.place)).unwrap_or_default();
            if !found || (complete > 0 && requested_at.elapsed() > SLOW_LOOK_UP) {
                break;
            }
        }
    }
}

impl<P: Ports> CommitGroup for Entries<'_, P> {
    fn len(&self) -> usize {
        self.decision.decided.len()
    }

    async fn find_known(&mut self) -> Result<(), StoreError> {
        let key = |entry: &&Decoded| entry.intent().map(|intent| (intent.key(), entry.id));
        let keys: Vec<_> = self.entries.iter().filter_map(key).collect();
        self.known = self.intake.store.find_known(&keys).await?;
        Ok(())
    }

    async fn look_up(&mut self) {
        // After a stop, what has been looked up is accepted.
        let stop = self.stop;
        stop.run_until_cancelled(self.look_up_users()).await;
    }

    fn decide(&mut self) -> bool {
        let Intake { settings, clock, policy, dispatcher, .. } = self.intake;
        // If a channel is blocked, its routes are left to the scan, so they must be due at once.
        let decided_at = Instant::now();
        let schedule = policy.schedule(clock.now(), !dispatcher.is_blocked());
        self.due_at = decided_at + schedule.head_start();
        let entries = self.entries.iter().copied();
        self.decision =
            accept::decide(&settings.stream, entries, &self.known, self.lookups, policy, schedule);
        self.decision.depends_on_directory()
    }

    fn transaction(&mut self) -> AcceptanceBatch<'_> {
        self.begun = Instant::now();
        let decided = &self.decision.decided;
        let last = decided.last().map(|last| last.entry);
        self.fingerprint = last.map(Decoded::fields_fingerprint).unwrap_or_default();
        AcceptanceBatch {
            outcomes: decided.iter().map(|decided| &decided.outcome).collect(),
            checkpoint: last.map(|last| CheckpointMove {
                stream: &self.intake.settings.stream,
                fence: self.target.fence,
                expected: self.target.expected,
                last_entry_id: last.id,
                fingerprint: &self.fingerprint,
            }),
            responses: Vec::new(),
        }
    }

    fn probe(&self) -> Probe {
        let Intake { settings, clock, policy, .. } = self.intake;
        let intent = self.decision.decided.first().and_then(|decided| decided.entry.intent());
        accept::probe(&settings.stream, policy, intent, clock.now())
    }

    fn reject(&mut self, message: &str) -> bool {
        let Intake { settings, clock, .. } = self.intake;
        let Some(decided) = self.decision.decided.first_mut() else { return false };
        let rejected = decided.not_storable(&settings.stream, message.to_owned(), clock.now());
        rejected.map(|rejected| *decided = rejected).is_some()
    }
}
