//! The decider looks up the recipients and known keys of a batch, and decides its outcomes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ambient::Clock;
use domain::accept::{self, Decision};
use domain::policy::Policy;
use domain::ports::{AcceptanceStore, Known, Lookup, StoreError, UserDirectory};
use tokio::time::Instant;

use crate::dispatch::Dispatcher;
use crate::intake::{Intake, UnprocessedEntry};

/// After a call that took longer than this, entries whose users have all been looked up are accepted before
/// the other users are looked up.
const SLOW_LOOK_UP: Duration = Duration::from_millis(250);

/// Decides batches, and keeps the user directory's lookups for the current batch.
#[derive(Debug)]
pub(super) struct Decider<'a, A, D, C> {
    store: &'a A,
    directory: &'a D,
    clock: &'a C,
    policy: &'a Policy,
    dispatcher: &'a Dispatcher,
    stream: &'a str,
    /// The lookups of users of the batch, at most as many as the batch has routes.
    answers: HashMap<String, Lookup>,
}

impl<'a, A, D, C> Decider<'a, A, D, C>
where
    A: AcceptanceStore,
    D: UserDirectory,
    C: Clock,
{
    pub(super) fn new<E, I, K>(intake: &'a Intake<E, I, A, K, D, C>) -> Self {
        Self {
            store: &intake.store,
            directory: &intake.directory,
            clock: &intake.clock,
            policy: &intake.policy,
            dispatcher: &intake.dispatcher,
            stream: &intake.settings.stream,
            answers: HashMap::new(),
        }
    }

    /// Drops the lookups, for a batch whose entries were read after them.
    pub(super) fn forget_answers(&mut self) {
        self.answers.clear();
    }

    /// Returns the outcomes of the entries from the beginning of `batch`, and whether known keys were looked
    /// up. They are looked up if `ask_known`, or if a recipient is missing or cannot be looked up: then the
    /// batch is decided again with the same lookups.
    pub(super) async fn decide<'b>(
        &mut self,
        batch: &'b VecDeque<UnprocessedEntry>,
        ask_known: bool,
    ) -> Result<(Decision<'b>, bool), StoreError> {
        let known = if ask_known { self.find_known(batch).await? } else { Known::default() };
        self.look_up(batch, &known).await;
        let decision = self.decide_now(batch, &known);
        if ask_known || !decision.directory_objects() {
            return Ok((decision, ask_known));
        }
        let known = self.find_known(batch).await?;
        Ok((self.decide_now(batch, &known), true))
    }

    /// Decides at the current time: the lookups may have taken a while, and acceptance begins here.
    fn decide_now<'b>(&self, batch: &'b VecDeque<UnprocessedEntry>, known: &Known) -> Decision<'b> {
        let entries = batch.iter().map(|entry| &entry.decoded);
        // If a channel is blocked, its routes are left to the scan, so they must be due at once.
        let schedule = self.policy.schedule(self.clock.now(), !self.dispatcher.is_blocked());
        accept::decide(self.stream, entries, known, &self.answers, self.policy, schedule)
    }

    async fn find_known(&self, batch: &VecDeque<UnprocessedEntry>) -> Result<Known, StoreError> {
        let entries = batch.iter().map(|entry| &entry.decoded);
        let asked: Vec<_> =
            entries.filter_map(|entry| entry.intent().map(|intent| (intent.scope(), entry.id))).collect();
        self.store.find_known(&asked).await
    }

    /// Looks up the users that have no lookup yet, in stream order. Stops if continuing would only delay
    /// entries that can be accepted already, or if a whole call returned no lookup.
    async fn look_up(&mut self, batch: &VecDeque<UnprocessedEntry>, known: &Known) {
        self.answers.retain(|_, answer| !matches!(answer, Lookup::Unavailable(_)));
        let entries = batch.iter().map(|entry| &entry.decoded);
        let unanswered = accept::unanswered(entries, known, &self.answers);
        let mut first_failed = None;
        for portion in unanswered.chunks(self.directory.users_per_call()) {
            let ids: Vec<&str> = portion.iter().map(|user| user.user_id).collect();
            let asked_at = Instant::now();
            let answers = self.directory.look_up(&ids).await;
            let mut answered = false;
            for (user, answer) in portion.iter().zip(answers) {
                match answer {
                    Lookup::Unavailable(_) => first_failed = first_failed.or(Some(user.place)),
                    Lookup::Found(_) | Lookup::Missing => answered = true,
                }
                self.answers.insert(user.user_id.to_owned(), answer);
            }
            // All entries before the first one with a user that could not be looked up can be decided.
            let complete = first_failed.or(portion.last().map(|user| user.place)).unwrap_or_default();
            if !answered || (complete > 0 && asked_at.elapsed() > SLOW_LOOK_UP) {
                break;
            }
        }
    }
}
