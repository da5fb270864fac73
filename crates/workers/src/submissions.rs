//! Accepts intents whose callers wait: claims, looks up, commits, responds.
//!
//! Single intents and elements of batches wait in [`queue`] and pass through separate stages, so that no
//! single intent waits for a batch. A group of elements begins when no single intent is in progress, or soon
//! after. The stages run concurrently. Each takes the submissions that wait for it at that moment, up to a
//! bound, and starts no timer, so that a lone submission is not delayed and many share a transaction:
//!
//! 1. [`claims`]: the keys of a group are claimed in one transaction. For a key with a stored response, that
//!    response is replayed; a key that is in progress is refused. A submission whose recipients can be
//!    recalled at once is accepted within milliseconds, so its key is only read, and is taken by stage 3.
//!    Elements of batches have no key to claim.
//! 2. [`look_ups`]: the recipients of each submission are looked up, concurrently. A slow lookup delays only
//!    its own submission.
//! 3. [`groups`]: submissions whose lookups have ended are accepted in one transaction, together with their
//!    responses, and dispatched. If a key that was only read is taken meanwhile, nothing is accepted, and the
//!    keys are claimed.
//!
//! Crash recovery: a crash before stage 3 commits leaves claims, which end with the lock TTL; a repeated
//! request starts over. A crash after the commit leaves records, routes and responses: a repeated request
//! receives the stored response, and the routes are due one lease TTL after acceptance. A submission that is
//! not accepted releases its claim ([`claims::ClaimKeeper`]); if PostgreSQL cannot be reached for that, the
//! release is tried again until the claim has expired.

mod claims;
mod group;
mod groups;
mod look_ups;
mod queue;
mod singles_first;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::Clock;
use domain::malformed_intent::FailureCode;
use domain::outcome::Acceptance;
use domain::policy::Policy;
use domain::ports::{Activity, IdempotencyStore, KeyClaim, KeyCondition, Lookup, Submissions};
use domain::record::IdempotencyKey;
use domain::submission::{StoredResponse, Submission, SubmissionOutcome};
use futures_util::future::{join, join3, join4};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatcher;
use crate::health::Health;
use crate::metrics::{BATCH, HTTP, Metrics};
use crate::ports::Ports;
use crate::traces::{IntentSpan, Traces};
use claims::ClaimKeeper;
use groups::GroupLimits;
use queue::{FairQueue, KeyInProgress, SingleInProgress, SubmissionKind};
use singles_first::SinglesFirst;

/// The most submissions in one group.
pub(crate) const MAX_GROUP: usize = 256;
/// The most elements of batches in one group. It is small, so that a transaction with elements does not delay
/// one with single intents for long.
const MAX_ELEMENT_GROUP: usize = 128;
/// The most transactions of single intents at a time.
const MAX_CONCURRENT_GROUPS: usize = 4;
/// The most transactions of elements at a time.
const MAX_CONCURRENT_ELEMENT_GROUPS: usize = 2;
/// The longest time that the caller of a malformed intent waits for the check whether its key is in progress.
const IN_PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// The cause that the caller of a dropped submission receives.
const STOPPING: &str = "the service is stopping";

/// Accepts submissions.
pub struct SubmissionIntake<P: Ports> {
    /// The store that commits acceptance, and that contains stored responses.
    pub store: P::Store,
    /// The user directory.
    pub directory: P::Directory,
    /// The time of acceptance.
    pub clock: P::Clock,
    /// The random tokens for ids of notifications and for claims.
    pub tokens: P::Tokens,
    /// The configuration of acceptance.
    pub policy: Arc<Policy>,
    /// The dispatcher to the publishers of this replica.
    pub dispatcher: Dispatcher,
    /// The longest time for which a key is claimed: longer than a request takes.
    pub lock_ttl: Duration,
    /// Builds the response to the caller of an accepted intent.
    pub response: fn(&Acceptance) -> StoredResponse,
    /// The instruments.
    pub metrics: Metrics,
    /// The spans of intents.
    pub traces: Traces,
    /// The health of this worker.
    pub health: Health,
}

impl<P: Ports> fmt::Debug for SubmissionIntake<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmissionIntake").field("lock_ttl", &self.lock_ttl).finish_non_exhaustive()
    }
}

/// The sending side, for callers. Clones share the queue.
#[derive(Clone, Debug)]
pub struct SubmissionQueue {
    queue: FairQueue,
    questions: mpsc::Sender<Question>,
    metrics: Metrics,
    health: Health,
}

/// The receiving side, for the worker.
#[derive(Debug)]
pub struct SubmissionReceiver {
    queue: FairQueue,
    questions: mpsc::Receiver<Question>,
}

/// A query whether a request with this key is in progress, and for how long at most.
#[derive(Debug)]
struct Question {
    key: IdempotencyKey,
    reply: oneshot::Sender<Option<Duration>>,
}

