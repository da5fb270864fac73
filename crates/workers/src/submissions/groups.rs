//! Accepts groups of submissions, each group in one transaction.
//!
//! While a transaction runs, further submissions gather for the next one. If a transaction takes long,
//! because it waits for a lock, the next one does not wait for it. A group that is refused, locked or too
//! slow is divided, and its parts are accepted separately.

use std::collections::VecDeque;
use std::time::Duration;

use domain::accept::Fate;
use domain::policy::Policy;
use domain::ports::{KeyCondition, error_chain};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::claims::ClaimKeeper;
use super::group::SubmissionGroup;
use super::singles_first::SinglesFirst;
use super::{
    MAX_CONCURRENT_ELEMENT_GROUPS, MAX_CONCURRENT_GROUPS, MAX_ELEMENT_GROUP, MAX_GROUP, SubmissionIntake,
    WaitingSubmission,
};
use crate::accept::{MAX_BATCH_COST, MAX_BATCH_ROUTES, accept};
use crate::ports::Ports;

/// The time after which the next group no longer waits for a running transaction.
const SLOW_GROUP: Duration = Duration::from_millis(100);

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

impl<P: Ports> SubmissionIntake<P> {
    /// Accepts submissions that have been looked up, until no more arrive. Each group first lets `singles`
    /// pass.
    pub(super) async fn accept(
        &self,
        mut looked_up: mpsc::Receiver<WaitingSubmission>,
        limits: GroupLimits,
        keeper: ClaimKeeper,
        singles: Option<&SinglesFirst>,
    ) {
        let mut queue: VecDeque<WaitingSubmission> = VecDeque::new();
        let mut divided: Vec<Vec<WaitingSubmission>> = Vec::new();
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
                biased;
                Some(parts) = running.next() => if let Some((left, right)) = parts {
                    divided.extend([right, left]);
                },
                count = looked_up.recv_many(&mut received, room), if open && room > 0 => {
                    open = count > 0;
                    queue.extend(received);
                }
                () = sleep_until(patient_until), if !queue.is_empty() && running.len() < limits.concurrent => {}
            }
        }
    }

    /// Accepts a group in one transaction, and responds to all of it. Returns its parts instead if they are
    /// to be accepted separately.
    async fn accept_group(
        &self,
        mut elements: Vec<WaitingSubmission>,
        keeper: &ClaimKeeper,
        singles: Option<&SinglesFirst>,
    ) -> Option<(Vec<WaitingSubmission>, Vec<WaitingSubmission>)> {
        if let Some(singles) = singles {
            singles.let_pass().await;
        }
        elements.retain(|element| {
            let abandoned = element.is_abandoned();
            if let (true, Some(KeyCondition::Claimed(token))) = (abandoned, element.condition) {
                keeper.give_up(element.key(), token);
            }
            !abandoned
        });
        if elements.is_empty() {
            // Nothing was sent to PostgreSQL, so its state is unknown.
            return None;
        }
        let mut group = SubmissionGroup::new(self, keeper, elements);
        let begun = Instant::now();
        let accepted = accept(&self.store, &mut group, false).await;
        if let Some(singles) = singles {
            singles.accepted(begun.elapsed());
        }
        match accepted {
            Ok(Fate::Committed) => group.respond().await,
            Ok(Fate::Divided) => return Some(group.divide()),
            // Only a batch of the stream has a checkpoint, and the engine ends each write conflict.
            Ok(Fate::KeyTaken | Fate::CheckpointMoved | Fate::WriteConflict) => {
                self.metrics.fenced(1);
                group.refuse("its claim expired before it could be accepted");
            }
            Ok(Fate::Waiting(cause)) => group.refuse(&cause),
            Err(error) => {
                self.mark_failed(&error, keeper);
                group.refuse(&error_chain(&error));
            }
        }
        None
    }
}

/// Takes as many of the first elements as fit into one transaction, at least one and up to `most`. No two
/// have the same key: see queue.rs.
fn cut_group(
    queue: &mut VecDeque<WaitingSubmission>,
    most: usize,
    policy: &Policy,
) -> Vec<WaitingSubmission> {
    let (mut cost, mut routes) = (0, 0);
    let mut group = Vec::new();
    while group.len() < most
        && let Some(element) = queue.pop_front()
    {
        let intent = &element.submission.intent;
        (cost, routes) = (cost + intent.cost(), routes + policy.route_count(intent));
        if !group.is_empty() && (cost > MAX_BATCH_COST || routes > MAX_BATCH_ROUTES) {
            queue.push_front(element);
            break;
        }
        group.push(element);
    }
    group
}
