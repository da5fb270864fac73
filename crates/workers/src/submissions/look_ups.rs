//! Looks up the recipients of submissions, each separately.

use std::collections::HashMap;

use domain::ports::{Lookup, UserDirectory};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::{SubmissionIntake, WaitingSubmission};
use crate::ports::Ports;

/// The most submissions whose recipients are looked up at a time. Submissions that name the same user share
/// its lookup.
const MAX_LOOK_UPS: usize = 1_024;

impl<P: Ports> SubmissionIntake<P> {
    /// Passes each submission on when its lookup has ended, until no more arrive.
    pub(super) async fn look_up(
        &self,
        mut claimed: mpsc::Receiver<WaitingSubmission>,
        looked_up: mpsc::Sender<WaitingSubmission>,
    ) {
        let mut running = FuturesUnordered::new();
        let mut open = true;
        while open || !running.is_empty() {
            tokio::select! {
                biased;
                Some(found) = running.next() => drop(looked_up.send(found).await),
                waiting = claimed.recv(), if open && running.len() < MAX_LOOK_UPS => match waiting {
                    Some(waiting) => running.push(self.look_up_recipients(waiting)),
                    None => open = false,
                },
            }
        }
    }

    async fn look_up_recipients(&self, mut waiting: WaitingSubmission) -> WaitingSubmission {
        if waiting.users.is_some() {
            return waiting;
        }
        let ids: Vec<&str> = waiting.submission.intent.audience.users().iter().map(String::as_str).collect();
        let lookups = if ids.is_empty() { Vec::new() } else { self.directory.look_up(&ids).await };
        waiting.users = Some(ids.into_iter().map(str::to_owned).zip(lookups).collect());
        waiting
    }

    /// Returns the lookups of the recipients, if the directory can recall all of them without a request.
    pub(super) fn recall_recipients(&self, waiting: &WaitingSubmission) -> Option<HashMap<String, Lookup>> {
        let users = waiting.submission.intent.audience.users();
        if users.is_empty() {
            return Some(HashMap::new());
        }
        let ids: Vec<&str> = users.iter().map(String::as_str).collect();
        Some(users.iter().cloned().zip(self.directory.recall(&ids)?).collect())
    }
}