/// Creates a queue of submissions, with its two sides. Malformed intents are counted in `metrics` and
/// `health`, which are those of the worker.
pub fn submission_queue(metrics: Metrics, health: Health) -> (SubmissionQueue, SubmissionReceiver) {
    let (queue, (asking, questions)) = (FairQueue::default(), mpsc::channel(MAX_GROUP));
    let receiver = SubmissionReceiver { queue: queue.clone(), questions };
    (SubmissionQueue { queue, questions: asking, metrics, health }, receiver)
}

impl Submissions for SubmissionQueue {
    async fn submit(&self, submission: Submission) -> SubmissionOutcome {
        let (reply, outcome) = oneshot::channel();
        let since = Instant::now();
        let single = submission.stores_response.then(|| self.queue.begin_single());
        let waiting = WaitingSubmission {
            submission,
            since,
            condition: None,
            users: None,
            reply,
            in_progress: None,
            _single: single,
        };
        if self.queue.push(waiting).await.is_err() {
            return SubmissionOutcome::Unavailable(STOPPING.to_owned());
        }
        outcome.await.unwrap_or_else(|_| SubmissionOutcome::Unavailable(STOPPING.to_owned()))
    }

    async fn time_in_progress(&self, key: &IdempotencyKey) -> Option<Duration> {
        if self.queue.is_in_progress(key) {
            return Some(Duration::ZERO);
        }
        let (reply, answer) = oneshot::channel();
        let asking = async {
            self.questions.send(Question { key: key.clone(), reply }).await.ok()?;
            answer.await.ok()?
        };
        timeout(IN_PROGRESS_TIMEOUT, asking).await.ok()?
    }

    fn count_malformed(&self, producer: &str, codes: &[FailureCode], is_batch: bool) {
        codes.iter().for_each(|code| self.metrics.malformed(producer, *code, 1));
        let count = codes.len() as u64;
        if count > 0 {
            let source = if is_batch { BATCH } else { HTTP };
            self.metrics.outcomes(source, &BTreeMap::from([(("malformed", "", producer), count)]));
            self.health.count_intents(producer, Activity { malformed: count, ..Activity::default() });
        }
    }
}

/// A submission and its caller.
#[derive(Debug)]
struct WaitingSubmission {
    submission: Submission,
    since: Instant,
    /// The condition on its key, under which its response is stored. `None` until the key is read or claimed,
    /// for an element of a batch, and if another intent has a stored response under the key.
    condition: Option<KeyCondition>,
    /// The lookup of each recipient; `None` until it is available.
    users: Option<HashMap<String, Lookup>>,
    reply: oneshot::Sender<SubmissionOutcome>,
    /// Keeps other submissions with its key waiting, from the time at which it is taken until it is decided
    /// or the key is claimed. After that, the others meet the claim.
    in_progress: Option<KeyInProgress>,
    /// Keeps elements of batches waiting, if this is a single intent.
    _single: Option<SingleInProgress>,
}

impl WaitingSubmission {
    fn key(&self) -> IdempotencyKey {
        self.submission.intent.key()
    }

    fn kind(&self) -> SubmissionKind {
        if self.submission.stores_response { SubmissionKind::Single } else { SubmissionKind::Element }
    }

    /// The label `source` of the submission.
    fn source(&self) -> &'static str {
        if self.submission.stores_response { HTTP } else { BATCH }
    }

    /// True if the caller has stopped waiting.
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

impl<P: Ports> SubmissionIntake<P> {
    /// Accepts submissions until `stop`, then those that were submitted before it.
    pub async fn run(self, receiver: SubmissionReceiver, stop: CancellationToken) {
        let SubmissionReceiver { queue, questions } = receiver;
        let (keeper, abandoned, outages) = ClaimKeeper::new();
        let singles_first = SinglesFirst::new(&queue);
        // Each stage ends when the one before it has ended, and the last ones end when the claims have no
        // keeper any more.
        let accepting = async {
            let (claimed, to_look_up) = mpsc::channel(MAX_GROUP);
            let (looked_up, to_accept) = mpsc::channel(MAX_GROUP);
            let (single, single_keeper) = (GroupLimits::SINGLE, keeper.clone());
            let singles = (
                self.claim(&queue, claimed, keeper.clone()),
                self.look_up(to_look_up, looked_up),
                self.accept(to_accept, single, single_keeper, None),
            );
            let (taken, to_look_up) = mpsc::channel(MAX_ELEMENT_GROUP);
            let (looked_up, to_accept) = mpsc::channel(MAX_ELEMENT_GROUP);
            let elements = (
                self.take_elements(&queue, taken),
                self.look_up(to_look_up, looked_up),
                self.accept(to_accept, GroupLimits::ELEMENTS, keeper, Some(&singles_first)),
            );
            join(join3(singles.0, singles.1, singles.2), join3(elements.0, elements.1, elements.2)).await
        };
        // Accepts submissions until the stop, or until there is no caller any more.
        let closing = async {
            stop.run_until_cancelled(self.answer_questions(questions)).await;
            queue.close();
        };
        let (abandoning, recovering) = (self.abandon(abandoned, &stop), self.notice_recovery(outages, &stop));
        join4(accepting, abandoning, recovering, closing).await;
    }

