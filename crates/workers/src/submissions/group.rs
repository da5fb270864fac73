//! A group of submissions, as the engine accepts it: without an order, each element with its own outcome, and
//! with the responses that are stored.

use std::collections::HashMap;
use std::mem;

use ambient::{Clock, Tokens};
use domain::accept::{self, Probe};
use domain::malformed_intent::{FailureCode, Rejection};
use domain::outcome::Outcome;
use domain::ports::{AcceptanceBatch, IdempotencyStore, KeyCondition, ResponseToStore, StoreError};
use domain::record::{IdempotencyKey, NotificationId};
use domain::submission::{self, AcceptedRequest, SubmissionOutcome};
use tokio::time::Instant;

use super::claims::ClaimKeeper;
use super::{SubmissionIntake, WaitingSubmission};
use crate::accept::CommitGroup;
use crate::ports::Ports;

/// The submissions of one transaction.
pub(super) struct SubmissionGroup<'a, P: Ports> {
    intake: &'a SubmissionIntake<P>,
    keeper: &'a ClaimKeeper,
    elements: Vec<WaitingSubmission>,
    /// The accepted intents of those keys that are taken.
    known: HashMap<IdempotencyKey, AcceptedRequest>,
    /// The decision about each element.
    decided: Vec<DecidedSubmission>,
    /// The time at which the routes of the last decision are due, or earlier.
    due_at: Instant,
}

/// The decision about an element.
struct DecidedSubmission {
    /// The response to its caller, once the decisions about the group are committed.
    outcome: SubmissionOutcome,
    /// The rows to write, if the element is accepted.
    written: Option<Outcome>,
}

impl DecidedSubmission {
    /// Returns the response to store under this condition, if the element is accepted.
    fn to_store(&self, condition: Option<KeyCondition>) -> Option<ResponseToStore<'_>> {
        let record = &self.written.as_ref()?.acceptance()?.record;
        let SubmissionOutcome::Accepted { response, .. } = &self.outcome else { return None };
        Some(ResponseToStore { record, condition: condition?, response: response.as_ref()? })
    }
}

impl<'a, P: Ports> SubmissionGroup<'a, P> {
    pub(super) fn new(
        intake: &'a SubmissionIntake<P>,
        keeper: &'a ClaimKeeper,
        elements: Vec<WaitingSubmission>,
    ) -> Self {
        let due_at = Instant::now();
        Self { intake, keeper, elements, known: HashMap::new(), decided: Vec::new(), due_at }
    }

    /// Responds to all callers with the decisions, which are committed.
    pub(super) async fn respond(self) {
        let Self { intake, keeper, elements, decided, due_at, .. } = self;
        if elements.is_empty() {
            // The last calls claimed keys, which had failed or were taken.
            return;
        }
        intake.health.mark_healthy();
        let mut written = Vec::with_capacity(decided.len());
        for (element, decided) in elements.into_iter().zip(decided) {
            intake.respond(element, decided.outcome, keeper);
            written.extend(decided.written);
        }
        // Dispatched after the responses: a channel without room then delays the next group, but no caller.
        let accepted = written.iter().filter_map(Outcome::acceptance);
        let left = intake.dispatcher.send(accepted, due_at).await;
        intake.metrics.overflowed(left);
    }

    /// Responds to all callers that acceptance is not confirmed, for this reason.
    pub(super) fn refuse(self, cause: &str) {
        for element in self.elements {
            self.intake.respond(element, SubmissionOutcome::Unavailable(cause.to_owned()), self.keeper);
        }
    }

    /// Returns the two halves of the group.
    pub(super) fn divide(mut self) -> (Vec<WaitingSubmission>, Vec<WaitingSubmission>) {
        let right = self.elements.split_off(self.elements.len() / 2);
        (self.elements, right)
    }
}

impl<P: Ports> CommitGroup for SubmissionGroup<'_, P> {
    fn len(&self) -> usize {
        self.elements.len()
    }

    async fn find_known(&mut self) -> Result<(), StoreError> {
        let keys: Vec<_> = self.elements.iter().map(WaitingSubmission::key).collect();
        self.known = self.intake.store.find_requests(&keys).await?;
        Ok(())
    }

    /// Each submission was looked up by itself.
    async fn look_up(&mut self) {}

    fn decide(&mut self) -> bool {
        let SubmissionIntake { clock, tokens, policy, dispatcher, response, .. } = self.intake;
        let (decided_at, now) = (Instant::now(), clock.now());
        let schedule = policy.schedule(now, !dispatcher.is_blocked());
        self.due_at = decided_at + schedule.head_start();
        let (mut is_doubtful, no_users) = (false, HashMap::new());
        let decide = |element: &WaitingSubmission| {
            let intent = &element.submission.intent;
            let holder = self.known.get(&element.key());
            let users = element.users.as_ref().unwrap_or(&no_users);
            let id = NotificationId::v7(now, tokens.next());
            match submission::decide(intent, holder, users, id, policy, schedule) {
                Ok(acceptance) => {
                    // The outcome of an element whose key is taken is that of the intent that took it.
                    is_doubtful |= element.submission.stores_response && element.condition.is_none();
                    let response = element.condition.is_some().then(|| response(&acceptance));
                    let outcome = SubmissionOutcome::accepted(&acceptance, response);
                    DecidedSubmission { outcome, written: Some(Outcome::Accepted(acceptance)) }
                }
                Err(outcome) => {
                    is_doubtful |= outcome.depends_on_directory();
                    DecidedSubmission { outcome, written: None }
                }
            }
        };
        self.decided = self.elements.iter().map(decide).collect();
        is_doubtful
    }

    fn transaction(&mut self) -> AcceptanceBatch<'_> {
        let elements = self.elements.iter().zip(&self.decided);
        AcceptanceBatch {
            outcomes: self.decided.iter().filter_map(|decided| decided.written.as_ref()).collect(),
            checkpoint: None,
            responses: elements
                .filter_map(|(element, decided)| decided.to_store(element.condition))
                .collect(),
        }
    }

    fn has_free_keys(&self) -> bool {
        self.elements.iter().any(|element| element.condition == Some(KeyCondition::Free))
    }

    async fn claim_free_keys(&mut self) {
        let is_free = |element: &WaitingSubmission| element.condition == Some(KeyCondition::Free);
        let (free, others) = mem::take(&mut self.elements).into_iter().partition(is_free);
        self.elements = others;
        self.elements.extend(self.intake.claim_group(free, self.keeper).await);
    }

    fn probe(&self) -> Probe {
        let SubmissionIntake { clock, policy, .. } = self.intake;
        let refused = self.elements.first().map(|element| &element.submission.intent);
        accept::probe("", policy, refused, clock.now())
    }

    fn reject(&mut self, message: &str) -> bool {
        let rejection = Rejection { code: FailureCode::NotStorable, message: message.to_owned() };
        self.decided =
            vec![DecidedSubmission { outcome: SubmissionOutcome::Rejected(rejection), written: None }];
        true
    }
}
