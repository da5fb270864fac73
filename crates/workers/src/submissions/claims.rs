//! Reads and claims the keys of submissions, and releases claims.

use std::iter;
use std::time::Duration;

use ambient::Tokens;
use domain::ports::{
    AbandonOutcome, IdempotencyStore, KeyClaim, KeyClaimRequest, KeyClaimToken, KeyCondition, StoreError,
    error_chain,
};
use domain::record::IdempotencyKey;
use domain::submission::SubmissionOutcome;
use futures_util::future::join;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::queue::{FairQueue, SubmissionKind};
use super::{MAX_GROUP, SubmissionIntake, WaitingSubmission};
use crate::pause::pause;
use crate::ports::Ports;

/// The most claims that wait to be released. Further ones expire by themselves.
const MAX_ABANDONED: usize = 16_384;
/// The interval of attempts to release a claim.
const ABANDON_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The interval of queries whether PostgreSQL is available again.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which a claim whose outcome is unknown may still be on its way to PostgreSQL: longer than any
/// statement takes.
const CLAIM_ARRIVAL_TIMEOUT: Duration = Duration::from_secs(15);

/// Receives work that the stages leave for later: claims to be released, and outages whose end is to be
/// noticed. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct ClaimKeeper {
    abandoned: mpsc::Sender<ClaimToRelease>,
    outage: mpsc::Sender<()>,
}

/// The claims to be released.
#[derive(Debug)]
pub(super) struct Abandoned(mpsc::Receiver<ClaimToRelease>);

/// Receives a notification when PostgreSQL has failed.
#[derive(Debug)]
pub(super) struct Outages(mpsc::Receiver<()>);

/// A claim to be released.
#[derive(Debug)]
struct ClaimToRelease {
    key: IdempotencyKey,
    token: KeyClaimToken,
    since: Instant,
    /// True if it is unknown whether the claim was won. If it is not won yet, it may reach PostgreSQL after
    /// its release.
    is_unsure: bool,
}

impl ClaimKeeper {
    pub(super) fn new() -> (Self, Abandoned, Outages) {
        let (abandoned, claims) = mpsc::channel(MAX_ABANDONED);
        let (outage, outages) = mpsc::channel(1);
        (Self { abandoned, outage }, Abandoned(claims), Outages(outages))
    }

    /// Releases a claim soon. If too many claims wait for that, it expires by itself.
    pub(super) fn give_up(&self, key: IdempotencyKey, token: KeyClaimToken) {
        self.send(key, token, false);
    }

    fn send(&self, key: IdempotencyKey, token: KeyClaimToken, is_unsure: bool) {
        drop(self.abandoned.try_send(ClaimToRelease { key, token, since: Instant::now(), is_unsure }));
    }
}

impl ClaimToRelease {
    /// True if the release is tried again after `outcome`, which is `None` after a failure.
    fn is_retried(&self, outcome: Option<AbandonOutcome>, lock_ttl: Duration) -> bool {
        let at_most = match outcome {
            Some(AbandonOutcome::Applied) => return false,
            Some(AbandonOutcome::Fenced) if self.is_unsure => CLAIM_ARRIVAL_TIMEOUT,
            Some(AbandonOutcome::Fenced) => return false,
            // After that time the claim has expired.
            Some(AbandonOutcome::Busy) | None => lock_ttl,
        };
        self.since.elapsed() < at_most
    }
}

impl<P: Ports> SubmissionIntake<P> {
    /// Reads or claims the keys of single intents, group by group, until the queue is closed and empty.
    pub(super) async fn claim(
        &self,
        queue: &FairQueue,
        claimed: mpsc::Sender<WaitingSubmission>,
        keeper: ClaimKeeper,
    ) {
        loop {
            let guarded = queue.take(SubmissionKind::Single, MAX_GROUP).await;
            if guarded.is_empty() {
                return;
            }
            let (mut reading, mut claiming) = (Vec::new(), Vec::new());
            for mut waiting in guarded {
                waiting.users = self.recall_recipients(&waiting);
                if waiting.users.is_some() { reading.push(waiting) } else { claiming.push(waiting) }
            }
            let (read, won) =
                join(self.read_group(reading, &keeper), self.claim_group(claiming, &keeper)).await;
            for waiting in read.into_iter().chain(won) {
                drop(claimed.send(waiting).await);
            }
        }
    }

