//! Accepts groups of submissions, each group in one transaction.
//!
//! While a transaction runs, further submissions gather for the next one. If a transaction takes long,
//! because it waits for a lock, the next one does not wait for it. A group that is refused, locked or too
//! slow is divided, and its parts are accepted separately.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ambient::{Clock, Tokens};
use domain::accept;
use domain::malformed::{FailureCode, Rejection};
use domain::outcome::Outcome;
use domain::policy::Policy;
use domain::ports::{
    AcceptanceBatch, AcceptanceStore, AnswerCondition, AnswerStore, AnswerToStore, Commit, StoreError,
    UserDirectory, error_chain,
};
use domain::record::{IdempotencyScope, NotificationId};
use domain::submission::{self, AcceptedRequest, StoredAnswer, SubmissionDecision, SubmissionOutcome};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::claims::ClaimKeeper;
use super::look_ups::LookedUp;
use super::singles_first::SinglesFirst;
use super::{
    Key, MAX_CONCURRENT_ELEMENT_GROUPS, MAX_CONCURRENT_GROUPS, MAX_ELEMENT_GROUP, MAX_GROUP, SubmissionIntake,
};
use crate::intake::{MAX_BATCH_COST, MAX_BATCH_ROUTES};

/// The time after which the next group no longer waits for a running transaction.
const SLOW_GROUP: Duration = Duration::from_millis(100);
/// The number of times that a group may meet a key that was taken meanwhile.
const MAX_CONFLICT_RETRIES: usize = 5;

/// The number of submissions that are accepted together, and the number of concurrent groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLimits {
    elements: usize,
    concurrent: usize,
}

impl GroupLimits {
    /// The limits of single intents.
    pub(super) const SINGLE: Self = Self { elements: MAX_GROUP, concurrent: MAX_CONCURRENT_GROUPS };
    /// The limits of elements of batches.
    pub(super) const ELEMENTS: Self =
        Self { elements: MAX_ELEMENT_GROUP, concurrent: MAX_CONCURRENT_ELEMENT_GROUPS };
}

/// The submissions of one transaction.
type Group = Vec<LookedUp>;

/// The decision about an element.
struct Decided {
    /// The response to its caller, once the decisions about the group are committed.
    outcome: SubmissionOutcome,
    /// The rows to write, if the element is accepted.
    written: Option<Outcome>,
    /// True if it is not accepted because of the directory.
    directory_objects: bool,
}

impl Decided {
    /// Returns the response to store, if the element is accepted and its key is guarded.
    fn answer(&self) -> Option<&StoredAnswer> {
        match &self.outcome {
            SubmissionOutcome::Accepted { answer, .. } => answer.as_ref(),
            _ => None,
        }
    }
}

/// The result of one attempt with a group.
enum Tried {
    /// The accepted elements are committed.
    Decided(Vec<Decided>),
    /// Nothing is committed, because of at least one element.
    Impossible(Impossible),
}

/// The reason why a group cannot be accepted.
enum Impossible {
    /// PostgreSQL refuses the group, with this message.
    Refused(String),
    /// The claim of an element has expired, or its key is no longer free.
    AnswerRefused,
    /// Another transaction holds a row.
    Locked(String),
    /// Another attempt may succeed.
    ForNow(String),
}

/// The result of the transaction of a group.
enum Ended {
    Answered,
    /// The group is accepted in parts.
    Divided(Group, Group),
}