    /// Passes elements of batches on, until the queue is closed and empty.
    async fn take_elements(&self, queue: &FairQueue, taken: mpsc::Sender<WaitingSubmission>) {
        loop {
            let group = queue.take(SubmissionKind::Element, MAX_ELEMENT_GROUP).await;
            if group.is_empty() {
                return;
            }
            for waiting in group {
                drop(taken.send(waiting).await);
            }
        }
    }

    /// Reports which keys are in progress, on any replica. Without PostgreSQL, none is reported to be.
    async fn answer_questions(&self, mut questions: mpsc::Receiver<Question>) {
        let mut group = Vec::with_capacity(MAX_GROUP);
        while questions.recv_many(&mut group, MAX_GROUP).await > 0 {
            let keys: Vec<_> = group.iter().map(|question| (&question.key, "")).collect();
            let found = self.store.lookup_keys(&keys).await.unwrap_or_default();
            for (question, outcome) in group.drain(..).zip(found) {
                let time = match outcome {
                    Some(KeyClaim::Pending(time)) => Some(time),
                    _ => None,
                };
                // The caller may no longer wait for the response.
                let _ = question.reply.send(time);
            }
            group.clear();
        }
    }

    /// Sends the outcome of a submission to its caller, counts it, and releases the claim of one that was not
    /// accepted.
    fn respond(&self, waiting: WaitingSubmission, outcome: SubmissionOutcome, keeper: &ClaimKeeper) {
        let none = Activity::default();
        let counted = match &outcome {
            SubmissionOutcome::Accepted { .. } => Some(("accepted", Activity { accepted: 1, ..none })),
            SubmissionOutcome::Replayed(_) | SubmissionOutcome::Duplicate(_) => {
                Some(("duplicate", Activity { duplicates: 1, ..none }))
            }
            SubmissionOutcome::Conflict(_) => Some(("conflict", Activity { conflicts: 1, ..none })),
            SubmissionOutcome::Rejected(_) => Some(("malformed", Activity { malformed: 1, ..none })),
            SubmissionOutcome::InProgress(_) | SubmissionOutcome::Unavailable(_) => None,
        };
        if let Some((name, activity)) = counted {
            let intent = &waiting.submission.intent;
            let label = (name, intent.notification_type.as_str(), intent.producer.as_str());
            self.metrics.outcomes(waiting.source(), &BTreeMap::from([(label, 1)]));
            let code = match &outcome {
                SubmissionOutcome::Rejected(rejection) => Some(rejection.code),
                SubmissionOutcome::Conflict(_) => Some(FailureCode::IdempotencyConflict),
                _ => None,
            };
            if let Some(code) = code {
                self.metrics.malformed(&intent.producer, code, 1);
            }
            self.health.count_intents(&intent.producer, activity);
        }
        if self.traces.is_on() {
            self.trace(&waiting, &outcome);
        }
        let accepted = matches!(outcome, SubmissionOutcome::Accepted { .. });
        if let (Some(KeyCondition::Claimed(token)), false) = (waiting.condition, accepted) {
            keeper.give_up(waiting.key(), token);
        }
        // A caller that no longer waits receives the outcome when it repeats the request.
        drop(waiting.reply.send(outcome));
    }

    fn trace(&self, waiting: &WaitingSubmission, outcome: &SubmissionOutcome) {
        let (submission, now) = (&waiting.submission, self.clock.now());
        let (name, id) = match outcome {
            SubmissionOutcome::Accepted { notification_id, .. } => ("accepted", Some(notification_id)),
            SubmissionOutcome::Replayed(_) => ("duplicate", None),
            SubmissionOutcome::Duplicate(request) => ("duplicate", Some(&request.notification_id)),
            SubmissionOutcome::Conflict(notification_id) => ("conflict", Some(notification_id)),
            SubmissionOutcome::Rejected(_) => ("malformed", None),
            SubmissionOutcome::InProgress(_) => ("in_progress", None),
            SubmissionOutcome::Unavailable(_) => ("unavailable", None),
        };
        self.traces.intent(&IntentSpan {
            started: now - waiting.since.elapsed(),
            ended: now,
            source: waiting.source(),
            id: id.map(ToString::to_string),
            trace_id: &submission.intent.trace_id,
            request_trace: submission.request_trace,
            notification_type: &submission.intent.notification_type,
            outcome: name,
            failed: matches!(outcome, SubmissionOutcome::Unavailable(_)),
        });
    }
}

#[cfg(test)]
mod tests;