    /// Reads the keys of a group. Returns the submissions that may be accepted if their keys are still free
    /// then. Responds to the others.
    async fn read_group(
        &self,
        reading: Vec<WaitingSubmission>,
        keeper: &ClaimKeeper,
    ) -> Vec<WaitingSubmission> {
        if reading.is_empty() {
            return reading;
        }
        let keys: Vec<IdempotencyKey> = reading.iter().map(WaitingSubmission::key).collect();
        let fingerprints = reading.iter().map(|waiting| waiting.submission.intent.fingerprint.as_str());
        let lookups: Vec<_> = keys.iter().zip(fingerprints).collect();
        match self.store.lookup_keys(&lookups).await {
            Ok(found) => {
                let free = iter::repeat(KeyCondition::Free);
                self.admit(reading.into_iter().zip(free).zip(found), keeper)
            }
            Err(error) => {
                self.refuse(reading, &error, keeper);
                Vec::new()
            }
        }
    }

    /// Claims the keys of a group. Returns the submissions that may be accepted. Responds to the others.
    pub(super) async fn claim_group(
        &self,
        claiming: Vec<WaitingSubmission>,
        keeper: &ClaimKeeper,
    ) -> Vec<WaitingSubmission> {
        if claiming.is_empty() {
            return claiming;
        }
        let keys: Vec<IdempotencyKey> = claiming.iter().map(WaitingSubmission::key).collect();
        let request = |(waiting, key)| {
            let waiting: &WaitingSubmission = waiting;
            let fingerprint = &waiting.submission.intent.fingerprint;
            KeyClaimRequest { key, fingerprint, token: KeyClaimToken(self.tokens.next()) }
        };
        let requests: Vec<KeyClaimRequest<'_>> = claiming.iter().zip(&keys).map(request).collect();
        match self.store.claim_keys(&requests, self.lock_ttl).await {
            Ok(claims) => {
                let claimed = requests.iter().map(|request| KeyCondition::Claimed(request.token));
                let claimed: Vec<_> = claimed.collect();
                self.admit(claiming.into_iter().zip(claimed).zip(claims.into_iter().map(Some)), keeper)
            }
            Err(error) => {
                // It is unknown which keys were claimed, so all claims are released.
                for claim in &requests {
                    keeper.send(claim.key.clone(), claim.token, true);
                }
                self.refuse(claiming, &error, keeper);
                Vec::new()
            }
        }
    }

    /// Returns the submissions whose key is free or claimed now, under the given condition, and those whose
    /// record must be read. Responds to the others.
    fn admit(
        &self,
        group: impl Iterator<Item = ((WaitingSubmission, KeyCondition), Option<KeyClaim>)>,
        keeper: &ClaimKeeper,
    ) -> Vec<WaitingSubmission> {
        self.health.mark_healthy();
        let mut admitted = Vec::new();
        for ((mut waiting, condition), claim) in group {
            self.metrics.claimed(claim.as_ref().map_or("new", name), 1);
            waiting.condition = match claim {
                None => Some(condition),
                Some(KeyClaim::New) => {
                    waiting.in_progress = None;
                    Some(condition)
                }
                // Another intent has a stored response under this key. Its record shows which intent, and how
                // it differs.
                Some(KeyClaim::Conflict) => None,
                Some(KeyClaim::Pending(free_in)) => {
                    self.respond(waiting, SubmissionOutcome::InProgress(free_in), keeper);
                    continue;
                }
                Some(KeyClaim::Completed(response)) => {
                    self.respond(waiting, SubmissionOutcome::Replayed(response), keeper);
                    continue;
                }
            };
            admitted.push(waiting);
        }
        admitted
    }

