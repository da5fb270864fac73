//! The decider: looks up what a batch needs, and decides its outcomes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ambient::Clock;
use domain::accept::{self, Decision};
use domain::policy::Policy;
use domain::ports::{AcceptanceStore, Known, Lookup, StoreError, UserDirectory};
use tokio::time::Instant;

use crate::dispatch::Dispatcher;
use crate::intake::{Intake, UnprocessedEntry};

/// After a call that took longer than this, entries whose users are all known are accepted before the others
/// are asked for.
const SLOW_LOOK_UP: Duration = Duration::from_millis(250);

/// Decides batches, and keeps the user directory's answers for the current batch.
#[derive(Debug)]
pub(super) struct Decider<'a, A, D, C> {
    store: &'a A,
    directory: &'a D,
    clock: &'a C,
    policy: &'a Policy,
    dispatcher: &'a Dispatcher,
    stream: &'a str,
    /// The answers of the directory about users of the batch: no more of them than it has routes.
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

    /// For a batch whose entries were read after the answers were given.
    pub(super) fn forget_answers(&mut self) {
        self.answers.clear();
    }

    /// The outcomes of the entries from the beginning of `batch`, and whether known keys were looked up. They
    /// are if `ask_known`, or if a recipient is missing or cannot be looked up: then the batch is decided
    /// again with the same answers.
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

    /// Decides at the current time: the look-ups may have taken a while, and acceptance begins here.
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

    /// Looks up the users without an answer, in stream order. Stops if continuing would only delay entries
    /// that can be accepted already, or if a whole call got no answer.
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
            // Up to the first entry with a user without an answer, all can be decided.
            let complete = first_failed.or(portion.last().map(|user| user.place)).unwrap_or_default();
            if !answered || (complete > 0 && asked_at.elapsed() > SLOW_LOOK_UP) {
                break;
            }
        }
    }
}