impl<A, D, C, T> SubmissionIntake<A, D, C, T>
where
    A: AcceptanceStore + AnswerStore,
    D: UserDirectory,
    C: Clock,
    T: Tokens,
{
    /// Accepts submissions that have been looked up, until no more arrive. Each group first lets `singles`
    /// pass.
    pub(super) async fn accept(
        &self,
        mut looked_up: mpsc::Receiver<LookedUp>,
        limits: GroupLimits,
        keeper: ClaimKeeper,
        singles: Option<&SinglesFirst>,
    ) {
        let mut queue: VecDeque<LookedUp> = VecDeque::new();
        let mut divided: Vec<Group> = Vec::new();
        let mut running = FuturesUnordered::new();
        let (mut open, mut patient_until) = (true, Instant::now());
        loop {
            while running.len() < limits.concurrent
                && let Some(part) = divided.pop()
            {
                running.push(self.accept_group(part, &keeper, singles));
            }
            let may_begin =
                running.is_empty() || (running.len() < limits.concurrent && Instant::now() >= patient_until);
            if may_begin && !queue.is_empty() {
                let most = singles.map_or(limits.elements, |singles| singles.group_size(limits.elements));
                let group = cut_group(&mut queue, most, &self.policy);
                running.push(self.accept_group(group, &keeper, singles));
                patient_until = Instant::now() + SLOW_GROUP;
            }
            if !open && running.is_empty() && queue.is_empty() {
                return;
            }
            let room = limits.elements.saturating_sub(queue.len());
            let mut received = Vec::new();
            tokio::select! {
                count = looked_up.recv_many(&mut received, room), if open && room > 0 => {
                    open = count > 0;
                    queue.extend(received);
                }
                Some(ended) = running.next() => if let Ended::Divided(left, right) = ended {
                    divided.extend([right, left]);
                },
                () = sleep_until(patient_until), if !queue.is_empty() && running.len() < limits.concurrent => {}
            }
        }
    }

    /// Accepts a group in one transaction, and responds to all of it.
    async fn accept_group(
        &self,
        mut group: Group,
        keeper: &ClaimKeeper,
        singles: Option<&SinglesFirst>,
    ) -> Ended {
        if let Some(singles) = singles {
            singles.let_pass().await;
        }
        group.retain(|element| {
            let abandoned = element.waiting.is_abandoned();
            if let (true, Key::Claimed(token)) = (abandoned, element.waiting.key) {
                keeper.give_up(element.waiting.scope(), token);
            }
            !abandoned
        });
        if group.is_empty() {
            // Nothing was sent to PostgreSQL, so its state is unknown.
            return Ended::Answered;
        }
        let mut tried = self.try_group(&group).await;
        let key_may_be_taken =
            matches!(tried, Ok(Tried::Impossible(Impossible::AnswerRefused | Impossible::Locked(_))));
        if key_may_be_taken && group.iter().any(LookedUp::has_free_key) {
            group = self.claim_free(group, keeper).await;
            tried = self.try_group(&group).await;
        }
        match tried {
            Ok(Tried::Decided(decided)) => {
                self.health.mark_healthy();
                let mut written = Vec::with_capacity(decided.len());
                for (element, decided) in group.into_iter().zip(decided) {
                    self.answer(element.waiting, decided.outcome, keeper);
                    written.extend(decided.written);
                }
                // Dispatched after the responses: a channel without room then delays the next group, but no
                // caller.
                self.dispatch(&written).await;
                Ended::Answered
            }
            Ok(Tried::Impossible(_)) if group.len() > 1 => {
                let right = group.split_off(group.len() / 2);
                Ended::Divided(group, right)
            }
            Ok(Tried::Impossible(cause)) => {
                if matches!(cause, Impossible::AnswerRefused) {
                    self.metrics.fenced(1);
                }
                let outcome = self.blame(&group, cause).await;
                self.answer_all(group, &outcome, keeper)
            }
            Err(error) => {
                self.mark_failed(&error, keeper);
                self.answer_all(group, &SubmissionOutcome::Unavailable(error_chain(&error)), keeper)
            }
        }
    }

    /// Returns the same group, with claims for keys that were free. If a key is taken, its caller receives
    /// the reason, and its submission leaves the group.
    async fn claim_free(&self, group: Group, keeper: &ClaimKeeper) -> Group {
        let (free, mut others): (Group, Group) = group.into_iter().partition(LookedUp::has_free_key);
        let claiming = free.into_iter().map(LookedUp::into_waiting).collect();
        let claimed = self.claim_group(claiming, keeper).await;
        others.extend(claimed.into_iter().filter_map(LookedUp::of));
        others
    }

    /// Tries to accept a group. Returns `Err` if PostgreSQL is unavailable: then no element is the cause, and
    /// elements may or may not have been accepted.
    async fn try_group(&self, group: &Group) -> Result<Tried, StoreError> {
        let mut decided = self.decide(group, &HashMap::new());
        // The outcome of a replay never depends on the directory.
        let doubtful = |(element, decided): (&LookedUp, &Decided)| {
            element.waiting.key == Key::Taken || decided.directory_objects
        };
        let mut ask = group.iter().zip(&decided).any(doubtful);
        for _ in 0..=MAX_CONFLICT_RETRIES {
            if ask {
                let scopes: Vec<_> = group.iter().map(|element| element.waiting.scope()).collect();
                decided = self.decide(group, &self.store.find_requests(&scopes).await?);
            }
            match self.commit(group, &decided).await {
                Ok(Commit::Committed) => return Ok(Tried::Decided(decided)),
                Ok(Commit::WriteConflict) => ask = true,
                Ok(Commit::AnswerRefused | Commit::CheckpointMoved) => {
                    return Ok(Tried::Impossible(Impossible::AnswerRefused));
                }
                Err(error @ StoreError::Refused { .. }) => {
                    return Ok(Tried::Impossible(Impossible::Refused(error_chain(&error))));
                }
                Err(error @ StoreError::Locked { .. }) => {
                    return Ok(Tried::Impossible(Impossible::Locked(error_chain(&error))));
                }
                Err(error @ StoreError::TimedOut { .. }) => {
                    return Ok(Tried::Impossible(Impossible::ForNow(error_chain(&error))));
                }
                Err(error) => return Err(error),
            }
        }
        let cause = "other requests kept taking its key meanwhile".to_owned();
        Ok(Tried::Impossible(Impossible::ForNow(cause)))
    }

    /// Decides about each element, at the current time.
    fn decide(&self, group: &Group, known: &HashMap<IdempotencyScope, AcceptedRequest>) -> Vec<Decided> {
        let now = self.clock.now();
        let schedule = self.policy.schedule(now, !self.dispatcher.is_blocked());
        let decide = |element: &LookedUp| {
            let intent = &element.waiting.submission.intent;
            let id = NotificationId::v7(now, self.tokens.next());
            let holder = known.get(&element.waiting.scope());
            let decision = submission::decide(intent, holder, &element.users, id, &self.policy, schedule);
            let directory_objects = decision.directory_objects();
            let (outcome, written) = match decision {
                SubmissionDecision::Tell(outcome) => (outcome, None),
                SubmissionDecision::Commit(acceptance) => {
                    let guarded = matches!(element.waiting.key, Key::Free | Key::Claimed(_));
                    let answer = guarded.then(|| (self.answer)(&acceptance));
                    let outcome = SubmissionOutcome::accepted(&acceptance, answer);
                    (outcome, Some(Outcome::Accepted(acceptance)))
                }
            };
            Decided { outcome, written, directory_objects }
        };
        group.iter().map(decide).collect()
    }

    /// Commits the accepted elements in one transaction. Does nothing if there are none.
    async fn commit(&self, group: &Group, decided: &[Decided]) -> Result<Commit, StoreError> {
        let answer = |(element, decided): (&LookedUp, &Decided)| {
            let fingerprint = &element.waiting.submission.intent.fingerprint;
            let condition = match element.waiting.key {
                Key::Claimed(token) => AnswerCondition::Claimed(token),
                Key::Free => AnswerCondition::Free { fingerprint: fingerprint.clone() },
                Key::Unguarded | Key::Taken => return None,
            };
            Some(AnswerToStore {
                scope: element.waiting.scope(),
                condition,
                answer: decided.answer()?.clone(),
                kept_for: self.policy.idempotency_ttl,
            })
        };
        let answers = group.iter().zip(decided).filter_map(answer).collect();
        let outcomes: Vec<_> = decided.iter().filter_map(|decided| decided.written.as_ref()).collect();
        if outcomes.is_empty() {
            return Ok(Commit::Committed);
        }
        self.store.accept(AcceptanceBatch { outcomes, checkpoint: None, answers }).await
    }

    async fn dispatch(&self, written: &[Outcome]) {
        let left = self.dispatcher.send(written.iter().filter_map(Outcome::acceptance)).await;
        self.metrics.overflowed(left);
    }

    /// Returns the outcome for a group of one. If PostgreSQL refuses a valid row too, the refusal shows
    /// nothing about the element (ADR 0023).
    async fn blame(&self, group: &Group, cause: Impossible) -> SubmissionOutcome {
        let message = match cause {
            Impossible::Locked(cause) | Impossible::ForNow(cause) => {
                return SubmissionOutcome::Unavailable(cause);
            }
            Impossible::AnswerRefused => {
                let cause = "its claim expired before it could be accepted";
                return SubmissionOutcome::Unavailable(cause.to_owned());
            }
            Impossible::Refused(message) => message,
        };
        let refused = group.first().map(|element| &element.waiting.submission.intent);
        let probe = accept::probe("", &self.policy, refused, self.clock.now());
        match self.store.probe(&probe).await {
            Ok(()) => SubmissionOutcome::Rejected(Rejection { code: FailureCode::NotStorable, message }),
            Err(error) => SubmissionOutcome::Unavailable(error_chain(&error)),
        }
    }

    fn answer_all(&self, group: Group, outcome: &SubmissionOutcome, keeper: &ClaimKeeper) -> Ended {
        for element in group {
            self.answer(element.waiting, outcome.clone(), keeper);
        }
        Ended::Answered
    }
}

/// Takes as many of the first elements as fit into one transaction, at least one and up to `most`. No two
/// have the same key: see queue.rs.
fn cut_group(queue: &mut VecDeque<LookedUp>, most: usize, policy: &Policy) -> Group {
    let (mut cost, mut routes) = (0, 0);
    let mut group = Vec::new();
    while group.len() < most
        && let Some(element) = queue.pop_front()
    {
        let intent = &element.waiting.submission.intent;
        (cost, routes) = (cost + intent.cost(), routes + policy.route_count(intent));
        if !group.is_empty() && (cost > MAX_BATCH_COST || routes > MAX_BATCH_ROUTES) {
            queue.push_front(element);
            break;
        }
        group.push(element);
    }
    group
}