    /// Marks the failure of PostgreSQL, and reports it to all callers of the group.
    fn refuse(&self, group: Vec<WaitingSubmission>, error: &StoreError, keeper: &ClaimKeeper) {
        self.mark_failed(error, keeper);
        self.metrics.claimed("failed", group.len() as u64);
        let cause = error_chain(error);
        for waiting in group {
            self.respond(waiting, SubmissionOutcome::Unavailable(cause.clone()), keeper);
        }
    }

    /// Logs the failure of PostgreSQL, and has its recovery noticed.
    pub(super) fn mark_failed(&self, error: &StoreError, keeper: &ClaimKeeper) {
        self.health.mark_failed(error);
        // One waiting notification is enough.
        let _ = keeper.outage.try_send(());
    }

    /// After a failure, queries PostgreSQL until it responds, because the next submission, which would show
    /// that, may be long in coming. Ends when there is no keeper any more.
    pub(super) async fn notice_recovery(&self, mut outages: Outages, stop: &CancellationToken) {
        while outages.0.recv().await.is_some() {
            while self.health.status().blocked.is_some() && pause(stop, RECOVERY_INTERVAL).await {
                if self.store.find_requests(&[]).await.is_ok() {
                    self.health.mark_healthy();
                }
            }
        }
    }

    /// Releases claims until there is no keeper any more. After `stop` no release is tried again: the
    /// remaining claims expire.
    pub(super) async fn abandon(&self, mut abandoned: Abandoned, stop: &CancellationToken) {
        let (mut failed, mut open, mut retry_at) = (Vec::new(), true, Instant::now());
        while open || !failed.is_empty() {
            let room = MAX_GROUP.min(MAX_ABANDONED.saturating_sub(failed.len()));
            let mut claims = Vec::new();
            // New claims do not cause another attempt with all that have failed.
            tokio::select! {
                biased;
                () = sleep_until(retry_at), if !failed.is_empty() => claims.append(&mut failed),
                count = abandoned.0.recv_many(&mut claims, room), if open && room > 0 => open = count > 0,
            }
            if stop.is_cancelled() {
                claims.append(&mut failed);
            }
            let retried = self.abandon_once(claims).await;
            if failed.is_empty() {
                retry_at = Instant::now() + ABANDON_RETRY_INTERVAL;
            }
            if !stop.is_cancelled() {
                failed.extend(retried);
            }
        }
    }

    /// Tries to release these claims. Returns those to try again.
    async fn abandon_once(&self, mut claims: Vec<ClaimToRelease>) -> Vec<ClaimToRelease> {
        let mut retried = Vec::new();
        while !claims.is_empty() {
            let later = claims.split_off(claims.len().min(MAX_GROUP));
            let ids: Vec<_> = claims.iter().map(|claim| (claim.key.clone(), claim.token)).collect();
            let outcomes = match self.store.abandon_keys(&ids).await {
                Ok(outcomes) => outcomes.into_iter().map(Some).collect(),
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::debug!(error, "could not give up claims of idempotency keys; retrying");
                    vec![None; claims.len()]
                }
            };
            let tried = claims.into_iter().zip(outcomes);
            let again = tried.filter(|(claim, outcome)| claim.is_retried(*outcome, self.lock_ttl));
            retried.extend(again.map(|(claim, _)| claim));
            claims = later;
        }
        retried
    }
}

/// The label `outcome` of a claim.
fn name(outcome: &KeyClaim) -> &'static str {
    match outcome {
        KeyClaim::New => "new",
        KeyClaim::Pending(_) => "pending",
        KeyClaim::Completed(_) => "completed",
        KeyClaim::Conflict => "conflict",
    }
}
