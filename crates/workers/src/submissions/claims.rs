//! Claiming the keys of submissions, and giving claims up.

use std::collections::HashSet;
use std::time::Duration;

use ambient::{Clock, Tokens};
use domain::ports::{
    AcceptanceStore, AnswerClaim, AnswerStore, ClaimOutcome, ClaimToken, StoreError, UserDirectory,
    error_chain,
};
use domain::record::IdempotencyScope;
use domain::submission::SubmissionOutcome;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{MAX_GROUP, SubmissionIntake, Waiting};
use crate::passes::pause;

/// The most claims that wait to be given up. Those beyond it expire by themselves.
const MAX_ABANDONED: usize = 16_384;
/// From a failed attempt to give claims up to the next one.
const ABANDON_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// What a request is told to wait whose key another request of the same moment has.
const SAME_MOMENT_RETRY: Duration = Duration::from_secs(1);

/// Takes the claims that are to be given up. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ClaimKeeper(mpsc::Sender<(IdempotencyScope, ClaimToken)>);

/// The claims to be given up.
#[derive(Debug)]
pub(super) struct Abandoned(mpsc::Receiver<(IdempotencyScope, ClaimToken)>);

impl ClaimKeeper {
    pub(super) fn new() -> (Self, Abandoned) {
        let (sender, receiver) = mpsc::channel(MAX_ABANDONED);
        (Self(sender), Abandoned(receiver))
    }

    /// Gives a claim up, soon. If too many wait for that already, it expires by itself.
    pub(super) fn give_up(&self, scope: IdempotencyScope, token: ClaimToken) {
        drop(self.0.try_send((scope, token)));
    }
}

impl<A, D, C, T> SubmissionIntake<A, D, C, T>
where
    A: AcceptanceStore + AnswerStore,
    D: UserDirectory,
    C: Clock,
    T: Tokens,
{
    /// Claims the keys of what waits, group by group, until `stop` and until nothing waits any more.
    pub(super) async fn claim(
        &self,
        mut receiver: mpsc::Receiver<Waiting>,
        claimed: mpsc::Sender<Waiting>,
        keeper: ClaimKeeper,
        stop: &CancellationToken,
    ) {
        let mut group = Vec::with_capacity(MAX_GROUP);
        loop {
            let received = stop.run_until_cancelled(receiver.recv_many(&mut group, MAX_GROUP)).await;
            if received.is_none() {
                receiver.close();
                receiver.recv_many(&mut group, MAX_GROUP).await;
            }
            if group.is_empty() {
                return;
            }
            for waiting in self.claim_group(&mut group, &keeper).await {
                // The next stage ends after this one.
                drop(claimed.send(waiting).await);
            }
        }
    }

    /// Those of the group that may be accepted; the others are answered.
    async fn claim_group(&self, group: &mut Vec<Waiting>, keeper: &ClaimKeeper) -> Vec<Waiting> {
        let waiting = group.drain(..).filter(|waiting| !waiting.is_abandoned());
        let (mut claiming, mut admitted): (Vec<_>, Vec<_>) =
            waiting.partition(|waiting| waiting.submission.stores_answer);
        let mut scopes = HashSet::new();
        let repeated: Vec<_> = claiming.extract_if(.., |waiting| !scopes.insert(waiting.scope())).collect();
        for waiting in repeated {
            self.answer(waiting, SubmissionOutcome::InProgress(SAME_MOMENT_RETRY), keeper);
        }
        if claiming.is_empty() {
            return admitted;
        }
        for waiting in &mut claiming {
            waiting.claim = Some(ClaimToken(self.tokens.next()));
        }
        match self.claim_keys(&claiming).await {
            Ok(outcomes) => {
                self.health.mark_healthy();
                for (mut waiting, outcome) in claiming.into_iter().zip(outcomes) {
                    let answer = match outcome {
                        ClaimOutcome::Claimed => {
                            admitted.push(waiting);
                            continue;
                        }
                        // Another intent was answered: which one, and in what it differs, its record says.
                        ClaimOutcome::OtherIntent => {
                            waiting.claim = None;
                            admitted.push(waiting);
                            continue;
                        }
                        ClaimOutcome::InProgress(free_in) => SubmissionOutcome::InProgress(free_in),
                        ClaimOutcome::Answered(answer) => SubmissionOutcome::Replayed(answer),
                    };
                    waiting.claim = None;
                    self.answer(waiting, answer, keeper);
                }
            }
            Err(error) => {
                // Which keys were claimed is unknown: all are given up.
                self.health.mark_failed(&error);
                let cause = error_chain(&error);
                for waiting in claiming {
                    self.answer(waiting, SubmissionOutcome::Unavailable(cause.clone()), keeper);
                }
            }
        }
        admitted
    }

    async fn claim_keys(&self, claiming: &[Waiting]) -> Result<Vec<ClaimOutcome>, StoreError> {
        let scopes: Vec<IdempotencyScope> = claiming.iter().map(Waiting::scope).collect();
        let claims: Vec<AnswerClaim<'_>> = claiming
            .iter()
            .zip(&scopes)
            .filter_map(|(waiting, scope)| {
                let fingerprint = &waiting.submission.intent.fingerprint;
                waiting.claim.map(|token| AnswerClaim { scope, fingerprint, token })
            })
            .collect();
        self.store.claim_answers(&claims, self.lock_ttl).await
    }

    /// Gives claims up until there is no keeper any more. After `stop` a failure is final: the claims expire.
    pub(super) async fn abandon(&self, mut abandoned: Abandoned, stop: &CancellationToken) {
        let mut claims = Vec::with_capacity(MAX_GROUP);
        while abandoned.0.recv_many(&mut claims, MAX_GROUP).await > 0 {
            while let Err(error) = self.store.abandon_answers(&claims).await {
                tracing::debug!(
                    claims = claims.len(),
                    error = error_chain(&error),
                    "could not give up claims of idempotency keys; retrying"
                );
                if !pause(stop, ABANDON_RETRY_INTERVAL).await {
                    break;
                }
            }
            claims.clear();
        }
    }
}
